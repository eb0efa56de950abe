"""What is known about each trial, kept in a journal: one line per fact, on disk before anything relies on it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from cadenza.base.failpoints import failpoint
from cadenza.base.files import SafePath
from cadenza.base.json_text import dumps
from cadenza.base.parsing import json_data
from cadenza.errors import CheckpointError
from cadenza.lab.sweeps.space import Params
from cadenza.records import validity
from cadenza.records.folder import PLAIN

NUMBER = validity.optional(validity.is_number)
State = Literal["open", "finished", "pruned", "failed"]


@dataclass
class Trial:
    """One set of values, and the runs that try it: one for each seed."""

    number: int
    params: Params
    runs: dict[int, str] = field(default_factory=dict)  # by seed: the run's id, chosen before the run exists
    rungs: list[float] = field(default_factory=list)  # what the seeds came to together at each point of pruning
    state: State = "open"
    value: float | None = None
    values: dict[int, float] = field(default_factory=dict)  # by seed
    message: str = ""

    def summary(self) -> dict[str, Any]:
        return {
            "trial": self.number,
            "state": self.state,
            "value": self.value,
            "params": self.params,
            "runs": list(self.runs.values()),
            "values": {str(seed): value for seed, value in self.values.items()},
            "message": self.message,
        }


def is_fact(fact: dict[str, Any]) -> bool:
    """Return whether the values of a line of the journal have their kinds; a missing one is a KeyError."""
    match fact["event"]:
        case "asked":
            return isinstance(fact["params"], dict)
        case "started":
            return isinstance(fact["run"], str) and PLAIN.fullmatch(fact["run"]) is not None
        case "rung":
            return NUMBER(fact["value"])
        case "retried":
            return True
        case "told":
            numbers = (fact["value"], *fact["values"].values())
            states = ("finished", "pruned", "failed")
            return all(map(NUMBER, numbers)) and fact["state"] in states and isinstance(fact["message"], str)
    return False


class Journal:
    """Trials by number. Killed at any point, it comes back with every fact that was noted."""

    def __init__(self, path: SafePath) -> None:
        self.path = path
        self.trials: dict[int, Trial] = {}
        self._file = path.open(os.O_RDWR | os.O_CREAT)
        whole = path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]  # a killed write may have left a part of a line
        os.ftruncate(self._file, len(kept))
        self._size = os.lseek(self._file, 0, os.SEEK_END)
        for number, line in enumerate(kept.splitlines(), 1):
            try:
                self._take(json_data(line))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                raise CheckpointError(f"{path}, line {number}: damaged; put it back from a copy of the sweep") from None

    def close(self) -> None:
        os.close(self._file)

    def asked(self, number: int, params: Params) -> Trial:
        self._note({"event": "asked", "trial": number, "params": params})
        return self.trials[number]

    def started(self, trial: Trial, seed: int, run: str) -> None:
        self._note({"event": "started", "trial": trial.number, "seed": seed, "run": run})

    def rung(self, trial: Trial, value: float) -> None:
        """It may go on."""
        self._note({"event": "rung", "trial": trial.number, "value": value})

    def told(
        self, trial: Trial, state: State, value: float | None, values: dict[int, float] | None = None, message: str = ""
    ) -> None:
        """It is over; one that was pruned has come to a last rung, which is one fact with its end."""
        seeds = {str(seed): found for seed, found in (values or {}).items()}
        fact = {"event": "told", "trial": trial.number, "state": state, "value": value, "values": seeds}
        self._note(fact | {"message": message})

    def retry(self) -> None:
        """Open again what has failed. Its runs are said anew: whoever reads the journal sees that they may go on."""
        for trial in [trial for trial in self.over if trial.state == "failed"]:
            self._note({"event": "retried", "trial": trial.number})
            for seed, run in trial.runs.items():
                self.started(trial, seed, run)

    @property
    def open(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state == "open"]

    @property
    def over(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state != "open"]

    def ranked(self, sign: int) -> list[Trial]:
        """Finished trials, the best first; of equals the earlier."""
        finished = [trial for trial in self.trials.values() if trial.state == "finished" and trial.value is not None]
        return sorted(finished, key=lambda trial: (-sign * (trial.value or 0.0), trial.number))

    def _note(self, fact: dict[str, Any]) -> None:
        failpoint("sweep:note")
        line = dumps(fact).encode() + b"\n"
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(self._file)
        except OSError:  # a part of a line with another after it would be damage
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(line)
        failpoint("sweep:noted")
        self._take(json_data(dumps(fact)))

    def _take(self, fact: dict[str, Any]) -> None:
        number = int(fact["trial"])
        if not is_fact(fact):
            raise ValueError(f"no fact about trial {number}")
        if fact["event"] == "asked":
            self.trials[number] = Trial(number, fact["params"])
            return
        trial = self.trials[number]
        if fact["event"] == "started":
            trial.runs[int(fact["seed"])] = fact["run"]
        elif fact["event"] == "rung":
            trial.rungs.append(fact["value"])
        elif fact["event"] == "retried":
            trial.state, trial.message = "open", ""
        else:
            trial.state, trial.value, trial.message = fact["state"], fact["value"], fact["message"]
            trial.values = {int(seed): value for seed, value in fact["values"].items()}
            if trial.state == "pruned":
                trial.rungs.append(fact["value"])
