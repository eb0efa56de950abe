"""Synthetic experience in which every observation is a unique number, with a log of all transitions to check stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cadenza.types import Acted, Step, Store

AGENTS = {"runner": 2, "shooter": 1}


@dataclass
class Transition:
    """One transition of one environment."""

    obs: int
    next_obs: int  # before a reset
    action: dict[str, np.ndarray]
    reward: dict[str, np.ndarray]
    active: dict[str, np.ndarray]
    died: dict[str, np.ndarray]
    terminated: bool
    truncated: bool
    is_first: bool


class Experience:
    """N environments of two groups with deaths, masks and a state; `into` adds their steps to stores and to the log."""

    def __init__(self, num_envs: int, seed: int = 0, masks: bool = True) -> None:
        self.num_envs = num_envs
        self.masks = masks
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.account: list[list[Transition]] = [[] for _ in range(num_envs)]
        self.dead = np.zeros((num_envs, 2), bool)
        self.step = self._show(np.ones(num_envs, bool))

    def into(self, *stores: Store, steps: int) -> None:
        for _ in range(steps):
            step, acted, after = self.transition()
            for store in stores:
                store.add(step, acted, after)

    def transition(self) -> tuple[Step, Acted, Step]:
        n, rng, step = self.num_envs, self.rng, self.step
        acted = Acted(
            action={"runner": rng.integers(0, 3, (n, 2)), "shooter": rng.normal(size=(n, 1, 2)).astype(np.float32)},
            extras={"runner": {"belief": rng.normal(size=(n, 2, 3)), "carry": np.zeros((n, 2))}, "shooter": {}},
            carry={},
        )
        reward = {group: rng.normal(size=(n, agents)).astype(np.float32) for group, agents in AGENTS.items()}
        died = {group: np.zeros((n, agents), bool) for group, agents in AGENTS.items()}
        died["runner"] = (rng.random((n, 2)) < 0.1) & ~self.dead
        terminated, truncated = rng.random(n) < 0.1, rng.random(n) < 0.1
        ended = terminated | truncated
        died["runner"][ended] = False
        self.dead = np.where(ended[:, None], False, self.dead | died["runner"])
        finals = self._numbers()
        after = self._show(ended)
        after.reward, after.died, after.terminated, after.truncated = reward, died, terminated, truncated
        after.final_obs = {group: as_obs(finals, agents) for group, agents in AGENTS.items()}
        for group in AGENTS:
            after.final_obs[group] = np.where(ended[:, None, None], after.final_obs[group], after.obs[group])
        assert after.state is not None
        after.final_state = np.where(ended[:, None], finals[:, None], after.state).astype(np.float32)
        for env in range(n):
            current, following = number_of(step.obs, env), number_of(after.final_obs, env)
            self.account[env].append(
                Transition(
                    current,
                    following,
                    {group: action[env] for group, action in acted.action.items()},
                    {group: values[env] for group, values in reward.items()},
                    {group: values[env] for group, values in step.active.items()},
                    {group: values[env] for group, values in died.items()},
                    bool(terminated[env]),
                    bool(truncated[env]),
                    bool(step.is_first[env]),
                )
            )
        self.step = after
        return step, acted, after

    def find(self, number: int) -> tuple[int, int]:
        """Return the environment and the index in its log of the transition that began with this observation."""
        for env, happened in enumerate(self.account):
            for place, one in enumerate(happened):
                if one.obs == number:
                    return env, place
        raise KeyError(number)

    def _numbers(self) -> np.ndarray:
        self.count += self.num_envs
        return np.arange(self.count - self.num_envs, self.count) + 1

    def _show(self, is_first: np.ndarray) -> Step:
        n, numbers = self.num_envs, self._numbers()
        obs = {group: as_obs(numbers, agents) for group, agents in AGENTS.items()}
        active: dict[str, Any] = {"runner": ~self.dead, "shooter": np.ones((n, 1), bool)}
        nothing = {group: np.zeros((n, agents), bool) for group, agents in AGENTS.items()}
        return Step(
            obs=obs,
            final_obs=obs,
            reward={group: np.zeros((n, agents), np.float32) for group, agents in AGENTS.items()},
            terminated=np.zeros(n, bool),
            truncated=np.zeros(n, bool),
            is_first=is_first,
            active=active,
            died=nothing,
            mask={"runner": self.rng.random((n, 2, 3)) < 0.7} if self.masks else {},
            state=numbers[:, None].astype(np.float32),
            final_state=numbers[:, None].astype(np.float32),
        )


def as_obs(numbers: np.ndarray, agents: int) -> np.ndarray:
    """Return observations [N, A, 2]: the number, and the agent."""
    both = np.broadcast_arrays(numbers[:, None], np.arange(agents)[None])
    return np.stack(both, axis=-1).astype(np.float32)


def number_of(obs: dict[str, np.ndarray], env: int) -> int:
    return int(obs["shooter"][env, 0, 0])
