"""The command line: one line per command. A command's file is imported when the command is called."""

from __future__ import annotations

import gc
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import getdoc
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from cadenza import __version__
from cadenza.base import blas, garbage
from cadenza.base.json_text import is_text
from cadenza.base.text import lines, one_line
from cadenza.errors import CadenzaError, ConfigError, StorageError

USAGE: type[Exception] = typer.BadParameter.__bases__[0]  # click's error for bad usage, wherever typer keeps its click

NAMES = (  # in the order of `cadenza --help`
    *("train", "resume", "evaluate", "play", "inspect", "list", "show", "compare", "export", "diff", "top", "cleanup"),
    *("sweep", "tune", "verify", "publish", "report", "envs", "algorithms", "doctor", "plan", "smoke", "bench", "new"),
    *("config", "demonstrate", "debug", "dashboard", "trial"),
)
# name -> what the module `cadenza.cli.<name>` calls it
COMMANDS = {name: {"list": "list_runs", "bench": "app", "config": "app"}.get(name, name) for name in NAMES}
HIDDEN = ("trial",)
EXAMPLES = ("CartPole-v1:ppo", "Pendulum-v1:sac", "CartPole-v1:dqn", "FrozenLake-v1:qlearning", "skirmish/3m:mappo")
BLAS = "runtime.blas="
IN_SPEC = ("environment.id", "algorithm.name")
MISSING_RUN = "RUN is missing: @last is the newest run, @best the one with the highest return; `cadenza list` lists all"
TRY = {  # by the argument that is missing
    "spec": f"SPEC is missing: try {', '.join(EXAMPLES)}; `cadenza envs` and `cadenza algorithms` list what there is",
    **dict.fromkeys(("run", "runs"), MISSING_RUN),
}
FOR_CONFIG = {  # instead of an option that names a config: the first parameter that the command has, what to write
    "spec": "SPEC names it without an option, `{command} NAME` or `{command} FILE`",
    "file": "FILE is written without an option, `{command} FILE`",
    **dict.fromkeys(("run", "runs"), "the run's own config is used, `{command} RUN`"),
}
FOR_RUN = {
    **dict.fromkeys(("run", "runs"), "RUN is written without an option, `{command} @last`"),
    "init_from": "a new run makes its own id, --name names it; `cadenza resume RUN` continues one",
}
ANSWERS = {  # to options of other programs, by the option
    **dict.fromkeys(("--config-name", "--config", "--config-id", "--experiment"), FOR_CONFIG),
    "--config-path": {"config_dir": "--config-dir names a folder of config groups"},
    "--list-envs": {"": "`cadenza envs [FILTER]` lists the environments"},
    **dict.fromkeys(("--run-id", "--run"), FOR_RUN),
    **{option: {"": "`cadenza resume RUN` continues a run"} for option in ("--resume", "--resume-path")},
}


class Commands(TyperGroup):
    """The group of all commands. It imports a command's module when the command is called or listed.

    Other packages add commands by entry points, which are looked for when a command is not ours and in the list of all.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = {name: None for name in COMMANDS if name not in HIDDEN}

    def list_commands(self, ctx: Any) -> list[str]:
        names = [name for name in COMMANDS if name not in HIDDEN]
        return [*names, *(name for name in sorted(package_commands()) if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in HIDDEN:  # not among the commands that are listed and suggested
            return load(cmd_name)
        if cmd_name not in COMMANDS and cmd_name not in package_commands():
            return None
        if self.commands.get(cmd_name) is None:
            self.commands[cmd_name] = load(cmd_name) if cmd_name in COMMANDS else load_package_command(cmd_name)
        return self.commands[cmd_name]


def package_commands() -> Collection[str]:
    """Return the names of commands that other packages add; none of them is imported."""
    from cadenza.config import registry

    return registry.entries("command")


def load(name: str) -> Any:
    """Import a command and return it as click's."""
    return as_click(name, getattr(import_module(f"cadenza.cli.{name}"), COMMANDS[name]))


def load_package_command(name: str) -> Any:
    """Import the command of another package; one that cannot be imported raises the reason when it is called."""
    from cadenza.config import plugins

    try:
        return as_click(name, plugins.load("command", name))
    except Exception as problem:  # typer's, of a signature that it cannot read, too
        error = problem if isinstance(problem, CadenzaError) else ConfigError(f"command {name}: {problem}")

    def broken() -> None:
        raise error

    command = as_click(name, broken)
    command.help = command.short_help = "(cannot be loaded: call it to see why)"
    command.context_settings |= {"ignore_unknown_options": True, "allow_extra_args": True}
    return command


def as_click(name: str, command: Any) -> Any:
    """Return a function with typer's annotations, or a typer application, as click's command."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(command, typer.Typer):
        group.add_typer(command, name=name)
    else:
        group.command(name, help=help_of(command), hidden=name in HIDDEN)(command)
    return get_group(group).commands[name]


app = typer.Typer(
    cls=Commands,
    help="A reinforcement-learning lab: train, resume exactly, evaluate, verify.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(requested: bool) -> None:
    """Print the version and leave, if `--version` was given."""
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Declare the options that stand before the command."""


def help_of(command: Callable[..., None]) -> str:
    """Return the docstring with a mark before its examples that keeps click from joining their lines."""
    return (getdoc(command) or "").replace("\n\nExample:", "\n\n\b\nExample:")


