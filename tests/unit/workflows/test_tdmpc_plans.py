"""Acting of TD-MPC: plans compared with a slow reference, warm starts, noise and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.config.load import load
from cadenza.config.world_model_settings import PathIntegralConfig
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.ops.planning import MPPIResult
from cadenza.types import Mode
from cadenza.workflows.tdmpc_steps import PlanNoise, plan
from harness.collecting import PHASE, warming
from harness.lab import Lab
from harness.small_tdmpc import SMALL, number, stirred

QUICK = ["algorithm.update_ratio=0.25", "algorithm.planning.iterations=2", "evaluation.at_end=false"]


@pytest.fixture
def warmed() -> Iterator[Any]:
    with warming(SMALL) as warm:
        yield warm


@pytest.fixture
def world() -> Iterator[Assembly]:
    """Assemble a run in whose environments a policy acts."""
    made = assemble(config := load("Pendulum-v1:tdmpc2", SMALL), check(config), {})
    yield made
    made.close()


def test_large_action_spaces_get_more_iterations() -> None:
    assert [PathIntegralConfig().rounds(size) for size in (1, 19, 20, 38)] == [6, 6, 8, 8]
    assert PathIntegralConfig(iterations=3).rounds(38) == 3


def test_each_round_scores_all_plans_by_rewards_until_an_end_and_the_value_beyond(warmed: Any) -> None:
    """All plans are elites, so that the return of each, in each iteration, changes the result."""
    search = [f"algorithm.planning.{key}" for key in ("iterations=3", "elites=10", "max_std=0.8", "temperature=3")]
    workflow, _ = warmed("Pendulum-v1:tdmpc2", "algorithm.model.critics=4", *search)
    stirred(workflow)
    config, model, least, most = workflow.config, workflow.model, 0.05, 0.8
    latent = torch.rand(2, 16, generator=torch.Generator().manual_seed(2))
    noise: PlanNoise = workflow._plan_noise(2, 3, torch.Generator().manual_seed(3))
    noise = noise._replace(pairs=torch.tensor([[0, 1], [2, 3], [1, 3]]))
    start = torch.tensor([0.1, -0.2, 0.3]).expand(2, 3).unsqueeze(-1)
    ended = set()
    with torch.inference_mode():
        tried = model.step(latent.repeat(50, 1), torch.linspace(-1, 1, 100)[:, None])
        model.ends[-1].bias -= model.ends(tried).quantile(0.8)  # that some plans end, and others do not
        result = plan(model, latent, start, noise, torch.tensor(least), 0.9, config)
        for n in range(2):
            policys, state = [], latent[n].expand(2, -1)
            for t in range(3):
                action, _ = model.policy(state, noise.policy[t, n])
                policys.append(action)
                state = model.step(state, action)
            mean, std = start[n], torch.full((3, 1), most)
            for drawn, after, pair in zip(noise.plans[:, n], noise.final[:, n], noise.pairs.tolist(), strict=True):
                tried = torch.cat([torch.stack(policys, 1), (mean + std * drawn).clamp(-1, 1)])
                returns = []
                for actions, last in zip(tried, after, strict=True):
                    state, total, counts = latent[n], 0.0, 1.0
                    for action in actions:
                        total += counts * number(workflow, model.reward(torch.cat([state, action])))
                        state, counts = model.step(state, action), 0.9 * counts
                        counts *= float(model.ends(state)) <= 0
                    ended.add(counts == 0)
                    action, _ = model.policy(state, last)
                    values = model.critics(torch.cat([state, action])[None])[:, 0]
                    returns.append(total + counts * sum(number(workflow, values[k]) for k in pair) / 2)
                weight = torch.softmax(3 * torch.tensor(returns), 0)
                assert weight.min() > 0.002  # each one counts
                mean = (weight[:, None, None] * tried).sum(0)
                std = (weight[:, None, None] * (tried - mean).square()).sum(0).sqrt().clamp(least, most)
            torch.testing.assert_close(result.mean[n], mean, atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(result.std[n], std, atol=1e-4, rtol=1e-3)
            ranked = sorted(range(10), key=lambda i: -returns[i])
            best = max(range(10), key=lambda k: float(weight[ranked[k]] / noise.waiting[n, k]))
            torch.testing.assert_close(result.action[n], tried[ranked[best], 0])
    assert ended == {True, False}


def test_noise_is_added_to_the_planned_action_only_while_exploring(warmed: Any, world: Assembly) -> None:
    workflow, _ = warmed("Pendulum-v1:tdmpc2")
    assert world.env is not None
    step = world.env.reset()
    deviations = torch.tensor([0.2, 7.0, 7.0]).view(1, 3, 1).expand(2, -1, -1)
    result = MPPIResult(torch.tensor([[0.1], [0.9]]), torch.zeros(2, 3, 1), deviations)
    workflow._plan = lambda *_: result

    def pushes(explore: bool) -> np.ndarray:
        """Return actions [400, N] on a scale of -1 to 1; the pendulum's largest torque is 2."""
        mode = Mode(explore, PHASE, world.streams)
        acted = [workflow.act(step, workflow.initial_carry(2), mode).action["agent"] for _ in range(400)]
        return np.stack(acted)[:, :, 0, 0] / 2

    np.testing.assert_allclose(pushes(explore=False), np.broadcast_to([0.1, 0.9], (400, 2)), rtol=1e-6)
    noisy = pushes(explore=True)
    assert noisy[:, 0].mean() == pytest.approx(0.1, abs=0.04)
    assert noisy[:, 0].std() == pytest.approx(0.2, abs=0.03)
    assert noisy[:, 1].max() == 1


