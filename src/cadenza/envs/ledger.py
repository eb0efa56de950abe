"""The episodes of a vector environment: their seeds, and a record to report finished and restore running ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cadenza.envs.layout import Array, allocate_actions
from cadenza.errors import CheckpointError
from cadenza.types import EnvSpec, Episode

TRAIN, EVAL, PLAY, RECORD = 0, 1, 2, 3  # streams: episodes of one kind never share seeds with another


@dataclass(frozen=True)
class EpisodeSeeds:
    """A seed for every episode, derived from the run's: `seeds(env, episode)`, the same on every machine.

    `env` counts from `first_env`. So each episode can be repeated on its own.
    """

    run_seed: int
    stream: int
    first_env: int = 0

    def __call__(self, env_index_local: int, episode: int) -> int:
        return _derive(self.run_seed, self.stream, self.first_env + env_index_local, episode)


@lru_cache(maxsize=1024)  # needed at a reset and again when the episode is recorded
def _derive(run_seed: int, stream: int, env: int, episode: int) -> int:
    """Return a seed of 31 bits, which every environment accepts."""
    return int(np.random.SeedSequence(entropy=run_seed, spawn_key=(stream, env, episode)).generate_state(1)[0] >> 1)


class Ledger:
    """Numbers, rewards and actions of the running episodes, and the finished episodes that were not taken yet.

    All environments share one log [time, N, A, …]; a running episode is the part since its environment's last start.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, seeds: EpisodeSeeds) -> None:
        self._spec, self._num_envs, self._seeds = spec, num_envs, seeds
        self.numbers = np.zeros(num_envs, np.int64)  # episodes finished, by environment
        self._starts = np.zeros(num_envs, np.int64)  # where in the log the running episodes begin
        self._time = 0
        self._range: list[float] | None = None  # lowest and highest reward of the steps before `_noted`
        self._noted = 0
        self._allocate(256)
        self._finished: list[Episode] = []

    @property
    def first_env(self) -> int:
        """The global index of environment 0."""
        return self._seeds.first_env

    @property
    def lengths(self) -> Array:
        return self._time - self._starts

    @property
    def reward_range(self) -> list[float] | None:
        """The lowest and the highest reward of an agent in a step so far; None before the first step."""
        self._note_rewards()
        return self._range

    def seed(self, index: int, ahead: int = 0) -> int:
        """Return the seed of an environment's running episode, or of the one that follows `ahead` episodes later."""
        return self._seeds(index, int(self.numbers[index]) + ahead)

    def record(
        self, action: dict[str, Array], reward: dict[str, Array], ended: list[int], won: Array | None = None
    ) -> None:
        """Add a step of every environment, and close the episodes of those that ended."""
        time = self._time
        if time == self._room:
            time = self._make_room()
        for group, actions in self._actions.items():
            actions[time] = action[group]
            self._rewards[group][time] = reward[group]  # added up at the end: a sum at every step costs more
        self._time = time + 1
        for index in ended:
            self._finish(index, None if won is None else bool(won[index]))

    def skip(self, indices: Array | list[int]) -> None:
        """Leave the last step out of these environments' episodes, which begin after it."""
        self._starts[indices] = self._time
        if len(indices):
            for log in self._rewards.values():
                log[self._time - 1, indices] = np.nan

    def take(self) -> list[Episode]:
        """Return the episodes finished since the last call."""
        episodes, self._finished = self._finished, []
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Return the running episodes; their actions are concatenated in the order of the environments."""
        observed = self.reward_range
        return {
            **({} if observed is None else {"reward_range": observed}),  # older checkpoints lack it
            "numbers": self.numbers.copy(),
            "lengths": self.lengths,
            "returns": {
                group: np.stack([self._return_so_far(group, index) for index in range(self._num_envs)])
                for group in self._rewards
            },
            "actions": {
                group: np.concatenate([log[start : self._time, index] for index, start in enumerate(self._starts)])
                for group, log in self._actions.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        lengths = np.asarray(state["lengths"], np.int64)
        if len(lengths) != self._num_envs:
            raise CheckpointError(f"the saved state has {len(lengths)} environments, this run has {self._num_envs}")
        self.numbers = np.array(state["numbers"], np.int64)
        self._time = self._noted = int(lengths.max())
        self._range = state.get("reward_range")
        self._starts = self._time - lengths
        self._allocate(max(256, 2 * self._time))
        ends = np.cumsum(lengths)
        for group, log in self._actions.items():
            for index, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
                log[self._starts[index] : self._time, index] = state["actions"][group][start:end]
                if end > start:  # the whole return is booked at the first step
                    self._rewards[group][self._starts[index], index] = state["returns"][group][index]
        self._finished = []

    def restart(self, numbers: Array) -> None:
        """Abandon the running episodes; every environment starts the episode with its entry of `numbers`."""
        empty = {
            "reward_range": self.reward_range,
            "numbers": numbers,
            "lengths": np.zeros(self._num_envs, np.int64),
            "returns": {},
            "actions": {group: log[:0, 0] for group, log in self._actions.items()},
        }
        self.load_state_dict(empty)

    def _finish(self, index: int, won: bool | None) -> None:
        start = int(self._starts[index])
        self._finished.append(
            Episode(
                env=self.first_env + index,
                number=int(self.numbers[index]),
                seed=self.seed(index),
                length=self._time - start,
                returns={group: self._return_so_far(group, index) for group in self._rewards},
                actions={group: log[start : self._time, index].copy() for group, log in self._actions.items()},
                won=won,
            )
        )
        self.numbers[index] += 1
        self._starts[index] = self._time

    def _note_rewards(self) -> None:
        """Look for the lowest and the highest reward in the steps since the last call: at each step it would cost."""
        for log in self._rewards.values():
            if (rewards := log[self._noted : self._time]).size:
                low, high = self._range or (np.inf, -np.inf)
                self._range = [
                    float(np.fmin.reduce(rewards, None, initial=low)),
                    float(np.fmax.reduce(rewards, None, initial=high)),
                ]
        self._noted = self._time

    def _return_so_far(self, group: str, index: int) -> Array:
        """Return a running episode's return [A], added up in the order of steps, so that a resumed run agrees."""
        rewards = self._rewards[group][self._starts[index] : self._time, index]
        total: Array = rewards.cumsum(axis=0)[-1].copy() if len(rewards) else np.zeros(rewards.shape[1:])
        return total

    def _make_room(self) -> int:
        """Drop the log before the oldest running episode, double the room if need be; return the new time."""
        self._note_rewards()
        drop = int(self._starts.min())
        keep = self._time - drop
        before = (self._actions, self._rewards)
        self._allocate(max(256, 2 * keep))
        for old, new in zip(before, (self._actions, self._rewards), strict=True):
            for group, log in old.items():
                new[group][:keep] = log[drop : self._time]
        self._starts -= drop
        self._time = self._noted = keep
        return keep

    def _allocate(self, room: int) -> None:
        lead, groups = (room, self._num_envs), self._spec.groups.items()
        self._room = room
        self._actions = allocate_actions(self._spec, lead, np.empty)
        self._rewards = {name: np.zeros((*lead, len(group.agents))) for name, group in groups}
