"""SAC's plain networks run and differentiated in NumPy, as `plain.py` does it; `workflows/sac.py` is the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from cadenza.nets.ensemble import Ensemble
from cadenza.nets.heads import LOG_2PI, SquashedHead
from cadenza.nets.mlp import MLP
from cadenza.nets.numpy.actor_critic_kernel import ACTIVATIONS, Array, Layer, Layers
from cadenza.nets.observe import VECTOR
from cadenza.nets.torso import Encoder, Torso

if TYPE_CHECKING:
    from cadenza.workflows.sac import Batch, Critics, Policy


class Drawn(NamedTuple):
    """Actions on the unit scale and their log-probability, with what they were drawn from."""

    action: Array
    log_prob: Array
    spread: Array  # standard deviation times noise
    free: Array  # where the deviation is within its bounds, so that it can move


class PlainSAC:
    """Writes gradients where the parameters' own are: to be made after these are settled in one vector.

    Rows are transitions, the agents of each among them.
    """

    def __init__(self, policy: Policy, critics: Critics, targets: Critics, trusts: str) -> None:
        assert isinstance(policy.head, SquashedHead)
        assert isinstance(policy.actor, MLP)
        self.head, self.trusts = policy.head, trusts
        self.middle, self.reach = policy.head.middle.numpy(), policy.head.reach.numpy()
        self.policy = Layers(policy.actor)
        self.critics, self.targets = members(critics.critics), members(targets.critics)

    def act(self, vector: Array, draw: np.random.Generator | None) -> Array:
        """Actions [N, A, …] for observations [N, A, F], drawn at random or the most likely ones."""
        output = self.policy(vector.reshape(-1, vector.shape[-1]))
        inner, log_std, _ = self._normal(output)
        if draw is not None:
            inner = inner + np.exp(log_std) * draw.standard_normal(inner.shape, np.float32)
        action: Array = self.middle + self.reach * np.tanh(inner)
        return action.reshape(*vector.shape[:-1], *self.head.shape)

    @np.errstate(all="ignore")  # who diverges is told by the checks of the run
    def critic_gradients(self, batch: Batch, temperature: float, noise: Array) -> tuple[float, float]:
        """Leave the gradients of the critics' loss with their parameters; the loss, and the mean of the values."""
        next_obs, share = rows(batch.next_obs[VECTOR]), shares(batch)
        drawn = self._draw(next_obs, noise)
        following = in_one([next_obs, drawn.action])
        worth = np.min([target(following)[:, 0] for target in self.targets], 0)
        goal = rows(batch.reward) + rows(batch.goes_on) * (worth - np.float32(temperature) * drawn.log_prob)
        action = rows(batch.action)
        seen = in_one([rows(batch.obs[VECTOR]), (action.reshape(len(action), -1) - self.middle) / self.reach])
        loss = mean = 0.0
        for critic in self.critics:
            value = critic(seen)[:, 0]
            error = value - goal
            pushed = error * share
            critic.pull(pushed[:, None], further=False)
            loss += 0.5 * float(pushed @ error)
            mean += float(value @ share) / len(self.critics)
        return loss, mean

    @np.errstate(all="ignore")
    def policy_gradients(self, batch: Batch, temperature: float, noise: Array) -> tuple[float, float]:
        """Leave the gradients of the policy's loss with its parameters; the loss, and the policy's entropy."""
        obs, share, heat = rows(batch.obs[VECTOR]), shares(batch), np.float32(temperature)
        drawn = self._draw(obs, noise)
        seen = in_one([obs, drawn.action])
        values = np.stack([critic(seen)[:, 0] for critic in self.critics])
        climb = np.empty_like(seen)  # how the trusted value changes with what the critics see
        if self.trusts == "min":
            lowest = values.argmin(0)
            value = values.min(0)
            for index, critic in enumerate(self.critics):  # only the one that counts is asked
                mine = np.flatnonzero(lowest == index)
                climb[mine] = critic.climb(mine)
        else:
            value = values.mean(0)
            everyone = np.arange(len(seen))
            climb[:] = np.mean([critic.climb(everyone) for critic in self.critics], 0)
        by_action = climb[:, obs.shape[1] :] * -share[:, None]
        entropy_share = (heat * share)[:, None]
        by_inner = by_action * (1 - drawn.action * drawn.action) + 2 * drawn.action * entropy_share
        by_log_std = (by_inner * drawn.spread - entropy_share) * drawn.free
        self.policy.pull(np.concatenate([by_inner, by_log_std], 1), further=False)
        return float((heat * drawn.log_prob - value) @ share), -float(drawn.log_prob @ share)

    def _normal(self, output: Array) -> tuple[Array, Array, Array]:
        """(mean, log standard deviation, where that is within its bounds)"""
        mean, log_std = np.split(output, 2, -1)
        log_std = log_std + np.float32(self.head.config.log_std_init)
        held = log_std.clip(-20, 2)
        return mean, held, held == log_std

    def _draw(self, obs: Array, noise: Array) -> Drawn:
        mean, log_std, free = self._normal(self.policy(obs))
        spread = np.exp(log_std) * noise
        inner = mean + spread
        log_slope = 2 * (np.float32(np.log(2)) - inner - np.logaddexp(np.float32(0), -2 * inner))
        log_prob = -(0.5 * (noise * noise + np.float32(LOG_2PI)) + log_std + log_slope).sum(-1)
        return Drawn(np.tanh(inner), log_prob, spread, free)


def members(ensemble: Ensemble) -> list[Layers]:
    """Its networks one by one: large products gain nothing from being done together."""
    made = []
    for index in range(len(ensemble.weights[0])):
        layers = Layers()
        for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
            if layers.layers:
                layers.activate_with(ensemble.activation)
            assert weight.grad is not None
            assert bias.grad is not None
            values = weight.detach().numpy()[index], bias.detach().numpy()[index, 0]
            layers.layers.append(Layer(*values, weight.grad.numpy()[index], bias.grad.numpy()[index, 0]))
        made.append(layers)
    return made


def rows(x: torch.Tensor) -> Array:
    return x.numpy().reshape(-1, *x.shape[2:])


def shares(batch: Batch) -> Array:
    """What each row counts in a mean over those who acted."""
    weight = rows(batch.weight)
    return weight / max(float(weight.sum()), 1.0)


def in_one(parts: list[Array]) -> Array:
    return np.concatenate(parts, 1)


def plain_sac(policy: Policy, critics: Critics, targets: Critics, trusts: str, kernels: str) -> PlainSAC | None:
    """By hand, where that is asked for and can be: vectors, continuous actions, layers known here."""
    if kernels != "numpy" or not isinstance(policy.head, SquashedHead):
        return None
    if not isinstance(policy.actor, MLP) or not all(bare(net.torso) for net in (policy, critics)):
        return None
    ensemble = critics.critics
    known: tuple[Any, ...] = (nn.Linear, *ACTIVATIONS)
    if any(type(layer) not in known for layer in policy.actor) or type(ensemble.activation) not in known:
        return None
    if ensemble.scales or ensemble.dropout:
        return None
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for net in (policy, critics) for p in net.parameters()):
        return None
    return PlainSAC(policy, critics, targets, trusts)


def bare(torso: Torso) -> bool:
    """Whether its features are the vector that was observed."""
    return isinstance(torso.encoder, Encoder) and not torso.encoder.images and not len(torso.mix)
