"""Errors that a user can cause or meet, each with the exit code of the command line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CadenzaError(Exception):
    """A problem with a one-line message for the user. Any other exception that escapes is an internal error."""

    exit_code = 70


class ConfigError(CadenzaError):
    """A mistake in a spec, a key, a value or a combination of values."""

    exit_code = 2


class UnknownKeyError(ConfigError):
    """A key that is not the key of a setting."""

    def __init__(self, key: str, hint: str) -> None:
        super().__init__(f"unknown key '{key}'{hint}")
        self.key = key


class UnusedError(ConfigError):
    """Settings that would have no effect, by their `keys`."""

    def __init__(self, message: str, keys: Iterable[str]) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


class NotFoundError(CadenzaError):
    """An unknown environment, algorithm, run or checkpoint."""

    exit_code = 2


class MissingExtraError(CadenzaError):
    """Something that needs optional packages that are not installed."""

    exit_code = 69


class HubError(CadenzaError):
    """The Hugging Face Hub cannot be reached, or fails."""

    exit_code = 69


class LockedError(CadenzaError):
    """A run that another process has locked."""

    exit_code = 73


class StorageError(CadenzaError):
    """A disk that is full, read-only or failing."""

    exit_code = 74


class CheckpointError(CadenzaError):
    """A checkpoint that is corrupt, incomplete or does not fit the run."""

    exit_code = 78


class UnsafeFileError(CheckpointError, OSError):
    """A file in a run's folder that is not opened: a link, a pipe, a device or too large a file.

    It is also an OSError, so that code that handles a missing file handles this one, too.
    """


class EnvironmentFault(CadenzaError):  # noqa: N818 - users catch it under this name
    """An environment that raised an exception, did not answer or returned invalid data."""


class DivergenceError(CadenzaError):
    """A loss, gradient or weight that is not finite."""


def explanation(problem: BaseException) -> str:
    """Return an error as text, with its class unless it is one of these, whose messages need none."""
    return str(problem) if isinstance(problem, CadenzaError) else f"{type(problem).__name__}: {problem}"


@contextmanager
def foreign_code(what: str, error: type[CadenzaError] = ConfigError) -> Iterator[None]:
    """Turn whatever code of other packages raises inside into `error`, with `what` and the cause as its message.

    Errors of cadenza and a lack of memory pass through unchanged.
    """
    try:
        yield
    except (CadenzaError, MemoryError):
        raise
    except Exception as problem:
        raise error(f"{what} ({explanation(problem)})") from problem


def brief(function: Callable[P, T]) -> Callable[P, T]:
    """Let the errors of cadenza leave a public function without the frames inside it: the message says it all.

    A cause, such as an exception in the user's own environment, stays with its traceback.
    """

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        __tracebackhide__ = True  # in notebooks
        try:
            return function(*arguments, **keywords)
        except CadenzaError as problem:
            raise problem.with_traceback(None) from problem.__cause__

    return call


def install(extra: str | None) -> str:
    """Return the command that installs the packages of an extra."""
    return f"pip install 'cadenza[{extra}]'"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a message, `; did you mean 'x'?` for the closest of `names`, or '' where none is close."""
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return f"; did you mean '{lowered[close[0]]}'?" if close else ""
