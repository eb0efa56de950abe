"""What a critic sees beyond its agent's own observation: the environment's state, or else what everyone sees."""

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
    """A group's; its state are the statistics of what was seen.

    Where its agents' critics see the same and remember nothing, they are one (A is 1 in what comes out), which judges
    for all of them.
    """

    def __init__(
        self,
        env: EnvSpec,
        group: str,
        own_too: bool,
        remembers: bool,
        device: torch.device,
        normalize: NormalizeObs = False,
        raw: bool = False,
    ) -> None:
        self.env, self.group, self.own_too = env, group, own_too
        self.agents = len(env.groups[group].agents) if own_too or remembers else 1
        everyone = {name: dict.fromkeys(each.agents, each.observation) for name, each in env.groups.items()}
        whole: spaces.Space[Any] = env.state or spaces.Dict({name: spaces.Dict(all) for name, all in everyone.items()})
        own = env.groups[group].observation
        self.space = spaces.Dict({"own": own, "whole": whole}) if own_too else whole
        self.observer = Observer(self.space, device, normalize, raw)

    def __call__(self, obs: dict[str, Tree], state: np.ndarray | None) -> ObservationTensors:
        """[*, A, …] of what the groups see [*, A, …] and of the central state [*, …]."""
        return self.observer(self._tree(obs, state))

    def learn(self, obs: dict[str, Tree], state: np.ndarray | None, counts: Tensor) -> None:
        """Take it into rolling statistics, where it `counts` for an agent [*, A]."""
        own = counts if self.agents > 1 else counts.any(-1, keepdim=True)
        self.observer.learn(self._tree(obs, state), own)

    def _tree(self, obs: dict[str, Tree], state: np.ndarray | None) -> Tree:
        if self.env.state is not None:
            assert state is not None
            axis = state.ndim - len(self.env.state.shape or ())
            whole: Tree = state
        else:
            axis = self._batch_dims(obs)
            whole = {
                name: {agent: map_tree(lambda x, i=index: x.take(i, axis), obs[name]) for index, agent in each}
                for name, each in ((name, enumerate(group.agents)) for name, group in self.env.groups.items())
            }
        for_each = map_tree(lambda x: np.repeat(np.expand_dims(x, axis), self.agents, axis), whole)
        return {"own": obs[self.group], "whole": for_each} if self.own_too else for_each

    def _batch_dims(self, obs: dict[str, Tree]) -> int:
        """Axes before that of the agents."""
        space, part = self.env.groups[self.group].observation, obs[self.group]
        while isinstance(space, spaces.Dict):
            key = next(iter(space.spaces))
            space, part = space.spaces[key], part[key]
        return int(part.ndim) - len(space.shape or ()) - 1

    def state_dict(self) -> dict[str, Any]:
        return self.observer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.observer.load_state_dict(state)
