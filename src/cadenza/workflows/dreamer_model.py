"""The loss of a world model: reconstruction, rewards, continuation, and the divergence of posterior and prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cadenza.nets.observe import ObservationTensors
from cadenza.nets.optimizers import in_parts
from cadenza.nets.rssm import ObservedStates, RSSMState
from cadenza.nets.world_model import WorldModel
from cadenza.ops.latents import planet_kl, v1_kl, v2_kl, v3_kl
from cadenza.types import Tree
from cadenza.workflows.dreamer_config import DreamerConfig


@dataclass(frozen=True)
class SequenceBatch:
    """Sequences [T, B, …]. Action and reward are those that led to the observation in the same row."""

    obs: ObservationTensors
    action: Tensor  # encoded
    reward: Tensor
    first: Tensor  # the row begins an episode: no action, reward or state before it counts
    last: Tensor  # the row ends an episode
    terminal: Tensor  # and the episode terminated there
    start: RSSMState  # [B, …] before the first row


def model_loss(
    model: WorldModel, batch: SequenceBatch, noise: Tensor, config: DreamerConfig
) -> tuple[Tensor, ObservedStates, dict[str, Tensor]]:
    """Return the loss of the world model, the states [T, B, …] that it inferred, and each term as a metric.

    `noise` [T, B, S] samples the states.
    """

    def judge(part: Tree) -> dict[str, Tree]:
        start = RSSMState(*(x[0] for x in part["start"].values()))
        sequences = replace(batch, **{name: part[name] for name in names}, start=start)
        observed = infer(model, sequences, part["noise"])
        features = observed.state.features()
        losses = {f"loss/{name}": x for name, x in model.decode.losses(model.decode(features), sequences.obs).items()}
        losses["loss/reward"] = model.reward.loss(model.reward(features), sequences.reward)
        if model.goes_on is not None:
            losses["loss/continue"] = model.continue_loss(features, sequences.terminal)
        state, post, prior = observed
        return {"losses": losses, "state": state._asdict(), "post": as_dict(post), "prior": as_dict(prior)}

    names = ("obs", "action", "reward", "first", "terminal")
    inputs = {"start": {name: x[None] for name, x in batch.start._asdict().items()}, "noise": noise}
    outputs = in_parts(judge, {**inputs, **{name: getattr(batch, name) for name in names}}, config.accumulate, dim=1)
    distributions = (tuple(outputs[name].values()) for name in ("post", "prior"))
    observed = ObservedStates(RSSMState(**outputs["state"]), *distributions)
    losses = {name: loss.mean() for name, loss in outputs["losses"].items()}
    scales = {
        "loss/vector": config.vector_scale,
        "loss/reward": config.reward_scale,
        "loss/continue": config.continue_scale,
    }
    for name, (loss, scale) in divergence_losses(model, observed, config).items():
        losses[name], scales[name] = loss, scale
    total = torch.stack([scales.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
    with torch.no_grad():
        divergence = model.rssm.divergence(*observed.post, *observed.prior).mean()
    return total, observed, {"kl": divergence, **{name: loss.detach() for name, loss in losses.items()}}


def as_dict(parts: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return a tuple of tensors as a tree."""
    return dict(enumerate(parts))


def infer(model: WorldModel, batch: SequenceBatch, noise: Tensor) -> ObservedStates:
    """Return the states [T, B, …] that the world model infers from sequences; `noise` [T, B, S] samples them."""
    return model.rssm.observe(model.encode(batch.obs), batch.action, batch.first, batch.start, noise)


def divergence_losses(
    model: WorldModel, observed: ObservedStates, config: DreamerConfig
) -> dict[str, tuple[Tensor, float]]:
    """Return the losses that pull posterior and prior together, each with its weight; formulas: `ops/latents.py`."""
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
