"""On-policy storage: T steps of N environments, written in place and used for one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cadenza.base.files import SafePath
from cadenza.errors import ConfigError
from cadenza.trees import map_tree, write
from cadenza.types import Acted, Step, Tree


@dataclass(frozen=True)
class Rollout:
    """One full rollout. Arrays are views into the store: learn from them before collecting again."""

    groups: dict[str, dict[str, Tree]]  # obs, action, reward, active, died, mask?, extras …: [T, N, A, …]
    terminated: np.ndarray  # [T, N]
    truncated: np.ndarray  # [T, N]
    is_first: np.ndarray  # [T, N]
    after_obs: dict[str, Tree]  # [N, A, …] the observations after the last step
    final_index: tuple[np.ndarray, np.ndarray]  # (t, n) of each episode's end, [K] each
    final_obs: dict[str, Tree]  # [K, A, …] true last observations of those episodes
    carry: dict[str, Tree]  # group -> the policy's memory before the steps `carry_at`, [C, N, A, …]; may be empty
    state: np.ndarray | None = None  # [T, N, …] where the environment has a central state
    after_state: np.ndarray | None = None  # [N, …]
    final_state: np.ndarray | None = None  # [K, …]


class RolloutStore:
    """A store of one rollout of `n_steps`. It allocates its arrays on the first step and never again.

    `carry_at` names the steps before which the policy's memory (its extra `carry`) is stored. With `on_disk`, the
    arrays are mapped from files.
    """

    def __init__(self, n_steps: int, carry_at: Sequence[int] = (), on_disk: bool = False) -> None:
        self.n_steps = self._length = n_steps  # of a full rollout, and of this one
        self.carry_at = tuple(carry_at)
        self.on_disk = on_disk
        self.folder: SafePath | None = None
        self.size = 0
        self._arrays: dict[str, Tree] = {}
        self._finals: list[tuple[int, np.ndarray, Tree]] = []  # (t, env indices, final observations)
        self._after: Tree = {}  # the observations after the last step
        self._carries: list[Tree] = []  # by group, one for each step of `carry_at` so far

    def attach(self, folder: SafePath | None) -> None:
        """Map the arrays from files in this folder, if from any."""
        self.folder = folder

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        """Write one transition of every environment."""
        if self.ready():
            raise ConfigError(f"the rollout is full after {self.n_steps} steps: a phase must update before it goes on")
        arrays, t = self._arrays or self._allocate(step, acted, after), self.size
        for group, rows in arrays["groups"].items():
            row = transition(group, step, acted, after)
            write(rows, t, {name: row[name] for name in rows})  # a resumed rollout may lack newer extras
        arrays["terminated"][t] = after.terminated
        arrays["truncated"][t] = after.truncated
        arrays["is_first"][t] = step.is_first
        if step.state is not None:
            arrays["state"][t] = step.state
        if t in self.carry_at:
            carries = {group: extras["carry"] for group, extras in acted.extras.items() if "carry" in extras}
            self._carries.append(map_tree(np.copy, carries))
        self._end(after.terminated | after.truncated, observed(after.final_obs, after.final_state))
        self._after = observed(after.obs, after.state)
        self.size += 1

    def _allocate(self, step: Step, acted: Acted, after: Step) -> dict[str, Tree]:
        row: dict[str, Tree] = dict.fromkeys(("terminated", "truncated", "is_first"), step.is_first)
        row["groups"] = {group: transition(group, step, acted, after) for group in step.obs}
        if step.state is not None:
            row["state"] = step.state
        self._arrays = map_tree(lambda x: self._zeros(x.shape, x.dtype), row)
        return self._arrays

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array [T, *shape], in memory or in a file."""
        shape = (self.n_steps, *shape)
        if not self.on_disk:
            return np.zeros(shape, dtype)
        from cadenza.data.mapped import mapped_bytes

        return mapped_bytes(self.folder, prod(shape) * dtype.itemsize, "a rollout").view(dtype).reshape(shape)

    def _end(self, ended: np.ndarray, last: Tree) -> None:
        if np.count_nonzero(ended):
            self._finals.append((self.size, np.flatnonzero(ended), map_tree(lambda x: x[ended], last)))

    def cut(self) -> None:
        """End the running episodes with the last step, as if truncated: the environments restart."""
        if self.size:
            self.size -= 1
            ended, truncated = self._arrays["terminated"][self.size], self._arrays["truncated"][self.size]
            self._end(~(ended | truncated), self._after)
            truncated[~ended] = True
            self.size += 1

    def ready(self) -> bool:
        return self.size == self._length

    def shorten(self) -> None:
        """End this rollout with the steps it holds, if any."""
        self._length = self.size or self.n_steps

    def take(self) -> Rollout:
        """Return the rollout; the next `add` starts a new one."""
        assert self.ready(), f"rollout holds {self.size} of {self._length} steps"
        rows = [np.full(len(ended), t) for t, ended, _ in self._finals]
        envs = [ended for _, ended, _ in self._finals]
        lasts = [last for *_, last in self._finals]
        final = map_tree(lambda *x: np.concatenate(x), *lasts) if lasts else {}
        empty = np.zeros(0, np.int64)
        rollout = Rollout(
            **map_tree(lambda x: x[: self.size], self._arrays),
            final_index=(np.concatenate([empty, *rows]), np.concatenate([empty, *envs])),
            final_obs=final.get("obs", {}),
            final_state=final.get("state"),
            carry=map_tree(lambda *x: np.stack(x), *self._carries) if self._carries else {},
            after_obs=self._after["obs"],
            after_state=self._after.get("state"),
        )
        self.size, self._length = 0, self.n_steps
        self._finals, self._carries = [], []
        return rollout

    def state_dict(self) -> dict[str, Any]:
        """Return the part that is filled, which is nothing at a cycle's end."""
        return {
            "size": self.size,
            "arrays": map_tree(lambda x: x[: self.size], self._arrays) if self.size else {},
            "finals": list(self._finals),
            "carries": list(self._carries),
            "after": self._after if self.size else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.size = state["size"]
        self._finals = list(state["finals"])
        self._carries = list(state["carries"])
        self._after = state["after"]
        if self.size:
            self._arrays = map_tree(lambda x: self._zeros(x.shape[1:], x.dtype), state["arrays"])
            write(self._arrays, slice(self.size), state["arrays"])


def observed(obs: dict[str, Tree], state: np.ndarray | None) -> Tree:
    """Return observations as a tree, with the central state if there is one."""
    return {"obs": obs} if state is None else {"obs": obs, "state": state}


def transition(group: str, step: Step, acted: Acted, after: Step) -> dict[str, Tree]:
    """Return what a store holds of a step for a group, [N, A, …], except the policy's memory."""
    row = {
        "obs": step.obs[group],
        "action": acted.action[group],
        "reward": after.reward[group],
        "active": step.active[group],
        "died": after.died[group],
    }
    for name, extra in acted.extras[group].items():
        if name != "carry":
            row[name] = extra
    if group in step.mask:
        row["mask"] = step.mask[group]
    return row
