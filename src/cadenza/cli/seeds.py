"""Several seeds of one command: a process each, so that none can disturb another."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cadenza.cli.output import print_json


def train_seeds(seeds: list[int], jobs: int, quiet: bool, as_json: bool) -> int:
    """Run this very command once per seed, `jobs` at a time; the exit code of the first that failed, else 0."""

    def one(seed: int) -> tuple[int, dict[str, Any] | None]:
        command = [sys.executable, "-m", "cadenza", *single_seed(sys.argv[1:], seed)]
        if jobs > 1 and not quiet:
            command.append("--quiet")  # their displays would write over each other
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        lines = done.stdout.splitlines()
        result = json.loads(lines[-1]) if done.returncode == 0 and lines else None
        if jobs > 1 and result:
            print(f"seed {seed}: {result['status']}, evaluation {result['eval/return_mean']}", file=sys.stderr)
        return done.returncode, result

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        outcomes = list(pool.map(one, seeds))
    if as_json:
        print_json([result for _, result in outcomes])
    return next((code for code, _ in outcomes if code), 0)


def single_seed(arguments: list[str], seed: int) -> list[str]:
    """The same arguments for one seed, reporting as JSON."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument == "--json" or argument.startswith(("--seed=", "--jobs=")):
            skip = False
        elif argument in ("--seed", "--jobs"):
            skip = True
        else:
            kept.append(argument)
    return [*kept, "--seed", str(seed), "--json"]
