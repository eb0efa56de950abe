"""Whole episodes: kept while they run, handed out when they are over."""

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
    """E finished episodes, side by side and filled up to the longest: [T, E, A, …].

    What is seen, allowed and done is filled up with the episode's last, so that it stays in its space; the rest with 0.
    """

    groups: dict[str, dict[str, Tree]]  # obs, action, reward, active, died, mask?, extras …
    length: np.ndarray  # [E]
    terminated: np.ndarray  # [E]; else cut off by a time limit
    final_obs: dict[str, Tree]  # [E, A, …] what was seen last, after the last action


class EpisodeStore:
    """One log of steps [time, N, A, …] for all environments; an episode is the stretch since its start.

    A step between two episodes, as vectors have it that reset with the step after, belongs to neither.
    """

    def __init__(self) -> None:
        self._log: Tree = {}  # [room, N, A, …] by group and name
        self._time = 0
        self._starts: np.ndarray = np.zeros(0, np.int64)  # where in the log the running episodes begin
        self._after: dict[str, Tree] = {}  # what followed the last step
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
        self._starts[waited] = self._time  # it only waited for the episode that begins now
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
        """Drop what no running episode needs; twice the room when that is little."""
        drop = int(self._starts.min())
        keep = self._time - drop
        room = max(64, 2 * keep)
        kept = map_tree(lambda x: x[drop : self._time], self._log)
        self._log = map_tree(lambda x: np.zeros((room, *x.shape[1:]), x.dtype), kept)
        write(self._log, slice(keep), kept)
        self._starts -= drop
        self._time = keep

    def cut(self) -> None:
        """The environments start afresh: what was added last is the end of its episodes, as if truncated."""
        for index in np.flatnonzero(self._starts < self._time):
            self._finish(int(index), False, self._after)

    def ready(self) -> bool:
        return bool(self._finished)

    def take(self) -> Episodes:
        """All finished episodes, in the order they ended."""
        assert self.ready()
        done, self._finished = self._finished, []
        lengths = np.array([len(_any(episode["groups"])) for episode in done])

        def side_by_side(*parts: np.ndarray, go_on: bool) -> np.ndarray:
            filled = np.zeros((lengths.max(), len(parts), *parts[0].shape[1:]), parts[0].dtype)
            for index, part in enumerate(parts):
                filled[: len(part), index] = part
                if go_on:
                    filled[len(part) :, index] = part[-1]
            return filled

        groups = {
            group: {
                name: map_tree(
                    partial(side_by_side, go_on=name in ("obs", "mask", "action")),
                    *(episode["groups"][group][name] for episode in done),
                )
                for name in data
            }
            for group, data in done[0]["groups"].items()
        }
        return Episodes(
            groups=groups,
            length=lengths,
            terminated=np.array([episode["terminated"] for episode in done]),
            final_obs=map_tree(lambda *x: np.stack(x), *(episode["final_obs"] for episode in done)),
        )

    def state_dict(self) -> dict[str, Any]:
        """The running episodes, and the finished ones that wait."""
        drop = int(self._starts.min()) if len(self._starts) else 0
        return {
            "log": map_tree(lambda x: x[drop : self._time], self._log),
            "starts": self._starts - drop,
            "time": self._time - drop,
            "after": self._after,
            "finished": list(self._finished),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        room = max(64, 2 * state["time"])
        self._log = map_tree(lambda x: np.zeros((room, *x.shape[1:]), x.dtype), state["log"])
        if self._log:
            write(self._log, slice(state["time"]), state["log"])
        self._starts, self._time = np.array(state["starts"], np.int64), state["time"]
        self._after, self._finished = state["after"], list(state["finished"])


def _any(tree: Tree) -> Any:
    return _any(next(iter(tree.values()))) if isinstance(tree, dict) else tree
