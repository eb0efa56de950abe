"""What a training loses while its page in the inspector is open, in a Chromium on the same machine.

    python benchmarks/watching.py --rounds 12 --out benchmarks/results/watching.json   (15 minutes, quiet machine)
    python benchmarks/watching.py --rounds 1 --seconds 8                               (a glance: a minute)

One run trains all the time. A round is four whiles: the page of its curves is closed, open, open and closed (every
other round the other way round), so that a machine that gets slower or faster disturbs both alike. A while begins and
ends with a row of metrics, so its env_steps are exact; it is told per second and per second of the run's own processor
time (user and system), which is what watching costs it directly. Ratios are of neighbouring whiles, watched to alone;
so that noise can be told from cost, `nothing` has them of neighbouring whiles that were both alone.
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

from cadenza.records.metric_rows import Rows

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.browser import Browser, program

COMMAND = [sys.executable, "-m", "cadenza"]
# Rows come often, and nothing that takes long happens now and then.
RUN = ["CartPole-v1:ppo", "evaluation.every_steps=null", "checkpoint.every_steps=1000000", "logging.every_steps=2000"]
WARM = 20  # seconds in which the first rows, and the machine's clock, settle
SETTLED = 3.0  # seconds that a page takes to be opened, or closed
TICKS = os.sysconf("SC_CLK_TCK")
DRAWN = 10_000  # bootstrap samples


def processor_seconds(pids: list[int]) -> float:
    """User and system, of all their threads."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # a browser's child that has ended
            continue
        total += sum(map(int, fields[11:13])) / TICKS
    return total


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@dataclass(frozen=True)
class Mark:
    """Where everybody stands right after a row was written."""

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
        while not (found := list(root.glob("*/metrics.jsonl"))) or not found[0].stat().st_size:
            assert self.training.poll() is None, "the training ended"
            time.sleep(0.2)
        self.metrics = found[0]

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
        """With the next row."""
        size = self.metrics.stat().st_size
        while self.metrics.stat().st_size == size:
            assert self.training.poll() is None, "the training ended"
            time.sleep(0.002)
        training = processor_seconds([self.training.pid])
        with Rows(self.metrics) as reader:
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
    """Whiles in their order, and whether the page was open."""
    watched, found = Watched(root), []
    try:
        time.sleep(WARM)
        for number in range(rounds):
            order = (False, True, True, False) if number % 2 == 0 else (True, False, False, True)
            for open_page in order:
                watched.look(open_page)
                found.append((open_page, watched.during(seconds)))
                told = "watched" if open_page else "alone"
                print(f"{len(found)} of {4 * rounds}: {told}, {found[-1][1]['per_second']:.0f}/s", file=sys.stderr)
        return found
    finally:
        watched.close()


def interval(values: list[float]) -> list[float] | None:
    """95 %, of the median, by bootstrap."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).choice(values, (DRAWN, len(values)))
    return [round(float(end), 4) for end in np.percentile(np.median(drawn, axis=1), [2.5, 97.5])]


def summary(found: list[tuple[bool, dict[str, float]]], key: str) -> dict[str, Any]:
    """Each round is two pairs; where the two in its middle are both alone (every second round), they tell the noise."""
    pairs = list(zip(found[::2], found[1::2], strict=True))
    ratios = [math.exp((1 if b else -1) * math.log(y[key] / x[key])) for (_, x), (b, y) in pairs]
    alike = [(x[key], y[key]) for (a, x), (b, y) in zip(found[1:-1:2], found[2::2], strict=True) if not a and not b]
    nothing = [second / first for first, second in alike]
    return {
        "alone": [round(one[key]) for open_page, one in found if not open_page],
        "watched": [round(one[key]) for open_page, one in found if open_page],
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
        found = measured(Path(text), options.rounds, options.seconds)
    result: dict[str, Any] = {"rounds": options.rounds, "seconds": options.seconds}
    for key in ("per_second", "per_processor_second"):
        result[f"env_steps_{key}"] = summary(found, key)
    for key in ("server", "browser"):  # how much of a core the page takes, in the processes that are not the training
        for open_page, told in ((True, "watched"), (False, "alone")):
            share = statistics.mean(one[key] for was, one in found if was == open_page)
            result[f"{key}_share_of_a_core_{told}"] = round(share, 4)
    keep(result | {"load": [before, os.getloadavg()], "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
