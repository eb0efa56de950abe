"""What a policy makes of one step: how likely it finds each action, and what it expects. Arrays [A, …] by group."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.nets.actor_critic import ActorCritic
from cadenza.nets.heads import BernoulliHead, CategoricalHead, GaussianHead, MultiCategoricalHead, SquashedHead
from cadenza.nets.q_network import QNetwork
from cadenza.nets.rssm import State
from cadenza.trees import map_tree
from cadenza.types import Step, Tree

Opinion = dict[str, np.ndarray]  # of: probs, mean, std, q, value, reward (expected by a world model)


@torch.inference_mode()
def opinions(workflow: Any, step: Step, carry: Tree, after: Tree) -> dict[str, Opinion]:
    """Of a batch of one; `carry` is the policy's memory before the step, `after` the one behind it."""
    if hasattr(workflow, "model") and hasattr(workflow, "behaviour"):
        return {workflow.group: _dreamed(workflow, State(after["deter"], after["stoch"]))}
    if hasattr(workflow, "policies") and hasattr(workflow, "critics"):
        return {name: _soft(workflow, name, step) for name in workflow.policies}
    if hasattr(workflow, "tables"):
        return {name: _tabular(workflow.tables[name], step.obs[name]) for name in workflow.tables}
    found = {}
    for name, net in getattr(workflow, "nets", {}).items():
        if isinstance(net, ActorCritic):
            found[name] = _judged(workflow, name, net, step, carry)
        elif isinstance(net, QNetwork):
            values = net.means(net(workflow.observers[name](step.obs[name])))[0]
            found[name] = {"q": _array(values), "value": _array(values.amax(-1))}
    return found


def reward_scale(workflow: Any, group: str) -> tuple[float, float]:
    """What rewards are divided by before values are learned of them, and where they are then cut off."""
    scale = getattr(workflow, "reward_scales", {}).get(group)
    return (1.0, math.inf) if scale is None else (float(torch.sqrt(scale.norm.var + 1e-8)), scale.clip)


def _judged(workflow: Any, name: str, net: ActorCritic, step: Step, carry: Tree) -> Opinion:
    obs = map_tree(lambda x: x[None], workflow.observers[name](step.obs[name]))
    first = torch.from_numpy(step.is_first)[None, :, None].expand(1, *step.active[name].shape)
    views = getattr(workflow, "views", {})
    beside = map_tree(lambda x: x[None], views[name](step.obs, step.state)) if name in views else None
    judged = net(obs, carry.get(name, {}), first, False, beside)
    value = judged.value[0]
    if name in getattr(workflow, "value_scales", {}):
        value = workflow.value_scales[name].to_returns(value)
    mask = torch.from_numpy(step.mask[name]) if name in step.mask else None
    return _distribution(net.head, judged.output[0], mask) | {"value": _array(value.expand(step.active[name].shape)[0])}


def _distribution(head: Any, output: Tensor, mask: Tensor | None) -> Opinion:
    """Of outputs [1, A, F]."""
    if isinstance(head, CategoricalHead):
        return {"probs": _array(head.log_probs(output, mask).exp()[0])}
    if isinstance(head, MultiCategoricalHead):
        parts = [part.log_probs(own, allowed).exp() for part, own, allowed in head._columns(output, mask)]
        return {"probs": _array(torch.cat(parts, -1)[0])}
    if isinstance(head, BernoulliHead):
        return {"probs": _array(torch.sigmoid(output)[0])}
    if isinstance(head, GaussianHead):
        mean, log_std = head._normal(output)
        std = log_std.exp().expand(mean.shape)
        if isinstance(head, SquashedHead):  # the deviation as it is around the middle of the bounds
            mean, std = head.middle + head.reach * torch.tanh(mean), head.reach * std.clamp(max=1.0)
        return {"mean": _array(mean[0]), "std": _array(std[0])}
    return {}


def _soft(workflow: Any, name: str, step: Step) -> Opinion:
    policy, obs = workflow.policies[name], workflow.observers[name](step.obs[name])
    mask = torch.from_numpy(step.mask[name]) if name in step.mask else None
    output = policy(obs)
    found = _distribution(policy.head, output, mask)
    if isinstance(policy.head, CategoricalHead):
        values = workflow.critics[name](obs, None).amin(0)[0]
        expected = (values * torch.from_numpy(found["probs"])).sum(-1)
        return found | {"q": _array(values), "value": _array(expected)}
    action = policy.head.to_unit(policy.head.mode(output, mask))
    return found | {"value": _array(workflow.critics[name](obs, action).amin(0)[0])}


def _tabular(table: Any, obs: Tree) -> Opinion:
    values = np.asarray(table.mean_values(table.index(obs))[0], np.float64)
    return {"q": values, "value": values.max(-1)}


def _dreamed(workflow: Any, state: State) -> Opinion:
    features, model = state.features(), workflow.model
    found = {"reward": _array(model.reward.mean(model.reward(features)))}
    if workflow.behaviour is None:
        return found
    actor, critic = workflow.behaviour.actor, workflow.behaviour.critic
    output = actor(features)
    found["value"] = _array(critic.mean(critic(features)))
    if workflow.actions.discrete:
        return found | {"probs": _array(output.exp())}
    std = output.chunk(2, -1)[1]
    if actor.kind == "tanh_normal":  # as it is around the middle of the bounds
        std = std.clamp(max=1.0)
    middle, reach = workflow.actions.middle, workflow.actions.reach
    return found | {"mean": _array(middle + reach * actor.mode(output)), "std": _array(reach * std)}


def _array(x: Tensor) -> np.ndarray:
    return np.asarray(x.cpu().numpy(), np.float64)
