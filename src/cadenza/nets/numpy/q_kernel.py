"""A Q network and its target computed and differentiated with NumPy, as `actor_critic_kernel.py` does for PPO.

The modules of `q_network.py` own the parameters; the reference is the loss of `workflows/dqn.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

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
from cadenza.nets.numpy.network import Network
from cadenza.nets.q_network import QNetwork, Stream
from cadenza.ops.td import TDBatch


class TDFigures(NamedTuple):
    """The figures of a gradient step."""

    loss: float
    q_mean: float
    td_error: float  # mean of the absolute errors
    errors: Array  # [B * A] absolute ones


class QKernel:
    """Values of the network and of its target, and gradients of the TD loss, which it writes in place."""

    def __init__(self, net: QNetwork, target: QNetwork) -> None:
        self.actor, self.online, self.target = QLayers(net, Layers), QLayers(net), QLayers(target)

    def values(self, vector: Array) -> Array:
        """Return the Q values [*, n] for observations [*, F], which the next call may overwrite."""
        return self.actor(vector.reshape(-1, vector.shape[-1])).reshape(*vector.shape[:-1], -1)

    def gradients(self, batch: TDBatch, calls: int, double: bool, squared: bool) -> Iterator[TDFigures]:
        """Set the parameters' gradients to those of the loss, for each of `calls` equal parts of a batch in turn.

        The network may change in between, its target does not.
        """
        obs, next_obs, next_mask, action, reward, discount, share, weight = map(
            rows,
            (
                batch.obs,
                batch.next_obs,
                batch.next_mask,
                batch.action,
                batch.reward,
                batch.discount,
                batch.share,
                batch.weight,
            ),
        )
        next_values = self.target(next_obs)
        size, actions = len(obs) // calls, next_values.shape[1]
        # of the action's value among those of its part; actions of idle agents may be outside of the space
        entry = np.arange(len(obs)) % size * actions + action % actions

        def goals(scores: Array, part: slice) -> Array:
            allowed = scores if next_mask is None else np.where(next_mask[part], scores, -np.inf)
            best = allowed.argmax(-1)[:, None]
            following = np.take_along_axis(next_values[part], best, 1)[:, 0]
            return reward[part] + discount[part] * following  # type: ignore[no-any-return]

        every = None if double else goals(next_values, slice(None))
        for start in range(0, len(obs), size):
            part = slice(start, start + size)
            with np.errstate(all="ignore"):  # divergence is reported by the checks of the run
                goal = goals(self.online(next_obs[part]), part) if every is None else every[part]
                values = self.online(obs[part])
                value = values.take(entry[part])
                error = value - goal
                slope = 2 * error if squared else np.minimum(np.maximum(error, -1), 1)
                losses = error * error if squared else slope * (error - 0.5 * slope)
                gradient = np.zeros_like(values)
                gradient.put(entry[part], slope * weight[part])
                self.online.backward(gradient)
                size_of_error = np.abs(error)
                loss, q_mean = float(losses @ weight[part]), float(value @ share[part])
                figures = TDFigures(loss, q_mean, float(size_of_error @ share[part]), size_of_error)
            yield figures


class QLayers:
    """The layers of one Q network, dueling or not."""

    def __init__(self, net: QNetwork, kind: type[Layers | Network] = Network) -> None:
        self.trunk = kind(net.torso.mix)
        self.advantage = kind(modules(net.advantage))
        self.value = None if net.value is None else kind(modules(net.value))

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
