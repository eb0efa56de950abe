"""Runs with replay: rows are stored beside the checkpoints; none is lost, and none is from the future."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.base import failpoints, resource_usage
from cadenza.base.owned_files import MANIFEST
from cadenza.config.load import load
from cadenza.config.registry import ALGORITHMS, Algorithm
from cadenza.config.schema import RunConfig
from cadenza.data.priorities import Priorities
from cadenza.engine.orchestrator import Orchestrator
from cadenza.errors import CheckpointError, ConfigError, DivergenceError
from cadenza.records.folder import RunFolder
from cadenza.tools import plan as planning
from cadenza.tools.diagnose import diagnose
from cadenza.tools.verify import compare
from harness.lab import Lab

QUIET = ["evaluation.every_steps=0", "evaluation.at_end=false", "environment.num_envs=2", "logging.every_steps=8"]
PLACES = pytest.mark.parametrize("on_disk", [False, True])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "harness.replay_probe"
    entry = Algorithm("replay_probe", "for tests", f"{module}:ReplayProbeConfig", f"{module}:ReplayProbe")
    monkeypatch.setitem(ALGORITHMS, "replay_probe", entry)


def configured(*overrides: str) -> RunConfig:
    return load("CartPole-v1:replay_probe", [*QUIET, "checkpoint.every_steps=40", *overrides])


def segments(folder: RunFolder) -> set[str]:
    files = {path.relative_to(folder.files) for store in folder.replay.glob("*") for path in store.glob("*")}
    return {path for path in files if not path.endswith("SHA256SUMS")}


def named(run: Orchestrator, name: str) -> set[str]:
    return set(json.loads((run.checkpoints.folder / name / MANIFEST).read_bytes())["beside"])


@PLACES
def test_a_run_stopped_anywhere_resumes_exactly(on_disk: bool, lab: Lab) -> None:
    config = configured("training.max_timesteps=1200", f"algorithm.on_disk={on_disk}")
    whole, part = lab.start(config, "whole"), lab.start(config, "part")
    whole.run()
    part.save()
    for leave_at in (72, 80, 304, 560, 904):  # some of it saved at other points than the whole run was

        def enough(clock: object, run: Orchestrator = part, at: int = leave_at) -> bool:
            return run.clock.env_steps >= at

        part.run(enough)
        for _ in range(7):  # and then something that is forgotten
            part._do_next()
        part.stores["replay"].seal()  # type: ignore[attr-defined]
        part = lab.resume(part)
    part.run()
    assert compare(whole.folder, part.folder) is None


def test_a_kill_between_seal_and_checkpoint_leaves_no_data_from_the_future(lab: Lab) -> None:
    run = lab.start(configured("training.max_timesteps=400"))
    run.run(lambda clock: clock.env_steps >= 80)
    before = segments(run.folder)
    for _ in range(10):
        run._do_next()
    run.stores["replay"].seal()  # type: ignore[attr-defined]
    assert segments(run.folder) > before
    again = lab.resume(run)
    assert segments(run.folder) == before
    assert again.stores["replay"].state_dict()["head"].sum() < run.stores["replay"].state_dict()["head"].sum()


def test_only_segments_of_retained_checkpoints_remain(lab: Lab) -> None:
    run = lab.start(configured("training.max_timesteps=2000", "evaluation.every_steps=1000", "evaluation.episodes=2"))
    run.run()
    names = run.checkpoints.names()
    expected = named(run, names[-1]) | named(run, names[-2])
    assert segments(run.folder) == expected
    assert len(expected) <= 9  # of 50 written: 200 rows, 40 new ones each time


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_segment_falls_back_to_the_previous_checkpoint(damage: str, lab: Lab) -> None:
    config = configured("training.max_timesteps=400", "checkpoint.keep=3")
    whole, run = lab.start(config, "whole"), lab.start(config)
    whole.run()
    run.run(lambda clock: clock.env_steps >= 200)
    newest, before = reversed(run.checkpoints.names()[-2:])
    path = run.folder.path / min(named(run, newest) - named(run, before))
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name):
        run.checkpoints.load(newest)
    assert run.checkpoints.load(newest, "workflow")  # weights can be had
    again = lab.open(run.config, run.folder, run.folder.read_decisions())
    warnings: list[str] = []
    checkpoint = again.checkpoints.newest(warnings.append)
    assert checkpoint is not None
    assert checkpoint[0] == before
    assert path.name in warnings[0]
    again.load_state(checkpoint[1])
    again.run()
    assert compare(whole.folder, again.folder) is None


def test_a_full_disk_during_sealing_loses_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured("training.max_timesteps=400")
    whole, run = lab.start(config, "whole"), lab.start(config)
    whole.run()
    run.run(lambda clock: clock.env_steps >= 80)
    monkeypatch.setattr(failpoints, "armed", failpoints.parse("replay:sealed@1:enospc"))
    run.run()
    assert compare(whole.folder, run.folder) is None
    assert compare(whole.folder, lab.resume(run).folder) is None


def test_diagnosis_leaves_the_run_unchanged(lab: Lab) -> None:
    run = lab.start(configured("training.max_timesteps=400", "algorithm.fault_at=20"))
    with pytest.raises(DivergenceError):
        run.run()
    before = segments(run.folder)
    diagnosis = diagnose(run.folder, None, None)
    assert diagnosis["found"]
    assert diagnosis["env_steps"] == 20 * 8
    assert segments(run.folder) == before


@PLACES
def test_plan_reports_the_exact_size_of_the_replay(on_disk: bool) -> None:
    settings = ("training.max_timesteps=1000", "algorithm.capacity=100001", f"algorithm.on_disk={on_disk}")
    needs = planning.plan(configured(*settings), 0.1)
    rows = 100_000 * (16 + 8 + 4 + 1 + 1 + 1)
    size = needs["memory"]["stores"]["replay"] - Priorities.bytes_for(100_000)
    assert size == pytest.approx(0 if on_disk else rows, abs=200)  # and cursors
    assert needs["disk"]["replay_bytes"] == rows * (2 if on_disk else 1)
    assert 400_000 < needs["disk"]["checkpoint_bytes"] < 500_000


def test_a_replay_that_does_not_fit_is_refused_with_a_capacity_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "available_memory", lambda: 2_000_000)
    with pytest.raises(ConfigError, match=r"store 'replay' needs .*: algorithm\.capacity=\d+ \(not 100001\)"):
        planning.plan(configured("training.max_timesteps=1000", "algorithm.capacity=100001"), 0.1)


def test_the_path_of_a_run_may_change(lab: Lab, tmp_path: Path) -> None:
    config = configured("training.max_timesteps=400")
    whole, run = lab.start(config, "whole"), lab.start(config)
    whole.run()
    run.run(lambda clock: clock.env_steps >= 200)
    moved = RunFolder(run.folder.path.rename(tmp_path / "elsewhere"))
    again = lab.open(config, moved, moved.read_decisions())
    checkpoint = again.checkpoints.newest(lambda text: None)
    assert checkpoint is not None
    again.load_state(checkpoint[1])
    again.run()
    assert compare(whole.folder, again.folder) is None
