"""Train several seeds, evaluate each final policy, and report every seed and the interquartile mean.

python benchmarks/learn.py CartPole-v1:ppo --seeds 10 --episodes 300 --out benchmarks/results/ppo-cartpole.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from outcome import keep, machine, result_file, seeds, versions, write

from cadenza.lab.statistics import interquartile_mean, interval

RESAMPLES = 50_000


def cadenza(*arguments: str) -> dict[str, Any]:
    process = subprocess.run([sys.executable, "-m", "cadenza", *arguments, "--json"], stdout=subprocess.PIPE)
    if process.returncode:
        sys.exit(process.returncode)  # it has printed the reason
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def one_seed(spec: str, overrides: list[str], seed: int, episodes: int, root: str) -> dict[str, Any]:
    began = time.perf_counter()
    run = cadenza("train", spec, *overrides, "--seed", str(seed), "--runs-dir", root, "--quiet")
    seconds = time.perf_counter() - began
    measured = cadenza("evaluate", run["run"], "--episodes", str(episodes), "--seed", "12345", "--runs-dir", root)
    row = {
        "seed": seed,
        "return_mean": measured["return_mean"],
        "return_std": measured["return_std"],
        "return_min": measured["return_min"],
        **{key: measured[key] for key in ("win_rate",) if key in measured},
        "env_steps": run["env_steps"],
        "seconds": round(seconds, 1),
        "curve": curve(Path(root, run["run"])),
    }
    print(row, file=sys.stderr)
    return row


def curve(run: Path) -> dict[str, float]:
    """Return the returns of the run's own evaluations, by env_steps."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {str(row["env_steps"]): round(row["eval/return_mean"], 2) for row in rows if "eval/return_mean" in row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("spec")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seeds", type=seeds, default="10", metavar="N or A,B,…", help="how many, or which")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(options.jobs) as pool:
        jobs = [
            pool.submit(one_seed, options.spec, options.overrides, seed, options.episodes, root)
            for seed in options.seeds
        ]
        for job in as_completed(jobs):
            rows = sorted([*rows, job.result()], key=lambda row: row["seed"])
            write(outcome_of(options, rows), options.out)  # in case a later seed fails
    keep(outcome_of(options, rows), options.out)


def outcome_of(options: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    scores = np.array([row["return_mean"] for row in rows])
    low, high = interval([scores], resamples=RESAMPLES)
    return {
        "spec": options.spec,
        "overrides": options.overrides,
        "evaluation": f"final checkpoint, most likely actions, {options.episodes} episodes; curve: the run's own",
        "iqm": float(interquartile_mean(scores)),
        "iqm_95": [low, high],
        "worst_seed": float(scores.min()),
        "seeds": rows,
        "machine": machine() | {"runs at a time": options.jobs},
        "versions": versions("cadenza", "torch", "gymnasium", "numpy"),
    }


if __name__ == "__main__":
    main()
