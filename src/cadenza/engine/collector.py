"""Runs a policy in the training environments and hands every transition to a store."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from cadenza.engine.scheduler import Task
from cadenza.envs.random_actions import random_actions
from cadenza.trees import map_tree
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
        self.act, self.step = workflow.act, env.step  # a probe may stand around them
        self.carry = workflow.initial_carry(env.num_envs)
        self.checksum = 0

    def collect(self, task: Task, store: Store, mode: Mode, stop: Callable[[], bool]) -> Collected:
        """What the task asks for, or less of it if `stop` says to leave; the rest is then for another time."""
        env, vec_steps = self.env, 0
        episodes: list[Episode] = []
        step = env.current
        at_random, by_episodes = task.phase.actions == "random", bool(task.hook.episodes)
        while not stop():
            if at_random:
                random = random_actions(env.spec.groups, step, mode.streams.numpy("random_actions"))
                mode = replace(mode, forced=random)
            acted = self.act(step, self.carry, mode)
            if mode.forced is not None:
                acted = acted._replace(action=mode.forced)
            after = self.step(acted.action)
            store.add(step, acted, after)
            self.carry = acted.carry
            for group, action in acted.action.items():
                self.checksum = zlib.crc32(action.tobytes(), self.checksum)
                self.checksum = zlib.crc32(after.reward[group].tobytes(), self.checksum)
            episodes += env.episodes()
            step = after
            vec_steps += 1
            if (len(episodes) if by_episodes else vec_steps * env.num_envs) >= task.amount:
                break
        return Collected(vec_steps * env.num_envs, vec_steps, episodes)

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry, "checksum": self.checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.workflow.initial_carry(self.env.num_envs)
        self.carry = map_tree(lambda mine, saved: like(saved, mine), own, state["carry"])
        self.checksum = state["checksum"]


def like(saved: Any, own: Any) -> Any:
    """What came back from disk, on the device where its like is."""
    return saved.to(own.device) if isinstance(own, torch.Tensor) else saved
