"""What teaches a world model: what was seen, earned and ended, and the divergence of posterior and prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cadenza.nets.observe import ObservationTensors
from cadenza.nets.rssm import ObservedStates, RSSMState
from cadenza.nets.world_model import WorldModel
from cadenza.ops.latents import planet_kl, v1_kl, v2_kl, v3_kl
from cadenza.workflows.dreamer_config import DreamerConfig


@dataclass(frozen=True)
class Batch:
    """Sequences [T, B, …]; everything belongs to what was seen: the action and the reward are those before it."""

    obs: ObservationTensors
    action: Tensor  # encoded
    reward: Tensor
    first: Tensor  # begins an episode: no action, reward or state before it counts
    last: Tensor  # ends one
    terminal: Tensor  # and nothing would have followed
    start: RSSMState  # [B, …] before the first step


def model_loss(
    model: WorldModel, batch: Batch, noise: Tensor, config: DreamerConfig
) -> tuple[Tensor, ObservedStates, dict[str, Tensor]]:
    """The scalar to minimise, the states that were found [T, B, …], and each term of the loss."""
    observed = model.rssm.observe(model.encode(batch.obs), batch.action, batch.first, batch.start, noise)
    features = observed.state.features()
    seen = model.decode.losses(model.decode(features), batch.obs)
    losses = {f"loss/{name}": loss.mean() for name, loss in seen.items()}
    losses["loss/reward"] = model.reward.loss(model.reward(features), batch.reward).mean()
    scales = {"loss/vector": config.vector_scale, "loss/reward": config.reward_scale}
    if model.goes_on is not None:
        losses["loss/continue"] = model.continue_loss(features, batch.terminal).mean()
        scales["loss/continue"] = config.continue_scale
    for name, (loss, scale) in divergence_losses(model, observed, config).items():
        losses[name], scales[name] = loss, scale
    total = torch.stack([scales.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
    with torch.no_grad():
        divergence = model.rssm.divergence(*observed.post, *observed.prior).mean()
    return total, observed, {"kl": divergence, **{name: loss.detach() for name, loss in losses.items()}}


def divergence_losses(
    model: WorldModel, observed: ObservedStates, config: DreamerConfig
) -> dict[str, tuple[Tensor, float]]:
    """Each with its weight; `ops/latents.py` has the formulas."""
    parts = (model.rssm.divergence, observed.post, observed.prior)
    if config.kl == "v3":
        dynamics, representation = v3_kl(*parts, config.free_nats)
        return {
            "loss/dynamics": (dynamics.mean(), config.kl_scale),
            "loss/representation": (representation.mean(), config.representation_scale),
        }
    if config.kl == "v2":
        loss = v2_kl(*parts, config.kl_balance, config.free_nats)
    elif config.kl == "v1":
        loss = v1_kl(*parts, config.free_nats)
    else:
        loss = planet_kl(*parts, config.free_nats).mean()
    return {"loss/kl": (loss, config.kl_scale)}
