"""Errors a user can cause or meet, each with the exit code the command line ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CadenzaError(Exception):
    """A problem with a plain one-line message; anything else that escapes is an internal error."""

    exit_code = 70


class ConfigError(CadenzaError):
    """A mistake in a spec, a key, a value or a combination of values."""

    exit_code = 2


class UnknownKeyError(ConfigError):
    """A key that no setting has."""

    def __init__(self, key: str, hint: str) -> None:
        super().__init__(f"unknown key '{key}'{hint}")
        self.key = key


class UnusedError(ConfigError):
    """Settings that would change nothing."""

    def __init__(self, message: str, keys: Iterable[str]) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


class NotFoundError(CadenzaError):
    """An unknown environment, algorithm, run or checkpoint."""

    exit_code = 2


class MissingExtraError(CadenzaError):
    """A known thing whose optional packages are not installed."""

    exit_code = 69


class LockedError(CadenzaError):
    """The run is held by another process."""

    exit_code = 73


class StorageError(CadenzaError):
    """The disk is full, read-only or failing."""

    exit_code = 74


class CheckpointError(CadenzaError):
    """A checkpoint that is corrupt, incomplete or belongs to something else."""

    exit_code = 78


class UnsafeFileError(CheckpointError, OSError):
    """A file in a run's folder that is not opened: a link, a pipe, a device, too large. Where a missing file is met,
    or a disk that fails, this is met in the same way.
    """


class EnvironmentFault(CadenzaError):
    """An environment raised, hung or returned junk."""


class DivergenceError(CadenzaError):
    """A loss, gradient or weight is not finite."""


def install(extra: str | None) -> str:
    """How to get the packages of an extra."""
    return f"pip install 'cadenza[{extra}]'"


def nearest(name: str, known: Iterable[str]) -> str:
    """A ready-made tail for a message: `; did you mean 'x'?`, or nothing when no name is close."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return f"; did you mean '{lowered[close[0]]}'?" if close else ""
