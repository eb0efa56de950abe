"""Train several seeds of one command, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import IO, Any

from cadenza.cli.output import print_json, say
from cadenza.engine.signals import EXIT_CODES, Signals, pass_to
from cadenza.envs.vector import limited_to, share_of_cores

PROGRESS_SECONDS = 10.0  # between two lines about the progress of a seed, where several train side by side


class Seeds:
    """The processes of all seeds; a signal is passed on to them, and seeds that have not started are skipped."""

    def __init__(self, quiet: bool, jobs: int) -> None:
        self.quiet, self.side_by_side, self.cores = quiet, jobs > 1, share_of_cores(jobs)
        self.processes: list[subprocess.Popen[str]] = []
        self.signals = Signals(self._pass_on)

    def train(self, seed: int) -> tuple[int, dict[str, Any] | None]:
        """Train one seed; return its exit code and its result, or None if it has none."""
        if self.signals.requested:
            return EXIT_CODES[self.signals.requested], None
        arguments = single_seed(sys.argv[1:], seed) + (["--quiet"] if self.quiet else [])
        passes_on = self.side_by_side and not self.quiet
        command = [sys.executable, "-m", "cadenza", *arguments]
        # in sessions of their own, so that Ctrl-C reaches them once, through us
        share = limited_to(self.cores, os.environ)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if passes_on else None,
            text=True,
            errors="backslashreplace",  # libraries may write anything to stderr
            start_new_session=True,
            env=share,
        )
        self.processes.append(process)
        if self.signals.requested:  # a signal came while the process started
            pass_to(process, getattr(signal, self.signals.requested))
        lines = threading.Thread(target=pass_on, args=(seed, process.stderr)) if passes_on else None
        if lines is not None:
            lines.start()
        assert process.stdout is not None
        result = last_result(process.stdout.read())
        if lines is not None:
            lines.join()
        process.wait()
        if self.quiet and result:
            score = result["eval/return_mean"]
            measured = "not evaluated" if score is None else f"evaluation {score:.1f}"
            say(f"seed {seed}: {result['status']}, {measured} ({result['run']})", err=True)
        return process.returncode, result

    def _pass_on(self, number: int) -> None:
        for process in self.processes:
            pass_to(process, number)


def pass_on(seed: int, stream: IO[str]) -> None:
    """Print the lines of a seed's process, each with the seed before it; of its progress a line every 10 s at most."""
    latest = -inf
    for line in stream:
        is_progress = line.startswith(("env_steps ", "updates "))
        if not is_progress or time.monotonic() - latest >= PROGRESS_SECONDS:
            latest = time.monotonic() if is_progress else latest
            say(f"seed {seed}: {line.rstrip()}", err=True)


def last_result(printed: str) -> dict[str, Any] | None:
    """Parse the result on the last line; None if the seed failed, whatever its environment printed."""
    try:
        result = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def train_seeds(numbers: list[int], jobs: int, quiet: bool, as_json: bool) -> int:
    """Run this command once per seed, `jobs` at a time; return the exit code of the first that failed, else 0."""
    jobs = min(jobs, len(numbers))
    seeds = Seeds(quiet, jobs)
    with seeds.signals, ThreadPoolExecutor(max_workers=jobs) as pool:
        outcomes = list(pool.map(seeds.train, numbers))
    if as_json:
        print_json([result for _, result in outcomes])
    if seeds.signals.requested:
        return EXIT_CODES[seeds.signals.requested]
    return next((code for code, _ in outcomes if code), 0)


def single_seed(arguments: list[str], seed: int) -> list[str]:
    """Return the same arguments for one seed, which reports as JSON."""
    remaining: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument == "--json" or argument.startswith(("--seed=", "--jobs=")):
            skip = False
        elif argument in ("--seed", "--jobs"):
            skip = True
        else:
            remaining.append(argument)
    return [*remaining, "--seed", str(seed), "--json"]
