"""The scheduler compared with tables of expected tasks."""

from __future__ import annotations

import pytest

from cadenza.config.convert import build, to_dict
from cadenza.config.schema import Hook, Phase
from cadenza.engine.scheduler import PhaseProgress, PhaseScheduler
from cadenza.errors import ConfigError


def trace(phases: tuple[Phase, ...], tasks: int, step: int = 4) -> list[str]:
    """Carry out every task at once, collecting in vector steps of `step`; return a trace."""
    scheduler, names = PhaseScheduler(phases), []
    for _ in range(tasks):
        task = scheduler.next()
        if task is None:
            names.append("end")
            break
        names.append(f"{task.phase.name}:{task.hook.name}*{task.amount}")
        if task.hook.name == "collect":
            steps = -(-task.amount // step) * step
            scheduler.advance(steps, env_steps=steps)
        else:
            scheduler.advance(task.amount, updates=task.amount if task.hook.name != "evaluate" else 0)
    return names


COLLECT, UPDATE = Hook("collect", steps=8), Hook("update")

TABLE = [
    pytest.param(
        (Phase("train", (COLLECT, UPDATE)),),
        ["train:collect*8", "train:update*1", "train:collect*8", "train:update*1"],
        id="endless",
    ),
    pytest.param(
        (Phase("warmup", (COLLECT,), duration_steps=10), Phase("train", (COLLECT, UPDATE), duration_cycles=1)),
        ["warmup:collect*8", "warmup:collect*8", "train:collect*8", "train:update*1", "end"],
        id="a phase ends at the first cycle at or after its duration",
    ),
    pytest.param(
        (Phase("fit", (Hook("update_model", times=3),), type="offline", duration_updates=5),),
        ["fit:update_model*3", "fit:update_model*3", "end"],
        id="offline, counted in updates",
    ),
    pytest.param(
        (Phase("train", (Hook("collect", steps=4), Hook("update", ratio=0.3)), duration_steps=20),),
        # 0.3 x 4, 8, 12, 16, 20 steps = 1.2, 2.4, 3.6, 4.8, 6 updates in all
        [f"train:{name}" for name in ("collect*4", "update*1") * 4] + ["train:collect*4", "train:update*2", "end"],
        id="ratio keeps its account over cycles",
    ),
    pytest.param(
        (Phase("train", (Hook("collect", steps=4), Hook("update", ratio=0.1)), duration_steps=12),),
        ["train:collect*4", "train:collect*4", "train:collect*4", "train:update*1", "end"],
        id="a hook with nothing due is passed over",
    ),
    pytest.param(
        (Phase("train", (Hook("update", ratio=0.5), Hook("collect", steps=4)), duration_steps=8),),
        ["train:collect*4", "train:update*2", "train:collect*4", "end"],
        id="a ratio before the first step has nothing due",
    ),
    pytest.param(
        (Phase("measure", (Hook("evaluate"),), type="eval_only", duration_cycles=2),),
        ["measure:evaluate*1", "measure:evaluate*1", "end"],
        id="eval only",
    ),
]


@pytest.mark.parametrize(("phases", "expected"), TABLE)
def test_the_scheduler_goes_through_all_phases(phases: tuple[Phase, ...], expected: list[str]) -> None:
    assert trace(phases, len(expected)) == expected


def test_decimal_ratios_are_exact() -> None:
    scheduler = PhaseScheduler((Phase("train", (Hook("collect", steps=100), Hook("update", ratio=0.29))),))
    scheduler.advance(100, env_steps=100)
    task = scheduler.next()
    assert task is not None
    assert task.amount == 29  # 0.29 * 100 is 28.999999999999996 in binary


def test_a_task_can_be_done_in_parts_with_a_save_between() -> None:
    phases = (Phase("train", (COLLECT, Hook("update", times=3))),)
    scheduler = PhaseScheduler(phases)
    scheduler.advance(4, env_steps=4)
    assert not scheduler.at_boundary
    other, state = PhaseScheduler(phases), scheduler.state_dict()
    other.load_state_dict(state)
    for twin in (scheduler, other):
        assert twin.next().amount == 4
        twin.advance(4, env_steps=4)
        twin.advance(2, updates=2)
        assert twin.next().amount == 1
        twin.advance(1, updates=1)
        assert twin.at_boundary
    assert scheduler.state_dict() == other.state_dict()
    assert scheduler.calls == [8, 3]  # each has a list of its own
    assert state["calls"] == [4, 0]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"hooks": ()}, "at least one hook"),
        ({"hooks": (UPDATE,)}, "needs the hook collect"),
        ({"hooks": (COLLECT, UPDATE), "type": "offline"}, "does not collect"),
        ({"hooks": (COLLECT,), "type": "eval_only"}, "evaluate alone"),
        ({"hooks": (Hook("evaluate"),), "type": "eval_only"}, "needs duration_cycles"),
        ({"hooks": (COLLECT,), "duration_steps": 1, "duration_cycles": 1}, "only one of"),
        ({"hooks": (COLLECT,), "duration_steps": 0}, "at least 1"),
        ({"hooks": (UPDATE,), "type": "offline", "duration_steps": 5}, "only an online phase"),
    ],
)
def test_impossible_phases_are_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build(Phase, to_dict({"name": "p", **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "collect", "ratio": 0.5},
        {"name": "collect", "times": 2},
        {"name": "collect", "steps": 4, "episodes": 1},
        {"name": "collect", "episodes": 0},
        {"name": "update", "steps": 4},
        {"name": "update", "ratio": 0.0},
        {"name": ""},
    ],
)
def test_impossible_hooks_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        build(Hook, fields)


