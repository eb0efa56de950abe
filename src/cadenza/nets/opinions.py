"""Predictions of networks for steps, as the arrays that `explain` returns. Shapes: N steps, A agents, n actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from cadenza.nets.actor_critic import ActorCritic
from cadenza.nets.heads import ActionHead
from cadenza.nets.normalisers import ValueScale
from cadenza.nets.observe import CriticView, Observer
from cadenza.trees import map_tree
from cadenza.types import Opinion, Step, Tree


def to_numpy(x: Tensor) -> np.ndarray:
    """Return a tensor as an array of float64."""
    return np.asarray(x.cpu().numpy(), np.float64)


def by_sequence(x: Tensor) -> np.ndarray:
    """Return a tensor [T, B, …] as an array [B, T, …]."""
    return np.asarray(x.transpose(0, 1).cpu().numpy())


def policy_opinion(head: ActionHead, output: Tensor, mask: Tensor | None, value: Tensor) -> Opinion:
    """Return the distribution of actions for the head's input [N, A, F], and values [N, A]."""
    summary = {name: to_numpy(x) for name, x in head.summary(output, mask).items()}
    return Opinion(**summary, value=to_numpy(value))


def q_opinion(values: Tensor, mask: Tensor | None) -> Opinion:
    """Return Q values [N, A, n], and the highest of the allowed actions as value."""
    allowed = values if mask is None else values.masked_fill(~mask, -torch.inf)
    return Opinion(q=to_numpy(values), value=to_numpy(allowed.amax(-1)))


@torch.inference_mode()
def actor_critic_opinions(
    nets: Mapping[str, ActorCritic],
    observers: Mapping[str, Observer],
    steps: Step,
    carry: Tree,
    views: Mapping[str, CriticView] = MappingProxyType({}),
    value_scales: Mapping[str, ValueScale] = MappingProxyType({}),
) -> tuple[dict[str, Opinion], Tree]:
    """Return policy and value of each group for consecutive steps of one episode, and the carry after them.

    The N steps become the time axis of a batch of one, so that a recurrent state passes from each to the next.
    """
    opinions, after = {}, {}
    for name, net in nets.items():
        device, shape = observers[name].device, steps.active[name].shape
        obs = map_tree(lambda x: x[:, None], observers[name](steps.obs[name]))
        first = torch.from_numpy(steps.is_first).to(device)[:, None, None].expand(shape[0], 1, shape[1])
        view = map_tree(lambda x: x[:, None], views[name](steps.obs, steps.state)) if name in views else None
        result = net(obs, carry[name], first, True, view)
        value = result.value[:, 0]
        if name in value_scales:
            value = value_scales[name].to_returns(value)
        mask = action_mask(steps, name, device)
        opinions[name] = policy_opinion(net.head, result.output[:, 0], mask, value.expand(shape))
        after[name] = map_tree(lambda x: x[-1], result.carries)
    return opinions, after


def action_mask(steps: Step, group: str, device: torch.device) -> Tensor | None:
    """Return which actions are allowed [N, A, n], or None where all are."""
    return torch.from_numpy(steps.mask[group]).to(device) if group in steps.mask else None


def single_steps(steps: Step) -> list[Step]:
    """Split N steps into steps of N = 1."""
    parts = {item.name: getattr(steps, item.name) for item in fields(steps)}

    def row(n: int) -> Step:
        return Step(**map_tree(lambda x: None if x is None else x[n : n + 1], parts))

    return [row(n) for n in range(len(steps.is_first))]
