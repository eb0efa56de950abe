"""MPE2's worlds stepped for all agents at once; PettingZoo steps them in turns and computes every observation twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space

from cadenza.envs.layout import Array

MOVES = ("nothing", "left", "right", "down", "up")


class Simultaneous:
    """A ParallelEnv around one of MPE2's raw environments; its results equal `parallel_env`'s bit for bit."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.possible_agents: list[str] = raw.possible_agents
        self.agents: list[str] = []
        self.observation_space, self.action_space = raw.observation_space, raw.action_space
        self.state_space = raw.state_space
        self.render, self.close = raw.render, raw.close
        self._obs: dict[str, Array] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        self.raw.reset(seed=seed, options=options)
        self.agents = self.possible_agents
        return self._observe(), self.raw.infos

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        raw, agents = self.raw, self.possible_agents
        raw.current_actions = [actions[agent] for agent in agents]
        raw._execute_world_step()
        raw.steps += 1
        truncated = raw.steps >= raw.max_cycles
        terminated = not truncated and bool(raw.scenario.is_terminal(raw.world))
        if truncated or terminated:
            self.agents = []
        ended, cut = dict.fromkeys(agents, terminated), dict.fromkeys(agents, truncated)
        return self._observe(), raw.rewards, ended, cut, raw.infos

    def state(self) -> Array:
        """Return the last observations of all agents as one vector."""
        return np.concatenate(list(self._obs.values()))

    @staticmethod
    def action_names(space: Space[Any]) -> tuple[str, ...]:
        """Return the names of moves for agents that only move; those that speak have no names."""
        return MOVES if isinstance(space, Discrete) and space.n == len(MOVES) else ()

    def _observe(self) -> dict[str, Array]:
        observe = self.raw.observe
        self._obs = {agent: observe(agent) for agent in self.possible_agents}
        return self._obs
