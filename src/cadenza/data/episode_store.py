"""A store of whole episodes, which are available once they have ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cadenza.data.rollout import transition
from cadenza.trees import map_tree, write
from cadenza.types import Acted, Step, Tree


@dataclass(frozen=True)
class Episodes:
    """E finished episodes, padded to the longest: [T, E, A, …].

    Observations, masks and actions are padded with the episode's last, so that they stay in their spaces; the rest
    with 0.
    """

    groups: dict[str, dict[str, Tree]]  # obs, action, reward, active, died, mask?, extras …
    length: np.ndarray  # [E]
    terminated: np.ndarray  # [E]; else truncated
    final_obs: dict[str, Tree]  # [E, A, …] after the last action


class EpisodeStore:
    """A store with one log of steps [time, N, A, …] for all environments; an episode is the part since its start.

    A step between two episodes, as in vectors that reset with the next step, belongs to neither.
    """

    def __init__(self) -> None:
        self._log: Tree = {}  # [room, N, A, …] by group and name
        self._time = 0
        self._starts: np.ndarray = np.zeros(0, np.int64)  # the times at which the running episodes begin
        self._after: dict[str, Tree] = {}  # the observations after the last step
        self._finished: list[dict[str, Any]] = []

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        row = {group: transition(group, step, acted, after) for group in step.obs}
        if not self._log:
            self._log = map_tree(lambda x: np.zeros((64, *x.shape), x.dtype), row)
        if not len(self._starts):
            self._starts = np.full(len(step.is_first), self._time)
        if self._time == len(_any(self._log)):
            self._make_room()
        write(self._log, self._time, row)
        self._time += 1
        waited = (step.terminated | step.truncated) & ~step.is_first
        self._starts[waited] = self._time  # the environment only waited for the episode that begins now
        self._after = map_tree(np.copy, after.obs)
        ended = after.terminated | after.truncated
        if np.count_nonzero(ended):
            for index in np.flatnonzero(ended).tolist():
                self._finish(index, bool(after.terminated[index]), after.final_obs)

    def _finish(self, index: int, terminated: bool, last: dict[str, Tree]) -> None:
        start = int(self._starts[index])
        steps = map_tree(lambda x: x[start : self._time, index].copy(), self._log)
        final = map_tree(lambda x: x[index].copy(), last)
        self._finished.append({"groups": steps, "terminated": terminated, "final_obs": final})
        self._starts[index] = self._time

    def _make_room(self) -> None:
        """Drop what no running episode needs, and double the rest's room."""
        state = self.state_dict()
        self._starts, self._time = state["starts"], state["time"]
        self._allocate(state["log"])

    def _allocate(self, log: Tree) -> None:
        """Make a log with room for as many steps again as `log` has, and copy it."""
        room = max(64, 2 * self._time)
        self._log = map_tree(lambda x: np.zeros((room, *x.shape[1:]), x.dtype), log)
        if self._log:
            write(self._log, slice(self._time), log)

    def cut(self) -> None:
        """End the running episodes with the last step, as if truncated: the environments restart."""
        for index in np.flatnonzero(self._starts < self._time):
            self._finish(int(index), False, self._after)

    def ready(self) -> bool:
        return bool(self._finished)

    def take(self) -> Episodes:
        """Return all finished episodes, in the order they ended."""
        assert self.ready()
        episodes, self._finished = self._finished, []
        lengths = np.array([len(_any(episode["groups"])) for episode in episodes])

        def padded(*parts: np.ndarray, repeat_last: bool) -> np.ndarray:
            array = np.zeros((lengths.max(), len(parts), *parts[0].shape[1:]), parts[0].dtype)
            for index, part in enumerate(parts):
                array[: len(part), index] = part
                if repeat_last:
                    array[len(part) :, index] = part[-1]
            return array

        groups = {
            group: {
                name: map_tree(
                    partial(padded, repeat_last=name in ("obs", "mask", "action")),
                    *(episode["groups"][group][name] for episode in episodes),
                )
                for name in data
            }
            for group, data in episodes[0]["groups"].items()
        }
        return Episodes(
            groups=groups,
            length=lengths,
            terminated=np.array([episode["terminated"] for episode in episodes]),
            final_obs=map_tree(lambda *x: np.stack(x), *(episode["final_obs"] for episode in episodes)),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the running episodes, and the finished ones that were not taken."""
        drop = int(self._starts.min()) if len(self._starts) else 0
        return {
            "log": map_tree(lambda x: x[drop : self._time], self._log),
            "starts": self._starts - drop,
            "time": self._time - drop,
            "after": self._after,
            "finished": list(self._finished),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._starts, self._time = np.array(state["starts"], np.int64), state["time"]
        self._allocate(state["log"])
        self._after, self._finished = state["after"], list(state["finished"])


def _any(tree: Tree) -> Any:
    return _any(next(iter(tree.values()))) if isinstance(tree, dict) else tree
