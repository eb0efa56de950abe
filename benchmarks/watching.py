"""What a training loses while its page in the inspector is open, in a Chromium on the same machine.

    python benchmarks/watching.py --rounds 12 --out benchmarks/results/watching.json

One run trains all the time; the page of its curves is open for a while, then an empty one, and so on. Speed is the
env_steps over the seconds between the first and the last row of each while, and over the processor time of the run,
which other work on the machine disturbs less. A page counts from two seconds after it was opened.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import keep, machine

from cadenza.inspector.rows import MetricsReader

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.browser import Browser

COMMAND = [sys.executable, "-m", "cadenza"]
RUN = ["CartPole-v1:ppo", "evaluation.every_steps=null", "checkpoint.every_steps=100000", "logging.every_steps=2000"]
SETTLED = 2.0  # seconds
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS


def last_row(metrics: Path) -> dict[str, Any]:
    with MetricsReader(metrics) as reader:
        return reader.tail(1)[-1]


def speed(metrics: Path, training: int, server: int, seconds: float) -> dict[str, float]:
    """Over some seconds from now on."""
    first, busy, serving = last_row(metrics), processor_seconds(training), processor_seconds(server)
    time.sleep(seconds)
    last, busy, serving = last_row(metrics), processor_seconds(training) - busy, processor_seconds(server) - serving
    steps, took = last["env_steps"] - first["env_steps"], last["time/seconds"] - first["time/seconds"]
    return {"per_second": steps / took, "per_processor_second": steps / busy, "server": serving / seconds}


def measured(root: Path, rounds: int, seconds: float) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Alone and watched, in turn."""
    where = ["--runs-dir", str(root)]
    browser = Browser(root / "browser")
    training = subprocess.Popen([*COMMAND, "train", *RUN, *where, "--max-timesteps", "1000000000", "--quiet"])
    serving = subprocess.Popen(
        [*COMMAND, "inspect", "--json", "--no-browser", "--port", "0", *where], stdout=subprocess.PIPE, text=True
    )
    try:
        assert serving.stdout is not None
        address = json.loads(serving.stdout.readline())["url"].partition("#")[0]
        while not (metrics := list(root.glob("*/metrics.jsonl"))) or metrics[0].read_bytes().count(b"\n") < 20:
            time.sleep(0.2)
        alone, watched = [], []
        pages = [("about:blank", alone), (f"{address}#/run/{metrics[0].parent.name}/curves", watched)]
        for _ in range(rounds):
            pages.reverse()
            for page, found in pages:
                browser.open(page)
                time.sleep(SETTLED)
                assert page == "about:blank" or browser.run("document.querySelectorAll('.chart').length") > 4
                found.append(speed(metrics[0], training.pid, serving.pid, seconds))
        return alone, watched
    finally:
        browser.close()
        for process in (training, serving):
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=8.0, help="that each while lasts")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as text:
        alone, watched = measured(Path(text), options.rounds, options.seconds)
    result: dict[str, Any] = {"rounds": options.rounds, "seconds": options.seconds}
    for key in ("per_second", "per_processor_second"):
        ratios = [one[key] / other[key] for one, other in zip(watched, alone, strict=True)]
        result[f"env_steps_{key}"] = {
            "alone": [round(one[key]) for one in alone],
            "watched": [round(one[key]) for one in watched],
            "ratios": [round(ratio, 4) for ratio in ratios],
            "ratio": round(statistics.median(ratios), 4),
        }
    result["server_share_of_a_core"] = round(statistics.mean(one["server"] for one in watched), 4)
    keep(result | {"load": [before, os.getloadavg()], "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
