"""TD-MPC on tensors alone: the losses of model and policy, and the search for an action.

Letters in shapes: H steps, B sequences of the replay, N environments, P plans, D numbers of an action, E critics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cadenza.nets.latent_model import Critics, LatentModel
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.observe import ObservationTensors
from cadenza.nets.optimizers import in_parts
from cadenza.ops.planning import MPPIResult, mppi
from cadenza.trees import map_tree
from cadenza.types import Tree
from cadenza.workflows.tdmpc_config import TDMPCConfig


class StretchBatch(NamedTuple):
    """Sequences of H steps within one episode each; where it ends before, the last observation is repeated."""

    obs: ObservationTensors  # [H + 1, B, …]
    action: Tensor  # [H, B, D] between -1 and 1
    reward: Tensor  # [H, B]
    terminated: Tensor  # [H, B] 1 where nothing follows
    valid: Tensor  # [H, B] 1, or 0 beyond the end of an episode
    weight: Tensor  # [B] importance weights


class UpdateNoise(NamedTuple):
    """All randomness of an update."""

    target: Tensor  # [H, B, D] for the policy in TD targets
    policy: Tensor  # [H + 1, B, D] for the policy that learns
    target_pair: Tensor  # [2] numbers of the critics in TD targets
    policy_pair: Tensor  # [2] and of those that judge the policy
    value_mask: Tensor | None = None  # [E, H B, units] dropout: 1 for units that stay; None: no dropout
    policy_mask: Tensor | None = None  # [2, (H + 1) B, units] the same where critics judge the policy


class SlowNetworks(NamedTuple):
    """Networks that follow those that learn."""

    critics: Critics
    encoder: torch.nn.Module | None = None  # None: latent targets come from the encoder that learns


class ModelLoss(NamedTuple):
    """The loss of the model and its critics, and what else is made of it."""

    loss: Tensor
    latents: Tensor  # [H + 1, B, latent] predicted by the model, without gradients
    error: Tensor  # [B] TD errors of the critics, for priorities
    metrics: dict[str, Tensor]


def model_loss(
    model: LatentModel, slow: SlowNetworks, batch: StretchBatch, noise: UpdateNoise, gamma: float, config: TDMPCConfig
) -> ModelLoss:
    """Unroll the model from the first observation, and compare latents, rewards, ends and values on the way."""
    steps, masks = len(batch.action), noise.value_mask

    def judge(part: Tree) -> dict[str, Tensor]:
        return judge_steps(model, slow, StretchBatch(**part["batch"]), part["target"], part["mask"], noise, gamma)

    inputs = {
        "batch": {**batch._asdict(), "weight": batch.weight[None]},
        "target": noise.target,
        "mask": None if masks is None else by_step(masks, steps),
    }
    judged = in_parts(judge, inputs, config.accumulate, dim=1)
    predicted, target, values = judged["predicted"], judged["target"], judged["values"].movedim(-1, 0)
    discount = config.rho ** torch.arange(steps, device=target.device)[:, None] * batch.valid

    def mean(losses: Tensor) -> Tensor:
        """Return the mean of losses [H, B], in which later steps count less."""
        return (discount * losses * batch.weight).sum() / batch.valid.numel()

    losses = {name: mean(judged[name]) for name in ("consistency", "reward", "value")}
    if "end" in judged:
        losses["end"] = (judged["end"] * batch.valid * batch.weight).mean()
    error = (discount * (values - target).abs().sum(0)).sum(0)
    metrics = {"q_mean": values.mean(), "target_mean": target.mean()}
    coefficients = {
        "consistency": config.consistency_coef,
        "reward": config.reward_coef,
        "value": config.value_coef,
        "end": config.end_coef,
    }
    loss = torch.stack([coefficients[name] * part for name, part in losses.items()]).sum()
    metrics |= {f"{name}_loss": part.detach() for name, part in losses.items()}
    return ModelLoss(loss, predicted.detach(), error, {**metrics, "model_loss": loss.detach()})


def judge_steps(
    model: LatentModel,
    slow: SlowNetworks,
    batch: StretchBatch,
    target_noise: Tensor,
    mask: Tensor | None,
    noise: UpdateNoise,
    gamma: float,
) -> dict[str, Tensor]:
    """Return predicted latents [H + 1, B, …], and for each step [H, B] its losses, TD target and values [H, B, E]."""
    next_obs = map_tree(lambda x: x[1:], batch.obs)
    with torch.no_grad():
        next_latent = model.encoder(next_obs)
        latent_target = next_latent if slow.encoder is None else slow.encoder(next_obs)
    predicted = unroll(model, batch)
    before, after = predicted[:-1], predicted[1:]
    inputs = torch.cat([before, batch.action], -1)
    judged = {
        "predicted": predicted,
        "consistency": (after - latent_target).square().mean(-1),
        "reward": model.numbers.loss(model.reward(inputs), batch.reward),
        "target": td_target(model, slow, next_latent, batch, noise._replace(target=target_noise), gamma),
    }
    masks = None if mask is None else mask.movedim(2, 0).flatten(1, 2)
    outputs = model.critics(inputs.flatten(0, 1), None, masks)
    outputs = outputs.view(len(outputs), *batch.reward.shape, -1)  # [E, H, B, …]
    judged["value"] = model.numbers.loss(outputs, judged["target"].expand(outputs.shape[:-1])).mean(0)
    judged["values"] = model.numbers.mean(outputs.detach()).movedim(0, -1)
    if model.ends is not None:
        logit = model.ends(after).squeeze(-1)
        judged["end"] = functional.binary_cross_entropy_with_logits(logit, batch.terminated, reduction="none")
    return judged


def by_step(mask: Tensor, steps: int) -> Tensor:
    """Return dropout masks [E, H B, units] as [H, B, E, units]."""
    return mask.view(len(mask), steps, -1, mask.shape[-1]).movedim(0, 2)


def unroll(model: LatentModel, batch: StretchBatch) -> Tensor:
    """Return the latents [H + 1, B, latent] that the model predicts from the first observations and the actions."""
    latents = [model.encoder(map_tree(lambda x: x[0], batch.obs))]
    for action in batch.action:
        latents.append(model.step(latents[-1], action))
    return torch.stack(latents)


@torch.no_grad()
def td_target(
    model: LatentModel, slow: SlowNetworks, next_latent: Tensor, batch: StretchBatch, noise: UpdateNoise, gamma: float
) -> Tensor:
    """Return TD targets [H, B]: the reward, and the lower value of two slow critics in the next latent state."""
    action, _ = model.policy(next_latent, noise.target)
    value = model.values(slow.critics, next_latent, action, noise.target_pair).amin(0)
    return batch.reward + gamma * (1 - batch.terminated) * value


def policy_loss(
    model: LatentModel,
    latents: Tensor,
    batch: StretchBatch,
    noise: UpdateNoise,
    scale: PercentileScale | None,
    entropy_coef: Tensor,
    config: TDMPCConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a policy that maximises values in predicted latent states [H + 1, B, …], and metrics.

    `scale` learns from the values there.
    """

    def judge(part: Tree) -> dict[str, Tensor]:
        action, log_prob = model.policy(part["latents"], part["noise"])
        mask = None if part["mask"] is None else part["mask"].movedim(2, 0).flatten(1, 2)
        values = model.values(model.critics, part["latents"], action, noise.policy_pair, mask)
        return {"value": combine_critics(values, config), "log_prob": log_prob}

    masks = None if noise.policy_mask is None else by_step(noise.policy_mask, len(latents))
    judged = in_parts(judge, {"latents": latents, "noise": noise.policy, "mask": masks}, config.accumulate, dim=1)
    value, log_prob = judged["value"], judged["log_prob"]
    if scale is not None:
        scale.learn(value[0])
    entropy = -log_prob * batch.action.shape[-1]
    objective = (value if scale is None else value / scale.spread()) + entropy_coef * entropy
    valid = torch.cat([torch.ones_like(batch.valid[:1]), batch.valid])
    discount = config.rho ** torch.arange(len(latents), device=latents.device)[:, None] * valid
    loss = -(discount * objective).mean()
    return loss, {
        "policy_loss": loss.detach(),
        "policy_value": value.detach().mean(),
        "entropy": -log_prob.detach().mean(),
    }


