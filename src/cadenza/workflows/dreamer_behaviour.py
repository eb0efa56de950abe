"""Behaviour in imagination: the losses of Dreamer v1, v2 and v3, a function each, and PlaNet's search.

Letters in shapes: H imagined steps, N states they start from. State t of an imagination is where action t is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.nets.actors import Actor, CategoricalActor
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.rssm import RSSMState
from cadenza.nets.world_model import NumberHead, WorldModel, chunks, map_chunks
from cadenza.ops.planning import cem
from cadenza.ops.returns import lambda_return
from cadenza.workflows.dreamer_config import DreamerConfig
from cadenza.workflows.dreamer_model import Batch


@dataclass(frozen=True)
class Behaviour:
    """What acts and what judges; the slow critic follows the critic (and is it, where there is none)."""

    actor: Actor
    critic: NumberHead
    slow: NumberHead
    scale: PercentileScale


class Noise(NamedTuple):
    action: Tensor  # [H + 1, N, …]
    latent: Tensor  # [H, N, S]


class Imagined(NamedTuple):
    features: Tensor  # [H + 1, N, F], the start first
    action: Tensor  # [H + 1, N, A], the last leads nowhere any more


class Losses(NamedTuple):
    actor: Tensor
    critic: Tensor
    metrics: dict[str, Tensor]


def imagine(model: WorldModel, actor: Actor, start: RSSMState, noise: Noise, gradients: bool) -> Imagined:
    """What the policy would do from these states on, and where that would lead.

    The policy sees states without a gradient, so that with `gradients` they reach it through its actions alone.
    """
    state, features, actions = start, [start.features()], []
    with nullcontext() if gradients else torch.no_grad():
        for t in range(len(noise.action)):
            actions.append(actor.sample(actor(features[t].detach()), noise.action[t]))
            if t < len(noise.latent):
                state = model.rssm.imagine_step(state, actions[t], noise.latent[t])
                features.append(state.features())
    return Imagined(torch.stack(features), torch.stack(actions))


def v3_losses(
    model: WorldModel,
    behaviour: Behaviour,
    batch: Batch,
    state: RSSMState,
    noise: Noise,
    entropy_coef: Tensor,
    config: DreamerConfig,
) -> Losses:
    """Dreamer v3: REINFORCE for all actions, returns on a common scale, a critic over bins.

    `state` [T, B, …] are the posteriors. The critic's loss on what really happened teaches the world model, too.
    """
    actor, critic, slow = behaviour.actor, behaviour.critic, behaviour.slow
    imagined = imagine(model, actor, flat(state.detach()), noise, gradients=False)
    features = imagined.features
    judged = [critic(part) for part in chunks(features[:-1])]
    with torch.no_grad():
        reward, discount = model.reward.value(features), map_chunks(model.discount, features)
        slow_value = slow.value(features[:-1])
        value = torch.cat([*map(critic.mean, judged), critic.value(features[-1:])])
    returns = lambda_return(reward, discount, value, value[-1], config.return_lambda)
    weight = discount.cumprod(0)[:-1]  # how likely it is to get there

    behaviour.scale.learn(returns)
    scale = behaviour.scale.spread()
    advantage = (returns - value[:-1]) / scale
    policy = map_chunks(actor, features[:-1])
    entropy = actor.entropy(policy)
    gain = actor.log_prob(policy, imagined.action[:-1]) * advantage + entropy_coef * entropy
    actor_loss = -(weight * gain).mean()

    def critic_loss(judged: Sequence[Tensor], target: Tensor, slow_value: Tensor) -> Tensor:
        targets = chunks(torch.stack([target, slow_value], -1))
        losses = torch.cat([critic.losses(*part) for part in zip(judged, targets, strict=True)])
        return losses[..., 0] + config.slow_critic_weight * losses[..., 1]

    imagined_loss = (weight * critic_loss(judged, returns, slow_value)).mean()
    metrics = {"actor_loss": actor_loss, "critic_loss": imagined_loss, "entropy": entropy.mean()}
    metrics |= {"imagined/reward": reward.mean(), "imagined/return": returns.mean(), "imagined/value": value.mean()}
    metrics["return_scale"] = scale
    total = imagined_loss
    if config.replay_value_scale:
        seen = state.features()
        slow_seen = slow.value(seen[:-1])
        bootstrap = returns[0].view(batch.reward.shape)
        goes_on = config.gamma * (~batch.terminal).to(returns.dtype)
        target = lambda_return(batch.reward, goes_on, bootstrap, bootstrap[-1], config.return_lambda, batch.last)
        counts = (~batch.last[:-1]).to(returns.dtype)
        judged = [critic(part) for part in chunks(seen[:-1])]
        replayed = (counts * critic_loss(judged, target, slow_seen)).mean()
        total = total + config.replay_value_scale * replayed
        metrics["replay_critic_loss"] = replayed
    return Losses(actor_loss, total, {name: value.detach() for name, value in metrics.items()})


def v2_losses(
    model: WorldModel,
    behaviour: Behaviour,
    batch: Batch,
    state: RSSMState,
    noise: Noise,
    entropy_coef: Tensor,
    config: DreamerConfig,
) -> Losses:
    """Dreamer v2: REINFORCE against the slow critic, or gradients through the model.

    A state's value includes the reward for arriving there, so an action is judged by the target of where it leads.
    """
    actor, critic, slow = behaviour.actor, behaviour.critic, behaviour.slow
    dynamics = through_dynamics(config, actor)
    imagined = imagine(model, actor, flat(state.detach()), noise, gradients=dynamics)
    features = imagined.features
    with nullcontext() if dynamics else torch.no_grad():
        reward, discount = model.reward.mean(model.reward(features)), model.discount(features)
        known = config.gamma * (~batch.terminal).flatten().to(discount.dtype)  # of the start, nothing is predicted
        discount = torch.cat([known.unsqueeze(0), discount[1:]])
        value = slow.mean(slow(features))
        target = returns_with_own(reward, discount, value, config.return_lambda)  # [H, N]
    weight = shifted_product(discount).detach()  # [H + 1, N]

    policy = actor(features[:-2].detach())
    entropy = actor.entropy(policy)
    if dynamics:
        gain = target[1:]
    else:
        gain = actor.log_prob(policy, imagined.action[:-2].detach()) * (target[1:] - value[:-2]).detach()
    actor_loss = -(weight[:-2] * (gain + entropy_coef * entropy)).mean()
    critic_loss = (weight[:-1] * critic.loss(critic(features[:-1].detach()), target)).mean()
    return plain_losses(actor_loss, critic_loss, entropy, reward, target, value)


def v1_losses(
    model: WorldModel,
    behaviour: Behaviour,
    batch: Batch,
    state: RSSMState,
    noise: Noise,
    entropy_coef: Tensor,
    config: DreamerConfig,
) -> Losses:
    """Dreamer v1: returns climbed through the model, from the first imagined state on; no slow critic, no entropy.

    A state's value includes the reward for arriving there. Nothing is imagined after an end.
    """
    actor, critic = behaviour.actor, behaviour.critic
    imagined = imagine(model, actor, flat(state.detach()), noise, gradients=True)
    features = imagined.features[1:]
    reward, discount = model.reward.mean(model.reward(features)), model.discount(features)
    value = critic.mean(critic(features))
    target = returns_with_own(reward, discount, value, config.return_lambda)  # [H - 1, N]
    weight = shifted_product(discount)[:-1].detach() * (~batch.terminal).flatten().to(discount.dtype)
    with torch.no_grad():
        entropy = actor.entropy(actor(imagined.features[:-1]))
    critic_loss = (weight * critic.loss(critic(features[:-1].detach()), target)).mean()
    return plain_losses(-(weight * target).mean(), critic_loss, entropy, reward, target, value)


LOSSES = {"v1": v1_losses, "v2": v2_losses, "v3": v3_losses}


def through_dynamics(config: DreamerConfig, actor: Actor) -> bool:
    """Whether the policy learns by gradients through the model."""
    if config.actor_gradient == "auto":
        return not isinstance(actor, CategoricalActor)
    return config.actor_gradient == "dynamics"


def returns_with_own(reward: Tensor, discount: Tensor, value: Tensor, lam: float) -> Tensor:
    """[T, …] to [T - 1, …]: R[t] = reward[t] + discount[t] * ((1 - lam) * value[t+1] + lam * R[t+1])."""

    def delayed(x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:1]), x])

    return lambda_return(delayed(reward[:-1]), delayed(discount[:-1]), delayed(value[1:]), value[-1], lam)


def shifted_product(discount: Tensor) -> Tensor:
    """How likely it is to get to each state [T, …]: a state's discount is about what follows it, not about itself."""
    return torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).cumprod(0)


