"""Several seeds of one command: a process each, so that none can disturb another."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

from cadenza.cli.output import print_json
from cadenza.orchestration.signals import EXIT_CODES, Signals


class Passing(Signals):
    """Hands a signal on to the processes of the seeds; those that have not begun never will."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[subprocess.Popen[str]] = []

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = signal.Signals(number).name
        for process in self.processes:
            if number != signal.SIGINT:  # a terminal's Ctrl-C reaches them by itself, and a second one would end them
                process.send_signal(number)


def train_seeds(seeds: list[int], jobs: int, quiet: bool, as_json: bool) -> int:
    """Run this very command once per seed, `jobs` at a time; the exit code of the first that failed, else 0."""
    signals = Passing()

    def one(seed: int) -> tuple[int, dict[str, Any] | None]:
        command = [sys.executable, "-m", "cadenza", *single_seed(sys.argv[1:], seed)]
        if jobs > 1 and not quiet:
            command.append("--quiet")  # their displays would write over each other
        if signals.requested:
            return EXIT_CODES[signals.requested], None
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        signals.processes.append(process)
        lines = process.communicate()[0].splitlines()
        result = json.loads(lines[-1]) if process.returncode == 0 and lines else None
        if jobs > 1 and result:
            print(f"seed {seed}: {result['status']}, evaluation {result['eval/return_mean']}", file=sys.stderr)
        return process.returncode, result

    with signals, ThreadPoolExecutor(max_workers=jobs) as pool:
        outcomes = list(pool.map(one, seeds))
    if as_json:
        print_json([result for _, result in outcomes])
    if signals.requested:
        return EXIT_CODES[signals.requested]
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
