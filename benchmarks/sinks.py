"""Measure what sinks cost a run: TensorBoard, and Weights & Biases offline and with servers that do not work.

    python benchmarks/sinks.py --python PYTHON --rounds 7 --out benchmarks/results/sinks.json

PYTHON is an interpreter that has cadenza, tensorboard and wandb. Every round trains the same run once for each case, in
an order that changes from round to round. Speed is env_steps over the seconds between a run's first and last row,
without the start of the process and the wait for a sink at the end, which is a result of its own. Each case must have
every row of the run without a sink; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
from outcome import keep, machine, result_file

ONLINE = "logging.wandb=true"
FULL = "a full disk"
CASES = {
    "none": [],
    "tensorboard": ["logging.tensorboard=true"],
    "wandb offline": ["logging.wandb=offline"],
    "wandb refuses": [ONLINE],
    "wandb is silent": [ONLINE],
    "wandb answers 500": [ONLINE],
    FULL: ["logging.tensorboard=true", "logging.wandb=offline"],
}
RUN = ["CartPole-v1:ppo", "evaluation.every_steps=null", "evaluation.at_end=false", "checkpoint.every_steps=0"]


class Broken(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(500)
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def addresses() -> Iterator[dict[str, str]]:
    """Start servers that do not work; yield their addresses by case."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadingHTTPServer(("127.0.0.1", 0), Broken) as broken:
        threading.Thread(target=broken.serve_forever, daemon=True).start()
        yield {
            "wandb refuses": "http://127.0.0.1:9",
            "wandb is silent": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "wandb answers 500": f"http://127.0.0.1:{broken.server_port}",
        }
        broken.shutdown()


@contextlib.contextmanager
def full_disk(root: Path) -> Iterator[Path | None]:
    """Mount a small disk and fill it; yield its folder, or None if none can be mounted."""
    place = root / "full"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        yield None
        return
    try:
        for sink in ("tensorboard", "wandb"):
            (place / sink).mkdir()
        with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def end_leftovers(root: Path) -> None:
    """End W&B's processes of a run, which retry for minutes: they must not slow down the next one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(part.startswith(str(root)) for part in process.cmdline()):
                for one in (*process.children(recursive=True), process):
                    one.kill()


def run_process(line: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, env=os.environ | environ, capture_output=True, text=True)


def train(python: str, case: str, steps: int, seed: int, root: Path, server: str, full: Path | None) -> dict[str, Any]:
    """Train once; return speed, the seconds after its last row, the rows, and the warnings."""
    environ = {"WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "10", "WANDB_BASE_URL": server} if server else {}
    where = ["--runs-dir", str(root), "--quiet", "--json"]
    line = [python, "-m", "cadenza", "train", *RUN, *CASES[case], f"logging.every_steps={steps // 40}", *where]
    line += ["--max-timesteps", str(steps), "--seed", str(seed)]
    if case == FULL:  # started and killed at once, so that the sinks of an existing run can be put there
        run_process(line, {"CADENZA_FAILPOINT": "run:task@1"})
        run = root / (root / "@last").read_text().strip()
        for sink in ("tensorboard", "wandb"):
            shutil.rmtree(run / sink, ignore_errors=True)
            (run / sink).symlink_to(full / sink)
        line = [python, "-m", "cadenza", "resume", "@last", *where]
    began = time.perf_counter()
    process = run_process(line, environ)
    wall = time.perf_counter() - began
    if process.returncode:
        sys.exit(f"{case}: {process.stderr}")
    output = json.loads(process.stdout.splitlines()[-1])
    rows = [json.loads(text) for text in (Path(output["dir"]) / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[0], rows[-1]
    return {
        "speed": (last["env_steps"] - first["env_steps"]) / (last["time/seconds"] - first["time/seconds"]),
        "beyond": wall - last["time/seconds"],
        "rows": [(row["env_steps"], row["digest/weights"]) for row in rows],
        "warnings": [text for text in process.stderr.splitlines() if text.startswith("warning")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    measurements: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as text, addresses() as servers, full_disk(Path(text)) as full:
        for number in range(options.rounds + 1):  # the first warms up
            cases = [case for case in CASES if case != FULL or full is not None]
            random.Random(number).shuffle(cases)
            for case in cases:
                root = Path(text, f"{number}-{case.replace(' ', '-')}")
                server = servers.get(case, "")
                measurements[case].append(train(options.python, case, options.steps, number, root, server, full))
                end_leftovers(root)
    cases = summary(measurements)
    keep({"steps": options.steps, "cases": cases, "load": os.getloadavg(), "machine": machine()}, options.out)
    short = [case for case, one in cases.items() if isinstance(one, dict) and not one["rows_complete"]]
    if short:
        sys.exit(f"rows are missing or differ: {', '.join(short)}")


def summary(measurements: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return by case env_steps per second, and the median ratio to the run without a sink in the same round."""
    plain, result = measurements["none"][1:], {}
    for case, rounds in measurements.items():
        if not rounds:
            result[case] = "not measured: no disk could be mounted"
            continue
        measured = rounds[1:]
        ratios = [one["speed"] / other["speed"] for one, other in zip(measured, plain, strict=True)]
        result[case] = {
            "env_steps_per_second": [round(one["speed"]) for one in measured],
            "median": round(statistics.median(one["speed"] for one in measured)),
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(ratio, 4) for ratio in ratios],
            "seconds_beyond_training": round(statistics.median(one["beyond"] for one in measured), 1),
            "rows_complete": all(one["rows"] == other["rows"] for one, other in zip(measured, plain, strict=True)),
            "warnings": sorted(
                {text.partition(":")[2].partition("/")[0].strip()[:60] for one in measured for text in one["warnings"]}
            ),
        }
    return result


if __name__ == "__main__":
    main()
