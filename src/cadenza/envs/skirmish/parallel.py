"""Skirmish for other libraries, as a PettingZoo Parallel environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from pettingzoo import ParallelEnv

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.layout import Array
from cadenza.envs.skirmish import environment
from cadenza.envs.skirmish.maps import PREFIX
from cadenza.errors import ConfigError
from cadenza.types import Frame

Observations = dict[str, dict[str, Array]]
Infos = dict[str, dict[str, Any]]


class parallel_env(ParallelEnv[str, dict[str, Array], int]):  # type: ignore[misc]
    """A battle on `map`; the keyword arguments `opponent`, `strength`, `types` and `padded` are in docs/skirmish.md.

    Observations are `{"observation", "action_mask"}`. Every living agent gets the whole team's reward. Fallen units
    leave. The infos of the last step say whether the battle was `won`.
    """

    def __init__(
        self, map: str = "3m", max_cycles: int = environment.STEPS, render_mode: str | None = None, **kwargs: Any
    ) -> None:
        self.metadata: dict[str, Any] = {
            "name": f"skirmish_{map}",
            "render_modes": ["rgb_array"],
            "render_fps": environment.RENDER_FPS,
            "is_parallelizable": True,
        }
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode={render_mode}: skirmish renders rgb_array, or nothing")
        self.render_mode = render_mode
        config = EnvironmentConfig(id=PREFIX + map, max_episode_steps=max_cycles, kwargs=kwargs)
        self._env = environment.make(config)
        groups = self._env.spec.groups
        self._places = {agent: (name, k) for name, group in groups.items() for k, agent in enumerate(group.agents)}
        self.possible_agents = list(self._places)
        self.agents: list[str] = []
        self.observation_spaces = {
            agent: self._observation_space(groups[name]) for agent, (name, _) in self._places.items()
        }
        self.action_spaces = {agent: groups[name].action for agent, (name, _) in self._places.items()}
        self.state_space = self._env.spec.state
        self._random = np.random.default_rng()

    @staticmethod
    def _observation_space(group: Any) -> Dict:
        return Dict({"observation": group.observation, "action_mask": Box(0, 1, (int(group.action.n),), np.int8)})

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observations, Infos]:
        """Start a battle; without a seed, draw one from the generator that the last seed started."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._frame = self._env.reset(int(self._random.integers(2**31)))
        return self._observations(self._frame), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[Observations, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        by_group = {name: np.zeros(len(group.agents), np.int64) for name, group in self._env.spec.groups.items()}
        for agent in self.agents:
            name, place = self._places[agent]
            by_group[name][place] = actions[agent]
        self._frame = frame = self._env.step(by_group)
        team = float(sum(rewards.sum() for rewards in frame.reward.values()))
        over = frame.terminated or frame.truncated
        fell = {agent: bool(not self._row(frame.active, agent)) for agent in self.agents}
        outcome = (
            self._observations(frame),
            dict.fromkeys(self.agents, team),
            {agent: frame.terminated or fell[agent] for agent in self.agents},
            {agent: frame.truncated and not fell[agent] for agent in self.agents},
            {agent: {"won": frame.won} if over else {} for agent in self.agents},
        )
        self.agents = [] if over else [agent for agent in self.agents if not fell[agent]]
        return outcome

    def state(self) -> Array:
        """Return the central state: every unit's health, position, cooldown and energy, and the time."""
        assert self._frame.state is not None
        return self._frame.state

    def render(self) -> Array | None:
        return self._env.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self._env.close()

    def _observations(self, frame: Frame) -> Observations:
        return {
            agent: {
                "observation": self._row(frame.obs, agent),
                "action_mask": self._row(frame.mask, agent).astype(np.int8),
            }
            for agent in self.agents
        }

    def _row(self, arrays: Any, agent: str) -> Array:
        """Return an agent's row of arrays by group."""
        name, place = self._places[agent]
        row: Array = arrays[name][place]
        return row
