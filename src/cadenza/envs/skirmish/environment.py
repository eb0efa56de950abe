"""Skirmish: a battle of two small armies, one led by the agents and one by a script. Rules: `docs/skirmish.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from gymnasium.spaces import Box, Discrete

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_choice, require_flag
from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.native import MakeNative
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.envs.skirmish.drawing import draw
from cadenza.envs.skirmish.maps import MAPS, PREFIX, parse
from cadenza.envs.skirmish.rules import PERFECT, Battles, Opponent
from cadenza.envs.vector import Vector
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec, Frame, GroupSpec

STEPS = 60  # the default time limit


def ids(family: str) -> list[str]:
    return [PREFIX + name for name in MAPS]


def composed(id: str) -> bool:
    """Return whether the id names a composition of units; refuse a skirmish id that names none."""
    return id.startswith(PREFIX) and bool(parse(id))


def make(config: EnvironmentConfig, render: bool = False) -> Skirmish:
    return Skirmish(battles(config, 1), config.id)


def native(config: EnvironmentConfig) -> MakeNative:
    return MakeNative(lambda count, seeds: SkirmishVector(battles(config, count), config.id, seeds), worthwhile_from=1)


def battles(config: EnvironmentConfig, num: int) -> Battles:
    """Make the configured battles, with a group for each type of unit, or with `padded` one group of all."""

    def fight(
        opponent: Opponent = "nearest", strength: float = 0.8, types: bool = True, padded: bool = False
    ) -> Battles:
        require_choice("opponent", opponent, get_args(Opponent))
        if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 < strength <= 10:
            raise ConfigError(f"environment.kwargs.strength={strength}: must be a number above 0, at most 10")
        require_flag("types", types)
        require_flag("padded", padded)
        armies = parse(config.id)
        groups = {"unit": list(range(len(armies.allies)))} if padded else armies.members()
        return Battles(armies, num, config.max_episode_steps or STEPS, groups, opponent, strength, types, padded)

    check_arguments(fight, config.kwargs, config.id)
    return fight(**config.kwargs)


def spec_of(fights: Battles, id: str) -> EnvSpec:
    names = fights.unit_names()
    groups = {
        group: GroupSpec(
            agents=tuple(names[unit] for unit in squad.units),
            observation=Box(-1, 1, (squad.features.shape[1],), np.float32),
            action=Discrete(squad.actions.shape[1]),
            action_names=fights.action_names(squad),
        )
        for group, squad in fights.squads.items()
    }
    state = Box(-1, 1, (5 * fights.units + 1,), np.float32)
    return EnvSpec(id, groups, state, max_episode_steps=fights.limit, return_threshold=0.95 * PERFECT)


def layout_of(spec: EnvSpec) -> Layout:
    masks = {name: int(group.action.n) for name, group in spec.groups.items() if isinstance(group.action, Discrete)}
    return Layout(spec, masks, won=True)


class Skirmish:
    """One battle, computed as a batch of one."""

    metadata: Mapping[str, Any] = {"render_fps": 8}

    def __init__(self, fights: Battles, id: str) -> None:
        self.fights = fights
        self.spec = spec_of(fights, id)
        self._step = allocate_buffer(layout_of(self.spec), 1).step

    def reset(self, seed: int) -> Frame:
        self.fights.begin([0], [seed])
        for array in (*self._step.reward.values(), *self._step.died.values()):
            array.fill(0)
        for flags in (self._step.terminated, self._step.truncated, self._step.won):
            assert flags is not None
            flags.fill(False)
        return self._frame()

    def step(self, action: dict[str, Array]) -> Frame:
        self.fights.advance({group: np.asarray(array)[None] for group, array in action.items()}, self._step)
        return self._frame()

    def render(self) -> Array:
        return draw(self.fights)

    def close(self) -> None:
        pass

    def _frame(self) -> Frame:
        step = self._step
        self.fights.show(step)
        assert step.state is not None
        assert step.won is not None
        return Frame(
            obs=_first(step.obs),
            reward=_first(step.reward),
            terminated=bool(step.terminated[0]),
            truncated=bool(step.truncated[0]),
            active=_first(step.active),
            died=_first(step.died),
            mask=_first(step.mask),
            state=step.state[0].copy(),
            won=bool(step.won[0]),
        )


def _first(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Copy the arrays of the only battle, so that its next step does not change them."""
    return {name: array[0].copy() for name, array in arrays.items()}


class SkirmishVector(Vector):
    """N battles stepped together; running battles are restored from a snapshot."""

    def __init__(self, fights: Battles, id: str, seeds: EpisodeSeeds) -> None:
        layout = layout_of(replace(spec_of(fights, id), restore="snapshot"))
        buffers = [allocate_buffer(layout, fights.num) for _ in range(2)]
        self.fights = fights
        everyone = range(fights.num)
        fights.begin(everyone, [seeds(index, 0) for index in everyone])
        fights.show(buffers[0].step)
        super().__init__(layout, fights.num, seeds, buffers)

    def close(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "battles": self.fights.snapshot()}

    def _restore(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            self.fights.restore(state["battles"])
        else:
            everyone = range(self.num_envs)
            self.fights.begin(everyone, [self._ledger.seed(index) for index in everyone])
        self.fights.show(self._buffers[0].step)

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        buffer = self._buffers[turn]
        step = buffer.step
        self.fights.advance(action, step)
        self.fights.show(step)
        ended = np.flatnonzero(step.is_first)
        if not len(ended):
            return []
        for group, final in buffer.final_obs.items():
            final[ended] = step.obs[group][ended]
        assert buffer.final_state is not None
        assert step.state is not None
        buffer.final_state[ended] = step.state[ended]
        rows: list[int] = ended.tolist()
        self.fights.begin(rows, [self._ledger.seed(row, ahead=1) for row in rows])
        self.fights.show(step, ended)
        return rows
