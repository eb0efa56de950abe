"""The command line: one line per command. Each command's file imports what is heavy only when it is called."""

from __future__ import annotations

import os
import re
import sys
import traceback
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from cadenza import __version__
from cadenza.base.json_text import is_text
from cadenza.base.text import lines, one_line
from cadenza.cli.algorithms import algorithms
from cadenza.cli.bench import app as bench_app
from cadenza.cli.cleanup import cleanup
from cadenza.cli.compare import compare
from cadenza.cli.config import app as config_app
from cadenza.cli.dashboard import dashboard
from cadenza.cli.debug import debug
from cadenza.cli.demonstrate import demonstrate
from cadenza.cli.diff import diff
from cadenza.cli.doctor import doctor
from cadenza.cli.envs import envs
from cadenza.cli.evaluate import evaluate
from cadenza.cli.export import export
from cadenza.cli.inspect import inspect
from cadenza.cli.list import list_runs
from cadenza.cli.new import new
from cadenza.cli.plan import plan
from cadenza.cli.play import play
from cadenza.cli.publish import publish
from cadenza.cli.report import report
from cadenza.cli.resume import resume
from cadenza.cli.show import show
from cadenza.cli.smoke import smoke
from cadenza.cli.sweep import sweep
from cadenza.cli.top import top
from cadenza.cli.train import train
from cadenza.cli.trial import trial
from cadenza.cli.tune import tune
from cadenza.cli.verify import verify
from cadenza.errors import CadenzaError, ConfigError, StorageError

USAGE: type[Exception] = typer.BadParameter.__bases__[0]  # click's error for bad usage, wherever typer keeps its click

app = typer.Typer(
    help="A reinforcement-learning lab: train, resume exactly, evaluate, verify.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """What stands before the command."""


app.command()(train)
app.command()(resume)
app.command()(evaluate)
app.command()(play)
app.command("list")(list_runs)
app.command()(show)
app.command()(top)
app.command()(inspect)
app.command()(compare)
app.command()(diff)
app.command()(verify)
app.command()(debug)
app.command()(report)
app.command()(export)
app.command()(publish)
app.command()(demonstrate)
app.command()(cleanup)
app.command()(dashboard)
app.command()(new)
app.command()(envs)
app.command()(algorithms)
app.command()(doctor)
app.command()(plan)
app.command()(smoke)
app.command()(sweep)
app.command()(tune)
app.command(hidden=True)(trial)
app.add_typer(bench_app, name="bench")
app.add_typer(config_app, name="config")


def main() -> None:
    mend_streams()
    sys.exit(run(sys.argv[1:]))


def mend_streams() -> None:
    """A closed stream leads nowhere, else the next file takes its number; what stdout cannot spell is escaped."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)  # which children inherit
            if null != number:
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = ForgivingStream(sys.stderr.detach(), sys.stderr.encoding, "backslashreplace", line_buffering=True)


class ForgivingStream(TextIOWrapper):
    """A stderr whose reader may have left, or whose disk may be full: the exit code says it all the same."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def run(arguments: list[str]) -> int:
    """Do what the arguments say; the exit code. Nothing a user did wrong ends in a traceback."""
    try:
        refuse_strange_surroundings(arguments)
        return app(arguments or ["--help"], prog_name="cadenza", standalone_mode=False) or 0
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # the reader of our output left, `cadenza list | head`
            return 0
        return leave.code if isinstance(leave.code, int) else 0
    except USAGE as problem:
        complain(f"error: {usage(problem)}")
        return ConfigError.exit_code
    except CadenzaError as problem:
        complain(f"error: {problem}")
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    except MemoryError as problem:
        complain(f"error: {no_memory(problem)}")
        return CadenzaError.exit_code
    except OSError as problem:
        where = f": {problem.filename}" if problem.filename else ""
        complain(f"error: {problem.strerror or problem}{where}")
        return StorageError.exit_code
    except Exception as problem:
        if "DefaultCPUAllocator" in str(problem) or type(problem).__name__ == "OutOfMemoryError":  # torch's
            complain(f"error: {no_memory(problem)}")
            return CadenzaError.exit_code
        if os.environ.get("CADENZA_TRACEBACK"):
            print(lines(traceback.format_exc()), end="", file=sys.stderr)
        hint = "set CADENZA_TRACEBACK=1 to see where"
        complain(f"internal error: {type(problem).__name__}: {problem} ({hint})")
        return 70


def refuse_strange_surroundings(arguments: list[str]) -> None:
    """Arguments that are no text; a current folder that is gone, where relative paths lead nowhere and MKL ends us."""
    for argument in arguments:
        if not is_text(argument):
            raise ConfigError(f"{argument!r} is no UTF-8 text")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise StorageError("the current folder has been deleted: go to one that exists") from None


def no_memory(problem: BaseException) -> str:
    asked = re.search(r"allocate[d]? (\d+)\S* (\w+)", str(problem))
    amount = f" ({asked[1]} {asked[2]} asked for)" if asked else ""
    return f"out of memory{amount}: `cadenza plan` says what a run needs and what fits"


def usage(problem: Any) -> str:
    """click's message on one line, with the command that tells more."""
    command = problem.ctx.command_path if problem.ctx else "cadenza"
    return f"{one_line(problem.format_message()).rstrip('.')} (see `{command} --help`)"


def complain(text: object) -> None:
    """Print one line to stderr, whatever is in it."""
    print(one_line(str(text)), file=sys.stderr)
