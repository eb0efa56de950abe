"""Behaviour learned in imagination (the losses of Dreamer v1, v2 and v3, one function each), and PlaNet's search.

Letters in shapes: H imagined steps, N states they start from, F features, A numbers of an encoded action, S of the
noise of a state. State t of an imagination is where action t is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cadenza.nets.actors import Actor, CategoricalActor
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.optimizers import in_parts
from cadenza.nets.rssm import RSSM, RSSMState
from cadenza.nets.rssm_scan import ImaginedWalk
from cadenza.nets.world_model import NumberHead, WorldModel, chunks, map_chunks
from cadenza.ops.planning import cem
from cadenza.ops.returns import lambda_return
from cadenza.types import Tree
from cadenza.workflows.dreamer_config import DreamerConfig
from cadenza.workflows.dreamer_model import SequenceBatch
from cadenza.workflows.parts import Estimator, both


@dataclass(frozen=True)
class Behaviour:
    """Actor and critic. The slow critic follows the critic; without one, it is the critic itself."""

    actor: Actor
    critic: NumberHead
    slow_critic: NumberHead
    return_scale: PercentileScale
    returns: Callable[..., Tensor] = lambda_return  # its arguments, to the returns of all states but the final one


class ImaginationNoise(NamedTuple):
    """All randomness of an imagination."""

    action: Tensor  # [H + 1, N, …]
    latent: Tensor  # [H, N, S]


class ImaginedSteps(NamedTuple):
    """States and the actions taken in them."""

    features: Tensor  # [H + 1, N, F], the start first
    action: Tensor  # [H + 1, N, A]; where the last one leads is not imagined


class Losses(NamedTuple):
    """Losses of actor and critic, and what is logged about them."""

    actor: Tensor
    critic: Tensor
    metrics: dict[str, Tensor]


def imagine(
    model: WorldModel, actor: Actor, start: RSSMState, noise: ImaginationNoise, gradients: bool, parts: int = 1
) -> ImaginedSteps:
    """Return what the policy would do from the states `start` [N, …], and where that would lead.

    The policy sees states without a gradient, so that with `gradients` they reach it through its actions alone, which
    are computed in `parts` parts of the N states.
    """
    if parts > 1 and gradients:

        def compute(part: Tree) -> dict[str, Tensor]:
            start = RSSMState(part["deter"][0], part["stoch"][0])
            return imagine(model, actor, start, ImaginationNoise(part["action"], part["latent"]), True)._asdict()

        inputs = {"deter": start.deter[None], "stoch": start.stoch[None], **noise._asdict()}
        return ImaginedSteps(**in_parts(compute, inputs, parts, dim=1))
    rssm: Any = model.rssm
    state: Any = start
    step = rssm.imagine_step
    with nullcontext() if gradients else torch.no_grad():
        if not gradients and isinstance(rssm, RSSM) and rssm.has_kernels(start):
            step = ImaginedWalk(rssm)
            state = step.begin(start)
        features, actions = [state.features()], []
        for t in range(len(noise.action)):
            actions.append(actor.sample(actor(features[t].detach()), noise.action[t]))
            if t < len(noise.latent):
                state = step(state, actions[t], noise.latent[t])
                features.append(state.features())
    if not gradients:
        torch.clear_autocast_cache()  # of weights that were rounded without a gradient
    return ImaginedSteps(torch.stack(features), torch.stack(actions))


def v3_losses(
    model: WorldModel,
    behaviour: Behaviour,
    batch: SequenceBatch,
    state: RSSMState,
    noise: ImaginationNoise,
    entropy_coef: Tensor,
    config: DreamerConfig,
) -> Losses:
    """Return the losses of Dreamer v3: REINFORCE for all actions, scaled returns, a critic over bins.

    `state` [T, B, …] are the posteriors. The critic also learns from the replayed rewards; that loss has a gradient
    for the world model.
    """
    actor, critic, slow_critic = behaviour.actor, behaviour.critic, behaviour.slow_critic
    imagined = imagine(model, actor, start_states(state.detach()), noise, gradients=False)
    features = imagined.features
    split = partial(in_parts, parts=config.accumulate, dim=1)
    outputs = [split(critic, part) for part in chunks(features[:-1])]
    with torch.no_grad():
        reward = model.reward.value(features)
        discount = map_chunks(model.discount, features)
        slow_value = slow_critic.value(features[:-1])
        value = torch.cat([*map(critic.mean, outputs), critic.value(features[-1:])])
    returns = behaviour.returns(reward, discount, value, value[-1], config.return_lambda)
    weight = discount.cumprod(0)[:-1]  # the probability that the episode goes on so far

    behaviour.return_scale.learn(returns)
    scale = behaviour.return_scale.spread()
    advantage = (returns - value[:-1]) / scale
    policy = map_chunks(partial(split, actor), features[:-1])
    entropy = actor.entropy(policy)
    objective = actor.log_prob(policy, imagined.action[:-1]) * advantage + entropy_coef * entropy
    actor_loss = -(weight * objective).mean()

    def critic_loss(outputs: Sequence[Tensor], target: Tensor, slow_value: Tensor) -> Tensor:
        targets = chunks(torch.stack([target, slow_value], -1))
        losses = torch.cat([critic.losses(*part) for part in zip(outputs, targets, strict=True)])
        return losses[..., 0] + config.slow_critic_weight * losses[..., 1]

    imagined_loss = (weight * critic_loss(outputs, returns, slow_value)).mean()
    metrics = {"actor_loss": actor_loss, "critic_loss": imagined_loss, "entropy": entropy.mean()}
    metrics |= {"imagined/reward": reward.mean(), "imagined/return": returns.mean(), "imagined/value": value.mean()}
    metrics["return_scale"] = scale
    total = imagined_loss
    if isinstance(config.replay_value_scale, Tensor) or config.replay_value_scale:  # a tensor is not read back
        replayed = state.features()
        slow_value = slow_critic.value(replayed[:-1])
        bootstrap = returns[0].view(batch.reward.shape)
        discount = config.gamma * (~batch.terminal).to(returns.dtype)
        steps = (batch.reward, discount, bootstrap)
        target = behaviour.returns(*steps, bootstrap[-1], config.return_lambda, batch.last)
        continues = (~batch.last[:-1]).to(returns.dtype)
        outputs = [split(critic, part) for part in chunks(replayed[:-1])]
        replayed_loss = (continues * critic_loss(outputs, target, slow_value)).mean()
        total = total + config.replay_value_scale * replayed_loss
        metrics["replay_critic_loss"] = replayed_loss
    return Losses(actor_loss, total, {name: value.detach() for name, value in metrics.items()})


def v2_losses(
    model: WorldModel,
    behaviour: Behaviour,
    batch: SequenceBatch,
    state: RSSMState,
    noise: ImaginationNoise,
    entropy_coef: Tensor,
    config: DreamerConfig,
) -> Losses:
    """Return the losses of Dreamer v2: REINFORCE against the slow critic, or gradients through the model.

    A state's value includes the reward for arriving there, so an action is judged by the target of where it leads.
    """
    actor, critic, slow_critic = behaviour.actor, behaviour.critic, behaviour.slow_critic
    dynamics = through_dynamics(config, actor)
    imagined = imagine(model, actor, start_states(state.detach()), noise, dynamics, config.accumulate)
    features, split = imagined.features, partial(in_parts, parts=config.accumulate, dim=1)
    with nullcontext() if dynamics else torch.no_grad():
        reward = split(lambda part: model.reward.mean(model.reward(part)), features)
        discount = split(model.discount, features)
        start_discount = config.gamma * (~batch.terminal).flatten().to(discount.dtype)  # recorded, not predicted
        discount = torch.cat([start_discount.unsqueeze(0), discount[1:]])
        value = split(lambda part: slow_critic.mean(slow_critic(part)), features)
        target = arrival_returns(reward, discount, value, config.return_lambda, behaviour.returns)  # [H, N]
    weight = reach_weights(discount).detach()  # [H + 1, N]

    policy = split(actor, features[:-2].detach())
    entropy = actor.entropy(policy)
    if dynamics:
        objective = target[1:]
    else:
        advantage = (target[1:] - value[:-2]).detach()
        objective = actor.log_prob(policy, imagined.action[:-2].detach()) * advantage
    actor_loss = -(weight[:-2] * (objective + entropy_coef * entropy)).mean()
    critic_loss = (weight[:-1] * critic.loss(split(critic, features[:-1].detach()), target)).mean()
    return with_metrics(actor_loss, critic_loss, entropy, reward, target, value)


def v1_losses(
    model: WorldModel,
    behaviour: Behaviour,
    batch: SequenceBatch,
    state: RSSMState,
    noise: ImaginationNoise,
    entropy_coef: Tensor,
    config: DreamerConfig,
) -> Losses:
    """Return the losses of Dreamer v1: gradients of returns through the model, no slow critic, no entropy bonus.

    Returns begin at the first imagined state. A state's value includes the reward for arriving there. Starts at which
    an episode terminated do not count.
    """
    actor, critic = behaviour.actor, behaviour.critic
    imagined = imagine(model, actor, start_states(state.detach()), noise, True, config.accumulate)
    features, split = imagined.features[1:], partial(in_parts, parts=config.accumulate, dim=1)
    reward, discount = (
        split(lambda part: model.reward.mean(model.reward(part)), features),
        split(model.discount, features),
    )
    value = split(lambda part: critic.mean(critic(part)), features)
    target = arrival_returns(reward, discount, value, config.return_lambda, behaviour.returns)  # [H - 1, N]
    weight = reach_weights(discount)[:-1].detach() * (~batch.terminal).flatten().to(discount.dtype)
    with torch.no_grad():
        entropy = actor.entropy(actor(imagined.features[:-1]))
    actor_loss = -(weight * target).mean()
    critic_loss = (weight * critic.loss(split(critic, features[:-1].detach()), target)).mean()
    return with_metrics(actor_loss, critic_loss, entropy, reward, target, value)


LOSSES = {"v1": v1_losses, "v2": v2_losses, "v3": v3_losses}


def through_dynamics(config: DreamerConfig, actor: Actor) -> bool:
    """Return whether the policy learns by gradients through the model."""
    if config.actor_gradient == "auto":
        return not isinstance(actor, CategoricalActor)
    return config.actor_gradient == "dynamics"


def estimated_return(
    estimate: Estimator,
    reward: Tensor,
    cont: Tensor,
    value: Tensor,
    bootstrap: Tensor,
    lam: float,
    last: Tensor | None = None,
) -> Tensor:
    """Return the returns of an estimator of advantages, with the arguments of `lambda_return`.

    `bootstrap` must be `value[-1]`.
    """
    ends = torch.zeros_like(reward, dtype=torch.bool) if last is None else last
    advantage = estimate(reward[1:], value[:-1], value[1:], ends[1:], cont[1:], lam)
    return both(advantage, value[:-1])[1]


def arrival_returns(
    reward: Tensor, discount: Tensor, value: Tensor, lam: float, returns: Callable[..., Tensor] = lambda_return
) -> Tensor:
    """Return lambda-returns [T - 1, …] that include the reward for arriving at their state; inputs [T, …].

    R[t] = reward[t] + discount[t] * ((1 - lam) * value[t+1] + lam * R[t+1]).
    """

    def delay(x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:1]), x])

    return returns(delay(reward[:-1]), delay(discount[:-1]), delay(value[1:]), value[-1], lam)


def reach_weights(discount: Tensor) -> Tensor:
    """Return the product of the discounts [T, …] before each state; a state's discount is about what follows it."""
    return torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).cumprod(0)


