"""On-policy storage: T steps of N environments, written in place, learned from once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cadenza.trees import map_tree
from cadenza.types import Acted, Step, Tree


@dataclass(frozen=True)
class Rollout:
    """One full rollout. Arrays are views into the store: learn from them before collecting again."""

    groups: dict[str, dict[str, Tree]]  # obs, action, reward, active, died, mask?, extras …, each [T, N, A, …]
    terminated: np.ndarray  # [T, N]
    truncated: np.ndarray  # [T, N]
    is_first: np.ndarray  # [T, N]
    after_obs: dict[str, Tree]  # [N, A, …] what follows the last step
    final_index: tuple[np.ndarray, np.ndarray]  # (t, n) of each episode's end, [K] each
    final_obs: dict[str, Tree]  # [K, A, …] true last observations of those episodes


class RolloutStore:
    """Allocates on the first step, when shapes are known; never after."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.size = 0
        self._arrays: dict[str, Tree] = {}
        self._finals: list[tuple[int, np.ndarray, dict[str, Tree]]] = []  # (t, env indices, obs rows)
        self._after_obs: dict[str, Tree] = {}

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        """Write one transition of every environment."""
        row = {
            "groups": {group: self._row(group, step, acted, after) for group in step.obs},
            "terminated": after.terminated,
            "truncated": after.truncated,
            "is_first": step.is_first,
        }
        if not self._arrays:
            self._arrays = map_tree(lambda x: np.zeros((self.n_steps, *x.shape), x.dtype), row)
        _write(self._arrays, self.size, row)
        ended = np.flatnonzero(after.terminated | after.truncated)
        if len(ended):
            self._finals.append((self.size, ended, map_tree(lambda x: x[ended], after.final_obs)))
        self._after_obs = after.obs
        self.size += 1

    @staticmethod
    def _row(group: str, step: Step, acted: Acted, after: Step) -> dict[str, Tree]:
        row = {
            "obs": step.obs[group],
            "action": acted.action[group],
            "reward": after.reward[group],
            "active": step.active[group],
            "died": after.died[group],
            **acted.extras[group],
        }
        if group in step.mask:
            row["mask"] = step.mask[group]
        return row

    def ready(self) -> bool:
        return self.size == self.n_steps

    def batch(self) -> Rollout:
        """Everything collected; the next `add` starts a new rollout."""
        assert self.ready(), f"rollout holds {self.size} of {self.n_steps} steps"
        rows = [np.full(len(ended), t) for t, ended, _ in self._finals]
        envs = [ended for _, ended, _ in self._finals]
        finals = [obs for *_, obs in self._finals]
        empty = np.zeros(0, np.int64)
        rollout = Rollout(
            **self._arrays,
            after_obs=self._after_obs,
            final_index=(np.concatenate([empty, *rows]), np.concatenate([empty, *envs])),
            final_obs=map_tree(lambda *x: np.concatenate(x), *finals) if finals else {},
        )
        self.size = 0
        self._finals = []
        return rollout

    def state_dict(self) -> dict[str, Any]:
        """Only the part that is filled: nothing, at a cycle's end."""
        return {
            "size": self.size,
            "arrays": map_tree(lambda x: x[: self.size], self._arrays) if self.size else {},
            "finals": list(self._finals),
            "after_obs": self._after_obs if self.size else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.size = state["size"]
        self._finals = list(state["finals"])
        self._after_obs = state["after_obs"]
        if self.size:
            self._arrays = map_tree(lambda x: np.zeros((self.n_steps, *x.shape[1:]), x.dtype), state["arrays"])
            _write(self._arrays, slice(self.size), state["arrays"])


def _write(arrays: Tree, where: Any, values: Tree) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            _write(arrays[key], where, value)
        else:
            arrays[key][where] = value
