"""What a policy makes of steps: how likely it finds each action, and what it expects. Arrays [N, A, …] by group."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.nets.actor_critic import ActorCritic
from cadenza.nets.heads import BernoulliHead, CategoricalHead, GaussianHead, MultiCategoricalHead, SquashedHead
from cadenza.nets.q_network import QNetwork
from cadenza.nets.rssm import State
from cadenza.trees import map_tree
from cadenza.types import Mode, Step, Tree

Opinion = dict[str, np.ndarray]  # of: probs, mean, std, q, value, reward (expected by a world model)


@torch.inference_mode()
def opinions(workflow: Any, steps: Step, carry: Tree, mode: Mode) -> tuple[dict[str, Opinion], Tree]:
    """Of N steps of one episode that follow each other, from the memory before them; and the one behind them.

    `mode.forced` is what was done. All steps go through the networks at once, but for world models, whose memory is
    made of what they do.
    """
    if hasattr(workflow, "model") and hasattr(workflow, "behaviour"):
        return _dreamed(workflow, steps, carry, mode)
    if hasattr(workflow, "policies") and hasattr(workflow, "critics"):
        return {name: _soft(workflow, name, steps) for name in workflow.policies}, carry
    if hasattr(workflow, "tables"):
        return {name: _tabular(workflow.tables[name], steps, name) for name in workflow.tables}, carry
    found, after = {}, {}
    for name, net in getattr(workflow, "nets", {}).items():
        if isinstance(net, ActorCritic):
            found[name], after[name] = _judged(workflow, name, net, steps, carry[name])
        elif isinstance(net, QNetwork):
            values = net.means(net(workflow.observers[name](steps.obs[name])))
            found[name] = _valued(values, _mask(steps, name))
    return found, after


def reward_scale(workflow: Any, group: str) -> tuple[float, float]:
    """What rewards are divided by before values are learned of them, and where they are then cut off."""
    scale = getattr(workflow, "reward_scales", {}).get(group)
    return (1.0, math.inf) if scale is None else (float(torch.sqrt(scale.norm.var + 1e-8)), scale.clip)


def _judged(workflow: Any, name: str, net: ActorCritic, steps: Step, carry: Tree) -> tuple[Opinion, Tree]:
    """Time is the first axis and N is 1: so a memory goes from step to step."""
    obs = map_tree(lambda x: x[:, None], workflow.observers[name](steps.obs[name]))
    shape = steps.active[name].shape
    first = torch.from_numpy(steps.is_first)[:, None, None].expand(shape[0], 1, shape[1])
    views = getattr(workflow, "views", {})
    beside = map_tree(lambda x: x[:, None], views[name](steps.obs, steps.state)) if name in views else None
    judged = net(obs, carry, first, True, beside)
    value = judged.value[:, 0]
    if name in getattr(workflow, "value_scales", {}):
        value = workflow.value_scales[name].to_returns(value)
    found = _distribution(net.head, judged.output[:, 0], _mask(steps, name)) | {"value": _array(value.expand(shape))}
    return found, map_tree(lambda x: x[-1], judged.carries)


def _mask(steps: Step, name: str) -> Tensor | None:
    return torch.from_numpy(steps.mask[name]) if name in steps.mask else None


def _distribution(head: Any, output: Tensor, mask: Tensor | None) -> Opinion:
    """Of outputs [N, A, F]."""
    if isinstance(head, CategoricalHead):
        return {"probs": _array(head.log_probs(output, mask).exp())}
    if isinstance(head, MultiCategoricalHead):
        parts = [part.log_probs(own, allowed).exp() for part, own, allowed in head._columns(output, mask)]
        return {"probs": _array(torch.cat(parts, -1))}
    if isinstance(head, BernoulliHead):
        return {"probs": _array(torch.sigmoid(output))}
    if isinstance(head, GaussianHead):
        mean, log_std = head._normal(output)
        std = log_std.exp().expand(mean.shape)
        if isinstance(head, SquashedHead):  # the deviation as it is around the middle of the bounds
            mean, std = head.middle + head.reach * torch.tanh(mean), head.reach * std.clamp(max=1.0)
        return {"mean": _array(mean), "std": _array(std)}
    return {}


def _soft(workflow: Any, name: str, steps: Step) -> Opinion:
    policy, obs, mask = workflow.policies[name], workflow.observers[name](steps.obs[name]), _mask(steps, name)
    output = policy(obs)
    found = _distribution(policy.head, output, mask)
    if isinstance(policy.head, CategoricalHead):
        values = workflow.critics[name](obs, None).amin(0)
        expected = (values * torch.from_numpy(found["probs"])).sum(-1)
        return found | {"q": _array(values), "value": _array(expected)}
    action = policy.head.to_unit(policy.head.mode(output, mask))
    return found | {"value": _array(workflow.critics[name](obs, action).amin(0))}


def _tabular(table: Any, steps: Step, name: str) -> Opinion:
    values = np.asarray(table.mean_values(table.index(steps.obs[name])), np.float64)
    return _valued(torch.from_numpy(values), _mask(steps, name))


def _valued(values: Tensor, mask: Tensor | None) -> Opinion:
    """What actions are worth [N, A, F], and the best that is allowed."""
    allowed = values if mask is None else values.masked_fill(~mask, -torch.inf)
    return {"q": _array(values), "value": _array(allowed.amax(-1))}


def _dreamed(workflow: Any, steps: Step, carry: Tree, mode: Mode) -> tuple[dict[str, Opinion], Tree]:
    """One agent's: its states one after the other, what it makes of them at once."""
    states = []
    for n in range(len(steps.is_first)):
        forced = map_tree(lambda x, n=n: x[n : n + 1], mode.forced)
        carry = workflow.act(_one(steps, n), carry, replace(mode, forced=forced)).carry
        states.append(State(carry["deter"], carry["stoch"]).features())
    features, model = torch.stack(states), workflow.model  # [N, 1, F]
    found = {"reward": _array(model.reward.mean(model.reward(features)))}
    if workflow.behaviour is None:
        return {workflow.group: found}, carry
    actor, critic = workflow.behaviour.actor, workflow.behaviour.critic
    output = actor(features)
    found["value"] = _array(critic.mean(critic(features)))
    if workflow.actions.discrete:
        mask = _mask(steps, workflow.group)
        if mask is not None:  # as it acts, though its model knows nothing of masks
            output = output.masked_fill(~mask.to(output.device), torch.finfo(output.dtype).min).log_softmax(-1)
        return {workflow.group: found | {"probs": _array(output.exp())}}, carry
    std = output.chunk(2, -1)[1]
    if actor.kind == "tanh_normal":  # as it is around the middle of the bounds
        std = std.clamp(max=1.0)
    middle, reach = workflow.actions.middle, workflow.actions.reach
    found |= {"mean": _array(middle + reach * actor.mode(output)), "std": _array(reach * std)}
    return {workflow.group: found}, carry


def _one(steps: Step, n: int) -> Step:
    """The nth of them."""
    parts = {item.name: getattr(steps, item.name) for item in fields(steps)}
    return Step(**map_tree(lambda x: None if x is None else x[n : n + 1], parts))


def _array(x: Tensor) -> np.ndarray:
    return np.asarray(x.cpu().numpy(), np.float64)
