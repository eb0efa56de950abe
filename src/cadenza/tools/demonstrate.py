"""Write the episodes of a scripted expert as a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.config.registry import EXPERTS, load_object, load_own
from cadenza.config.schema import RunConfig
from cadenza.data.datasets import refuse_existing, write_dataset
from cadenza.envs.catalog import make
from cadenza.envs.layout import shape_of
from cadenza.errors import ConfigError, NotFoundError, foreign_code, nearest
from cadenza.tools.export import EpisodeSelection, played, summary
from cadenza.trees import map_tree
from cadenza.types import Acted, EnvSpec, Mode, Step, Tree

Expert = Callable[[Any, np.random.Generator], Any]  # from an observation to an action


def demonstrate(config: RunConfig, expert: str, out: Path, episodes: EpisodeSelection) -> dict[str, Any]:
    """Play the episodes and write them to a new folder `out`; return what `cadenza demonstrate --json` prints."""
    refuse_existing(out)
    env = make(config.environment)
    env.close()
    past = played(ScriptedPolicy(expert, env.spec), config, episodes)
    source = {"expert": expert, "what": "episodes", "seed": episodes.seed}
    return summary(out, write_dataset(out, past, config, env.spec, source))


class ScriptedPolicy:
    """A policy for several environments that asks an expert; an expert class has one instance for each episode."""

    def __init__(self, name: str, spec: EnvSpec) -> None:
        self.name, self._env = name, spec.id
        self._source = load_expert(name)
        agents = [(group, agent) for group, one in spec.groups.items() for agent in one.agents]
        if len(agents) > 1:
            raise ConfigError(f"an expert plays for one agent; {spec.id} has {len(agents)}")
        self._group = agents[0][0]
        self._space = spec.groups[self._group].action
        self._shape, self._dtype = shape_of(self._space)
        self._playing: list[Expert] = []

    def initial_carry(self, num_envs: int) -> Tree:
        self._playing = [self._new() for _ in range(num_envs)]
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        action = np.zeros((len(step.is_first), 1, *self._shape), self._dtype)
        random = mode.streams.numpy("expert")
        for index, first in enumerate(step.is_first):
            if first:
                self._playing[index] = self._new()
            obs = map_tree(lambda x, at=index: x[at, 0], step.obs[self._group])
            action[index, 0] = self._decide(self._playing[index], obs, random)
        return Acted({self._group: action}, {self._group: {}}, carry)

    def _new(self) -> Expert:
        if not isinstance(self._source, type):
            function: Expert = self._source
            return function
        with foreign_code(f"expert {self.name}: cannot be called without arguments"):
            expert: Expert = self._source()
        if not callable(expert):
            raise ConfigError(f"expert {self.name}: instances of the class must be callable, (obs, random) -> action")
        return expert

    def _decide(self, expert: Expert, obs: Tree, random: np.random.Generator) -> np.ndarray:
        with foreign_code(f"expert {self.name} cannot play {self._env}"):
            answer = np.asarray(expert(obs, random))
            action = answer.astype(self._dtype)
        if action.shape != self._shape:
            raise ConfigError(f"expert {self.name}: an action of shape {action.shape}, not {self._shape}")
        discrete = np.issubdtype(self._dtype, np.integer)  # actions of a Box are clipped later
        if discrete and ((action != answer).any() or not self._space.contains(action)):
            raise ConfigError(f"expert {self.name}: {answer} is not an action of {self._space}")
        return action


def load_expert(name: str) -> Any:
    """Return the function or class that has this name or import path."""
    if name in EXPERTS:
        return load_object(EXPERTS[name])
    if ":" not in name:
        names = f"{nearest(name, EXPERTS)} (known: {', '.join(EXPERTS)}; or your own, package.module:name)"
        raise NotFoundError(f"unknown expert '{name}'{names}")
    expert = load_own(name)
    if not callable(expert):
        raise ConfigError(f"expert {name}: must be a function (obs, random) -> action, or a class whose instances are")
    return expert
