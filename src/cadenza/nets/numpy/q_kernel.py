"""A Q network and its target computed and differentiated with NumPy, as `actor_critic_kernel.py` does for PPO.

The modules of `q_network.py` own the parameters; the reference is the loss of `workflows/dqn.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from cadenza.nets.numpy.actor_critic_kernel import (
    EXAMPLES,
    Array,
    Layers,
    fill_parameters,
    observes_vectors,
    spread,
    supports,
)
from cadenza.nets.q_network import QNetwork, Stream
from cadenza.ops.td import TDBatch


class QKernel:
    """Values of the network and of its target, and gradients of the TD loss, which it writes in place."""

    def __init__(self, net: QNetwork, target: QNetwork) -> None:
        self.online, self.target = QLayers(net), QLayers(target)

    def values(self, vector: Array) -> Array:
        """Return the Q values [*, n] for observations [*, F]."""
        return self.online(vector.reshape(-1, vector.shape[-1])).reshape(*vector.shape[:-1], -1)

    def target_values(self, vector: Array) -> Array:
        """Return the target network's values [*, n] for observations [*, F]."""
        return self.target(vector.reshape(-1, vector.shape[-1])).reshape(*vector.shape[:-1], -1)

    @np.errstate(all="ignore")  # divergence is reported by the checks of the run
    def gradients(self, batch: TDBatch, next_values: Array, double: bool, squared: bool) -> tuple[float, Array, Array]:
        """Set the parameters' gradients to those of the loss; return the loss, and values and TD errors [B, A].

        `next_values` [B, A, n] are the target network's for `next_obs`.
        """
        obs, next_obs, next_mask, action, reward, discount, weight = map(
            rows,
            (batch.obs, batch.next_obs, batch.next_mask, batch.action, batch.reward, batch.discount, batch.weight),
        )
        index, next_values = np.arange(len(obs)), rows(next_values)
        scores = self.online(next_obs) if double else next_values
        best = (scores if next_mask is None else np.where(next_mask, scores, -np.inf)).argmax(-1)
        values = self.online(obs)
        value = values[index, action]
        error = value - (reward + discount * next_values[index, best])
        slope = 2 * error if squared else error.clip(-1, 1)
        losses = error * error if squared else slope * (error - 0.5 * slope)
        gradient = np.zeros_like(values)
        gradient[index, action] = slope * weight
        self.online.backward(gradient)
        shape = batch.action.shape
        return float(losses @ weight), value.reshape(shape), error.reshape(shape)


class QLayers:
    """The layers of one Q network, dueling or not."""

    def __init__(self, net: QNetwork) -> None:
        self.trunk = Layers(net.torso.mix)
        self.advantage = Layers(modules(net.advantage))
        self.value = None if net.value is None else Layers(modules(net.value))

    def __call__(self, vector: Array) -> Array:
        """Return the Q values [B, n] for observations [B, F]."""
        features = self.trunk(vector)
        values = self.advantage(features)
        if self.value is not None:
            values = values - values.mean(-1, keepdims=True) + self.value(features)
        return values

    def backward(self, gradient: Array) -> None:
        """Set the parameters' gradients from that by the values [B, n] of the last call."""
        shared = bool(self.trunk.layers)
        if self.value is None:
            by_features = self.advantage.backward(gradient, shared)
        else:
            by_features = self.advantage.backward(gradient - gradient.mean(-1, keepdims=True), shared)
            by_value = self.value.backward(gradient.sum(-1, keepdims=True), shared)
            by_features = by_features + by_value if shared else by_features
        if shared:
            self.trunk.backward(by_features, to_input=False)


def rows(x: Array | None) -> Any:
    """Return [B, A, …] as [B * A, …]."""
    return None if x is None else x.reshape(-1, *x.shape[2:])


def modules(stream: Stream) -> list[nn.Module]:
    """Return the layers of a stream, with an activation after each but the last."""
    return [module for layer in stream.layers for module in (layer, stream.activation)][:-1]


def q_kernel(net: QNetwork, target: QNetwork) -> QKernel | None:
    """Return the kernel of a network and its target, or None where none supports them.

    There is none for images, noisy layers, distributions, other activations and CUDA.
    """
    if not observes_vectors(net.torso) or net.distribution != "none":
        return None
    streams = [net.advantage] if net.value is None else [net.advantage, net.value]
    if not all(isinstance(stream, Stream) for stream in streams):  # a network of the user's
        return None
    layers = [*net.torso.mix, *(module for stream in streams for module in (*stream.layers, stream.activation))]
    return QKernel(net, target) if supports(layers, net) else None


def example_batch(net: QNetwork, target: QNetwork, numbers: np.random.Generator, agents: int) -> TDBatch:
    """Make up the networks' parameters and a batch of arrays in double precision, with vectors as observations."""
    fill_parameters(numbers, net, target)
    lead, features = (EXAMPLES, agents), net.torso.encoder.features
    next_mask = numbers.random((*lead, net.actions)) < 0.7
    next_mask[..., 0] = True
    weight = (numbers.random(lead) < 0.8) / EXAMPLES
    return TDBatch(
        obs=spread(numbers, *lead, features, reach=3.0),
        action=(numbers.random(lead) * net.actions).astype(np.int64),
        reward=spread(numbers, *lead),
        next_obs=spread(numbers, *lead, features, reach=3.0),
        next_mask=next_mask,
        discount=numbers.random(lead) * (numbers.random(lead) < 0.8),
        share=weight,
        weight=weight * (0.5 + numbers.random(lead)),
    )