def with_metrics(
    actor_loss: Tensor, critic_loss: Tensor, entropy: Tensor, reward: Tensor, target: Tensor, value: Tensor
) -> Losses:
    """Return the losses of v1 or v2 with their metrics."""
    metrics = {"actor_loss": actor_loss, "critic_loss": critic_loss, "entropy": entropy.mean()}
    metrics |= {"imagined/reward": reward.mean(), "imagined/return": target.mean(), "imagined/value": value.mean()}
    return Losses(actor_loss, critic_loss, {name: number.detach() for name, number in metrics.items()})


def start_states(state: RSSMState) -> RSSMState:
    """Return the states [T, B, …] as [T * B, …]: an imagination starts from each of them."""
    return RSSMState(state.deter.flatten(0, 1), state.stoch.flatten(0, 1))


def plan(
    model: WorldModel,
    state: RSSMState,
    action_noise: Tensor,
    latent_noise: Tensor,
    config: DreamerConfig,
    planner: Callable[..., tuple[Tensor, Tensor]] = cem,
) -> Tensor:
    """Return the first action [N, A] of the plan with the greatest sum of predicted rewards, as PlaNet searches it.

    `action_noise` [I, N, P, H, A] is for I iterations of P plans each. `latent_noise` [H, N, S] is the same for all
    plans: with noise of their own, the lucky ones would be mistaken for the good ones.
    """
    _, envs, plans, horizon, size = action_noise.shape
    start = RSSMState(*(part.repeat_interleave(plans, 0) for part in state))
    noise = latent_noise.repeat_interleave(plans, 1)

    def score(actions: Tensor) -> Tensor:
        """Return the predicted rewards [N, P] of plans [N, P, H, A]."""
        state, total = start, torch.zeros(envs * plans, device=actions.device)
        for t in range(horizon):
            state = model.rssm.imagine_step(state, actions[:, :, t].flatten(0, 1), noise[t])
            total = total + model.reward.mean(model.reward(state.features()))
        return total.view(envs, plans)

    mean = torch.zeros(envs, horizon, size, device=action_noise.device)
    best, _ = planner(score, mean, torch.ones_like(mean), action_noise, config.planning.elites)
    return best[:, 0]
