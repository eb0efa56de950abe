"""What a vector environment remembers of its episodes: enough to report them and to come back to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cadenza.envs.layout import Array, allocate_actions
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.errors import CheckpointError
from cadenza.types import EnvSpec, Episode


class Ledger:
    """Numbers, returns and actions of the running episodes; finished ones as records.

    All environments share one log of actions [time, N, A, …]; an episode is the stretch since its environment's start.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, seeds: EpisodeSeeds) -> None:
        self._spec, self._num_envs, self._seeds = spec, num_envs, seeds
        self.numbers = np.zeros(num_envs, np.int64)  # episodes finished, by environment
        self._starts = np.zeros(num_envs, np.int64)  # where in the log the running episodes begin
        self._time = 0
        self._returns = {name: np.zeros((num_envs, len(group.agents))) for name, group in spec.groups.items()}
        self._log = allocate_actions(spec, (256, num_envs), np.empty)
        self._room = 256
        self._finished: list[Episode] = []

    @property
    def first_env(self) -> int:
        """The global index of environment 0."""
        return self._seeds.first_env

    @property
    def lengths(self) -> Array:
        return self._time - self._starts

    def seed(self, index: int, ahead: int = 0) -> int:
        """The seed of an environment's running episode, or of one to come."""
        return self._seeds(index, int(self.numbers[index]) + ahead)

    def record(self, action: dict[str, Array], reward: dict[str, Array], ended: list[int]) -> None:
        """Add a step of every environment, and close the episodes of those that ended."""
        time = self._time
        if time == self._room:
            time = self._make_room()
        for group, log in self._log.items():
            log[time] = action[group]
            self._returns[group] += reward[group]
        self._time = time + 1
        for index in ended:
            self._finish(index)

    def skip(self, indices: Array | list[int]) -> None:
        """Leave the last step out of these environments' episodes, which begin after it."""
        self._starts[indices] = self._time

    def take(self) -> list[Episode]:
        """The episodes finished since last asked."""
        taken, self._finished = self._finished, []
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The running episodes; their actions are concatenated environment after environment."""
        return {
            "numbers": self.numbers.copy(),
            "lengths": self.lengths,
            "returns": {group: array.copy() for group, array in self._returns.items()},
            "actions": {
                group: np.concatenate([log[start : self._time, index] for index, start in enumerate(self._starts)])
                for group, log in self._log.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        lengths = np.asarray(state["lengths"], np.int64)
        if len(lengths) != self._num_envs:
            raise CheckpointError(f"the saved state has {len(lengths)} environments, this run has {self._num_envs}")
        self.numbers = np.array(state["numbers"], np.int64)
        self._returns = {group: np.array(array, np.float64) for group, array in state["returns"].items()}
        self._time = int(lengths.max())
        self._starts = self._time - lengths
        self._room = max(256, 2 * self._time)
        self._log = allocate_actions(self._spec, (self._room, self._num_envs), np.empty)
        ends = np.cumsum(lengths)
        for group, log in self._log.items():
            for index, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
                log[self._starts[index] : self._time, index] = state["actions"][group][start:end]
        self._finished = []

    def restart(self, numbers: Array) -> None:
        """Give up the running episodes; the environments begin those of these numbers."""
        nothing = {
            "numbers": numbers,
            "lengths": np.zeros(self._num_envs, np.int64),
            "returns": {group: np.zeros_like(array) for group, array in self._returns.items()},
            "actions": {group: log[:0, 0] for group, log in self._log.items()},
        }
        self.load_state_dict(nothing)

    def _finish(self, index: int) -> None:
        start = int(self._starts[index])
        self._finished.append(
            Episode(
                env=self.first_env + index,
                number=int(self.numbers[index]),
                seed=self.seed(index),
                length=self._time - start,
                returns={group: array[index].copy() for group, array in self._returns.items()},
                actions={group: log[start : self._time, index].copy() for group, log in self._log.items()},
            )
        )
        for array in self._returns.values():
            array[index] = 0
        self.numbers[index] += 1
        self._starts[index] = self._time

    def _make_room(self) -> int:
        """Drop what no running episode needs; twice the room when that is little. Returns the new time."""
        drop = int(self._starts.min())
        keep = self._time - drop
        self._room = max(256, 2 * keep)
        fresh = allocate_actions(self._spec, (self._room, self._num_envs), np.empty)
        for group, log in self._log.items():
            fresh[group][:keep] = log[drop : self._time]
        self._log = fresh
        self._starts -= drop
        self._time = keep
        return keep
