"""The collection of experience: a policy acts in the training environments, and a store takes every transition."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from cadenza.engine.scheduler import Task
from cadenza.errors import ConfigError
from cadenza.trees import map_tree
from cadenza.types import Acted, Collects, Episode, Mode, Step, Store, VectorEnv, Workflow


class Collected(NamedTuple):
    """What a collection added."""

    env_steps: int
    vec_steps: int
    episodes: list[Episode]


class Collector:
    """The training environments with the policy that acts in them.

    Its state is the policy's carry and a running checksum of all actions and rewards.
    """

    def __init__(self, env: VectorEnv, workflow: Workflow) -> None:
        self.env = env
        self.workflow = workflow
        self.act, self.step = workflow.act, env.step  # a probe may stand around them
        self.own_step = workflow.collect_step if isinstance(workflow, Collects) else None
        self.carry = workflow.initial_carry(env.num_envs)
        self.checksum = 0

    def collect(self, task: Task, store: Store, mode: Mode, stop: Callable[[], bool]) -> Collected:
        """Collect what the task asks for into the store; stop short of it if `stop` returns true."""
        env, vec_steps = self.env, 0
        episodes: list[Episode] = []
        step = env.current
        at_random, by_episodes = task.phase.actions == "random", bool(task.hook.episodes)
        if at_random:
            from cadenza.envs.random_actions import random_actions
        while not stop():
            if at_random:
                random = random_actions(env.spec.groups, step, mode.streams.numpy("random_actions"))
                mode = replace(mode, forced=random)
            acted, after = self._interact(step, mode)
            store.add(step, acted, after)
            self.carry = acted.carry
            for group, action in acted.action.items():
                self.checksum = zlib.crc32(action.tobytes(), self.checksum)
                self.checksum = zlib.crc32(after.reward[group].tobytes(), self.checksum)
            episodes += env.episodes()
            step = after if self.own_step is None else env.current  # what a workflow stores is not acted on
            vec_steps += 1
            if (len(episodes) if by_episodes else vec_steps * env.num_envs) >= task.amount:
                break
        return Collected(vec_steps * env.num_envs, vec_steps, episodes)

    def _interact(self, step: Step, mode: Mode) -> tuple[Acted, Step]:
        """Act and step the environments, or let the workflow do so in a `collect_step` of its own."""
        if self.own_step is None:
            acted = self.act(step, self.carry, mode)
            acted = acted if mode.forced is None else acted._replace(action=mode.forced)
            return acted, self.step(acted.action)
        calls = 0

        def perform(action: dict[str, np.ndarray]) -> Step:
            nonlocal calls
            calls += 1
            return self.step(action if mode.forced is None else mode.forced)

        acted, after = self.own_step(step, self.carry, mode, perform)
        if calls != 1:
            where = f"{type(self.workflow).__name__}.collect_step"
            raise ConfigError(f"{where} must call perform(action) once and called it {calls} times")
        return acted if mode.forced is None else acted._replace(action=mode.forced), after

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry, "checksum": self.checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        initial = self.workflow.initial_carry(self.env.num_envs)
        self.carry = map_tree(to_device_of, initial, state["carry"])
        self.checksum = state["checksum"]


def to_device_of(reference: Any, saved: Any) -> Any:
    """Move a tensor from disk to the device of `reference`; return anything else unchanged."""
    return saved.to(reference.device) if isinstance(reference, torch.Tensor) else saved
