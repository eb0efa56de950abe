"""Find code that opens the files of a run by an absolute name, during the whole life of a run.

    python -m harness.file_openings FOLDER

Prints one JSON object: {"open": {"file:line": ["name in the run", …]}, "change": {…}}. An audit hook cannot be
removed, so this is a separate process. Names that libraries open in native code (safetensors, av) raise no event.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

DOOR = "cadenza/base/files.py"  # the module that opens a run's folder, and everything in it by that descriptor
SINKS = ("tensorboard", "wandb")  # written by libraries that need a name
OPENING = {"open": (0, None)}
# event: places of a path and of its directory's descriptor
CHANGING = {
    "os.rename": (1, 3),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.mkdir": (0, 2),
    "os.truncate": (0, None),
    "os.link": (1, 3),
    "os.symlink": (1, 2),
    "os.chmod": (0, 2),
    "shutil.rmtree": (0, 1),
}
STEPS = 256


class Opening:
    """An audit hook that records code that names a file of a run by an absolute path."""

    def __init__(self, root: Path, source: Path) -> None:
        self.root = f"{os.path.realpath(root)}/"
        self.source = f"{source}/"
        self.openings: dict[str, dict[str, set[str]]] = {"open": defaultdict(set), "change": defaultdict(set)}
        self.busy = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind = "open" if event in OPENING else "change" if event in CHANGING else ""
        if not kind or self.busy:
            return
        self.busy = True
        try:
            self.look(kind, arguments, *(OPENING | CHANGING)[event])
        finally:
            self.busy = False

    def look(self, kind: str, arguments: tuple[Any, ...], path: int, descriptor: int | None) -> None:
        if isinstance(arguments[path], int):
            return
        if descriptor is not None and isinstance(arguments[descriptor], int) and arguments[descriptor] >= 0:
            return
        name = self.in_a_run(os.fsdecode(arguments[path]))
        if name:
            place = self.caller()
            if place:
                self.openings[kind][place].add(name)

    def in_a_run(self, path: str) -> str:
        """Return the name within the run; empty for anything else, for sinks and for drafts of folders."""
        if not path.startswith("/") or path.startswith("/proc/"):
            return ""
        if not path.startswith(self.root):
            path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if not path.startswith(self.root):
            return ""
        run, _, name = path.removeprefix(self.root).partition("/")
        if run.startswith(".") or run == "sweeps" or name.split("/")[0] in SINKS:
            return ""
        return name

    def caller(self) -> str:
        """Return the innermost line of cadenza; empty for the module that may open files."""
        frame: FrameType | None = sys._getframe(3)
        first = frame
        while frame is not None and not frame.f_code.co_filename.startswith(self.source):
            frame = frame.f_back
        frame = frame or first
        assert frame is not None
        file = frame.f_code.co_filename
        return "" if file.endswith(DOOR) else f"{file.removeprefix(self.source)}:{frame.f_lineno}"


def life(root: Path, place: Path) -> None:
    """Run all commands on a run, from its training to its cleanup."""
    from cadenza.cli.main import run
    from harness.hostile_scenes import DQN, PPO

    lines = [
        ["train", *PPO, "--quiet"],
        ["train", *DQN, "--quiet"],
        ["resume", "@last", "--max-timesteps", str(STEPS + 32), "--quiet"],
        ["evaluate", "@last", "--episodes", "1"],
        ["show", "@last"],
        ["list"],
        ["top", "--once"],
        ["report", "@last", "--html"],
        ["compare", "CartPole-v1:dqn", "toy/identity:ppo"],
        ["diff", "@last", "@best"],
        ["play", "@last", "--video", str(place / "played.gif")],
        ["play", "@last", "--episode", "0", "--video", str(place / "played.gif")],
        ["verify", "@last", "--steps", "64"],
        ["debug", "@last", "--steps", "32"],
        ["export", "@last", "--format", "csv"],
        ["export", "@last", "--format", "dataset", "--out", str(place / "dataset")],
        ["publish", "@last", "user/name", "--dry-run", "--out", str(place / "published")],
        ["train", *DQN, "--quiet", "--init-from", "@last"],
        ["cleanup", "--keep-best", "0", "--dry-run"],
        ["cleanup", "--keep-best", "0"],
    ]
    for line in lines:
        code = run([*line, "--runs-dir", str(root)])
        if code:
            raise SystemExit(f"{' '.join(line)}: exit code {code}")


def main(place: Path) -> None:
    import cadenza

    hook = Opening(place / "runs", Path(cadenza.__file__).parents[1])
    out = os.dup(1)
    os.dup2(2, 1)  # the commands print to stderr
    sys.addaudithook(hook)
    life(place / "runs", place)
    result = {kind: {where: sorted(names) for where, names in sorted(by.items())} for kind, by in hook.openings.items()}
    os.write(out, json.dumps(result).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
