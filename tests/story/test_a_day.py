"""A day at the lab with the real command line: trained, swept, killed, gone on with, looked at, written up, tidied.

Every number is asked for in several ways, and must be the same each time."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from cadenza.lab.statistics import interquartile_mean
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import read
from harness.command import cadenza, train

# four cycles, an evaluation after each: enough to differ, too few to be solved
SETTINGS = {
    "algorithm.n_steps": 16,
    "algorithm.n_epochs": 2,
    "algorithm.batch_size": 64,
    "evaluation.every_steps": 128,
    "evaluation.episodes": 4,
    "logging.every_steps": 128,
    "checkpoint.every_steps": 256,
}
BUDGET = 512
VARIANTS = ["a2c", "ppo"]
PPO_ALONE = ("algorithm.n_epochs", "algorithm.batch_size")
SEEDS = [1, 2, 3]
RATES = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1]
KILLED_AT = "sweep:noted@12"  # facts in its journal: two trials are over by then, two under way


class Lab:
    """A folder of runs, and commands on it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def output(self, *arguments: object) -> Any:
        """Return the last line that a command prints with --json."""
        outcome = cadenza(*arguments, "--json", "--runs-dir", self.root).succeeded()
        return json.loads(outcome.out.splitlines()[-1])

    def process(self, *arguments: object, failpoint: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own."""
        line = [sys.executable, "-m", "cadenza", *map(str, arguments), "--json", "--runs-dir", str(self.root)]
        return subprocess.run(
            line, capture_output=True, text=True, env={**os.environ, "CADENZA_FAILPOINT": failpoint}, timeout=300
        )

    def listed(self, *filters: str) -> dict[str, dict[str, Any]]:
        options = [part for one in filters for part in ("--filter", one)]
        return {row["run"]: row for row in self.output("list", *options)["runs"]}

    def last_score(self, run: str) -> float:
        """Return the last score in the run's rows."""
        scores = [
            row["eval/return_mean"] for row in read(RunFolder(self.root / run).metrics) if "eval/return_mean" in row
        ]
        return float(scores[-1])


def test_a_day_of_work_with_every_command(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "runs")

    # the morning: two variants, three seeds each
    trained = []
    for variant in VARIANTS:
        for seed in SEEDS:
            own = [f"{key}={value}" for key, value in SETTINGS.items() if variant == "ppo" or key not in PPO_ALONE]
            line = (*own, "--max-timesteps", BUDGET, "--seed", seed, "--tag", "day", "--json")
            outcome = train(lab.root, f"toy/identity_box:{variant}", *line).succeeded()
            trained.append(json.loads(outcome.out.splitlines()[-1]))
    scores = {one["run"]: one["eval/return_mean"] for one in trained}
    assert len(scores) == 6
    rows = lab.listed("tag=day")
    assert {run: row["return"] for run, row in rows.items()} == scores
    assert sorted((row["spec"], row["seed"]) for row in rows.values()) == [
        (f"toy/identity_box:{variant}", seed) for variant in VARIANTS for seed in SEEDS
    ]
    for run, score in scores.items():
        assert lab.last_score(run) == lab.output("show", run)["eval/return_mean"] == score

    # noon: a sweep, killed in the middle, gone on with
    swept = sweep(lab, tmp_path / "rates.yaml")
    runs = [run for trial in swept["trials"] for run in trial["runs"]]
    assert [trial["params"]["algorithm.learning_rate"] for trial in swept["trials"]] == RATES
    assert len(set(runs)) == 6
    for trial in swept["trials"]:
        assert trial["value"] == lab.last_score(trial["runs"][0])
    assert swept["best"]["value"] == max(trial["value"] for trial in swept["trials"])

    # the afternoon: everything is there, and says the same
    rows = lab.listed()
    assert set(rows) == {*scores, *runs}
    assert {row["status"] for row in rows.values()} == {"finished"}
    assert {row["env_steps"] for row in rows.values()} == {BUDGET}
    compared(lab, scores, tmp_path / "day.png")
    assert lab.output("verify", next(iter(scores)))["identical"] is True
    exported(lab, scores)

    # the evening: disk is freed, what was found out stays
    tidied(lab, rows)


def sweep(lab: Lab, file: Path) -> dict[str, Any]:
    """Run a sweep of six trials on two processes with a kill -9; return its result."""
    space = {**SETTINGS, "algorithm.learning_rate": RATES}
    content = {"base": "toy/identity_box:ppo", "sweep": space, "max_timesteps": BUDGET, "parallel_jobs": 2}
    file.write_text(yaml.safe_dump(content))
    before = lab.listed()
    assert lab.process("sweep", file, failpoint=KILLED_AT).returncode == -signal.SIGKILL
    begun = {run: row for run, row in lab.listed().items() if run not in before}
    states = [row["status"] for row in begun.values()]
    assert 2 <= states.count("finished") < 6
    process = lab.process("sweep", file)
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert result["status"] == "finished"
    assert set(begun) <= {run for trial in result["trials"] for run in trial["runs"]}, "a run was lost, or repeated"
    after = lab.listed()
    for run, row in begun.items():  # what was over is as it was
        if row["status"] == "finished":
            assert after[run] == row
    return result


def compared(lab: Lab, scores: dict[str, float], picture: Path) -> None:
    comparison = lab.output("compare", "--filter", "tag=day", "--metrics", "eval/return_mean", "--plot", picture)
    assert [sorted(one["seeds"]) for one in comparison["series"]] == [SEEDS, SEEDS]
    for one in comparison["series"]:
        summary, own = one["scores"]["eval/return_mean"], [scores[run] for run in one["runs"]]
        assert summary["values"] == own
        assert summary["iqm"] == pytest.approx(interquartile_mean(np.array(own)))
        low, high = summary["interval"]
        assert min(own) <= low <= summary["iqm"] <= high <= max(own)
    with Image.open(picture) as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20


def exported(lab: Lab, scores: dict[str, float]) -> None:
    where = ("--filter", "tag=day", "--metrics", "eval/return_mean", "--runs-dir", lab.root)
    table = cadenza("export", "--format", "latex", *where).succeeded().out
    comparison = lab.output("compare", "--filter", "tag=day", "--metrics", "eval/return_mean")
    for one in comparison["series"]:
        summary = one["scores"]["eval/return_mean"]
        assert all(f"{number:.3g}" in table for number in (summary["iqm"], *summary["interval"]))
    text = cadenza("export", "--format", "csv", *where).succeeded().out
    last: dict[str, float] = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["eval/return_mean"]:
            last[row["run"]] = float(row["eval/return_mean"])
    assert last == scores


def tidied(lab: Lab, rows: dict[str, dict[str, Any]]) -> None:
    before = lab.output("compare", "--filter", "tag=day")
    planned = lab.output("cleanup", "--keep-best", 1, "--dry-run")
    result = lab.output("cleanup", "--keep-best", 1)
    assert result["cleaned"] == planned["cleaned"]
    assert result["freed_bytes"] == planned["freed_bytes"] > 0
    assert result["before_bytes"] - result["after_bytes"] == result["freed_bytes"]
    remaining = {row["run"] for row in result["kept"]}
    assert remaining | {row["run"] for row in result["cleaned"]} == set(rows)
    by_spec = [[row["return"] for row in rows.values() if row["spec"] == f"toy/identity_box:{one}"] for one in VARIANTS]
    assert len(remaining) == 2
    assert sorted(rows[run]["return"] for run in remaining) == sorted(map(max, by_spec))
    after = lab.listed()
    assert {run: row["return"] for run, row in after.items()} == {run: row["return"] for run, row in rows.items()}
    assert lab.output("compare", "--filter", "tag=day") == before
    for run in remaining:
        assert lab.output("evaluate", run, "--episodes", 2)["episodes"] == 2