def main() -> None:
    """Run the command line and exit with its code."""
    garbage.collect_rarely()
    mend_streams()
    blas.may_start_again, blas.started_for = os.name == "posix", os.environ.pop(blas.STARTED_FOR, "")
    settings = [text.removeprefix(BLAS) for text in sys.argv if text.startswith(BLAS)]
    blas.choose(*settings[-1:])  # one in a file takes a second start: composing a config imports NumPy
    blas.let_threads_sleep()
    try:
        code = run(sys.argv[1:])
    except blas.OtherKernelsError as other:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], other.environment)
    gc.freeze()  # the end of the process frees all memory: no search for garbage, which takes longer than `--help`
    sys.exit(code)


def mend_streams() -> None:
    """Point closed standard streams at /dev/null and escape characters that stdout and stderr cannot encode."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)  # children inherit it; and the next file that is opened must not get this number
            if null != number:
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = ForgivingStream(sys.stderr.detach(), sys.stderr.encoding, "backslashreplace", line_buffering=True)


class ForgivingStream(TextIOWrapper):
    """A stderr that ignores a closed pipe and a full disk: the exit code still tells how the command ended."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code. No mistake of a user ends in a traceback."""
    try:
        refuse_bad_surroundings(arguments)
        return app(arguments or ["--help"], prog_name="cadenza", standalone_mode=False) or 0
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # the reader of our output left, `cadenza list | head`
            return 0
        return leave.code if isinstance(leave.code, int) else 0
    except USAGE as problem:
        complain(f"error: {usage(problem, arguments)}")
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
    except blas.OtherKernelsError:
        raise
    except Exception as problem:
        if "DefaultCPUAllocator" in str(problem) or type(problem).__name__ == "OutOfMemoryError":  # torch's
            complain(f"error: {no_memory(problem)}")
            return CadenzaError.exit_code
        if os.environ.get("CADENZA_TRACEBACK"):
            print(lines(traceback.format_exc()), end="", file=sys.stderr)
        hint = "set CADENZA_TRACEBACK=1 to see where"
        complain(f"internal error: {type(problem).__name__}: {problem} ({hint})")
        return 70


def refuse_bad_surroundings(arguments: list[str]) -> None:
    """Refuse arguments that are not text, and a deleted current folder, in which MKL would end the process."""
    for argument in arguments:
        if not is_text(argument):
            raise ConfigError(f"{argument!r} is not UTF-8 text")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise StorageError("the current folder has been deleted: go to one that exists") from None


def no_memory(problem: BaseException) -> str:
    """Return a message with the size of the allocation that failed, if the error names it."""
    request = re.search(r"allocate[d]? (\d+)\S* (\w+)", str(problem))
    amount = f" ({request[1]} {request[2]} requested)" if request else ""
    return f"out of memory{amount}: `cadenza plan` says what a run needs and what fits"


def usage(problem: Any, arguments: Sequence[str]) -> str:
    """Return click's message on one line, with the command whose help tells more."""
    command = problem.ctx.command_path if problem.ctx else "cadenza"
    option = getattr(problem, "option_name", None)
    if (answer := answer_for(option, problem.ctx)) is not None:
        return f"no option {option}: {answer} (see `{command} --help`)"
    if option is not None and takes_settings(problem.ctx) and (key := setting_for(option, arguments)) is not None:
        if key in IN_SPEC:
            return f"no option {option}: environment and algorithm are one argument, as in `{command} CartPole-v1:ppo`"
        return f"no option {option}: settings are written without dashes, {key}=VALUE (see `{command} --help`)"
    missing = getattr(getattr(problem, "param", None), "name", None) if "Missing" in problem.format_message() else None
    if missing in TRY:
        return f"{TRY[missing]} (see `{command} --help`)"
    return f"{one_line(problem.format_message()).rstrip('.')} (see `{command} --help`)"


def answer_for(option: str | None, context: Any) -> str | None:
    """Return what a command takes instead of an option of another program; None if there is nothing like it."""
    parameters = {"", *(parameter.name for parameter in context.command.params)} if context is not None else ()
    answers = ANSWERS.get(str(option).replace("_", "-"), {})
    return next(
        (text.format(command=context.command_path) for name, text in answers.items() if name in parameters), None
    )


def takes_settings(context: Any) -> bool:
    """Return whether a command takes settings as `key=value`."""
    return context is not None and any(parameter.name == "overrides" for parameter in context.command.params)


def setting_for(option: str, arguments: Sequence[str]) -> str | None:
    """Return the setting that an unknown option names, by its own name or that of another library.

    Settings of the algorithm in the arguments (`ENV:VARIANT`) come before those of others.
    """
    from cadenza.config import registry
    from cadenza.config.convert import walk
    from cadenza.config.foreign_names import translate
    from cadenza.config.schema import RunConfig

    name = option.lstrip("-").replace("-", "_")
    words = {word for argument in arguments for word in re.split("[:/]", argument)}
    for algorithm in sorted(registry.ALGORITHMS, key=lambda algorithm: algorithm not in words):
        keys = dict.fromkeys(key for key, _, _ in walk(RunConfig, data={"algorithm": {"name": algorithm}}))
        if key := translate(name, keys) or next((key for key in keys if name in (key, key.rpartition(".")[2])), None):
            return key
    return None


def complain(text: object) -> None:
    """Print a text to stderr as one line, control characters escaped."""
    print(one_line(str(text)), file=sys.stderr)
