"""Measure how much an open page of the inspector slows down a training, with a Chromium on the same machine.

    python benchmarks/watching.py --rounds 12 --out benchmarks/results/watching.json   (15 minutes, quiet machine)
    python benchmarks/watching.py --rounds 1 --seconds 8                               (a quick look: a minute)

One run trains all the time. A round has four intervals: the page of its curves is closed, open, open and closed (every
second round the other way round), so that a drift of the machine's speed affects both alike. An interval begins and
ends with a row of metrics, so its env_steps are exact. They are reported per second, and per second of the run's own
processor time (user and system), which is the direct cost. Ratios are of neighbouring intervals, watched to alone;
`nothing` has those of neighbouring intervals that were both alone, as a measure of noise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from outcome import keep, machine, result_file

from cadenza.records.metric_rows import MetricRows

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.browser import Browser, program

COMMAND = [sys.executable, "-m", "cadenza"]
# Rows are frequent, and nothing slow happens between them.
RUN = ["CartPole-v1:ppo", "evaluation.every_steps=null", "checkpoint.every_steps=1000000", "logging.every_steps=2000"]
WARM = 20  # seconds in which the first rows, and the machine's clock, settle
SETTLED = 3.0  # seconds that a page takes to be opened, or closed
TICKS = os.sysconf("SC_CLK_TCK")
DRAWN = 10_000  # bootstrap samples


def processor_seconds(pids: list[int]) -> float:
    """Return the processor seconds of these processes, user and system, of all threads."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # a browser's child that has ended
            continue
        total += sum(map(int, fields[11:13])) / TICKS
    return total


def family(pid: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    pids = [pid]
    for one in pids:
        pids += [child for child, parent in parents.items() if parent == one]
    return pids


@dataclass(frozen=True)
class Mark:
    """The counters of all processes right after a row was written."""

    env_steps: int
    seconds: float
    training: float
    server: float
    browser: float


class Watched:
    """A run that trains, its inspector, and a browser."""

    def __init__(self, root: Path) -> None:
        where = ["--runs-dir", str(root)]
        self.browser = Browser(root / "browser")
        for domain in ("Network", "Log", "Runtime", "Page"):  # a user's browser is not asked to tell what it does
            self.browser._call(f"{domain}.disable")
        self.training = subprocess.Popen([*COMMAND, "train", *RUN, *where, "--max-timesteps", "1000000000", "--quiet"])
        self.serving = subprocess.Popen(
            [*COMMAND, "inspect", "--json", "--no-browser", "--port", "0", *where], stdout=subprocess.PIPE, text=True
        )
        assert self.serving.stdout is not None
        self.address = json.loads(self.serving.stdout.readline())["url"].partition("#")[0]
        while not (files := list(root.glob("*/metrics.jsonl"))) or not files[0].stat().st_size:
            assert self.training.poll() is None, "the training ended"
            time.sleep(0.2)
        self.metrics = files[0]

    def close(self) -> None:
        self.browser.close()
        for process in (self.training, self.serving):
            process.terminate()
            process.wait()

    def look(self, open_page: bool) -> None:
        page = f"{self.address}#/run/{self.metrics.parent.name}/curves" if open_page else "about:blank"
        self.browser.open(page)
        self.browser.until("document.querySelectorAll('.chart').length > 4" if open_page else "!document.title")
        time.sleep(SETTLED)

    def mark(self) -> Mark:
        """Return the counters right after the next row."""
        size = self.metrics.stat().st_size
        while self.metrics.stat().st_size == size:
            assert self.training.poll() is None, "the training ended"
            time.sleep(0.002)
        training = processor_seconds([self.training.pid])
        with MetricRows(self.metrics) as reader:
            row = reader.last(1)[-1]
        busy = (processor_seconds([self.serving.pid]), processor_seconds(family(self.browser._process.pid)))
        return Mark(row["env_steps"], row["time/seconds"], training, *busy)

    def during(self, seconds: float) -> dict[str, float]:
        before = self.mark()
        time.sleep(seconds)
        after = self.mark()
        steps, took = after.env_steps - before.env_steps, after.seconds - before.seconds
        return {
            "per_second": steps / took,
            "per_processor_second": steps / (after.training - before.training),
            "server": (after.server - before.server) / took,
            "browser": (after.browser - before.browser) / took,
        }


def measured(root: Path, rounds: int, seconds: float) -> list[tuple[bool, dict[str, float]]]:
    """Return the intervals in order, each with whether the page was open."""
    watched, measurements = Watched(root), []
    try:
        time.sleep(WARM)
        for number in range(rounds):
            order = (False, True, True, False) if number % 2 == 0 else (True, False, False, True)
            for open_page in order:
                watched.look(open_page)
                measurements.append((open_page, watched.during(seconds)))
                kind = "watched" if open_page else "alone"
                print(
                    f"{len(measurements)} of {4 * rounds}: {kind}, {measurements[-1][1]['per_second']:.0f}/s",
                    file=sys.stderr,
                )
        return measurements
    finally:
        watched.close()


def interval(values: list[float]) -> list[float] | None:
    """Return the 95 % bootstrap interval of the median."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).choice(values, (DRAWN, len(values)))
    return [round(float(end), 4) for end in np.percentile(np.median(drawn, axis=1), [2.5, 97.5])]


def summary(measurements: list[tuple[bool, dict[str, float]]], key: str) -> dict[str, Any]:
    """Summarise pairs, two a round; the middle ones of every second round are both alone and show the noise."""
    pairs = list(zip(measurements[::2], measurements[1::2], strict=True))
    ratios = [math.exp((1 if b else -1) * math.log(y[key] / x[key])) for (_, x), (b, y) in pairs]
    alike = [
        (x[key], y[key])
        for (a, x), (b, y) in zip(measurements[1:-1:2], measurements[2::2], strict=True)
        if not a and not b
    ]
    nothing = [second / first for first, second in alike]
    return {
        "alone": [round(one[key]) for open_page, one in measurements if not open_page],
        "watched": [round(one[key]) for open_page, one in measurements if open_page],
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 4),
        "interval": interval(ratios),
        "nothing": [round(ratio, 4) for ratio in nothing],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=12, help="of four whiles each")
    parser.add_argument("--seconds", type=float, default=15.0, help="that each while lasts")
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds < 1:
        parser.error("--rounds and --seconds must be at least 1")
    if program() is None:
        parser.error("there is no Chromium here")
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as text:
        measurements = measured(Path(text), options.rounds, options.seconds)
    result: dict[str, Any] = {"rounds": options.rounds, "seconds": options.seconds}
    for key in ("per_second", "per_processor_second"):
        result[f"env_steps_{key}"] = summary(measurements, key)
    for key in ("server", "browser"):  # how much of a core the page takes, in the processes that are not the training
        for open_page, kind in ((True, "watched"), (False, "alone")):
            share = statistics.mean(one[key] for was, one in measurements if was == open_page)
            result[f"{key}_share_of_a_core_{kind}"] = round(share, 4)
    keep(result | {"load": [before, os.getloadavg()], "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
