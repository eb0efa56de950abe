"""Short runs of everything compute the digests stored in traces.json, bit for bit; `-m full` checks all of them.

See benchmarks/traces.py, which makes the file and runs the same comparison as a command.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import traces

from harness import run_digests, traced_runs
from harness.traced_runs import INTERRUPTED, Trace, interrupted

RUNS = traced_runs.traces()
NEW = {name: trace for name, trace in RUNS.items() if not trace.fixture}  # the others: test_old_runs.py


@pytest.fixture(scope="session")
def stored() -> dict[str, run_digests.Digests]:
    """Return the digests of this machine; skip the test if there are none."""
    digests, reason = traces.entry_here(traces.read(), traces.facts())
    if reason:
        pytest.skip(reason)
    return digests


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if trace.sample else pytest.mark.full) for name, trace in NEW.items()]
)
def test_a_run_computes_its_stored_digests(name: str, stored: dict[str, run_digests.Digests], tmp_path: Path) -> None:
    assert name in stored, f"no digests of it: python benchmarks/traces.py make --base COMMIT --only '{name}'"
    now = run_digests.digests(traces.run(RUNS[name], tmp_path / "runs"))
    assert run_digests.difference(stored[name], now) == ""


def test_every_registered_algorithm_is_traced_with_two_seeds() -> None:
    listed = json.loads(traces.command("algorithms", "--json").splitlines()[-1])["algorithms"]
    seeds = Counter(trace.spec.partition(":")[2] for name, trace in NEW.items() if name.endswith(("seed 1", "seed 2")))
    for algorithm in listed:
        assert seeds[algorithm["name"]] >= 2, f"{algorithm['name']}: add it to harness/traced_runs.py"


@pytest.mark.parametrize("name", INTERRUPTED)
def test_the_stored_digests_of_an_interrupted_run_are_those_of_the_whole(name: str) -> None:
    for entry in traces.read().values():
        whole, parts = entry["traces"][name], entry["traces"][interrupted(name)]
        assert run_digests.difference(whole, parts) == ""


def test_two_seeds_have_different_digests() -> None:
    for entry in traces.read().values():
        for name in (name for name in entry["traces"] if name.endswith("seed 1")):
            one, other = entry["traces"][name], entry["traces"][f"{name[:-1]}2"]
            assert all(one[part] != other[part] for part in ("weights", "metrics", "episodes")), name


def test_a_machine_without_digests_is_told_the_difference_and_the_command() -> None:
    about = {"numerics": 1, "torch": "2.0"}
    entries = {
        "a": {"facts": {"numerics": 0, "torch": "1.9"}, "traces": {}},
        "b": {"facts": {"numerics": 1, "torch": "1.9"}, "traces": {"ppo": {"commit": "abc"}}},
    }
    digests, reason = traces.entry_here(entries, about)
    assert not digests
    assert "torch: 2.0 here, 1.9 there" in reason
    assert "numerics" not in reason
    assert reason.endswith("python benchmarks/traces.py make --base abc")
    assert "empty" in traces.entry_here({}, about)[1]


def test_a_difference_names_its_parts_and_the_first_row() -> None:
    then: dict[str, Any] = {"env_steps": 8, "weights": "a", "names": "b", "metrics": "c", "rows": "4:aa 8:bb"}
    assert run_digests.difference(then | {"commit": "abc"}, then) == ""
    message = run_digests.difference(then, then | {"weights": "x", "metrics": "y", "rows": "4:aa 8:cc", "env_steps": 9})
    assert message == (
        "differs in env_steps, weights, metrics, first in the row 8:bb (now 8:cc; env_steps:digest), "
        "env_steps 8 then and 9 now"
    )
    assert "under other names" in run_digests.difference(then, then | {"names": "z"})


def test_the_stored_file_has_the_format_that_write_produces(tmp_path: Path) -> None:
    traces.write(traces.read(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == traces.FILE.read_text()


@pytest.mark.parametrize("changed", ["weights", "episodes", "metrics"])
def test_digests_see_a_changed_folder(changed: str, tmp_path: Path) -> None:
    settings = ("device=cpu", "training.max_timesteps=256", "algorithm.n_steps=8", "algorithm.n_epochs=1")
    folder = traces.run(Trace("toy/identity:ppo", settings), tmp_path / "runs")
    before = run_digests.digests(folder)
    file = max(folder.glob(FILES[changed]))
    content = bytearray(file.read_bytes())
    at = content.index(b'"cycles": ') + 10 if changed == "metrics" else -1  # a digit; a byte of the last array
    content[at] ^= 1
    file.write_bytes(content)
    message = run_digests.difference(before, run_digests.digests(folder))
    assert changed in message


FILES = {
    "weights": "checkpoints/step-*/workflow.safetensors",
    "episodes": "episodes/*.safetensors",
    "metrics": "metrics.jsonl",
}
