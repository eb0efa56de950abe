"""A sample of `benchmarks/hostile_folders.py`: hostile content in folders of strangers, under every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import cadenza

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "hostile_folders.py"
EXAMPLES = 40

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, inotify and fork")


def attack(place: Path, *options: str) -> tuple[str, list[str]]:
    """Run the benchmark in a process of its own; return its output, and each failure in a line."""
    out = place / "failures.json"
    variables = {**os.environ, "PYTHONPATH": str(Path(cadenza.__file__).parents[1])}
    command = [sys.executable, str(BENCHMARK), "--json", str(out), *options]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=900)
    assert out.is_file(), process.stderr[-2000:]
    report = json.loads(out.read_text())
    print(f"{report['tried']} combinations tried in {report['seconds']:.0f} s")
    assert report["tried"] > 0
    failures = [f"without any attack: {line}" for line in report["broken"]]
    for failure in report["failures"]:
        broken = "; ".join(f"{rule} ({detail})" for rule, detail in failure["violations"])
        failures.append(f"{failure['trial']}: {broken}")
    rules = Counter(rule for failure in report["failures"] for rule in {rule for rule, _ in failure["violations"]})
    return f"{len(failures)} of {report['tried']} combinations: {dict(rules)}", failures


def test_a_sample_of_hostile_names_breaks_no_rule(tmp_path: Path) -> None:
    summary, failures = attack(tmp_path, "--sample", "--jobs", "2")
    assert not failures, "\n".join([summary, *failures[:EXAMPLES]])


def test_sinks_and_the_runs_folder_may_be_links(tmp_path: Path) -> None:
    summary, failures = attack(tmp_path, "--links")
    assert not failures, "\n".join([summary, *failures])
