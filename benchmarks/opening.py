"""Measure how long the inspector takes, in a Chromium, to show a million rows, a long episode, and many runs.

    python benchmarks/opening.py --keep /tmp/large --out benchmarks/results/opening.json
    python benchmarks/opening.py --keep /tmp/large --only rows --times 5

The runs are made first (`--keep` has them for the next time). Times are the page's own, from the beginning of its
navigation to what it shows, and those of the program: from its start to the address that it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import keep, machine, result_file

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.browser import Browser, program

COMMAND = [sys.executable, "-m", "cadenza"]
ROWS, RUNS, STEPS = 1_000_000, 1_000, 10_000
RARE = 2_000  # of so many rows one has an evaluation
LONG = f"environment.max_episode_steps={STEPS} environment.num_envs=1 algorithm.n_steps={STEPS} algorithm.n_epochs=1"
QUIET = "evaluation.every_steps=null evaluation.at_end=false --quiet"
KINDS = ("rows", "episode", "runs")

FULL = "[...document.querySelectorAll('.chart .value')].filter((one) => one.textContent).length"
CHARTS = "document.querySelectorAll('.chart').length"
# The second question is for curves of which few rows have a point, and shown right after its answer.
ANSWERED = "performance.getEntriesByType('resource').filter((one) => one.responseEnd && "
SEARCHED = ANSWERED + "/api.curves/.test(one.name)).length === 2"
COUNTER = "document.querySelector('.transport .number').textContent"


def train(root: Path, *words: str) -> Path:
    subprocess.run([*COMMAND, "train", *words, "--runs-dir", str(root)], check=True)
    return root / (root / "@last").read_text().strip()


def make_rows(root: Path) -> None:
    """Make a run of many rows by repeating those of a short one."""
    made = train(root, "CartPole-v1:ppo", "--max-timesteps", "60000", "logging.every_steps=2000", "--quiet")
    rows = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    plain = next(row for row in reversed(rows) if "eval/return_mean" not in row and "train/loss" in row)
    judged = {key: value for row in rows for key, value in row.items() if key.startswith("eval/")}
    pad = {f"train/layer_{index}/weight_norm": 1.0 + index for index in range(8)}  # rows of a kilobyte
    with (made / "metrics.jsonl").open("w") as file:
        for number in range(ROWS):
            row = plain | pad | {"env_steps": 100 * number, "updates": number, "time/seconds": number / 50}
            row["collect/return_mean"] = 500 * number / ROWS + number % 7
            row |= judged | {"eval/return_mean": 500.0 * number / ROWS} if number % RARE == 0 else {}
            file.write(json.dumps(row) + "\n")


def make_episode(root: Path) -> None:
    train(
        root, "Pendulum-v1:ppo", *LONG.split(), "algorithm.batch_size=1", *QUIET.split(), "--max-timesteps", str(STEPS)
    )


def make_runs(root: Path) -> None:
    made = train(root, "CartPole-v1:ppo", "--max-timesteps", "4000", *QUIET.split())
    for name in ("checkpoints", "episodes", "replay", "videos"):
        shutil.rmtree(made / name, ignore_errors=True)
    for number in range(1, RUNS):
        shutil.copytree(made, root / f"{made.name}-{number:04d}")


class Opened:
    """The inspector of some runs, and its page in a browser."""

    def __init__(self, root: Path) -> None:
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            [*COMMAND, "inspect", "--json", "--no-browser", "--port", "0", "--runs-dir", str(root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["url"].partition("#")[0]
        self.started = time.perf_counter() - begun
        self.home = tempfile.TemporaryDirectory()
        self.browser = Browser(Path(self.home.name))

    def close(self) -> None:
        self.browser.close()
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()

    def when(self, holds: str, since: str = "0") -> float:
        """Return the seconds until a condition holds in the page, from its beginning or from another moment."""
        turn = f"() => {{ if ({holds}) {{ clearInterval(timer); done(performance.now()); }} }}"
        reached = self.browser.run(f"new Promise((done) => {{ const timer = setInterval({turn}, 5); }})")
        return float(reached - self.browser.run(since)) / 1000

    def go(self, view: str, there: str) -> None:
        self.browser.open(self.address + view)
        self.browser.until(there)


def run_of(root: Path) -> str:
    return next(path.parent.name for path in root.glob("*/metrics.jsonl"))


def of_rows(root: Path) -> dict[str, float]:
    """Measure the page of a run whose file is not in memory."""
    file = os.open(root / run_of(root) / "metrics.jsonl", os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    opened = Opened(root)
    try:
        opened.go(f"#/run/{run_of(root)}/curves", f"{CHARTS} > 4")
        first = opened.when(f"{FULL} === {CHARTS}")
        every = opened.when(SEARCHED)
        opened.browser.run("window.begun = performance.now(); location.reload(); 1")
        opened.browser.until(f"!window.begun && {CHARTS} > 4")
        again = opened.when(SEARCHED)
        return {"started": opened.started, "curves": first, "rare_curve": every, "rare_curve_again": again}
    finally:
        opened.close()


def of_episode(root: Path) -> dict[str, float]:
    opened = Opened(root)
    try:
        opened.go(f"#/run/{run_of(root)}/episode/0", "!!document.querySelector('.transport .number')")
        first_step = opened.when("document.querySelector('.figures')?.children.length")
        judged = opened.when(f"/the recorded one/.test(document.querySelector('main p').textContent) && {CHARTS} >= 4")
        opened.when("document.querySelector('.rows')")
        moves = []
        for place in range(0, STEPS, STEPS // 50):  # as a pull at the slider: numbers, plots and a picture near it
            moved = f"(() => {{ const s = document.querySelector('.transport input'); s.value = {place + 7}; "
            moved += "window.begun = performance.now(); s.dispatchEvent(new Event('input')); return 1; })()"
            opened.browser.run(moved)
            there = f"{COUNTER}.startsWith('{place + 7} /') && !!document.querySelector('.figures b')"
            moves.append(opened.when(there, "begun"))
        far = []
        for place in (9_500, 300, 7_000):  # until the very picture of a step is there
            opened.browser.run(
                f"(() => {{ const s = document.querySelector('.transport input'); s.value = {place}; window.begun = "
                "performance.now(); window.before = document.querySelector('.screen img').src; "
                "s.dispatchEvent(new Event('input')); return 1; })()"
            )
            exact = ANSWERED + f"one.startTime > begun && /step={place}$/.test(one.name)).length"
            far.append(opened.when(exact, "begun"))
        return {
            "first_step_seen": first_step,
            "judged": judged,
            "scrubbing_median": statistics.median(moves),
            "scrubbing_most": max(moves),
            "its_own_picture_most": max(far),
        }
    finally:
        opened.close()


def of_runs(root: Path) -> dict[str, float]:
    opened = Opened(root)
    rows = "document.querySelectorAll('tbody tr').length > 100"
    try:
        opened.go("", rows)
        listed = opened.when(rows)
        sparks = opened.when("[...document.querySelectorAll('tbody tr canvas')].slice(0, 8).every((one) => one.width)")
        opened.browser.run(
            "(() => { const field = document.querySelector('[data-filter]'); window.begun = performance.now(); "
            "field.value = '-0500'; field.dispatchEvent(new Event('input')); return 1; })()"
        )
        filtered = opened.when("document.querySelectorAll('tbody tr').length === 1", "begun")
        return {"started": opened.started, "listed": listed, "first_small_curves": sparks, "filtered": filtered}
    finally:
        opened.close()


MAKE = {"rows": make_rows, "episode": make_episode, "runs": make_runs}
MEASURE = {"rows": of_rows, "episode": of_episode, "runs": of_runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=KINDS, action="append", help="one of the three, or several times")
    parser.add_argument("--times", type=int, default=3, help="that each is opened")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the runs are, or are made and stay")
    parser.add_argument("--make", action="store_true", help="make the runs, measure nothing")
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    if options.times < 1:
        parser.error("--times must be at least 1")
    if program() is None:
        parser.error("there is no Chromium here")
    result: dict[str, Any] = {"rows": ROWS, "runs": RUNS, "steps": STEPS, "times": options.times, "seconds": {}}
    with tempfile.TemporaryDirectory() as text:
        for kind in options.only or KINDS:
            root = (options.keep or Path(text)) / kind
            if not root.is_dir():
                MAKE[kind](root)
            if options.make:
                continue
            measurements = [MEASURE[kind](root) for _ in range(options.times)]
            result["seconds"][kind] = {key: [round(one[key], 3) for one in measurements] for key in measurements[0]}
    if not options.make:
        keep(result | {"machine": machine()}, options.out)


if __name__ == "__main__":
    main()
