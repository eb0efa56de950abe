"""A trained policy as a function, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from cadenza.envs.catalog import make
from cadenza.envs.families.gym import Gym, action_for, as_declared_tree
from cadenza.errors import nearest
from cadenza.lab.html import Table, fragment
from cadenza.lab.playback import Player
from cadenza.trees import map_tree
from cadenza.types import SINGLE_GROUP, Frame, GroupSpec, Tree


class Policy:
    """A trained policy with its normaliser and memory: `policy(obs) -> action`, or by group for a team.

    The observations of a group are arrays [A, …], or dicts of them, and so are its actions.
    """

    def __init__(self, player: Player, origin: str = "") -> None:
        self._player, self._origin = player, origin
        self.spec = player.spec
        self.reset = player.reset  # to be called when an episode begins
        self._clip = player.config.environment.clip_actions

    @property
    def _is_single(self) -> bool:
        return [group.agents for group in self.spec.groups.values()] == [(SINGLE_GROUP,)]

    def __call__(self, obs: Any, mask: Any = None, explore: bool = False) -> Any:
        """Return the action for one raw observation: the most likely one, or a drawn one with `explore`.

        Of a team: the actions {group: [A, …]} for observations {group: [A, …]}, or for a frame of `make_env()`. A mask
        of allowed actions is [n], or {group: [A, n]}.
        """
        groups = self.spec.groups
        if self._is_single and not isinstance(obs, Frame):
            tree = as_declared_tree(groups[SINGLE_GROUP].observation, obs)
            one = {SINGLE_GROUP: map_tree(lambda x: x[None], tree)}
            allowed = None if mask is None else {SINGLE_GROUP: np.asarray(mask, bool)[None]}
            action = self._player.act(_frame(one, allowed), explore)[SINGLE_GROUP][0]
            return action_for(groups[SINGLE_GROUP].action, self._clip)(action)
        frame = obs if isinstance(obs, Frame) else _frame(self._by_group(obs), mask)
        actions = self._player.act(frame, explore)
        return {name: self._in_bounds(groups[name].action, action) for name, action in actions.items()}

    def _by_group(self, obs: Any) -> dict[str, Tree]:
        """Return the observations of a team as declared; refuse other groups and other numbers of agents."""
        groups = self.spec.groups
        if not isinstance(obs, Mapping) or obs.keys() != groups.keys():
            keys = list(obs) if isinstance(obs, Mapping) else []
            hint = next((nearest(str(key), groups) for key in keys if key not in groups), "")
            kind = keys or type(obs).__name__
            raise ValueError(f"the observations of {self.spec.id} are a dict of {list(groups)}, not {kind}{hint}")
        return {name: _stacked(name, group, obs[name]) for name, group in groups.items()}

    def _in_bounds(self, space: spaces.Space[Any], action: np.ndarray) -> np.ndarray:
        return np.asarray(action_for(space, self._clip)(action)) if isinstance(space, spaces.Box) else action

    def make_env(self, render: bool = False) -> Any:
        """Return the training environment, with its wrappers and time limit, for a loop of your own.

        It is a gymnasium.Env. Of a team it is a `cadenza.types.Environment`, which deals in frames:
        `frame = env.reset(seed)`, `frame = env.step(policy(frame))`, with `frame.reward` and `frame.terminated`.
        """
        environment = make(self._player.config.environment, render)
        if not isinstance(environment, Gym):
            return environment
        limit = environment.spec.max_episode_steps
        return environment.env if limit is None else TimeLimit(environment.env, limit)

    def __repr__(self) -> str:
        groups = [(name, f"{len(group.agents)} x {_spaces(group)}") for name, group in self.spec.groups.items()]
        text = ", ".join(f"{name}: {text}" for name, text in groups)
        return f"<Policy {self._origin}: {_spaces(self.spec.groups[SINGLE_GROUP]) if self._is_single else text}>"

    def _repr_html_(self) -> str:
        rows = [
            (name, ", ".join(group.agents), str(group.observation), str(group.action))
            for name, group in self.spec.groups.items()
        ]
        return fragment([Table((f"policy of {self._origin}", "agents", "observation", "action"), rows)])


def _frame(obs: dict[str, Tree], mask: Mapping[str, Any] | None) -> Frame:
    """Return a frame of observations [A, …] in which nobody was rewarded yet."""
    agents = {name: len(_first_leaf(tree)) for name, tree in obs.items()}
    allowed = None if mask is None else {name: np.asarray(values, bool) for name, values in mask.items()}
    return Frame(obs, {name: np.zeros(count, np.float32) for name, count in agents.items()}, mask=allowed)


def _stacked(name: str, group: GroupSpec, obs: Any) -> Tree:
    """Return a group's observations [A, …] as its space declares them."""
    agents = len(group.agents)
    count = len(np.atleast_1d(_first_leaf(obs)))
    if count != agents:
        raise ValueError(f"group '{name}' has {agents} agents ({', '.join(group.agents)}), not {count} observations")
    one_by_one = (map_tree(lambda x, at=index: x[at], obs) for index in range(agents))
    trees = [as_declared_tree(group.observation, tree, f" of '{name}'") for tree in one_by_one]
    return map_tree(lambda *arrays: np.stack(arrays), *trees)


def _first_leaf(tree: Tree) -> Any:
    return _first_leaf(next(iter(tree.values()))) if isinstance(tree, Mapping) else tree


def _spaces(group: GroupSpec) -> str:
    return f"{_brief(group.observation)} -> {_brief(group.action)}"


def _brief(space: spaces.Space[Any]) -> str:
    """Return a space in a word: `Box(4,)`, `Discrete(2)`."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(space.spaces)})"
    return f"{type(space).__name__}{space.shape}" if isinstance(space, spaces.Box) else str(space)
