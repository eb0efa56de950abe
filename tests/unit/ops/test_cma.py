"""CMA-ES against the library `cmaes`, sample for sample, and on functions with a known optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.ops.cma import Search, begin, draw, learn, strategy_parameters


def ellipsoid(x: Tensor) -> Tensor:
    """Return the fitness of points [*, D] on a rotated, elongated ellipsoid: 0 at its best point (1, 1, …)."""
    size = x.shape[-1]
    turn = torch.linalg.qr(torch.from_numpy(np.random.default_rng(0).normal(size=(size, size))))[0]
    return -(((x - 1) @ turn) ** 2 * 10 ** torch.linspace(0, 3, size, dtype=torch.float64)).sum(-1)


def noise(count: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("count", "size"), [(4, 1), (9, 3), (16, 12)])
def test_each_generation_equals_the_reference_library(count: int, size: int) -> None:
    cmaes = pytest.importorskip("cmaes")
    theirs = cmaes.CMA(mean=np.zeros(size), sigma=0.5, population_size=count)
    ours, generator = begin(size, 0.5), torch.Generator().manual_seed(1)
    for _ in range(20):
        candidates = draw(ours, noise(count, size, generator))
        fitness = ellipsoid(candidates)
        ours = learn(ours, candidates, fitness)
        theirs.tell([(x, -value) for x, value in zip(candidates.numpy(), fitness.tolist(), strict=True)])
        assert ours.mean.numpy() == pytest.approx(theirs.mean, rel=1e-7, abs=1e-9)
        assert float(ours.sigma) == pytest.approx(theirs._sigma, rel=1e-8)
        assert ours.covariance.numpy() == pytest.approx(theirs._C, rel=1e-6, abs=1e-8)
    assert int(ours.generation) == theirs.generation == 20


def test_search_converges_to_the_optimum() -> None:
    search, generator = begin(8, 0.5), torch.Generator().manual_seed(0)
    for _ in range(110):
        drawn = draw(search, noise(12, 8, generator))
        search = learn(search, drawn, ellipsoid(drawn))
    assert search.mean.numpy() == pytest.approx(np.ones(8), abs=1e-2)


def test_candidates_have_the_mean_and_covariance_of_the_state() -> None:
    root = torch.tensor([[2.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    mean, later = torch.tensor([5.0, -1.0], dtype=torch.float64), torch.tensor(3)
    search = begin(2, 0.3)._replace(mean=mean, covariance=root @ root.T, generation=later)
    drawn = draw(search, noise(200_000, 2, torch.Generator().manual_seed(0)))
    assert drawn.mean(0).numpy() == pytest.approx(search.mean.numpy(), abs=0.01)
    assert torch.cov(drawn.T).numpy() == pytest.approx((0.09 * root @ root.T).numpy(), abs=0.01)


def test_fitness_is_maximised_and_a_tie_is_won_by_the_first_candidate() -> None:
    drawn = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]], dtype=torch.float64)
    up, down = (learn(begin(1, 1.0), drawn, torch.tensor(f)) for f in ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]))
    first, second = strategy_parameters(4, 1).weights[:2].tolist()
    assert float(up.mean) == pytest.approx(first * 1 + second * 2)
    assert float(down.mean) == pytest.approx(-float(up.mean))


def test_state_consists_of_tensors() -> None:
    assert all(isinstance(part, Tensor) for part in begin(3, 0.1))
    assert Search._fields == ("mean", "sigma", "covariance", "path", "step_path", "generation")