def test_collecting_may_be_counted_in_episodes() -> None:
    scheduler = PhaseScheduler((Phase("train", (Hook("collect", episodes=3), UPDATE)),))
    scheduler.advance(2, env_steps=50)
    task = scheduler.next()
    assert task is not None
    assert task.amount == 1
    scheduler.advance(1, env_steps=20)
    assert scheduler.next().hook == UPDATE
    assert scheduler.steps == 70


def test_a_cycle_has_begun_with_its_first_step_even_if_no_episode_has_ended() -> None:
    scheduler = PhaseScheduler((Phase("train", (Hook("collect", episodes=1), UPDATE)),))
    scheduler.advance(0)
    assert scheduler.at_boundary
    scheduler.advance(0, env_steps=11)
    assert not scheduler.at_boundary
    other = PhaseScheduler(scheduler.phases)
    other.load_state_dict(scheduler.state_dict())
    assert not other.at_boundary
    other.advance(1, env_steps=5)
    other.advance(1, updates=1)
    assert other.at_boundary
    assert other.cycles == 1


def test_the_end_of_a_cycle_is_detected_if_the_first_hook_has_nothing_due() -> None:
    scheduler = PhaseScheduler((Phase("train", (Hook("update", ratio=0.01), Hook("collect", steps=4))),))
    for cycle in range(1, 4):
        assert scheduler.at_boundary
        scheduler.advance(4, env_steps=4)
        assert scheduler.cycles == cycle


def test_phase_progress_reports_the_completed_share() -> None:
    pretrain = Phase("pretrain", (UPDATE,), "offline", duration_updates=2)
    scheduler = PhaseScheduler((pretrain, Phase("train", (COLLECT, UPDATE), duration_cycles=1)))
    assert scheduler.progress == PhaseProgress("pretrain", last=False, unit="updates", amount=0, total=2)
    scheduler.advance(1, updates=1)
    assert scheduler.progress == PhaseProgress("pretrain", last=False, unit="updates", amount=1, total=2)
    scheduler.advance(1, updates=1)
    assert scheduler.progress == PhaseProgress("train", last=True, unit="cycles", amount=0, total=1)
    scheduler.advance(8, env_steps=8)
    scheduler.advance(1, updates=1)
    assert scheduler.over
    assert scheduler.progress == PhaseProgress("train", last=True, unit="cycles", amount=1, total=1)
    assert PhaseScheduler((Phase("train", (COLLECT, UPDATE)),)).progress == PhaseProgress("train", last=True)


def test_the_rest_of_a_phase_can_be_skipped() -> None:
    phases = (Phase("fit", (UPDATE,), "offline", duration_updates=9), Phase("train", (COLLECT,), duration_cycles=1))
    scheduler = PhaseScheduler(phases)
    scheduler.advance(1, updates=1)
    scheduler.skip()
    task = scheduler.next()
    assert task is not None
    assert (task.phase.name, scheduler.updates, scheduler.at_boundary) == ("train", 0, True)
    scheduler.skip()
    assert scheduler.over
    assert scheduler.next() is None
