"""Plain Q networks run and differentiated in NumPy, as `plain.py` does it; `q_network.py` is the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from cadenza.nets.numpy.actor_critic_kernel import ACTIVATIONS, Array, Layers
from cadenza.nets.q_network import QNetwork, Stream
from cadenza.nets.torso import Encoder
from cadenza.ops.td import TDBatch


class PlainQ:
    """Writes gradients where the parameters' own are: to be made after these are settled in one vector."""

    def __init__(self, net: QNetwork) -> None:
        self.trunk = Layers(net.torso.mix)
        self.advantage = layers(net.advantage)
        self.value = None if net.value is None else layers(net.value)

    def __call__(self, vector: Array) -> Array:
        """[B, F] to [B, n]"""
        features = self.trunk(vector)
        values = self.advantage(features)
        if self.value is not None:
            values = values - values.mean(-1, keepdims=True) + self.value(features)
        return values

    def pull(self, flow: Array) -> None:
        """From the gradient by the last call's values to those of the parameters."""
        shared = bool(self.trunk.layers)
        if self.value is None:
            back = self.advantage.pull(flow, shared)
        else:
            back = self.advantage.pull(flow - flow.mean(-1, keepdims=True), shared)
            by_value = self.value.pull(flow.sum(-1, keepdims=True), shared)
            back = back + by_value if shared else back
        if shared:
            self.trunk.pull(back, further=False)


@np.errstate(all="ignore")  # who diverges is told by the checks of the run
def gradients(
    online: PlainQ, following: Array, batch: TDBatch, double: bool, squared: bool
) -> tuple[float, Array, Array]:
    """Leave the gradients of the loss with the parameters; the loss, the values and their errors [B, A].

    `following`: what the target network says of next_obs [B, A, n].
    """
    obs, next_obs, next_mask, action, reward, discount, weight = map(
        flat, (batch.obs, batch.next_obs, batch.next_mask, batch.action, batch.reward, batch.discount, batch.weight)
    )
    rows, following = np.arange(len(obs)), flat(following)
    judged = online(next_obs) if double else following
    best = (judged if next_mask is None else np.where(next_mask, judged, -np.inf)).argmax(-1)
    values = online(obs)
    value = values[rows, action]
    error = value - (reward + discount * following[rows, best])
    slope = 2 * error if squared else error.clip(-1, 1)
    each = error * error if squared else slope * (error - 0.5 * slope)
    flow = np.zeros_like(values)
    flow[rows, action] = slope * weight
    online.pull(flow)
    shape = batch.action.shape
    return float(each @ weight), value.reshape(shape), error.reshape(shape)


def flat(x: Array | None) -> Any:
    """The agents of each transition among the rows."""
    return None if x is None else x.reshape(-1, *x.shape[2:])


def plain_q(net: QNetwork, kernels: str) -> PlainQ | None:
    """The network by hand, where that is asked for and can be: vectors, layers known here, plain values."""
    if kernels != "numpy":
        return None
    if not isinstance(net.torso.encoder, Encoder) or net.torso.encoder.images or net.distribution != "none":
        return None
    streams = [net.advantage] if net.value is None else [net.advantage, net.value]
    modules = [*net.torso.mix, *(module for stream in streams for module in (*stream.layers, stream.activation))]
    if any(type(module) not in (nn.Linear, *ACTIVATIONS) for module in modules):
        return None
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in net.parameters()):
        return None
    return PlainQ(net)


def layers(stream: Stream) -> Layers:
    return Layers([module for layer in stream.layers for module in (layer, stream.activation)][:-1])
