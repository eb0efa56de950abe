"""Killed runs with one flipped bit in one of their files, and the result of resuming them."""

from __future__ import annotations

import contextlib
import io
import random
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from unittest import mock

from cadenza.errors import CadenzaError
from cadenza.lab import session
from cadenza.records.folder import RunFolder
from cadenza.tools.verify import compare
from harness.command import Outcome, assert_same_end, last, train
from harness.processes import call

PPO = [
    "toy/identity:ppo",
    "algorithm.n_steps=8",
    "algorithm.n_epochs=1",
    "algorithm.batch_size=32",
    "algorithm.actor.hidden_sizes=[8]",
    "algorithm.critic.hidden_sizes=[8]",
    "environment.num_envs=4",
    "checkpoint.every_steps=64",
    "evaluation.every_steps=64",
    "evaluation.episodes=2",
    "logging.every_steps=32",
    "logging.alerts.enabled=false",
    "training.max_timesteps=224",
]
DQN = [
    "toy/identity:dqn",
    "algorithm.warmup_steps=32",
    "algorithm.train_every=8",
    "algorithm.batch_size=8",
    "algorithm.hidden.hidden_sizes=[8]",
    "algorithm.buffer_size=128",
    "algorithm.buffer_on_disk=true",
    "algorithm.priority_alpha=0.6",
    "environment.num_envs=2",
    "checkpoint.every_steps=64",
    "evaluation.every_steps=64",
    "evaluation.episodes=2",
    "logging.every_steps=32",
    "logging.alerts.enabled=false",
    "training.max_timesteps=224",
]
RUNS = {"PPO": PPO, "DQN, replay on disk": DQN}
ALWAYS = ("config.yaml", "manifest.json", "decisions.json", "status.json", "checkpoints/last", "checkpoints/best")
STATUS = ("status", "env_steps", "updates", "episodes", "best_return", "eval/return_mean")


def resume_quickly(folder: RunFolder) -> Outcome:
    """Resume as the command line does, without parsing one, and without the report, whose curves take longest."""
    errors, code = io.StringIO(), 0
    try:
        finish = mock.patch.object(session.RunAttachments, "finish")
        with finish, contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            session.resume(folder, quiet=True)
    except CadenzaError as problem:
        code = problem.exit_code
        errors.write(f"error: {problem}\n")
    except Exception as problem:
        code = CadenzaError.exit_code
        errors.write(f"internal error: {problem!r}\n")
    return Outcome(code, "", errors.getvalue())


class Flips:
    """A run that was killed before its third checkpoint, beside the same run left alone."""

    def __init__(self, command: list[str], root: Path, kill: str = "ckpt:after_write@4") -> None:
        self.root = root
        train(root / "whole", *command).succeeded()
        self.whole = last(root / "whole")
        assert call(["train", *command], root / "killed", kill)[0] == -signal.SIGKILL
        self.killed = last(root / "killed")
        self.silent: list[str] = []  # where and what, for each flip that nobody was told of

    def files(self) -> list[str]:
        """Files of the killed run that say how it goes on, relative to its folder."""
        newest = max(self.killed.checkpoints.path.glob("step-*"))
        return [
            *ALWAYS,
            *sorted(self._relative(path) for path in newest.iterdir()),
            *sorted(self._relative(path) for path in self.killed.replay.path.rglob("*") if path.is_file()),
            "metrics.jsonl",
        ]

    def count(self, file: str, flips: int, seed: int = 0) -> Counter[str]:
        """Return how many of so many random flips in a file ended how."""
        rng = random.Random(f"{seed} {file}")
        bits = 8 * (self.killed.path / file).stat().st_size
        return Counter(self.flip(file, rng.randrange(bits)) for _ in range(flips))

    def flip(self, file: str, bit: int) -> str:
        """Flip a bit of a file in a copy of the killed run and resume it: equal, refused, told or SILENT."""
        root = self.root / "flipped"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.killed.path.parent, root, ignore=shutil.ignore_patterns("index.sqlite*"))
        folder = RunFolder(root / self.killed.path.name)
        path = folder.path / file
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        outcome = resume_quickly(folder)
        ending = self.judge(folder, outcome)
        if ending == "SILENT":
            self.silent.append(f"{file} bit {bit}: exit code {outcome.code}, {outcome.err.strip()[-200:]!r}")
        return ending

    def judge(self, folder: RunFolder, outcome: Outcome) -> str:
        lines = outcome.err.splitlines()
        if outcome.code in (2, 78):
            warned = all(line.startswith("warning: ") for line in lines[:-1])
            return "refused" if warned and lines[-1].startswith("error: ") else "SILENT"
        if outcome.code:
            return "SILENT"  # not a message for people
        if compare(self.whole, folder) is None and self._same_records(folder):
            return "told" if outcome.warnings else "equal"
        return "told" if any(self._names_damage(line) for line in outcome.warnings) else "SILENT"

    def _same_records(self, folder: RunFolder) -> bool:
        try:
            assert_same_end(self.whole, folder)
        except AssertionError:
            return False
        ours, theirs = self.whole.read_status(), folder.read_status()
        return (
            all(ours[key] == theirs[key] for key in STATUS)
            and folder.config.read_bytes() == self.whole.config.read_bytes()
            and folder.read_decisions() == self.whole.read_decisions()
        )

    @staticmethod
    def _names_damage(warning: str) -> bool:
        return re.search(r"rejected|damaged|set right", warning) is not None

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.killed.path).as_posix()
