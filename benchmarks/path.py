"""List the files of cadenza whose functions a command runs, and the modules of cadenza that it imports.

    python benchmarks/path.py                         # cadenza train CartPole-v1:ppo, to a small budget
    python benchmarks/path.py train toy/pair:mappo --max-updates 1 --list

Code that runs while a module is imported does not count as run, and packages do not count as modules.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

DEFAULT = ["train", "CartPole-v1:ppo", "--max-timesteps", "3000"]


class Recorder:
    """A profile function that records the functions called in a package while none of its modules is imported."""

    def __init__(self, root: Path) -> None:
        self.root = f"{root}/"
        self.functions: set[Any] = set()
        self._importing = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.root):
            return
        depth = getattr(self._importing, "depth", 0)
        if code.co_name == "<module>":
            self._importing.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and depth == 0 and code.co_flags & inspect.CO_OPTIMIZED:  # not the body of a class
            self.functions.add(code)

    def files(self) -> Counter[str]:
        """Return how many functions ran in each file, by its path in the package."""
        return Counter(code.co_filename.removeprefix(self.root) for code in self.functions)


def measure(arguments: list[str]) -> dict[str, Any]:
    """Run a command in this process, which must not have imported cadenza yet."""
    package = importlib.util.find_spec("cadenza")
    assert package is not None
    assert package.origin is not None
    assert "cadenza" not in sys.modules
    recorder = Recorder(Path(package.origin).parent)
    with tempfile.TemporaryDirectory() as runs, contextlib.redirect_stderr(io.StringIO()) as messages:
        threading.setprofile(recorder)
        sys.setprofile(recorder)
        try:
            from cadenza.cli.main import run

            code = run([*arguments, "--quiet", "--runs-dir", runs])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    if code:
        raise SystemExit(messages.getvalue())
    modules = [
        name for name in sys.modules if name.startswith("cadenza.") and not hasattr(sys.modules[name], "__path__")
    ]
    return {"files": dict(sorted(recorder.files().items())), "modules": sorted(modules)}


def main() -> None:
    listed, arguments = "--list" in sys.argv, [word for word in sys.argv[1:] if word != "--list"]
    path = measure(arguments or DEFAULT)
    counts = {"files": len(path["files"]), "functions": sum(path["files"].values()), "modules": len(path["modules"])}
    print(json.dumps(path if listed else counts, indent=2))


if __name__ == "__main__":
    main()