def plain_losses(
    actor_loss: Tensor, critic_loss: Tensor, entropy: Tensor, reward: Tensor, target: Tensor, value: Tensor
) -> Losses:
    metrics = {"actor_loss": actor_loss, "critic_loss": critic_loss, "entropy": entropy.mean()}
    metrics |= {"imagined/reward": reward.mean(), "imagined/return": target.mean(), "imagined/value": value.mean()}
    return Losses(actor_loss, critic_loss, {name: number.detach() for name, number in metrics.items()})


def flat(state: RSSMState) -> RSSMState:
    """[T, B, …] to [T B, …]: every state is one to start from."""
    return RSSMState(state.deter.flatten(0, 1), state.stoch.flatten(0, 1))


def plan(model: WorldModel, state: RSSMState, actions: Tensor, latents: Tensor, config: DreamerConfig) -> Tensor:
    """PlaNet: the first action [N, A] of the plan whose predicted rewards add up to most.

    Noise: `actions` [I, N, P, H, A] for I rounds of P plans each, `latents` [H, N, S], the same for all plans: if each
    had luck of its own, the lucky ones would be taken for the good ones.
    """
    _, envs, plans, horizon, size = actions.shape
    start = RSSMState(*(part.repeat_interleave(plans, 0) for part in state))
    luck = latents.repeat_interleave(plans, 1)

    def score(tried: Tensor) -> Tensor:
        now, total = start, torch.zeros(envs * plans, device=tried.device)
        for t in range(horizon):
            now = model.rssm.imagine_step(now, tried[:, :, t].flatten(0, 1), luck[t])
            total = total + model.reward.mean(model.reward(now.features()))
        return total.view(envs, plans)

    blank = torch.zeros(envs, horizon, size, device=actions.device)
    best, _ = cem(score, blank, torch.ones_like(blank), actions, config.planning.elites)
    return best[:, 0]
