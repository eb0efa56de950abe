from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cadenza.ops.planning import cem

ENVS, PLANS, HORIZON, SIZE, ITERATIONS, ELITES = 3, 60, 4, 2, 5, 7


def goal() -> Tensor:
    return 0.8 * torch.rand(ENVS, HORIZON, SIZE, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def score(plans: Tensor) -> Tensor:
    return -(plans - goal().unsqueeze(1)).square().sum((-2, -1))


def start() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(ITERATIONS, ENVS, PLANS, HORIZON, SIZE, generator=generator, dtype=torch.float64)
    shape = (ENVS, HORIZON, SIZE)
    return torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64), noise


def test_it_equals_a_loop_over_environments_and_plans() -> None:
    mean, std, noise = start()
    got_mean, got_std = cem(score, mean, std, noise, ELITES)
    aims = goal().numpy()
    for n in range(ENVS):
        m, s = np.zeros((HORIZON, SIZE)), np.ones((HORIZON, SIZE))
        for drawn in noise[:, n].numpy():
            plans = [np.minimum(np.maximum(m + s * d, -1), 1) for d in drawn]
            plans.sort(key=lambda plan: -float(((plan - aims[n]) ** 2).sum()))
            best = plans[-ELITES:]
            m = sum(best) / ELITES
            s = np.sqrt(sum((plan - m) ** 2 for plan in best) / ELITES + 1e-6)
        np.testing.assert_allclose(got_mean[n], m, atol=1e-10)
        np.testing.assert_allclose(got_std[n], s, atol=1e-10)


def test_it_comes_close_to_the_best_plan_and_stays_within_bounds() -> None:
    mean, std, noise = start()
    found, spread = cem(score, mean, std, noise, ELITES)
    assert float((found - goal()).abs().max()) < 0.25
    assert float(spread.max()) < 0.5
    tried: list[Tensor] = []

    def watch(plans: Tensor) -> Tensor:
        tried.append(plans)
        return score(plans)

    cem(watch, mean, std, noise, ELITES, -0.2, 0.3)
    assert min(float(plans.min()) for plans in tried) == -0.2
    assert max(float(plans.max()) for plans in tried) == 0.3
