"""Scripted experts: what they do in an environment, as a dataset."""

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
from cadenza.errors import CadenzaError, ConfigError, NotFoundError, nearest
from cadenza.tools.export import Episodes, played, summary
from cadenza.trees import map_tree
from cadenza.types import Acted, EnvSpec, Mode, Step, Tree

Expert = Callable[[Any, np.random.Generator], Any]  # from an observation to an action


def demonstrate(config: RunConfig, expert: str, out: Path, episodes: Episodes) -> dict[str, Any]:
    """What `cadenza demonstrate --json` prints."""
    refuse_existing(out)
    env = make(config.environment)
    env.close()
    past = played(Scripted(expert, env.spec), config, episodes)
    source = {"expert": expert, "what": "episodes", "seed": episodes.seed}
    return summary(out, write_dataset(out, past, config, env.spec, source))


class Scripted:
    """An expert in several environments at once: an instance of its own for each episode, where it is a class."""

    def __init__(self, name: str, spec: EnvSpec) -> None:
        self.name, self._env = name, spec.id
        self._found = found(name)
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
            action[index, 0] = self._decided(self._playing[index], obs, random)
        return Acted({self._group: action}, {self._group: {}}, carry)

    def _new(self) -> Expert:
        if not isinstance(self._found, type):
            function: Expert = self._found
            return function
        try:
            expert: Expert = self._found()
        except CadenzaError:
            raise
        except Exception as problem:  # whatever a stranger's class may raise
            what = f"cannot be made without arguments ({type(problem).__name__}: {problem})"
            raise ConfigError(f"expert {self.name}: {what}") from problem
        if not callable(expert):
            raise ConfigError(f"expert {self.name}: a class whose instances must be called, (obs, random) -> action")
        return expert

    def _decided(self, expert: Expert, obs: Tree, random: np.random.Generator) -> np.ndarray:
        try:
            given = np.asarray(expert(obs, random))
            action = given.astype(self._dtype)
        except CadenzaError:
            raise
        except Exception as problem:  # whatever a stranger's expert may raise
            reason = f"{type(problem).__name__}: {problem}"
            raise ConfigError(f"expert {self.name} cannot play {self._env}: {reason}") from problem
        if action.shape != self._shape:
            raise ConfigError(f"expert {self.name}: an action of shape {action.shape}, not {self._shape}")
        whole = np.issubdtype(self._dtype, np.integer)  # those of a Box may lie outside, where they are clipped
        if whole and ((action != given).any() or not self._space.contains(action)):
            raise ConfigError(f"expert {self.name}: {given} is no action of {self._space}")
        return action


def found(name: str) -> Any:
    """The function or class of that name, or behind an import path."""
    if name in EXPERTS:
        return load_object(EXPERTS[name])
    if ":" not in name:
        known = f"{nearest(name, EXPERTS)} (known: {', '.join(EXPERTS)}; or your own, package.module:name)"
        raise NotFoundError(f"unknown expert '{name}'{known}")
    expert = load_own(name)
    if not callable(expert):
        raise ConfigError(f"expert {name}: must be a function (obs, random) -> action, or a class of such")
    return expert
