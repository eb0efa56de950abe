"""PPO's clipped objective: its terms element by element, the loss for autograd, and its derivatives by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

FIGURES = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


class Experience(Protocol):
    """The data of the objective, as tensors or arrays of one shape."""

    @property
    def weight(self) -> Any: ...  # 1 where it counts, else 0
    @property
    def value_weight(self) -> Any: ...  # the same, for the value
    @property
    def advantage(self) -> Any: ...
    @property
    def factor(self) -> Any: ...  # multiplies the surrogate of each entry; None: by nothing
    @property
    def target(self) -> Any: ...  # of the value
    @property
    def old_value(self) -> Any: ...
    @property
    def old_log_prob(self) -> Any: ...


class Slopes(NamedTuple):
    """The derivatives of the loss by each of its inputs."""

    log_prob: np.ndarray
    entropy: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class ClippedObjective:
    """The loss to be minimised: clipped surrogate, value error and entropy, as means over the entries that count.

    `loss` defines it. `slopes` is its derivative by hand, for the kernels of `nets/numpy/`; before a run begins, its
    results are compared with autograd's (`engine/runtime.py`).
    """

    clip_range: Tensor
    entropy_coef: Tensor
    value_coef: float | Tensor
    value_clip_range: float | Tensor | None
    normalize_advantage: bool

    def loss(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Experience) -> tuple[Tensor, Tensor]:
        """Return the loss, and `FIGURES` to log."""
        weight, advantage, clip = batch.weight, batch.advantage, self.clip_range
        if self.normalize_advantage:
            advantage = masked_standardise(advantage, weight)
        log_ratio = log_prob - batch.old_log_prob
        surrogate = clipped_surrogate(log_ratio, advantage, clip)
        policy_loss = -masked_mean(surrogate if batch.factor is None else batch.factor * surrogate, weight)
        errors = value_error(value, batch.old_value, batch.target, self.value_clip_range)
        value_loss = masked_mean(errors, batch.value_weight)
        mean_entropy = masked_mean(entropy, weight)
        loss = policy_loss + self.value_coef * value_loss - self.entropy_coef * mean_entropy
        with torch.no_grad():
            kl = masked_mean(approximate_kl(log_ratio), weight)
            clip_fraction = masked_mean(((log_ratio.exp() - 1).abs() > clip).float(), weight)
            figures = torch.stack([loss, policy_loss, value_loss, mean_entropy, kl, clip_fraction])
        return loss, figures

    def slopes(
        self, log_prob: np.ndarray, entropy: np.ndarray, value: np.ndarray, batch: Experience
    ) -> tuple[Slopes, Tensor]:
        """Return the derivatives of `loss` and its `FIGURES`, for arrays [B]."""
        clip, entropy_coef, value_coef = float(self.clip_range), float(self.entropy_coef), float(self.value_coef)
        count = max(float(batch.weight.sum()), 1.0)
        share = batch.weight / count
        advantage = batch.advantage
        if self.normalize_advantage and count > 1:
            centred = advantage - np.dot(advantage, share)
            variance = float(np.dot(centred * centred, batch.weight)) / (count - 1)
            advantage = centred / (variance**0.5 + 1e-8)
        log_ratio = log_prob - batch.old_log_prob
        ratio = np.exp(log_ratio)
        free, clipped = ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage
        surrogate, slope = np.minimum(free, clipped), np.where(free > clipped, 0, free)
        if batch.factor is not None:
            surrogate, slope = batch.factor * surrogate, batch.factor * slope
        error, value_slope = self._value_errors(value, batch)
        policy_loss = -float(np.dot(surrogate, share))
        value_share = batch.value_weight / max(float(batch.value_weight.sum()), 1.0)
        value_loss = float(np.dot(error * error, value_share))
        mean_entropy = float(np.dot(entropy, share))
        loss = policy_loss + value_coef * value_loss - entropy_coef * mean_entropy
        change = ratio - 1
        kl = float(np.dot(change - log_ratio, share))
        clip_fraction = float(np.dot(np.abs(change) > clip, share))
        slopes = Slopes(
            log_prob=slope * -share,
            entropy=-entropy_coef * share,
            value=(2 * value_coef) * value_slope * value_share,
        )
        return slopes, torch.tensor([loss, policy_loss, value_loss, mean_entropy, kl, clip_fraction])

    def _value_errors(self, value: np.ndarray, batch: Experience) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors whose squares count, and half the derivatives of those squares."""
        error = value - batch.target
        if self.value_clip_range is None:
            return error, error
        reach, change = float(self.value_clip_range), value - batch.old_value
        clipped = np.clip(change, -reach, reach) + batch.old_value - batch.target
        is_worse = clipped * clipped > error * error
        slope = np.where(is_worse, clipped * (np.abs(change) <= reach), error)
        return np.where(is_worse, clipped, error), slope


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: Tensor) -> Tensor:
    """Return the pessimistic objective of PPO for each entry; it is maximised."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip_range, 1 + clip_range) * advantage)


def value_error(value: Tensor, old_value: Tensor, target: Tensor, clip_range: float | Tensor | None) -> Tensor:
    """Return squared errors; with a clip range, the larger of it and that of the value clipped to its old estimate."""
    error = (value - target).square()
    if clip_range is None:
        return error
    clipped = old_value + torch.clamp(value - old_value, -clip_range, clip_range)  # type: ignore[arg-type]
    return torch.maximum(error, (clipped - target).square())


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Estimate KL(old, new) from samples of the old policy, with low variance (Schulman 2020, k3)."""
    return log_ratio.exp() - 1 - log_ratio


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the entries where `mask` (float, 0 or 1) is set."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_standardise(x: Tensor, mask: Tensor) -> Tensor:
    """Scale to mean 0 and standard deviation 1 over the entries where `mask` is set; leave a single one unchanged."""
    count = mask.sum()
    mean = masked_mean(x, mask)
    variance = ((x - mean).square() * mask).sum() / (count - 1).clamp(min=1)
    return torch.where(count > 1, (x - mean) / (variance.sqrt() + 1e-8), x)
