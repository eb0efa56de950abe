"""Runs a policy in the training environments and hands every transition to a store."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from cadenza.types import Episode, Mode, Store, VectorEnv, Workflow


class Collected(NamedTuple):
    env_steps: int
    vec_steps: int
    episodes: list[Episode]


class Collector:
    """Its state is the policy's memory and a running checksum of what was experienced."""

    def __init__(self, env: VectorEnv, workflow: Workflow) -> None:
        self.env = env
        self.workflow = workflow
        self.carry = workflow.initial_carry(env.num_envs)
        self.checksum = 0

    def collect(self, store: Store, env_steps: int, mode: Mode, stop: Callable[[], bool]) -> Collected:
        """At least `env_steps` more steps, unless `stop` says to leave early; the rest is then for another time."""
        env, vec_steps = self.env, 0
        episodes: list[Episode] = []
        step = env.current
        while vec_steps * env.num_envs < env_steps and not stop():
            acted = self.workflow.act(step, self.carry, mode)
            after = env.step(acted.action)
            store.add(step, acted, after)
            self.carry = acted.carry
            for group, action in acted.action.items():
                self.checksum = zlib.crc32(after.reward[group].data, zlib.crc32(action.data, self.checksum))
            if (after.terminated | after.truncated).any():
                episodes += env.episodes()
            step = after
            vec_steps += 1
        return Collected(vec_steps * env.num_envs, vec_steps, episodes)

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry, "checksum": self.checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.carry = state["carry"]
        self.checksum = state["checksum"]
