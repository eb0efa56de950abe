"""Make the run folders in tests/resume/fixtures with the code of a commit; later code must open and resume them.

    python benchmarks/old_runs.py --base COMMIT [--only PATTERN]

Run it seldom: the older the folders, the more they prove. Host names and paths are replaced by neutral words.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import traces

from harness.traced_runs import OLD_RUNS, merged

HOST = "machine"
LEFT_OUT = ("curves.png", "curves.svg", "report.md", "metrics.csv")  # made again when the run ends
KEY = "made_on.json"  # the facts of the machine they were made on


def make_all(pattern: str) -> None:
    """Make the folders with the package that is importable here."""
    for name in fnmatch.filter(OLD_RUNS, pattern):
        target = traces.FIXTURES / name
        shutil.rmtree(target, ignore_errors=True)
        with tempfile.TemporaryDirectory() as place:
            root = Path(place) / "runs"
            _make(name, root)
            _neutral(traces.last(root), root)
            shutil.copytree(root, target)
        print(f"{name}: {traces.status(target)['status']} at {traces.status(target)['env_steps']}", flush=True)
    (traces.FIXTURES / KEY).write_text(json.dumps(traces.facts(), indent=1) + "\n")


def _make(name: str, root: Path) -> None:
    old = OLD_RUNS[name]
    how, _, row = old.left.partition("@")
    settings = merged(old.settings)
    if how == "SIGKILL":
        traces.train_until_killed(old.spec, settings, root, int(row))
    else:
        listener = traces.signal_at(int(row), getattr(signal, how)) if how else ()
        with contextlib.suppress(KeyboardInterrupt):
            traces.train(old.spec, settings, root, listener)
    expected = {"SIGKILL": "running", "SIGINT": "interrupted", "": "finished"}[how]
    assert traces.status(root)["status"] == expected, traces.status(root)


def _neutral(folder: Path, root: Path) -> None:
    """Remove from a run folder what identifies the machine."""
    _change(folder / "manifest.json", git=None, machine={"platform": "Linux", "cpu": "", "cores": 2, "host": HOST})
    _change(folder / "status.json", dir=f"runs/{folder.name}", pid=1, host=HOST)
    _change(folder / "lock", pid=1, host=HOST, boot_id=None)
    for path in folder.glob("logs/*"):
        path.write_text(path.read_text().replace(str(root), "runs"))
    for name in LEFT_OUT:
        (folder / name).unlink(missing_ok=True)
    for path in [*folder.iterdir()]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()  # as it is after a checkout
    for path in filter(Path.is_file, folder.rglob("*")):
        assert str(root.parent).encode() not in path.read_bytes(), f"{path} names {root.parent}"


def _change(path: Path, **fields: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | fields, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", metavar="COMMIT", help="whose code makes them; without it, the importable package")
    parser.add_argument("--only", default="*", metavar="PATTERN")
    arguments = parser.parse_args()
    if arguments.base:
        print(f"by the code of {traces.by_code_of(arguments.base, [__file__, '--only', arguments.only])}")
    else:
        make_all(arguments.only)


if __name__ == "__main__":
    main()
