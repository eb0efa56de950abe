"""The loop with an algorithm that uses everything it offers (harness/memory.py)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import harness.memory
from cadenza.base import failpoints
from cadenza.config.load import load
from cadenza.config.registry import ALGORITHMS, Algorithm
from cadenza.config.schema import RunConfig
from cadenza.engine.build import assemble
from cadenza.engine.clock import Clock
from cadenza.engine.evaluator import Evaluation
from cadenza.engine.events import Saved
from cadenza.engine.launch import check
from cadenza.engine.orchestrator import Orchestrator
from cadenza.errors import ConfigError, DivergenceError, StorageError
from cadenza.records import episodes
from cadenza.records.metrics import read
from cadenza.tools.verify import compare
from harness.lab import Lab

QUIET = ["evaluation.every_steps=0", "evaluation.at_end=false", "environment.num_envs=2", "evaluation.episodes=2"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "harness.memory"
    entry = Algorithm("memory", "for tests", f"{module}:MemoryConfig", f"{module}:Memory")
    monkeypatch.setitem(ALGORITHMS, "memory", entry)


def configured(*overrides: str) -> RunConfig:
    return load("toy/identity:memory", [*QUIET, *overrides])


def rows(run: Orchestrator) -> list[dict[str, Any]]:
    return read(run.folder.metrics)


def memory(run: Orchestrator) -> harness.memory.Memory:
    assert isinstance(run.workflow, harness.memory.Memory)
    return run.workflow


def test_offline_runs_make_no_environment_and_count_in_updates(lab: Lab) -> None:
    config = configured(
        "algorithm.offline=true", "training.max_updates=50", "logging.every_updates=10", "checkpoint.every_updates=20"
    )
    run = lab.start(config)
    assert lab.opened[0].env is None
    saved: list[str] = []
    save = run.checkpoints.save
    run.checkpoints.save = lambda *args: saved.append(save(*args)) or saved[-1]  # type: ignore[method-assign]
    run.run()
    assert [row["updates"] for row in rows(run)] == [10, 20, 30, 40, 50]
    assert [int(name[-12:]) for name in saved] == [20, 40, 50]
    assert [(phase.now, phase.horizon) for phase in memory(run).phase_log[:3]] == [(0, 50), (1, 50), (2, 50)]
    assert memory(run).phase_log[7].updates == 7


@pytest.mark.parametrize("task", ["steps: 40", "episodes: 3"])
def test_an_interrupted_collection_continues_under_the_same_schedules(lab: Lab, task: str) -> None:
    run = lab.start(load("CartPole-v1:ppo", [*QUIET, "algorithm.n_steps=20", "algorithm.batch_size=1.0"]))
    hook = replace(run.scheduler.phases[0].hooks[0], steps=None, episodes=3) if "episodes" in task else None
    if hook is not None:
        phase = run.scheduler.phases[0]
        run.scheduler.phases = (replace(phase, hooks=(hook, *phase.hooks[1:])),)
    phases = []
    for _ in range(4):  # leave after every vector step, as signals would
        assert run.collector is not None
        act, left = run.collector.act, iter((False, True))
        run.collector.act = lambda *args, act=act: phases.append(args[2].phase) or act(*args)
        run._stop = partial(next, left)  # type: ignore[method-assign]
        run._do_next()
        run.save()
        run = lab.resume(run)
        if hook is not None:
            run.scheduler.phases = (replace(phase, hooks=(hook, *phase.hooks[1:])),)
    assert run.clock.env_steps == 8
    assert [(phase.now, phase.steps) for phase in phases] == [(0, 0)] * 4


def test_schedules_extend_over_phases_counted_in_cycles(lab: Lab) -> None:
    cycle = "hooks: [collect, update]"
    phases = f"training.phases=[{{name: a, duration_steps: 1024, {cycle}}}, {{name: b, duration_cycles: 3, {cycle}}}]"
    run = lab.start(load("CartPole-v1:ppo", ["training.max_timesteps=null", phases]))  # 256 env_steps a cycle
    assert run.decisions["training.horizon"] == 1024 + 3 * 256


@pytest.mark.parametrize(
    ("spec", "steps"),
    [("Pendulum-v1:sac", 1), ("CartPole-v1:dqn", 256), ("CartPole-v1:dreamer_v3", 1), ("CartPole-v1:ppo", 256)],
)
def test_collect_without_an_amount_collects_as_in_the_phase_that_learns(spec: str, steps: int) -> None:
    phases = "training.phases=[{name: mine, hooks: [collect, update], duration_cycles: 3}]"
    config = load(spec, [phases])
    decisions: dict[str, Any] = {}
    assembly = assemble(config, check(config), decisions)
    assembly.close()
    assert [hook.steps for hook in assembly.phases[0].hooks] == [steps, None]
    assert decisions["training.collect"] == {"steps": steps, "episodes": None}


def test_a_run_from_before_the_decision_keeps_the_amount_of_the_first_collect() -> None:
    config = load("Pendulum-v1:sac", ["training.phases=[{name: mine, hooks: [collect, update], duration_cycles: 3}]"])
    decisions: dict[str, Any] = {}
    assembly = assemble(config, check(config), decisions, fresh=False)
    assembly.close()
    assert assembly.phases[0].hooks[0].steps == config.algorithm.warmup_steps
    assert "training.collect" not in decisions


def test_a_run_that_would_never_end_is_refused(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"training\.max_updates"):
        lab.start(configured("algorithm.offline=true"))
    with pytest.raises(ConfigError, match=r"training\.max_timesteps"):
        lab.start(configured("training.max_timesteps=null"))
    gather = "{name: gather, hooks: [collect], actions: random, duration_steps: 20}"
    fit = "{name: fit, type: offline, hooks: [{name: update_model, buffer: other}]}"
    with pytest.raises(ConfigError, match=r"phase fit would never end: set training\.max_updates, or give"):
        lab.start(configured(f"training.phases=[{gather}, {fit}]"))  # which uses up no env_steps
    lab.start(configured(f"training.phases=[{gather}, {fit}]", "training.max_updates=5")).run()
    watch = "{name: watch, hooks: [collect]}"
    with pytest.raises(
        ConfigError, match=r"phase watch would never end: set training\.max_timesteps, or give it a dur"
    ):
        lab.start(configured(f"training.phases=[{watch}]", "training.max_timesteps=null", "training.max_updates=5"))


def test_a_phase_that_hides_the_next_is_refused(lab: Lab) -> None:
    phases = "training.phases=[{name: train, hooks: [collect]}, {name: more, hooks: [collect], duration_cycles: 1}]"
    with pytest.raises(ConfigError, match="phase train never ends"):
        lab.start(configured(phases))


def test_finite_phases_need_no_budget(lab: Lab) -> None:
    phases = (
        "training.phases=[{name: gather, hooks: [collect], actions: random, duration_steps: 20},"
        "{name: fit, type: offline, hooks: [{name: update_model, buffer: other}], duration_updates: 5},"
        "{name: live, hooks: [{name: collect, episodes: 3}, {name: update, ratio: 0.1}], duration_cycles: 2},"
        "{name: measure, type: eval_only, hooks: [evaluate], duration_cycles: 2}]"
    )
    run = lab.start(configured("training.max_timesteps=null", phases))
    run.run()
    workflow, clock = memory(run), run.clock
    assert [phase.name for phase in workflow.phase_log[:5]] == ["fit"] * 5
    assert all(store is run.stores["other"] for store in workflow.used[:5])
    live = [phase for phase in workflow.phase_log if phase.name == "live"]
    assert len(live) == (clock.env_steps - 24) // 10  # one update for every ten steps of the phase
    assert clock.episodes >= 6
    assert clock.evaluations == 2
    assert run.scheduler.over


def test_forced_actions_reach_the_environment_and_the_memory(lab: Lab) -> None:
    phases = "training.phases=[{name: gather, hooks: [collect], actions: random, duration_steps: 64}]"
    run = lab.start(configured("training.max_timesteps=null", phases))
    run.run()
    recorded = list(episodes.load(run.folder))
    forced = [int(actions[0, 0]) for actions in memory(run).forced]
    assert recorded[0].env == 0
    assert [int(action) for action in recorded[0].actions["agent"].ravel()] == forced[: recorded[0].length]


def test_the_memory_is_reset_with_the_episode_and_survives_a_resume(lab: Lab) -> None:
    config = configured("training.max_timesteps=80")
    whole, part = lab.start(config, "whole"), lab.start(config, "part")
    whole.run()
    part.run(until=lambda clock: clock.env_steps >= 40)
    again = lab.resume(part)
    again.run()
    assert compare(whole.folder, again.folder) is None
    tape = whole.stores["main"]
    assert isinstance(tape, harness.memory.Tape)
    assert tape.carries[:17] == [2.0 * step for step in range(1, 17)] + [2.0]  # episodes of 16 steps, two at a time


def test_evaluations_use_their_own_generators(lab: Lab) -> None:
    often = lab.start(configured("training.max_timesteps=64", "evaluation.every_steps=8"), "often")
    never = lab.start(configured("training.max_timesteps=64"), "never")
    often.run()
    never.run()
    assert often.clock.evaluations == 8
    assert rows(often)[-1]["digest/experience"] == rows(never)[-1]["digest/experience"]


def test_each_evaluation_has_its_own_reproducible_draws(lab: Lab) -> None:
    run = lab.start(configured("training.max_timesteps=64"))
    info = run._phase(None)

    def drawn(number: int) -> list[list[int]]:
        return [episode.actions["agent"].ravel().tolist() for episode in run.evaluator(number, info).episodes]

    first, second = drawn(0), drawn(1)
    assert drawn(0) == first
    assert first != second
    run.run()
    trained = [episode.actions["agent"].ravel().tolist() for episode in episodes.load(run.folder)]
    assert trained[0] not in (first[0], second[0])  # nor does it repeat what training draws


def test_an_evaluate_hook_saves_the_best_and_is_not_repeated_at_the_end(lab: Lab) -> None:
    phases = "training.phases=[{name: train, hooks: [collect, update, evaluate]}]"
    run = lab.start(configured("training.max_timesteps=24", "evaluation.at_end=true", phases))
    run.run()
    assert run.clock.evaluations == 3
    scores = [row["eval/return_mean"] for row in rows(run)]
    best = scores.index(max(scores))
    assert run.scores.best == scores[best]
    assert run.checkpoints.resolve("best").startswith(f"step-{8 * (best + 1):012d}")


def has_reached(env_steps: int, clock: Clock) -> bool:
    return clock.env_steps >= env_steps


def test_of_equal_evaluations_the_latest_is_the_best(lab: Lab) -> None:
    run = lab.start(configured("training.max_timesteps=24"))
    for end in (8, 16):
        run.run(until=partial(has_reached, end))
        run.scores.latest, run.scores.evaluated_at = 5.0, run.clock.position
        run.save()
    assert run.checkpoints.resolve("best").startswith("step-000000000016")


def test_best_is_saved_once_for_each_score(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = (
        "training.phases=[{name: train, hooks: [collect, update], duration_steps: 16},"
        "{name: measure, type: eval_only, hooks: [evaluate], duration_cycles: 5}]"
    )
    run = lab.start(configured("training.max_timesteps=null", "evaluation.at_end=true", phases))
    values = {1: 3.0, 2: 3.0, 3: 2.0, 4: 4.0, 5: 4.0}
    saved: list[tuple[bool, float | None]] = []
    monkeypatch.setattr(Evaluation, "metrics", lambda self: {"eval/return_mean": values[max(1, run.clock.evaluations)]})
    run.listeners.append(
        lambda event: saved.append((event.best, run.scores.best)) if isinstance(event, Saved) else None
    )
    run.run()
    assert run.clock.evaluations == 5
    assert saved == [(True, 3.0), (True, 4.0), (False, 4.0)]  # the last ends the run


def test_early_stopping_by_a_training_metric_ends_with_an_evaluation(lab: Lab) -> None:
    stop = "training.early_stop={metric: collect/return_mean, at_least: 0}"
    run = lab.start(configured(stop, "evaluation.at_end=true", "logging.every_steps=8", "training.max_timesteps=800"))
    run.run()
    assert run.clock.env_steps == 32  # the first episodes end after 2 x 16 steps
    assert rows(run)[-1]["eval/episodes"] == 2
    assert lab.resume(run).finished


def test_an_interrupted_evaluation_is_repeated(lab: Lab) -> None:
    config = configured("training.max_timesteps=48", "evaluation.every_steps=16", "evaluation.at_end=true")
    whole, part = lab.start(config, "whole"), lab.start(config, "part")
    whole.run()
    measure = part.evaluator.__call__

    def interrupt(*args: Any) -> Any:
        if part.clock.env_steps == 32:
            part.signals.stop()
        return measure(*args)

    part.evaluator = interrupt  # type: ignore[assignment]
    assert part.run() == "stop"
    assert part.clock.evaluations == 1
    again = lab.resume(part)
    assert again.run() is None
    assert compare(whole.folder, again.folder) is None


def test_a_best_that_could_not_be_saved_is_not_claimed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lab.start(configured("training.max_timesteps=16", "evaluation.every_steps=8"))
    run.save()
    monkeypatch.setattr(failpoints, "armed", failpoints.parse("ckpt:before_rename@1:enospc"))
    run.run()
    monkeypatch.setattr(failpoints, "armed", None)
    scores = [row["eval/return_mean"] for row in rows(run)]
    if run.scores.best is None:
        assert not (run.folder.checkpoints / "best").exists()
    else:
        assert run.scores.best == scores[1]
        assert run.checkpoints.resolve("best").startswith("step-000000000016")


def test_a_failing_final_save_is_retried_and_then_raises(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lab.start(configured("training.max_timesteps=1000"))
    run.save()
    monkeypatch.setattr(failpoints, "armed", failpoints.parse("ckpt:before_rename@1+:enospc"))
    with pytest.raises(StorageError, match="last good checkpoint is kept"):
        run.run(until=lambda clock: clock.env_steps >= 16)
    monkeypatch.setattr(failpoints, "armed", failpoints.parse("ckpt:before_rename@1:enospc"))
    run.failed_saves = 0
    run.save(insist=True)
    assert run.checkpoints.names()[-1].startswith("step-000000000016")


def test_weights_that_are_not_finite_are_never_saved(lab: Lab) -> None:
    run = lab.start(configured("training.max_timesteps=100"))
    run.save()
    memory(run).weights = memory(run).weights * math.nan
    with pytest.raises(DivergenceError, match=r"networks\.weights is not finite"):
        run.save()
    assert len(run.checkpoints.names()) == 1


def test_a_divergence_error_of_an_algorithm_names_the_next_step(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lab.start(configured("training.max_timesteps=100"))
    run.save()

    def fail(*args: Any) -> None:
        raise FloatingPointError("a priority is not finite")

    monkeypatch.setattr(run.workflow, "update", fail)
    with pytest.raises(DivergenceError, match=r"a priority is not finite by step \d+ .*cadenza debug"):
        run.run()


def test_a_signal_before_the_first_episode_ends_counts_no_cycle(lab: Lab) -> None:
    phases = "training.phases=[{name: train, hooks: [{name: collect, episodes: 2}, update]}]"
    config = configured(phases, "training.max_timesteps=200", "logging.every_steps=8")
    whole, part = lab.start(config, "whole"), lab.start(config, "part")
    whole.run()
    stops = iter([False] * 5 + [True])
    part._stop = lambda: next(stops, True)  # type: ignore[method-assign]
    part.run()
    assert part.clock.env_steps == 8  # four vector steps of two: no episode is over
    assert part.clock.cycles == 0
    again = lab.resume(part)
    again.run()
    assert compare(whole.folder, again.folder) is None


def test_the_cycle_is_counted_before_the_best_is_saved(lab: Lab) -> None:
    phases = "training.phases=[{name: train, hooks: [collect, update, evaluate]}]"
    config = configured(phases, "training.max_timesteps=48", "logging.every_steps=8")
    whole, part = lab.start(config, "whole"), lab.start(config, "part")
    whole.run()
    part.run(until=lambda clock: clock.cycles >= 1)
    for name in part.checkpoints.names()[1:]:
        part.checkpoints._set_aside(name)
    first = part.checkpoints.load(part.checkpoints.names()[0])
    assert first["clock"]["cycles"] == 1
    again = lab.resume(part)
    again.run()
    assert [row["cycles"] for row in rows(again)] == [row["cycles"] for row in rows(whole)]


def test_the_same_position_is_evaluated_once(lab: Lab) -> None:
    phases = "training.phases=[{name: train, hooks: [collect, update, evaluate]}]"
    often = ["training.max_timesteps=32", "evaluation.every_steps=8", "evaluation.at_end=true"]
    run = lab.start(configured(phases, *often))
    run.run()
    assert run.clock.evaluations == 4
