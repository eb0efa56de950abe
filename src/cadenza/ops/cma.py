"""CMA-ES (Hansen 2016, arXiv:1604.00772): a normal distribution that moves towards the best of its samples.

The state is a tuple of float64 tensors. Letters in shapes: P candidates, D parameters of each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST = 1e-8  # replaces negative eigenvalues, and keeps a denominator from zero


class Search(NamedTuple):
    """The state of a search: the sampling distribution and its evolution paths."""

    mean: Tensor  # [D]
    sigma: Tensor  # [] the step size
    covariance: Tensor  # [D, D] of the samples, in squared step sizes
    path: Tensor  # [D] evolution path: an average of the moves of the mean
    step_path: Tensor  # [D] the same for whitened moves, which sets the step size
    generation: Tensor  # [] int64


class StrategyParameters(NamedTuple):
    """Learning rates and weights: functions of P and D. Numbers of equations are Hansen's."""

    weights: Tensor  # [P] by rank, the best first; negative for the worse half
    effective: float  # effective number of samples in the mean
    step: float  # learning rate of `step_path`
    damping: float  # of the step size
    path: float  # learning rate of `path`
    rank_one: float  # learning rate of the covariance from the path
    rank_many: float  # learning rate of the covariance from all samples
    length: float  # expected norm of a standard normal vector [D]


def begin(size: int, sigma: float) -> Search:
    """Return the state before the first generation: mean 0, standard deviation `sigma` in each of `size` dimensions."""
    zeros = torch.zeros(size, dtype=torch.float64)
    deviation = torch.tensor(sigma, dtype=torch.float64)
    return Search(zeros, deviation, torch.eye(size, dtype=torch.float64), zeros, zeros, torch.tensor(0))


def draw(search: Search, noise: Tensor) -> Tensor:
    """Sample candidates [P, D], computed from standard normal noise [P, D]."""
    if not search.generation:  # the covariance is still the identity
        return search.mean + search.sigma * noise
    axes, lengths = principal(search.covariance)
    return search.mean + search.sigma * (noise * lengths) @ axes.T


def learn(search: Search, candidates: Tensor, fitness: Tensor) -> Search:
    """Return the next state, from candidates [P, D] and their fitness [P], of which more is better."""
    count, size = candidates.shape
    rates = strategy_parameters(count, size)
    best_first = torch.argsort(fitness, descending=True, stable=True)
    samples = (candidates[best_first] - search.mean) / search.sigma
    axes, lengths = principal(search.covariance)
    whiten = axes / lengths @ axes.T
    move = rates.weights[: count // 2] @ samples[: count // 2]  # 41
    generation = search.generation + 1

    pull = math.sqrt(rates.step * (2 - rates.step) * rates.effective)
    step_path = (1 - rates.step) * search.step_path + pull * whiten @ move  # 43
    length = torch.linalg.vector_norm(step_path)
    sigma = search.sigma * torch.exp(rates.step / rates.damping * (length / rates.length - 1))  # 44

    bias = 1 - (1 - rates.step) ** (2 * (int(generation) + 1))
    steady = bool(length / math.sqrt(bias) < (1.4 + 2 / (size + 1)) * rates.length)  # else the path would overshoot
    pull = math.sqrt(rates.path * (2 - rates.path) * rates.effective)
    path = (1 - rates.path) * search.path + (pull * move if steady else 0.0)  # 45
    squares = (samples @ whiten).square().sum(1) + SMALLEST
    weights = torch.where(rates.weights >= 0, rates.weights, rates.weights * size / squares)  # 46
    loss = 0.0 if steady else rates.rank_one * rates.path * (2 - rates.path)
    decay = 1 + loss - rates.rank_one - rates.rank_many * float(rates.weights.sum())
    spread = rates.rank_one * torch.outer(path, path) + rates.rank_many * (samples.T * weights) @ samples
    covariance = decay * (axes * lengths.square()) @ axes.T + spread  # 47
    return Search(search.mean + search.sigma * move, sigma, covariance, path, step_path, generation)


def strategy_parameters(count: int, size: int) -> StrategyParameters:
    """Return Hansen's defaults for `count` candidates of `size` parameters each."""
    half = count // 2
    raw = math.log((count + 1) / 2) - torch.arange(1, count + 1, dtype=torch.float64).log()  # 49
    effective = float(raw[:half].sum() ** 2 / raw[:half].square().sum())
    effective_worse = float(raw[half:].sum() ** 2 / raw[half:].square().sum())
    rank_one = 2 / ((size + 1.3) ** 2 + effective)  # 57
    rank_many = min(1 - rank_one - 1e-8, 2 * (effective - 2 + 1 / effective) / ((size + 2) ** 2 + effective))  # 58
    negative = min(
        1 + rank_one / rank_many,  # 50
        1 + 2 * effective_worse / (effective + 2),  # 51
        (1 - rank_one - rank_many) / (size * rank_many),  # 52
    )
    better, worse = raw.clamp(min=0), raw.clamp(max=0)
    step = (effective + 2) / (size + effective + 5)  # 55
    return StrategyParameters(
        weights=better / better.sum() + negative * worse / -worse.sum(),  # 53
        effective=effective,
        step=step,
        damping=1 + 2 * max(0.0, math.sqrt((effective - 1) / (size + 1)) - 1) + step,
        path=(4 + effective / size) / (size + 4 + 2 * effective / size),  # 56
        rank_one=rank_one,
        rank_many=rank_many,
        length=math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2)),
    )


def principal(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the principal axes [D, D] in columns, and the standard deviations [D] along them."""
    values, axes = torch.linalg.eigh((covariance + covariance.T) / 2)
    return axes, torch.where(values < 0, SMALLEST, values).sqrt()
