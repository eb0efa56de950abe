"""SAC's networks computed and differentiated with NumPy, as `actor_critic_kernel.py` does for PPO.

The modules own the parameters; the reference are the losses of `workflows/sac.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import nn

from cadenza.nets.ensemble import Ensemble
from cadenza.nets.heads import LOG_2PI, CategoricalHead, SquashedHead
from cadenza.nets.numpy.actor_critic_kernel import EXAMPLES, Array, Layers, observes_vectors, spread, supports
from cadenza.nets.numpy.network import DenseLayer, Network, Scratch
from cadenza.nets.torso import Torso

LOG_2 = float(np.log(2))


class VectorTransitions(Protocol):
    """Transitions without images, arrays [B, A, …]."""

    @property
    def obs(self) -> Array: ...
    @property
    def action(self) -> Array: ...
    @property
    def reward(self) -> Array: ...
    @property
    def next_obs(self) -> Array: ...
    @property
    def goes_on(self) -> Array: ...  # weight of the value of next_obs
    @property
    def weight(self) -> Array: ...  # 1 where the agent acted, else 0


class Sample(NamedTuple):
    """Actions on the scale [-1, 1], with what their gradient needs."""

    action: Array
    log_prob: Array
    deviation: Array  # standard deviation times noise
    is_free: Array  # whether the log standard deviation is within its bounds


class SACKernel:
    """Acts, and computes gradients of both losses; it is made after the optimizers.

    Rows of arrays are the agents of all transitions.
    """

    def __init__(
        self, head: SquashedHead, actor: Iterable[nn.Module], critics: Ensemble, targets: Ensemble, trusts: str
    ) -> None:
        self.head, self.trusts = head, trusts
        self.middle, self.reach = head.middle.numpy(), head.reach.numpy()
        layers = list(actor)
        self.actor, self.policy = Layers(layers), Network(layers)
        self.critics, self.targets = members(critics), members(targets)
        for network in (*self.critics[1:], *self.targets):
            network.share(self.critics[0], with_outputs=network in self.targets)
        weight = critics.weights[0]
        self.inputs = Scratch(weight.shape[1], weight.dtype)

    def act(self, vector: Array, generator: np.random.Generator | None) -> Array:
        """Sample actions [N, A, …] for observations [N, A, F]; return the most likely ones without a generator."""
        output = self.actor(vector.reshape(-1, vector.shape[-1]))
        inner, log_std, _ = self._normal(output)
        if generator is not None:
            inner = inner + np.exp(log_std) * generator.standard_normal(inner.shape, np.float32)
        action: Array = self.middle + self.reach * np.tanh(inner)
        return action.reshape(*vector.shape[:-1], *self.head.shape)

    @np.errstate(all="ignore")  # divergence is reported by the checks of the run
    def draw(self, *drawn: tuple[Array, Array]) -> list[Sample]:
        """Draw actions for observations [B, A, F] with standard normal noise [B * A, actions].

        Several pairs of both share one pass through the policy.
        """
        observed, noise = [rows(obs) for obs, _ in drawn], np.concatenate([noise for _, noise in drawn])
        mean, log_std, is_free = self._normal(self.policy(np.concatenate(observed)))
        deviation = np.exp(log_std) * noise
        inner = mean + deviation
        size = np.abs(inner)  # the slope is even, and a logarithm of small numbers is faster than NumPy's `logaddexp`
        log_slope = 2 * (LOG_2 - size - np.log1p(np.exp(-2 * size)))
        log_prob = -(0.5 * (noise * noise + LOG_2PI) + log_std + log_slope).sum(-1)
        parts = (np.tanh(inner), log_prob, deviation, is_free)
        ends = np.cumsum([0, *map(len, observed)]).tolist()
        return [Sample(*(part[start:end] for part in parts)) for start, end in pairwise(ends)]

    @np.errstate(all="ignore")
    def critic_gradients(self, batch: VectorTransitions, temperature: float, sample: Sample) -> tuple[float, float]:
        """Set the critics' gradients to those of their loss; return the loss and the mean of their values.

        `sample` was drawn for the next observations.
        """
        share, inputs = shares(batch), self._inputs(rows(batch.next_obs), sample.action)
        next_value = np.min([target(inputs)[:, 0] for target in self.targets], 0)
        goal = rows(batch.reward) + rows(batch.goes_on) * (next_value - temperature * sample.log_prob)
        action = rows(batch.action)
        unit_action = (action.reshape(len(action), -1) - self.middle) / self.reach
        inputs = self._inputs(rows(batch.obs), unit_action)
        loss = mean = 0.0
        for critic in self.critics:
            value = critic(inputs)[:, 0]
            error = value - goal
            gradient = error * share
            critic.backward(gradient[:, None], to_input=False)
            loss += 0.5 * float(gradient @ error)
            mean += float(value @ share) / len(self.critics)
        return loss, mean

    @np.errstate(all="ignore")
    def policy_gradients(self, batch: VectorTransitions, temperature: float, sample: Sample) -> tuple[float, float]:
        """Set the policy's gradients to those of SAC's policy loss; return the loss and the policy's mean entropy.

        `sample` was the last to be drawn, for the observations. The critics' gradients stay as they are.
        """
        share = shares(batch)
        value, by_action = self._trusted_value(self._inputs(rows(batch.obs), sample.action), sample.action.shape[1])
        by_action *= -share[:, None]
        entropy_share = (temperature * share)[:, None]
        by_inner = by_action * (1 - sample.action * sample.action) + 2 * sample.action * entropy_share
        by_log_std = (by_inner * sample.deviation - entropy_share) * sample.is_free
        self.policy.backward(np.concatenate([by_inner, by_log_std], 1), to_input=False)
        return float((temperature * sample.log_prob - value) @ share), -float(sample.log_prob @ share)

    def _inputs(self, obs: Array, action: Array) -> Array:
        """Return the critics' inputs, which the next ones overwrite."""
        if self.inputs.rows != len(obs):
            self.inputs.resize(len(obs))
        inputs = self.inputs.array
        inputs[:, : obs.shape[1]], inputs[:, obs.shape[1] :] = obs, action
        return inputs

    def _trusted_value(self, inputs: Array, actions: int) -> tuple[Array, Array]:
        """Return the critics' lowest or mean value [B] for inputs [B, F], and its gradient by the last `actions`."""
        values, start = np.stack([critic(inputs)[:, 0] for critic in self.critics]), inputs.shape[1] - actions
        if self.trusts == "mean":
            every = np.arange(len(inputs))
            return values.mean(0), np.mean([critic.input_gradient(every, start) for critic in self.critics], 0)
        gradient, lowest = np.empty((len(inputs), actions), inputs.dtype), values.argmin(0)
        for index, critic in enumerate(self.critics):  # each only for the rows where it is the lowest
            where = np.flatnonzero(lowest == index)
            gradient[where] = critic.input_gradient(where, start)
        return values.min(0), gradient

    def _normal(self, output: Array) -> tuple[Array, Array, Array]:
        """Return mean, log standard deviation, and whether that is within its bounds."""
        half = output.shape[1] // 2
        mean, log_std = output[:, :half], output[:, half:]
        log_std = log_std + self.head.config.log_std_init
        bounded = log_std.clip(-20, 2)
        return mean, bounded, bounded == log_std


