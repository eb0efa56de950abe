"""Calls of the command line in this process, and checks of their outcome."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cadenza.cli.main import run
from cadenza.records.episodes import load
from cadenza.records.folder import RunFolder, find
from cadenza.tools.verify import compare

# Sixteen short cycles with four evaluations and a checkpoint at every other cycle.
SMALL = [
    "algorithm.n_steps=16",
    "algorithm.n_epochs=2",
    "algorithm.batch_size=64",
    "checkpoint.every_steps=256",
    "evaluation.every_steps=512",
    "evaluation.episodes=2",
    "logging.every_steps=128",
    "--max-timesteps",
    "2048",
]
TOY = ["toy/identity:ppo", *SMALL]


@dataclass(frozen=True)
class Outcome:
    """An exit code and what was printed."""

    code: int
    out: str
    err: str

    def succeeded(self) -> Outcome:
        assert self.code == 0, self.err
        return self

    def refused(self, code: int, *words: str) -> str:
        """Check the exit code and that the last line is the only `error:` line and contains these words; return it.

        Before it may be warnings, and lines of progress, which end in `…`.
        """
        lines = self.err.splitlines()
        assert self.code == code, self.err
        assert "Traceback" not in self.err
        assert lines[-1].startswith("error: "), self.err
        assert all(line.startswith("warning: ") or line.endswith(" …") for line in lines[:-1]), self.err
        for word in words:
            assert word in lines[-1], f"{word!r} is not in {lines[-1]!r}"
        assert self.out == ""
        return lines[-1]

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("warning: ")]


def cadenza(*arguments: object) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def train(root: Path, *arguments: object) -> Outcome:
    return cadenza("train", *arguments, "--runs-dir", root, "--quiet")


def resume(root: Path, run: object = "@last", *arguments: object) -> Outcome:
    return cadenza("resume", run, *arguments, "--runs-dir", root, "--quiet")


def last(root: Path) -> RunFolder:
    return find(root, "@last")


def copied(folder: RunFolder, root: Path) -> RunFolder:
    """Copy a run to a runs folder of its own, where it can be damaged."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "@last").write_text(folder.id + "\n")
    return RunFolder(Path(shutil.copytree(folder.path, root / folder.id)))


# Parts of the state that are lost with a checkpoint that could not be written: the best score.
BEST = ("best", "standing.best", "standing.best_at.0", "standing.best_at.1")


def assert_same_end(whole: RunFolder, other: RunFolder, but: Collection[str] = ()) -> None:
    assert compare(whole, other, but) is None
    assert episode_records(whole) == episode_records(other)
    assert other.read_status()["status"] == "finished"


def episode_records(folder: RunFolder) -> list[tuple[object, ...]]:
    """Return every recorded training episode as a tuple."""
    return [
        (one.env, one.number, one.seed, one.length, *(actions.tobytes() for actions in one.actions.values()))
        for one in load(folder)
    ]
