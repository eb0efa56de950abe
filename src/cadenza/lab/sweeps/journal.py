"""The journal of a sweep: one line per event of a trial, on disk before anything relies on it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cadenza.base.failpoints import failpoint
from cadenza.base.files import SafePath
from cadenza.base.json_text import dumps
from cadenza.base.parsing import json_data, json_object
from cadenza.errors import CheckpointError
from cadenza.records import validity
from cadenza.records.folder import PLAIN

if TYPE_CHECKING:
    from cadenza.lab.sweeps.space import Params

NUMBER = validity.optional(validity.is_number)
State = Literal["open", "finished", "pruned", "failed"]


@dataclass
class Trial:
    """One set of values, and the runs that try it, one per seed."""

    number: int
    params: Params
    runs: dict[int, str] = field(default_factory=dict)  # id of the run by seed; it is written before the run exists
    rungs: list[float] = field(default_factory=list)  # value of all seeds together at each pruning point reached
    state: State = "open"
    value: float | None = None
    values: dict[int, float] = field(default_factory=dict)  # by seed
    message: str = ""

    def summary(self) -> dict[str, Any]:
        """Return the trial as plain data for result.json."""
        return {
            "trial": self.number,
            "state": self.state,
            "value": self.value,
            "params": self.params,
            "runs": list(self.runs.values()),
            "values": {str(seed): value for seed, value in self.values.items()},
            "message": self.message,
        }


def is_event(entry: dict[str, Any]) -> bool:
    """Return whether the values of a line of the journal have the right types; a missing one is a KeyError."""
    match entry["event"]:
        case "asked":
            return isinstance(entry["params"], dict)
        case "started":
            return isinstance(entry["run"], str) and PLAIN.fullmatch(entry["run"]) is not None
        case "rung":
            return NUMBER(entry["value"])
        case "retried":
            return True
        case "told":
            numbers = (entry["value"], *entry["values"].values())
            states = ("finished", "pruned", "failed")
            return all(map(NUMBER, numbers)) and entry["state"] in states and isinstance(entry["message"], str)
    return False


def open_runs(path: SafePath) -> list[str]:
    """Return the runs of trials that are not over, from a journal that may be missing, damaged or just being written.

    Unlike `Journal`, this changes nothing on disk and skips lines that it cannot read.
    """
    if not path.is_file():
        return []
    runs: dict[Any, list[str]] = {}
    for line in path.read_text(errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            entry = json_object(line)
            if entry["event"] == "started" and isinstance(entry["run"], str):
                runs.setdefault(entry["trial"], []).append(entry["run"])
            elif entry["event"] == "told":
                runs.pop(entry["trial"], None)
    return [run for names in runs.values() for run in names]


class Journal:
    """The trials of a sweep by number. Killed at any point, it is restored with every event that was written."""

    def __init__(self, path: SafePath) -> None:
        self.path = path
        self.trials: dict[int, Trial] = {}
        self._file = path.open(os.O_RDWR | os.O_CREAT)
        content = path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]  # a killed write may have left a part of a line
        os.ftruncate(self._file, len(complete))
        self._size = os.lseek(self._file, 0, os.SEEK_END)
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                self._apply(json_data(line))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                raise CheckpointError(f"{path}, line {number}: damaged; put it back from a copy of the sweep") from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def add_trial(self, number: int, params: Params) -> Trial:
        """Record a new trial of these values."""
        self._write({"event": "asked", "trial": number, "params": params})
        return self.trials[number]

    def add_run(self, trial: Trial, seed: int, run: str) -> None:
        """Record the id of the run that tries a seed of the trial."""
        self._write({"event": "started", "trial": trial.number, "seed": seed, "run": run})

    def add_rung(self, trial: Trial, value: float) -> None:
        """Record the value of a trial at its next pruning point, from where it may continue."""
        self._write({"event": "rung", "trial": trial.number, "value": value})

    def end_trial(
        self, trial: Trial, state: State, value: float | None, values: dict[int, float] | None = None, message: str = ""
    ) -> None:
        """Record the end of a trial. For a pruned one this includes its last rung, so that they are one event."""
        by_seed = {str(seed): value for seed, value in (values or {}).items()}
        entry = {"event": "told", "trial": trial.number, "state": state, "value": value, "values": by_seed}
        self._write(entry | {"message": message})

    def retry(self) -> None:
        """Reopen the trials that failed, and record their runs again: `open_runs` then lists them as open."""
        for trial in [trial for trial in self.over if trial.state == "failed"]:
            self._write({"event": "retried", "trial": trial.number})
            for seed, run in trial.runs.items():
                self.add_run(trial, seed, run)

    @property
    def open(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state == "open"]

    @property
    def over(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state != "open"]

    def ranked(self, sign: int) -> list[Trial]:
        """Return the finished trials, best first, the earlier of equals first; `sign` is -1 to minimise."""
        finished = [trial for trial in self.trials.values() if trial.state == "finished" and trial.value is not None]
        return sorted(finished, key=lambda trial: (-sign * (trial.value or 0.0), trial.number))

    def _write(self, entry: dict[str, Any]) -> None:
        """Append an event to the file, then apply it."""
        failpoint("sweep:note")
        line = dumps(entry).encode() + b"\n"
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(self._file)
        except OSError:  # a part of a line with another line after it would be damage
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(line)
        failpoint("sweep:noted")
        self._apply(json_data(line))

    def _apply(self, entry: dict[str, Any]) -> None:
        number = int(entry["trial"])
        if not is_event(entry):
            raise ValueError(f"no event of trial {number}")
        if entry["event"] == "asked":
            self.trials[number] = Trial(number, entry["params"])
            return
        trial = self.trials[number]
        if entry["event"] == "started":
            trial.runs[int(entry["seed"])] = entry["run"]
        elif entry["event"] == "rung":
            trial.rungs.append(entry["value"])
        elif entry["event"] == "retried":
            trial.state, trial.message = "open", ""
        else:
            trial.state, trial.value, trial.message = entry["state"], entry["value"], entry["message"]
            trial.values = {int(seed): value for seed, value in entry["values"].items()}
            if trial.state == "pruned":
                trial.rungs.append(entry["value"])