def members(ensemble: Ensemble) -> list[Network]:
    """Return the networks of an ensemble; for products this large, one by one is as fast as batched."""
    networks = []
    for index in range(len(ensemble.weights[0])):
        network = Network()
        for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
            if network.layers:
                network.layers[-1].append(ensemble.activation)
            assert weight.grad is not None
            assert bias.grad is not None
            gradients = weight.grad[index], bias.grad[index, 0]
            network.layers.append(DenseLayer(weight.detach()[index], bias.detach()[index, 0], *gradients))
        networks.append(network)
    return networks


def rows(x: Array) -> Array:
    """Return [B, A, …] as [B * A, …]."""
    return x.reshape(-1, *x.shape[2:])


def shares(batch: VectorTransitions) -> Array:
    """Return the weight of each row in a mean over the agents that acted."""
    weight = rows(batch.weight)
    return weight / max(float(weight.sum()), 1.0)


def sac_kernel(
    head: nn.Module,
    actor: Iterable[nn.Module],
    critics: Ensemble,
    targets: Ensemble,
    torsos: Iterable[Torso],
    trusts: str,
) -> SACKernel | None:
    """Return the kernel of a policy and its critics, or None where none supports them.

    There is none for images, torsos with layers, discrete actions, layer norm, dropout, other activations and CUDA.
    """
    if not isinstance(head, SquashedHead) or critics.scales or critics.dropout:
        return None
    if not all(observes_vectors(torso) and not len(torso.mix) for torso in torsos):
        return None
    layers = list(actor)
    is_supported = supports([*layers, critics.activation], *layers, critics)
    return SACKernel(head, layers, critics, targets, trusts) if is_supported else None


def example_batch(
    head: SquashedHead | CategoricalHead, features: int, numbers: np.random.Generator, agents: int
) -> dict[str, Any]:
    """Make up transitions, arrays [B, A, …], by name."""
    lead = (EXAMPLES, agents)
    if isinstance(head, CategoricalHead):
        action = np.floor(numbers.random(lead) * head.outputs) + head.start
    else:
        unit = 2 * numbers.random((*lead, len(head.middle))) - 1
        action = (head.middle.numpy() + head.reach.numpy() * unit).reshape(*lead, *head.shape)
    return {
        "action": action,
        "reward": spread(numbers, *lead),
        "goes_on": numbers.random(lead) * (numbers.random(lead) < 0.8),
        "weight": (numbers.random(lead) < 0.8).astype(np.float64),
        "obs": spread(numbers, *lead, features, reach=3.0),
        "next_obs": spread(numbers, *lead, features, reach=3.0),
        "mask": None,
        "next_mask": None,
    }
