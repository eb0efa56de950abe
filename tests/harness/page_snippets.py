"""Commands and scripts of a documentation page, each run in a forked process that has torch imported."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from harness.processes import forkserver


def command(arguments: list[str], folder: Path) -> None:
    """Run `cadenza ARGUMENTS` like the installed command, without the current folder in Python's path."""
    _succeeds(_command, arguments, folder)


def script(code: str, folder: Path) -> None:
    """Run a program that is in the folder."""
    _succeeds(_script, code, folder)


def _succeeds(work: Callable[..., None], what: object, folder: Path) -> None:
    output = folder / "output.txt"
    process = forkserver.Process(target=work, args=(what, folder, output), daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0, f"{what}\n{output.read_text()}"


def _command(arguments: list[str], folder: Path, output: Path) -> None:
    _settle(folder, output)
    from cadenza.cli.main import run

    _leave(run(arguments))


def _script(code: str, folder: Path, output: Path) -> None:
    _settle(folder, output)
    sys.path.insert(0, str(folder))
    try:
        exec(compile(code, "script.py", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        _leave(1)
    _leave(0)


def _settle(folder: Path, output: Path) -> None:
    os.chdir(folder)
    os.environ |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": ""}  # for processes of its own
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
