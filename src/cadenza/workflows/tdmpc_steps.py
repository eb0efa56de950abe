"""TD-MPC on tensors alone: what teaches the model and the policy, and the search for an action.

Letters in shapes: H steps, B stretches of the replay, N environments, P plans, D numbers of an action.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cadenza.nets.latent_model import CriticEnsemble, LatentModel
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.observe import ObservationTensors
from cadenza.ops.planning import MPPIResult, mppi
from cadenza.trees import map_tree
from cadenza.workflows.tdmpc_config import TDMPCConfig


class Batch(NamedTuple):
    obs: ObservationTensors  # [H + 1, B, …]
    action: Tensor  # [H, B, D] between -1 and 1
    reward: Tensor  # [H, B]
    terminated: Tensor  # [H, B] 1: nothing follows
    taken: Tensor  # [H, B] 1, or 0 beyond the end of an episode
    weight: Tensor  # [B]


class Noise(NamedTuple):
    """All randomness of an update."""

    target: Tensor  # [H, B, D]
    policy: Tensor  # [H + 1, B, D]
    target_pair: Tensor  # [2] which critics
    policy_pair: Tensor  # [2]
    value_kept: Tensor | None = None  # [E, H B, units] which units of the critics are kept; None: all
    policy_kept: Tensor | None = None  # [2, (H + 1) B, units] and where the policy asks them


class Slow(NamedTuple):
    """What follows from behind."""

    critics: CriticEnsemble
    encoder: torch.nn.Module | None = None  # None: the encoder itself is asked


class ModelLoss(NamedTuple):
    loss: Tensor
    latents: Tensor  # [H + 1, B, latent] as the model unrolled them, without gradients
    error: Tensor  # [B] of the critics, what priorities are made of
    metrics: dict[str, Tensor]


def model_loss(
    model: LatentModel,
    slow: Slow,
    batch: Batch,
    noise: Noise,
    gamma: float,
    config: TDMPCConfig,
) -> ModelLoss:
    """The model is unrolled from what was seen first; states, rewards, ends and values are compared on the way."""
    steps = len(batch.action)
    later = map_tree(lambda x: x[1:], batch.obs)
    with torch.no_grad():
        online = model.encoder(later)
        wanted = online if slow.encoder is None else slow.encoder(later)
    latents = [model.encoder(map_tree(lambda x: x[0], batch.obs))]
    for action in batch.action:
        latents.append(model.step(latents[-1], action))
    unrolled = torch.stack(latents)
    before, after = unrolled[:-1], unrolled[1:]
    counts = config.rho ** torch.arange(steps, device=after.device)[:, None] * batch.taken

    def weighed(each: Tensor) -> Tensor:
        """Of losses [H, B] the mean over the batch and the steps, the later ones counting less."""
        return (counts * each * batch.weight).sum() / batch.taken.numel()

    inputs = torch.cat([before, batch.action], -1)
    losses = {
        "consistency": weighed((after - wanted).square().mean(-1)),
        "reward": weighed(model.numbers.loss(model.reward(inputs), batch.reward)),
    }
    target = td_target(model, slow, online, batch, noise, gamma)
    outputs = model.critics(inputs.flatten(0, 1), None, noise.value_kept)
    outputs = outputs.view(len(outputs), *batch.reward.shape, -1)  # [E, H, B, …]
    losses["value"] = weighed(model.numbers.loss(outputs, target.expand(outputs.shape[:-1])).mean(0))
    if model.ends is not None:
        logit = model.ends(after).squeeze(-1)
        each = functional.binary_cross_entropy_with_logits(logit, batch.terminated, reduction="none")
        losses["end"] = (each * batch.taken * batch.weight).mean()
    values = model.numbers.mean(outputs.detach())
    error = (counts * (values - target).abs().sum(0)).sum(0)
    metrics = {"q_mean": values.mean(), "target_mean": target.mean()}
    coefficients = {
        "consistency": config.consistency_coef,
        "reward": config.reward_coef,
        "value": config.value_coef,
        "end": config.end_coef,
    }
    loss = torch.stack([coefficients[name] * part for name, part in losses.items()]).sum()
    metrics |= {f"{name}_loss": part.detach() for name, part in losses.items()}
    return ModelLoss(loss, unrolled.detach(), error, {**metrics, "model_loss": loss.detach()})


@torch.no_grad()
def td_target(model: LatentModel, slow: Slow, following: Tensor, batch: Batch, noise: Noise, gamma: float) -> Tensor:
    """[H, B]: the reward, and what two slow critics agree on at least of what follows."""
    action, _ = model.policy(following, noise.target)
    value = model.values(slow.critics, following, action, noise.target_pair).amin(0)
    return batch.reward + gamma * (1 - batch.terminated) * value


def policy_loss(
    model: LatentModel,
    latents: Tensor,
    batch: Batch,
    noise: Noise,
    scale: PercentileScale | None,
    entropy_coef: Tensor,
    config: TDMPCConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy climbs the critics at the states that the model unrolled; `scale` takes in what it finds there."""
    action, log_prob = model.policy(latents, noise.policy)
    value = trusted(model.values(model.critics, latents, action, noise.policy_pair, noise.policy_kept), config)
    if scale is not None:
        scale.learn(value[0])
    entropy = -log_prob * action.shape[-1]
    climbed = (value if scale is None else value / scale.spread()) + entropy_coef * entropy
    reached = torch.cat([torch.ones_like(batch.taken[:1]), batch.taken])
    counts = config.rho ** torch.arange(len(latents), device=latents.device)[:, None] * reached
    loss = -(counts * climbed).mean()
    return loss, {
        "policy_loss": loss.detach(),
        "policy_value": value.detach().mean(),
        "entropy": -log_prob.detach().mean(),
    }


