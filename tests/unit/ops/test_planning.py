from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cadenza.ops.planning import MPPIResult, cem, mppi

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


def test_cem_equals_a_loop_over_environments_and_plans() -> None:
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


def test_cem_converges_to_the_best_plan_within_bounds() -> None:
    mean, std, noise = start()
    best, spread = cem(score, mean, std, noise, ELITES)
    assert float((best - goal()).abs().max()) < 0.25
    assert float(spread.max()) < 0.5
    candidates: list[Tensor] = []

    def watch(plans: Tensor) -> Tensor:
        candidates.append(plans)
        return score(plans)

    cem(watch, mean, std, noise, ELITES, -0.2, 0.3)
    assert min(float(plans.min()) for plans in candidates) == -0.2
    assert max(float(plans.max()) for plans in candidates) == 0.3


POLICY_PLANS, TEMPERATURE, MOMENTUM, LEAST, MOST = 5, 0.5, 0.1, 0.07, 0.9


def search_once() -> tuple[MPPIResult, Tensor, Tensor, Tensor]:
    mean, std, noise = start()
    generator = torch.Generator().manual_seed(3)
    aside = torch.randn(ENVS, POLICY_PLANS, HORIZON, SIZE, generator=generator, dtype=torch.float64)
    # close to the goal: some of them are elites in each iteration
    policy_plans = (goal().unsqueeze(1) + 0.05 * aside).clamp(-1, 1)
    waiting = torch.empty(ENVS, ELITES, dtype=torch.float64).exponential_(generator=generator)
    result = mppi(
        lambda plans, number: score(plans) * (number + 1),  # the score may depend on the iteration
        mean,
        MOST * std,
        noise[:, :, POLICY_PLANS:],
        policy_plans,
        waiting,
        elites=ELITES,
        temperature=TEMPERATURE,
        momentum=MOMENTUM,
        min_std=torch.tensor(LEAST, dtype=torch.float64),
        max_std=MOST,
    )
    return result, noise[:, :, POLICY_PLANS:], policy_plans, waiting


def test_mppi_equals_a_loop_over_environments_and_plans() -> None:
    result, noise, policy_plans, waiting = search_once()
    aims = goal().numpy()
    for n in range(ENVS):
        m, s = np.zeros((HORIZON, SIZE)), np.full((HORIZON, SIZE), MOST)
        for number, drawn in enumerate(noise[:, n].numpy()):
            plans = [*policy_plans[n].numpy(), *(np.minimum(np.maximum(m + s * d, -1), 1) for d in drawn)]
            values = [-(number + 1) * float(((plan - aims[n]) ** 2).sum()) for plan in plans]
            best = sorted(range(len(plans)), key=lambda i: -values[i])[:ELITES]
            assert min(best) < POLICY_PLANS <= max(best)
            weights = [math.exp(TEMPERATURE * (values[i] - values[best[0]])) for i in best]
            weights = [weight / sum(weights) for weight in weights]
            fitted = sum(w * plans[i] for w, i in zip(weights, best, strict=True))
            spread = np.sqrt(sum(w * (plans[i] - fitted) ** 2 for w, i in zip(weights, best, strict=True)))
            m, s = MOMENTUM * m + (1 - MOMENTUM) * fitted, np.clip(spread, LEAST, MOST)
        np.testing.assert_allclose(result.mean[n], m, atol=1e-10)
        np.testing.assert_allclose(result.std[n], s, atol=1e-10)
        rates = [weight / float(wait) for weight, wait in zip(weights, waiting[n], strict=True)]
        np.testing.assert_allclose(result.action[n], plans[best[int(np.argmax(rates))]][0], atol=1e-10)


def test_mppi_samples_elites_in_proportion_to_their_weights() -> None:
    many = 20_000
    plans = torch.tensor([0.1, 0.2, 0.3, 0.4]).view(1, 4, 1, 1).expand(many, -1, -1, -1)
    values = torch.tensor([0.0, 3.0, 2.0, 1.0])
    result = mppi(
        lambda plans, number: values.expand(many, -1),
        torch.zeros(many, 1, 1),
        torch.ones(many, 1, 1),
        torch.zeros(1, many, 0, 1, 1),
        plans,
        torch.empty(many, 3).exponential_(generator=torch.Generator().manual_seed(0)),
        elites=3,
        temperature=0.5,
        momentum=0.0,
        min_std=torch.tensor(0.05),
        max_std=2.0,
    )
    expected = torch.softmax(0.5 * values[1:], 0)
    frequency = torch.stack([(result.action == action).float().mean() for action in (0.2, 0.3, 0.4)])
    torch.testing.assert_close(frequency, expected, atol=0.02, rtol=0)
    torch.testing.assert_close(result.mean[0, 0, 0], (expected * torch.tensor([0.2, 0.3, 0.4])).sum())


def test_mppi_plans_for_each_environment_independently() -> None:
    result, noise, policy_plans, waiting = search_once()
    mean, std, _ = start()
    alone = mppi(
        lambda plans, number: -(number + 1) * (plans - goal()[1:2].unsqueeze(1)).square().sum((-2, -1)),
        mean[1:2],
        MOST * std[1:2],
        noise[:, 1:2],
        policy_plans[1:2],
        waiting[1:2],
        elites=ELITES,
        temperature=TEMPERATURE,
        momentum=MOMENTUM,
        min_std=torch.tensor(LEAST, dtype=torch.float64),
        max_std=MOST,
    )
    torch.testing.assert_close(result.mean[1:2], alone.mean)
    torch.testing.assert_close(result.action[1:2], alone.action)
