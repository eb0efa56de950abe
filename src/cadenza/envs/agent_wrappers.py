"""Wrappers of single agents in a team: the observations and rewards of each pass through a stack of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from cadenza.envs.families.gym import as_dict_space, observer
from cadenza.errors import ConfigError
from cadenza.trees import map_tree
from cadenza.types import Environment, Frame, GroupSpec

Wrap = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


class AgentView(gymnasium.Env[Any, Any]):
    """One agent of a team as an environment of its own: it returns the observation and reward last written to it."""

    def __init__(self, group: GroupSpec) -> None:
        self.observation_space, self.action_space = group.observation, group.action
        self.outcome: tuple[Any, float] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._take()[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *self._take(), False, False, {}

    def _take(self) -> tuple[Any, float]:
        if self.outcome is None:
            raise ConfigError(
                "environment.wrappers: one of them steps several times at once, which an agent of a team cannot"
            )
        outcome, self.outcome = self.outcome, None
        return outcome


class WrappedAgents:
    """A team whose agents see and earn what `wrap` makes of it; the environment's own rewards stay beside theirs."""

    def __init__(self, env: Environment, wrap: Wrap) -> None:
        self.env = env
        self.render, self.close = env.render, env.close
        self._views = {name: [AgentView(group) for _ in group.agents] for name, group in env.spec.groups.items()}
        self._stacks = {name: [_stack(view, wrap) for view in views] for name, views in self._views.items()}
        spaces = {name: as_dict_space(stacks[0].observation_space) for name, stacks in self._stacks.items()}
        self._observe = {name: observer(space, None) for name, space in spaces.items()}
        groups = {name: dataclasses.replace(group, observation=spaces[name]) for name, group in env.spec.groups.items()}
        self.spec = dataclasses.replace(env.spec, groups=groups)

    def reset(self, seed: int) -> Frame:
        return self._wrapped(self.env.reset(seed), seed)

    def step(self, action: dict[str, np.ndarray]) -> Frame:
        return self._wrapped(self.env.step(action), None)

    def _wrapped(self, frame: Frame, seed: int | None) -> Frame:
        """Pass a frame through every agent's stack; with a seed, at the start of an episode."""
        obs, reward = {}, {}
        for name, stacks in self._stacks.items():
            rows, earned = [], np.zeros(len(stacks), np.float32)
            for agent, (view, stack) in enumerate(zip(self._views[name], stacks, strict=True)):
                row = map_tree(lambda x: x[agent], frame.obs[name])  # noqa: B023
                view.outcome = (row, float(frame.reward[name][agent]))
                if seed is not None:
                    observation = stack.reset(seed=(seed + agent) % 2**32)[0]
                else:
                    observation, earned[agent], *_ = stack.step(None)
                rows.append(self._observe[name](observation))
            obs[name], reward[name] = map_tree(lambda *x: np.stack(x), *rows), earned
        raw = frame.reward if frame.raw_reward is None else frame.raw_reward
        return dataclasses.replace(frame, obs=obs, reward=reward, raw_reward=raw)


def _stack(view: AgentView, wrap: Wrap) -> gymnasium.Env[Any, Any]:
    """Wrap the view of one agent; refuse wrappers of actions, which belong to all agents' common step."""
    stack = layer = wrap(view)
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.ActionWrapper) or layer.action_space != view.action_space:
            kind = type(layer).__name__
            rule = "the agents of a team take wrappers of observations and rewards"
            raise ConfigError(f"environment.wrappers: {kind} changes actions; {rule}")
        layer = layer.env
    return stack
