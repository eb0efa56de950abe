"""PettingZoo environments in which agents die, leave and appear at selected steps."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper


class Mortal(ParallelEnv):
    """Agents leave as `ends` says: {agent: (step, "terminated" | "truncated" | "gone")}; `new` appears at step 2."""

    metadata: ClassVar = {"name": "mortal"}
    possible_agents: ClassVar = ["x_0", "x_1", "y_0"]

    def __init__(self, ends: Any = (), new: Any = None, render_mode: Any = None) -> None:
        self.ends, self.new = dict(ends), new

    def observation_space(self, agent: str) -> Any:
        return Box(0, 100, (3 if agent == "y_0" else 2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.now = list(self.possible_agents), 0
        self.action_log: list[Any] = []
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert list(actions) == self.agents
        self.action_log.append(actions)
        self.now += 1
        acted = self.agents
        fate = {agent: self.ends[agent][1] for agent in acted if self.ends.get(agent, (0,))[0] == self.now}
        present = [agent for agent in acted if fate.get(agent) != "gone"]
        self.agents = [agent for agent in acted if agent not in fate]
        if self.new is not None and self.now == 2:
            self.agents.append(self.new)
        reward = {agent: 10.0 * self.now + self.possible_agents.index(agent) for agent in present}
        ended = {agent: fate.get(agent) == "terminated" for agent in present}
        cut = {agent: fate.get(agent) == "truncated" for agent in present}
        return self._observations(present), reward, ended, cut, {agent: {} for agent in present}

    def _observations(self, agents: Any) -> Any:
        spaces = {agent: self.observation_space(agent) for agent in agents}
        return {agent: np.full(space.shape, self.now + 1, space.dtype) for agent, space in spaces.items()}


class Halved(BaseParallelWrapper):
    """Half of the rewards, and observations of which the last number is left out."""

    def observation_space(self, agent: str) -> Any:
        space = super().observation_space(agent)
        return Box(0, 100, (space.shape[0] - 1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed, options)
        return {agent: x[:-1] for agent, x in obs.items()}, infos

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return {agent: x[:-1] for agent, x in obs.items()}, {agent: x / 2 for agent, x in reward.items()}, *rest


def dying_pair() -> Any:
    return Mortal({"x_1": (3, "terminated"), "x_0": (6, "truncated"), "y_0": (6, "truncated")})


def crowded() -> Any:
    return Mortal(new="z_9")


class Informed(Mortal):
    """What is allowed stands beside the observations, for the agents that are there."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed, options)
        return obs, self._allowed()

    def step(self, actions: Any) -> Any:
        obs, reward, ended, cut, _ = super().step(actions)
        return obs, reward, ended, cut, self._allowed()

    def _allowed(self) -> Any:
        return {agent: {"action_mask": np.arange(4) <= self.now} for agent in self.agents}


class Relay(AECEnv):
    """Turns of three agents, each of which earns something at everybody's turn and may die at any.

    `late`: the dead are told at their next turn, not at once. Pictures, a mask and numbers make an observation.
    """

    metadata: ClassVar = {"name": "relay"}
    possible_agents: ClassVar = ["a_0", "b_0", "b_1"]

    def __init__(self, late: bool = False, steps: int = 30, risk: float = 0.15) -> None:
        super().__init__()
        self.late, self.steps, self.risk = late, steps, risk

    def observation_space(self, agent: str) -> Any:
        rest: dict[str, Any] = {"numbers": Box(-9, 99, (2,), np.float32), "picture": Box(0, 255, (5, 4, 3), np.uint8)}
        return Dict({"action_mask": Box(0, 1, (3,), np.int8), **rest})

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]
        self._skip_agent_selection = None
        self.count = 0

    def observe(self, agent: str) -> Any:
        mask = np.zeros(3, np.int8)
        if agent == self.agent_selection:
            mask[self.count % 3 :] = 1
        index = self.possible_agents.index(agent)
        numbers = np.array([self.count, index], np.float32)
        return {"action_mask": mask, "numbers": numbers, "picture": np.full((5, 4, 3), index, np.uint8)}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            following = self._after(agent)
            self._was_dead_step(action)
            if self.late and self.agents:
                self.agent_selection = following
            return
        assert self.observe(agent)["action_mask"][action]
        self._cumulative_rewards[agent] = 0
        self.count += 1
        for other in self.agents:
            self.rewards[other] = float(self.random.integers(0, 9))
        if self.random.random() < self.risk:
            self.terminations[self.agents[int(self.random.integers(len(self.agents)))]] = True
        if self.count >= self.steps:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = self._after(agent)
        self._accumulate_rewards()
        if not self.late:
            self._deads_step_first()

    def _after(self, agent: str) -> Any:
        order = self.possible_agents
        at = order.index(agent)
        following = [name for name in (*order[at + 1 :], *order[: at + 1]) if name in self.agents]
        living = [name for name in following if not self.terminations[name]]
        return (following if self.late or not living else living)[0]
