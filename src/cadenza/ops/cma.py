"""CMA-ES (Hansen 2016, arXiv:1604.00772): a normal distribution that moves to where the best of its draws lay.

Its whole state is a handful of tensors, in float64. Letters in shapes: P candidates, D numbers of each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST = 1e-8  # what an eigenvalue below zero is taken to be, and what divisions are kept from


class Search(NamedTuple):
    """The distribution, and what its changes so far say of the next."""

    mean: Tensor  # [D]
    sigma: Tensor  # [] the step size
    covariance: Tensor  # [D, D] of the draws, in squared step sizes
    path: Tensor  # [D] where the mean has been going
    step_path: Tensor  # [D] the same, as if the covariance were the identity
    generation: Tensor  # [] int64


class Rates(NamedTuple):
    """How fast everything moves; functions of P and D alone. The numbers of equations are Hansen's."""

    weights: Tensor  # [P] by rank, the best first; of the worse half negative
    effective: float  # draws that the mean really comes from
    step: float
    damping: float
    path: float
    one: float  # for the covariance from the path
    many: float  # for the covariance from all draws
    length: float  # that a standard normal vector has on average


def begin(size: int, sigma: float) -> Search:
    zeros = torch.zeros(size, dtype=torch.float64)
    deviation = torch.tensor(sigma, dtype=torch.float64)
    return Search(zeros, deviation, torch.eye(size, dtype=torch.float64), zeros, zeros, torch.tensor(0))


def draw(search: Search, noise: Tensor) -> Tensor:
    """Candidates [P, D] of standard normal noise [P, D]."""
    if not search.generation:  # nothing has been learned yet: the covariance is the identity
        return search.mean + search.sigma * noise
    axes, lengths = principal(search.covariance)
    return search.mean + search.sigma * (noise * lengths) @ axes.T


def learn(search: Search, candidates: Tensor, fitness: Tensor) -> Search:
    """The next distribution, from what was drawn [P, D] and how good it was [P]: more is better."""
    count, size = candidates.shape
    rates = rates_for(count, size)
    best_first = torch.argsort(fitness, descending=True, stable=True)
    draws = (candidates[best_first] - search.mean) / search.sigma
    axes, lengths = principal(search.covariance)
    whiten = axes / lengths @ axes.T
    move = rates.weights[: count // 2] @ draws[: count // 2]  # 41
    generation = search.generation + 1

    pull = math.sqrt(rates.step * (2 - rates.step) * rates.effective)
    step_path = (1 - rates.step) * search.step_path + pull * whiten @ move  # 43
    length = torch.linalg.vector_norm(step_path)
    sigma = search.sigma * torch.exp(rates.step / rates.damping * (length / rates.length - 1))  # 44

    begun = 1 - (1 - rates.step) ** (2 * (int(generation) + 1))
    steady = bool(length / math.sqrt(begun) < (1.4 + 2 / (size + 1)) * rates.length)  # else the path would overshoot
    pull = math.sqrt(rates.path * (2 - rates.path) * rates.effective)
    path = (1 - rates.path) * search.path + (pull * move if steady else 0.0)  # 45
    squares = (draws @ whiten).square().sum(1) + SMALLEST
    weights = torch.where(rates.weights >= 0, rates.weights, rates.weights * size / squares)  # 46
    lost = 0.0 if steady else rates.one * rates.path * (2 - rates.path)
    kept = 1 + lost - rates.one - rates.many * float(rates.weights.sum())
    spread = rates.one * torch.outer(path, path) + rates.many * (draws.T * weights) @ draws
    covariance = kept * (axes * lengths.square()) @ axes.T + spread  # 47
    return Search(search.mean + search.sigma * move, sigma, covariance, path, step_path, generation)


def rates_for(count: int, size: int) -> Rates:
    half = count // 2
    raw = math.log((count + 1) / 2) - torch.arange(1, count + 1, dtype=torch.float64).log()  # 49
    effective, effective_worse = (float(part.sum() ** 2 / part.square().sum()) for part in (raw[:half], raw[half:]))
    one = 2 / ((size + 1.3) ** 2 + effective)  # 57
    many = min(1 - one - 1e-8, 2 * (effective - 2 + 1 / effective) / ((size + 2) ** 2 + effective))  # 58
    negative = min(1 + one / many, 1 + 2 * effective_worse / (effective + 2), (1 - one - many) / (size * many))  # 50-52
    better, worse = raw.clamp(min=0), raw.clamp(max=0)
    step = (effective + 2) / (size + effective + 5)  # 55
    return Rates(
        weights=better / better.sum() + negative * worse / -worse.sum(),  # 53
        effective=effective,
        step=step,
        damping=1 + 2 * max(0.0, math.sqrt((effective - 1) / (size + 1)) - 1) + step,
        path=(4 + effective / size) / (size + 4 + 2 * effective / size),  # 56
        one=one,
        many=many,
        length=math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2)),
    )


def principal(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Axes [D, D] in columns and deviations [D] along them."""
    values, axes = torch.linalg.eigh((covariance + covariance.T) / 2)
    return axes, torch.where(values < 0, SMALLEST, values).sqrt()