def combine_critics(values: Tensor, config: TDMPCConfig) -> Tensor:
    """Return one value [*] from those of several critics [E, *]: the lowest or the mean."""
    return values.amin(0) if config.policy_trusts == "min" else values.mean(0)


# planning


class PlanNoise(NamedTuple):
    """All randomness of a search: I iterations, G of the P plans from the policy."""

    plans: Tensor  # [I, N, P - G, H, D]
    policy: Tensor  # [H, N, G, D]
    final: Tensor  # [I, N, P, D] for the policy after the last step of each plan
    pairs: Tensor  # [I, 2] numbers of the critics that judge there
    waiting: Tensor  # [N, elites] exponential: samples the plan that acts


def plan(
    model: LatentModel,
    latent: Tensor,
    start: Tensor,
    noise: PlanNoise,
    min_std: Tensor,
    gamma: float,
    config: TDMPCConfig,
    planner: Callable[..., MPPIResult] = mppi,
) -> MPPIResult:
    """Search for the best plans: H actions of D numbers each, from N latent states [N, latent].

    The search begins at the mean actions `start` [N, H, D]. `planner` is the search, or one of the user's.
    """
    search, horizon = config.planning, start.shape[1]
    std = torch.full_like(start, search.max_std)

    def score(plans: Tensor, iteration: int) -> Tensor:
        """Return predicted returns [N, P] of plans [N, P, H, D]: rewards, and the critics' value after them."""
        count = plans.shape[1]
        state = latent.unsqueeze(1).expand(-1, count, -1).flatten(0, 1)
        total, discount = torch.zeros_like(state[:, 0]), torch.ones_like(state[:, 0])
        for step in range(horizon):
            action = plans[:, :, step].flatten(0, 1)
            total = total + discount * model.expected_reward(state, action)
            discount = discount * gamma
            state = model.step(state, action)
            if model.ends is not None:
                discount = discount * (model.ends(state).squeeze(-1) <= 0)
        action, _ = model.policy(state, noise.final[iteration].flatten(0, 1))
        value = combine_critics(model.values(model.critics, state, action, noise.pairs[iteration]), config)
        return (total + discount * value).view(-1, count)

    return planner(
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
    """Return the policy's plans [N, G, H, D] from latent states [N, latent], with `noise` [H, N, G, D]."""
    horizon, _, count, _ = noise.shape
    state = latent.unsqueeze(1).expand(-1, count, -1)
    actions = []
    for step, standard in enumerate(noise):
        action, _ = model.policy(state, standard)
        actions.append(action)
        if step + 1 < horizon:
            state = model.step(state, action)
    return torch.stack(actions, 2)
