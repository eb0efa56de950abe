"""Several seeds of one command: a process each, so that none can disturb another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cadenza.cli.output import print_json, say
from cadenza.engine.signals import EXIT_CODES, Signals
from cadenza.envs.vector import limited_to, share_of_cores


class Seeds:
    """The processes, and the signals to pass on to them; seeds that have not begun when one comes never will."""

    def __init__(self, quiet: bool, jobs: int) -> None:
        self.quiet, self.cores = quiet, share_of_cores(jobs)
        self.processes: list[subprocess.Popen[str]] = []
        self.signals = Signals(self._pass_on)

    def train(self, seed: int) -> tuple[int, dict[str, Any] | None]:
        """Exit code and result of one seed."""
        if self.signals.requested:
            return EXIT_CODES[self.signals.requested], None
        arguments = single_seed(sys.argv[1:], seed) + (["--quiet"] if self.quiet else [])
        command = [sys.executable, "-m", "cadenza", *arguments]
        # in sessions of their own, so that Ctrl-C reaches them once, through us
        share = limited_to(self.cores, os.environ)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=share)
        self.processes.append(process)
        if self.signals.requested:  # it came while the process started
            process.send_signal(getattr(signal, self.signals.requested))
        result = told(process.communicate()[0])
        if self.quiet and result:
            score = result["eval/return_mean"]
            measured = "not evaluated" if score is None else f"evaluation {score:.1f}"
            say(f"seed {seed}: {result['status']}, {measured} ({result['run']})", err=True)
        return process.returncode, result

    def _pass_on(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)


def told(printed: str) -> dict[str, Any] | None:
    """The result on the last line; a seed that failed has none, whatever its environment printed."""
    try:
        found = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def train_seeds(numbers: list[int], jobs: int, quiet: bool, as_json: bool) -> int:
    """Run this very command once per seed, `jobs` at a time; the exit code of the first that failed, else 0."""
    jobs = min(jobs, len(numbers))
    seeds = Seeds(quiet or jobs > 1, jobs)  # displays side by side would write over each other
    with seeds.signals, ThreadPoolExecutor(max_workers=jobs) as pool:
        outcomes = list(pool.map(seeds.train, numbers))
    if as_json:
        print_json([result for _, result in outcomes])
    if seeds.signals.requested:
        return EXIT_CODES[seeds.signals.requested]
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