def trusted(values: Tensor, config: TDMPCConfig) -> Tensor:
    """Of two critics [2, *] to one number [*]."""
    return values.amin(0) if config.policy_trusts == "min" else values.mean(0)


# planning


class PlanNoise(NamedTuple):
    """All randomness of a plan: I rounds, G plans of the policy."""

    plans: Tensor  # [I, N, P - G, H, D]
    policy: Tensor  # [H, N, G, D]
    after: Tensor  # [I, N, P, D]
    pairs: Tensor  # [I, 2] which critics
    waiting: Tensor  # [N, elites] exponential


def plan(
    model: LatentModel,
    latent: Tensor,
    start: Tensor,
    noise: PlanNoise,
    min_std: Tensor,
    gamma: float,
    config: TDMPCConfig,
) -> MPPIResult:
    """From latent states [N, latent] and the means [N, H, D] where the search starts."""
    search, horizon = config.planning, start.shape[1]
    std = torch.full_like(start, search.max_std)

    def score(plans: Tensor, number: int) -> Tensor:
        many = plans.shape[1]
        state = latent.unsqueeze(1).expand(-1, many, -1).flatten(0, 1)
        earned, counts = torch.zeros_like(state[:, 0]), torch.ones_like(state[:, 0])
        for step in range(horizon):
            action = plans[:, :, step].flatten(0, 1)
            earned = earned + counts * model.expected_reward(state, action)
            counts = counts * gamma
            state = model.step(state, action)
            if model.ends is not None:
                counts = counts * (model.ends(state).squeeze(-1) <= 0)
        action, _ = model.policy(state, noise.after[number].flatten(0, 1))
        value = trusted(model.values(model.critics, state, action, noise.pairs[number]), config)
        return (earned + counts * value).view(-1, many)

    return mppi(
        score,
        start,
        std,
        noise.plans,
        policy_plans(model, latent, noise.policy),
        noise.waiting,
        elites=search.elites,
        temperature=search.temperature,
        momentum=search.momentum,
        min_std=min_std,
        max_std=search.max_std,
    )


def policy_plans(model: LatentModel, latent: Tensor, noise: Tensor) -> Tensor:
    """What the policy would do, [N, G, H, D]."""
    horizon, _, many, _ = noise.shape
    state = latent.unsqueeze(1).expand(-1, many, -1)
    actions = []
    for step, drawn in enumerate(noise):
        action, _ = model.policy(state, drawn)
        actions.append(action)
        if step + 1 < horizon:
            state = model.step(state, action)
    return torch.stack(actions, 2)
