"""Commands and scripts of a documentation page, each run in a forked process that has torch imported."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.processes import forkserver

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")


def command(arguments: list[str], folder: Path, fails: bool = False) -> str:
    """Run `cadenza ARGUMENTS` like the installed command, without the current folder in Python's path.

    Return what it printed. It must succeed, or fail with an exit code that is not 0.
    """
    return _run(_command, arguments, folder, fails)


def script(code: str, folder: Path) -> None:
    """Run a program that is in the folder."""
    _run(_script, code, folder)


def program(file: Path, folder: Path, *arguments: object) -> str:
    """Run the program in a file, in this folder; return what it printed."""
    settings = f"import sys\nsys.argv = {[str(file), *map(str, arguments)]!r}\n__file__ = sys.argv[0]\n"
    return _run(_script, settings + file.read_text(), folder)


def shell(text: str, folder: Path) -> None:
    """Run the lines `$ cadenza …` of a block. The others are what they print: a line `error: …` is, exactly."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        line, _, rest = part.partition("\n")
        assert line.startswith("cadenza "), line
        errors = re.findall(r"^error: .*$", rest, re.MULTILINE)
        printed = command(shlex.split(line, comments=True)[1:], folder, fails=bool(errors))
        for error in errors:
            assert error in printed, printed


def snippets(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block of code that names its language."""
    yield from BLOCK.findall(page.read_text())


def run_page(page: Path, folder: Path) -> None:
    """Run a page from top to bottom: commands, programs, and files whose first line is a comment with their name."""
    for kind, text in snippets(page):
        if name := FILE.match(text):
            (folder / name[1]).write_text(text)
        elif kind == "console":
            shell(text, folder)
        elif kind == "python":
            script(text, folder)


def _run(work: Callable[..., None], what: object, folder: Path, fails: bool = False) -> str:
    output = folder / "output.txt"
    process = forkserver.Process(target=work, args=(what, folder, output), daemon=True)
    process.start()
    process.join()
    assert (process.exitcode != 0) == fails, f"{what}\n{output.read_text()}"
    return output.read_text()


def _command(arguments: list[str], folder: Path, output: Path) -> None:
    _settle(folder, output)
    sys.argv = ["cadenza", *arguments]  # from which some commands start processes
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