def test_a_plan_is_warm_started_except_in_a_new_episode(warmed: Any, world: Assembly) -> None:
    one_round = [
        "algorithm.planning.iterations=1",
        "algorithm.planning.momentum=0.999",
        "algorithm.planning.samples=11",
    ]
    workflow, _ = warmed("Pendulum-v1:tdmpc2", *one_round)
    assert world.env is not None
    step = world.env.reset()
    carry = {"mean": torch.tensor([[[0.2], [0.4], [0.6]], [[-0.2], [-0.4], [-0.6]]])}
    later = replace(step, is_first=np.array([False, True]))
    acted = workflow.act(later, carry, Mode(explore=False, phase=PHASE, streams=world.streams))
    # with that momentum the mean hardly moves from where it began
    torch.testing.assert_close(acted.carry["mean"][0, :, 0], torch.tensor([0.4, 0.6, 0.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(acted.carry["mean"][1, :, 0], torch.zeros(3), atol=0.01, rtol=0)
    assert world.env.spec.groups["agent"].action.contains(acted.action["agent"][0, 0])


def test_plans_and_their_floor_of_noise_follow_their_schedules(warmed: Any, world: Assembly) -> None:
    longer = "algorithm.planning.horizon={schedule: linear, start_value: 1, end_value: 3, end: 100}"
    workflow, store = warmed(
        "Pendulum-v1:tdmpc2", longer, "algorithm.planning.min_std={start_value: 2, end_value: 0.1}"
    )
    stirred(workflow)
    assert world.env is not None
    step, lengths, floors, search = world.env.reset(), [], [], workflow._search

    def watched(inputs: Any) -> Any:
        floors.append(float(inputs["min_std"]))
        return search(inputs)

    def ahead(policy: Any) -> int:
        """Return the horizon of plans in an evaluation."""
        mode = Mode(explore=False, phase=PHASE, streams=world.streams)
        acted = policy.act(step, policy.initial_carry(2), mode)
        return int((acted.carry["mean"][0, :, 0] != 0).sum())

    workflow._search = watched
    for now in (0, 49, 50, 99, 100, 1000):
        mode = Mode(explore=True, phase=replace(PHASE, now=now), streams=world.streams)
        acted = workflow.act(step, workflow.initial_carry(2), mode)
        lengths.append(int((acted.carry["mean"][0, :, 0] != 0).sum()))
    assert lengths == [1, 1, 2, 2, 3, 3]
    assert floors == pytest.approx([2, 1.9069, 1.905, 1.8119, 1.81, 0.1])  # 1.9 less in 1000 steps
    workflow.update(store, replace(PHASE, now=60))
    assert ahead(workflow) == 2  # measured as it stood when it last learned
    again, _ = warmed("Pendulum-v1:tdmpc2", longer)
    assert ahead(again) == 1
    again.load_state_dict(workflow.state_dict())
    assert ahead(again) == 2  # and so where it is loaded
    workflow.load_weights(workflow.state_dict())
    assert ahead(workflow) == 3  # weights from elsewhere: as at the end of their run


def test_a_warm_started_plan_survives_a_resumption_in_the_middle_of_an_episode(lab: Lab) -> None:
    config = load("Pendulum-v1:tdmpc2", [*SMALL, *QUICK, "training.max_timesteps=160"])
    whole = lab.start(config, "whole")
    whole.run()
    first = lab.start(config, "parts")
    first.run(until=lambda clock: clock.env_steps >= 120)
    first.save()
    second = lab.resume(first)
    assert bool(second.collector.carry["mean"].any())
    assert torch.equal(second.collector.carry["mean"], first.collector.carry["mean"])
    second.run()
    assert torch.equal(second.collector.carry["mean"], whole.collector.carry["mean"])
    assert second.collector.checksum == whole.collector.checksum
