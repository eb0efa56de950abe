"""PPO's objective: its terms element by element, and the whole for autograd or with its gradients by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

FIGURES = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


class Experience(Protocol):
    """What the objective is about, as tensors or as arrays of one shape."""

    @property
    def weight(self) -> Any: ...  # 1 where it counts, else 0
    @property
    def value_weight(self) -> Any: ...  # the same, for the value
    @property
    def advantage(self) -> Any: ...
    @property
    def factor(self) -> Any: ...  # what the objective of each is multiplied by; None: by nothing
    @property
    def target(self) -> Any: ...  # of the value
    @property
    def old_value(self) -> Any: ...
    @property
    def old_log_prob(self) -> Any: ...


class Slopes(NamedTuple):
    """How the loss changes with each of what it was computed from."""

    log_prob: np.ndarray
    entropy: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class ClippedObjective:
    """The loss to be minimised: clipped surrogate, value error and entropy, as means over what counts."""

    clip_range: Tensor
    entropy_coef: Tensor
    value_coef: float
    value_clip_range: float | None
    normalize_advantage: bool

    def loss(self, log_prob: Tensor, entropy: Tensor, value: Tensor, seen: Experience) -> tuple[Tensor, Tensor]:
        """The loss, and `FIGURES` to log."""
        weight, advantage, clip = seen.weight, seen.advantage, self.clip_range
        if self.normalize_advantage:
            advantage = masked_standardise(advantage, weight)
        log_ratio = log_prob - seen.old_log_prob
        gain = clipped_surrogate(log_ratio, advantage, clip)
        policy_loss = -masked_mean(gain if seen.factor is None else seen.factor * gain, weight)
        errors = value_error(value, seen.old_value, seen.target, self.value_clip_range)
        value_loss = masked_mean(errors, seen.value_weight)
        mean_entropy = masked_mean(entropy, weight)
        loss = policy_loss + self.value_coef * value_loss - self.entropy_coef * mean_entropy
        with torch.no_grad():
            kl = masked_mean(approximate_kl(log_ratio), weight)
            clipped = masked_mean(((log_ratio.exp() - 1).abs() > clip).float(), weight)
            figures = torch.stack([loss, policy_loss, value_loss, mean_entropy, kl, clipped])
        return loss, figures

    def slopes(
        self, log_prob: np.ndarray, entropy: np.ndarray, value: np.ndarray, seen: Experience
    ) -> tuple[Slopes, Tensor]:
        """The same in NumPy, all [B]: the gradients that autograd would find, and `FIGURES`."""
        clip, entropy_coef = float(self.clip_range), float(self.entropy_coef)
        count = max(float(seen.weight.sum()), 1.0)
        share = seen.weight / np.float32(count)
        advantage = seen.advantage
        if self.normalize_advantage and count > 1:
            centred = advantage - np.dot(advantage, share)
            variance = float(np.dot(centred * centred, seen.weight)) / (count - 1)
            advantage = centred / np.float32(variance**0.5 + 1e-8)
        log_ratio = log_prob - seen.old_log_prob
        ratio = np.exp(log_ratio)
        free, held = ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage
        gain, push = np.minimum(free, held), np.where(free > held, 0, free)
        if seen.factor is not None:
            gain, push = seen.factor * gain, seen.factor * push
        error = value - seen.target
        descent = error
        if self.value_clip_range is not None:
            reach, moved = self.value_clip_range, value - seen.old_value
            stopped = np.clip(moved, -reach, reach) + seen.old_value - seen.target
            worse = stopped * stopped > error * error
            descent = np.where(worse, stopped * (np.abs(moved) <= reach), error)
            error = np.where(worse, stopped, error)
        policy_loss = -float(np.dot(gain, share))
        value_share = seen.value_weight / np.float32(max(float(seen.value_weight.sum()), 1.0))
        value_loss = float(np.dot(error * error, value_share))
        mean_entropy = float(np.dot(entropy, share))
        loss = policy_loss + self.value_coef * value_loss - entropy_coef * mean_entropy
        change = ratio - 1
        kl = float(np.dot(change - log_ratio, share))
        clipped = float(np.dot(np.abs(change) > clip, share))
        slopes = Slopes(
            log_prob=push * -share,
            entropy=-entropy_coef * share,
            value=(2 * self.value_coef) * descent * value_share,
        )
        return slopes, torch.tensor([loss, policy_loss, value_loss, mean_entropy, kl, clipped])


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: Tensor) -> Tensor:
    """The pessimistic objective of PPO; to be maximised."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip_range, 1 + clip_range) * advantage)


def value_error(value: Tensor, old_value: Tensor, target: Tensor, clip_range: float | None) -> Tensor:
    """Squared error; with a clip range, the worse of it and the error of the value held near its old estimate."""
    error = (value - target).square()
    if clip_range is None:
        return error
    held = old_value + (value - old_value).clamp(-clip_range, clip_range)
    return torch.maximum(error, (held - target).square())


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Low-variance estimate of KL(old, new) from samples of the old policy (Schulman 2020, k3)."""
    return log_ratio.exp() - 1 - log_ratio


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the entries where `mask` (float, 0 or 1) is set."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_standardise(x: Tensor, mask: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the entries where `mask` is set; a single one stays as it is."""
    count = mask.sum()
    mean = masked_mean(x, mask)
    variance = ((x - mean).square() * mask).sum() / (count - 1).clamp(min=1)
    return torch.where(count > 1, (x - mean) / (variance.sqrt() + 1e-8), x)
