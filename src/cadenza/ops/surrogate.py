"""PPO's clipped objective: its terms element by element, the loss for autograd, and its derivatives by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
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


class Weighted(Protocol):
    """The data of `ClippedObjective.slopes`, as arrays [B]; advantages are those of `ClippedObjective.advantages`."""

    @property
    def share(self) -> np.ndarray: ...  # of each entry in a mean over those that count
    @property
    def value_share(self) -> np.ndarray: ...
    @property
    def advantage(self) -> np.ndarray: ...
    @property
    def factor(self) -> np.ndarray | None: ...
    @property
    def target(self) -> np.ndarray: ...
    @property
    def old_value(self) -> np.ndarray: ...
    @property
    def old_log_prob(self) -> np.ndarray: ...


class Slopes(NamedTuple):
    """The derivatives of the loss by each of its inputs; None: zeros."""

    log_prob: np.ndarray
    entropy: np.ndarray | None
    value: np.ndarray


class Terms(NamedTuple):
    """The terms of `FIGURES` for one minibatch [B], or for several [M, B]."""

    log_ratio: np.ndarray
    entropy: Any  # or a number for each minibatch
    error: np.ndarray  # of the value
    share: np.ndarray
    value_share: np.ndarray
    advantage: np.ndarray
    factor: np.ndarray | None


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

    def advantages(self, advantage: np.ndarray, weight: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Return the advantages [M, B] of minibatches as `loss` takes them: standardised, if it does so.

        `share` are the `shares` of the weights.
        """
        if not self.normalize_advantage:
            return advantage
        count = weight.sum(-1, keepdims=True)
        centred = advantage - dots(advantage, share)
        variance = dots(centred * centred, weight).astype(np.float64) / np.maximum(count - 1, 1)
        deviation = (np.sqrt(variance) + 1e-8).astype(advantage.dtype)
        return np.where(count > 1, centred / deviation, advantage)

    def slopes(
        self, log_prob: np.ndarray, entropy: np.ndarray, value: np.ndarray, batch: Weighted
    ) -> tuple[Slopes, Terms]:
        """Return the derivatives of `loss` for arrays [B], and the terms of its `FIGURES`.

        An entropy may be one number for all.
        """
        clip, entropy_coef, value_coef, _ = self._numbers
        log_ratio = log_prob - batch.old_log_prob
        ratio = np.exp(log_ratio)
        free, clipped = ratio * batch.advantage, np.minimum(np.maximum(ratio, 1 - clip), 1 + clip) * batch.advantage
        slope = np.where(free > clipped, 0, free)
        if batch.factor is not None:
            slope = batch.factor * slope
        error, value_slope = self._value_errors(value, batch)
        slopes = Slopes(
            log_prob=slope * -batch.share,
            entropy=-entropy_coef * batch.share if entropy_coef else None,
            value=(2 * value_coef) * value_slope * batch.value_share,
        )
        return slopes, Terms(log_ratio, entropy, error, batch.share, batch.value_share, batch.advantage, batch.factor)

    def figures(self, terms: Sequence[Any]) -> Tensor:
        """Return the `FIGURES` of minibatches [M, 6] from those of `loss`, or from the terms of `slopes`.

        To make them of terms together costs much less than one by one.
        """
        if isinstance(terms[0], Tensor):
            return torch.stack(list(terms))
        groups = [list(zip(*group, strict=True)) for _, group in groupby(terms, lambda one: len(one.share))]
        stacked = [Terms._make(None if each[0] is None else np.stack(each) for each in group) for group in groups]
        return torch.cat([self._figures(group) for group in stacked])

    def _figures(self, terms: Terms) -> Tensor:
        """Return the figures of minibatches with as many rows each, [M, B]."""
        clip, entropy_coef, value_coef, _ = self._numbers
        ratio, share = np.exp(terms.log_ratio), terms.share
        change = ratio - 1
        surrogate = np.minimum(ratio * terms.advantage, np.clip(ratio, 1 - clip, 1 + clip) * terms.advantage)
        if terms.factor is not None:
            surrogate = terms.factor * surrogate
        entropy = terms.entropy if terms.entropy.ndim > 1 else np.repeat(terms.entropy[:, None], share.shape[1], 1)
        means = [
            dots(surrogate, share),
            dots(terms.error * terms.error, terms.value_share),
            dots(entropy, share),
            dots(change - terms.log_ratio, share),
            dots(np.abs(change) > clip, share),
        ]
        gain, value_loss, mean_entropy, kl, clip_fraction = (mean[:, 0].astype(np.float64) for mean in means)
        loss = -gain + value_coef * value_loss - entropy_coef * mean_entropy
        figures = np.stack([loss, -gain, value_loss, mean_entropy, kl, clip_fraction], -1)
        return torch.from_numpy(figures).to(torch.get_default_dtype())

    @cached_property
    def _numbers(self) -> tuple[float, float, float, float | None]:
        """The coefficients: of clipping, of entropy and of the value, and how far a value may move."""
        reach = None if self.value_clip_range is None else float(self.value_clip_range)
        return float(self.clip_range), float(self.entropy_coef), float(self.value_coef), reach

    def _value_errors(self, value: np.ndarray, batch: Weighted) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors whose squares count, and half the derivatives of those squares."""
        error, reach = value - batch.target, self._numbers[-1]
        if reach is None:
            return error, error
        change = value - batch.old_value
        clipped = np.clip(change, -reach, reach) + batch.old_value - batch.target
        is_worse = clipped * clipped > error * error
        slope = np.where(is_worse, clipped * (np.abs(change) <= reach), error)
        return np.where(is_worse, clipped, error), slope


def shares(weight: np.ndarray) -> np.ndarray:
    """Return the share [M, B] of each entry in the mean of its minibatch over the entries that count."""
    return weight / np.maximum(weight.sum(-1, keepdims=True), 1)  # type: ignore[no-any-return]


def dots(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the products of vectors [M, B], as [M, 1]; rounded as NumPy's `dot` of each pair."""
    return np.matmul(x[:, None], y[..., None])[..., 0]  # type: ignore[no-any-return]


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
