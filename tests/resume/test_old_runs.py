"""Run folders made by earlier code (fixtures/) open, resume to the same end, and can be repeated."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import traces

from harness import run_digests, traced_runs
from harness.traced_runs import OLD_RUNS, old_run

MADE_ON = json.loads((traces.FIXTURES / "made_on.json").read_text())
PLACES = re.compile(rb"/(tmp|home|root|work|Users|var|mnt)/")
# Of algorithms whose last bits have changed on purpose since these were made, with `traces.NUMERICS`.
OTHER_RESULTS = {"happo_finished", "ppo_interrupted", "sac_on_disk_interrupted", "tdmpc2_interrupted"}
STATES = {"SIGINT": "interrupted", "SIGKILL": "crashed", "": "finished"}


@pytest.fixture(params=OLD_RUNS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    """A copy of a fixture, a runs folder with one run."""
    return Path(shutil.copytree(traces.FIXTURES / name, tmp_path / "runs"))


def test_an_old_run_is_shown_listed_and_evaluated(name: str, root: Path) -> None:
    run = traces.last(root).name
    state = STATES[OLD_RUNS[name].left.partition("@")[0]]
    assert state in traces.command("show", "@last", "--runs-dir", root)
    listed = traces.command("list", "--runs-dir", root, "--json")
    (row,) = json.loads(listed.splitlines()[-1])["runs"]
    assert (row["run"], row["status"]) == (run, state)
    result = traces.command("evaluate", "@last", "--runs-dir", root, "--episodes", "1", "--json")
    assert json.loads(result.splitlines()[-1])["episodes"] == 1


def test_an_old_run_resumes_to_its_original_end(name: str, tmp_path: Path) -> None:
    folder = traces.run(traced_runs.traces()[old_run(name)], tmp_path / "runs")
    digests = run_digests.digests(folder)
    assert digests["env_steps"] == OLD_RUNS[name].env_steps
    stored, _ = traces.entry_here(traces.read(), traces.facts())
    if stored:  # elsewhere the same bits are not to be had
        assert run_digests.difference(stored[old_run(name)], digests) == ""


def test_an_old_run_is_repeated_bit_for_bit(name: str, root: Path) -> None:
    here = traces.facts()
    differing = [key for key in here if here[key] != MADE_ON.get(key) and key != "numerics"]
    if differing:
        pytest.skip(f"made on another kind of machine or with other libraries: {', '.join(differing)}")
    if name in OTHER_RESULTS:
        pytest.skip("its algorithm computes other last bits since")
    traces.command("verify", "@last", "--runs-dir", root)


def test_an_old_run_does_not_name_the_machine_it_was_made_on(name: str) -> None:
    for path in (traces.FIXTURES / name).rglob("*"):
        if path.is_file():
            assert not PLACES.search(path.read_bytes()), path
    folder = traces.last(traces.FIXTURES / name)
    assert json.loads((folder / "manifest.json").read_text())["machine"]["host"] == "machine"
    assert json.loads((folder / "status.json").read_text())["host"] == "machine"
