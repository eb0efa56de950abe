"""Observations of centralised critics: the environment's state, or else the observations of all agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from cadenza.nets.observe import NormalizeObs, ObservationTensors, Observer
from cadenza.trees import map_tree
from cadenza.types import EnvSpec, Tree


class CriticView:
    """The observations of a group's critics; its state is that of the observation normaliser.

    With `include_agent`, the agent's observation is part of them. Without it and without memory, the critics of all
    agents observe the same, and A is 1 in the output: one value serves them all.
    """

    def __init__(
        self,
        env: EnvSpec,
        group: str,
        include_agent: bool,
        has_memory: bool,
        device: torch.device,
        normalize: NormalizeObs = False,
        raw: bool = False,
    ) -> None:
        self.env, self.group, self.include_agent = env, group, include_agent
        self.agents = len(env.groups[group].agents) if include_agent or has_memory else 1
        self.space: spaces.Space[Any] = env.state or joint_space(env)
        if include_agent:
            self.space = spaces.Dict({"own": env.groups[group].observation, "whole": self.space})
        self.observer = Observer(self.space, device, normalize, raw)

    def __call__(self, obs: dict[str, Tree], state: np.ndarray | None) -> ObservationTensors:
        """Return the critics' input [*, A, …] for the groups' observations [*, A, …] and the central state [*, …]."""
        return self.observer(self._tree(obs, state))

    def learn(self, obs: dict[str, Tree], state: np.ndarray | None, counts: Tensor) -> None:
        """Add observations to the rolling statistics, of the agents that `counts` [*, A] marks."""
        counts = counts if self.agents > 1 else counts.any(-1, keepdim=True)
        self.observer.learn(self._tree(obs, state), counts)

    def _tree(self, obs: dict[str, Tree], state: np.ndarray | None) -> Tree:
        if self.env.state is not None:
            assert state is not None
            axis = state.ndim - len(self.env.state.shape or ())
            whole: Tree = state
        else:
            axis = self._batch_dims(obs)
            whole = {
                name: {
                    agent: map_tree(lambda x, i=index: x.take(i, axis), obs[name])
                    for index, agent in enumerate(group.agents)
                }
                for name, group in self.env.groups.items()
            }
        repeated = map_tree(lambda x: np.repeat(np.expand_dims(x, axis), self.agents, axis), whole)
        return {"own": obs[self.group], "whole": repeated} if self.include_agent else repeated

    def _batch_dims(self, obs: dict[str, Tree]) -> int:
        """Return the number of axes before that of the agents."""
        space, part = self.env.groups[self.group].observation, obs[self.group]
        while isinstance(space, spaces.Dict):
            key = next(iter(space.spaces))
            space, part = space.spaces[key], part[key]
        return int(part.ndim) - len(space.shape or ()) - 1

    def state_dict(self) -> dict[str, Any]:
        return self.observer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.observer.load_state_dict(state)


def joint_space(env: EnvSpec) -> spaces.Dict:
    """Return the space of all agents' observations, by group and agent."""
    return spaces.Dict(
        {name: spaces.Dict(dict.fromkeys(group.agents, group.observation)) for name, group in env.groups.items()}
    )
