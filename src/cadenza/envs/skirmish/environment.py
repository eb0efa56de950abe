"""Skirmish: a battle of two small armies, one led by the agents and one by a script. Rules: `docs/skirmish.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from gymnasium.spaces import Box, Discrete

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_choice, require_flag
from cadenza.envs.layout import Array, Layout
from cadenza.envs.native import MakeNative
from cadenza.envs.simulation import SimulatedEnvironment, SimulatedVector
from cadenza.envs.skirmish.drawing import draw
from cadenza.envs.skirmish.maps import MAPS, PREFIX, parse
from cadenza.envs.skirmish.rules import PERFECT, Battles, Opponent
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec, GroupSpec, Step

STEPS = 60  # the default time limit
RENDER_FPS = 8


def ids(family: str) -> list[str]:
    return [PREFIX + name for name in MAPS]


def composed(id: str) -> bool:
    """Return whether the id names a composition of units; refuse a skirmish id that names none."""
    return id.startswith(PREFIX) and bool(parse(id))


def make(config: EnvironmentConfig, render: bool = False) -> SimulatedEnvironment:
    return SimulatedEnvironment(battles(config, 1))


def native(config: EnvironmentConfig) -> MakeNative:
    return MakeNative(lambda count, seeds: SimulatedVector(battles(config, count), seeds), worthwhile_from=1)


def battles(config: EnvironmentConfig, num: int) -> SkirmishBattles:
    """Make the configured battles, with a group for each type of unit, or with `padded` one group of all."""

    def fight(
        opponent: Opponent = "nearest", strength: float = 0.8, types: bool = True, padded: bool = False
    ) -> SkirmishBattles:
        require_choice("opponent", opponent, get_args(Opponent))
        if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 < strength <= 10:
            raise ConfigError(f"environment.kwargs.strength={strength}: must be a number above 0, at most 10")
        require_flag("types", types)
        require_flag("padded", padded)
        armies = parse(config.id)
        groups = {"unit": list(range(len(armies.allies)))} if padded else armies.members()
        limit = config.max_episode_steps or STEPS
        return SkirmishBattles(config.id, armies, num, limit, groups, opponent, strength, types, padded)

    check_arguments(fight, config.kwargs, config.id)
    return fight(**config.kwargs)


class SkirmishBattles(Battles):
    """Battles as a simulation of environments, with the groups of agents as `layout` describes them."""

    metadata: Mapping[str, Any] = {"render_fps": RENDER_FPS}

    def __init__(self, id: str, *args: Any) -> None:
        super().__init__(*args)
        names = self.unit_names()
        groups = {
            group: GroupSpec(
                agents=tuple(names[unit] for unit in squad.units),
                observation=Box(-1, 1, (squad.features.shape[1],), np.float32),
                action=Discrete(squad.actions.shape[1]),
                action_names=self.action_names(squad),
            )
            for group, squad in self.squads.items()
        }
        state = Box(-1, 1, (5 * self.units + 1,), np.float32)
        spec = EnvSpec(id, groups, state, max_episode_steps=self.limit, return_threshold=0.95 * PERFECT)
        self.layout = Layout(spec, {name: squad.actions.shape[1] for name, squad in self.squads.items()}, won=True)

    def save(self, current: Step) -> dict[str, Any]:
        return {"battles": self.snapshot()}

    def load(self, state: Mapping[str, Any], step: Step) -> None:
        self.restore(state["battles"])
        self.show(step)

    def render(self) -> Array:
        return draw(self)

    def close(self) -> None:
        pass
