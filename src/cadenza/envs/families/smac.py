"""SMAC and SMACv2 (Samvelyan et al. 2019, Ellis et al. 2023): StarCraft II's battles, where the game is installed.

Ids are `smac/MAP` and `smacv2/RACE_N_vs_M`. The game takes its seed once, when it is launched, so a running battle
cannot be restored: a resumed run begins new ones (`restart`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, refuse_reserved
from cadenza.envs.layout import Array
from cadenza.types import EnvSpec, Frame, GroupSpec

MAPS = (
    "3m 8m 25m 5m_vs_6m 8m_vs_9m 10m_vs_11m 27m_vs_30m MMM MMM2 2s3z 3s5z 3s5z_vs_3s6z 3s_vs_3z 3s_vs_4z 3s_vs_5z "
    "1c3s5z 2m_vs_1z corridor 6h_vs_8z 2s_vs_1sc so_many_baneling bane_vs_bane 2c_vs_64zg"
)
SIZES = ("5_vs_5", "10_vs_10", "10_vs_11", "20_vs_20", "20_vs_23")
# race -> its units, their probabilities, and the units that cannot form an army alone
RACES: dict[str, tuple[tuple[str, ...], tuple[float, ...], tuple[str, ...]]] = {
    "terran": (("marine", "marauder", "medivac"), (0.45, 0.45, 0.1), ("medivac",)),
    "protoss": (("stalker", "zealot", "colossus"), (0.45, 0.45, 0.1), ()),
    "zerg": (("zergling", "baneling", "hydralisk"), (0.45, 0.1, 0.45), ("baneling",)),
}
COMPOSED = re.compile(rf"smacv2/({'|'.join(RACES)})_([1-9]\d*)_vs_([1-9]\d*)")
RESERVED = ("map_name", "seed", "continuing_episode", "capability_config")
GROUP = "agent"
ORDERS = ("nothing", "stop", "north", "south", "east", "west")  # followed by the targets to attack or heal


def ids(family: str) -> list[str]:
    if family == "smac":
        return [f"smac/{name}" for name in MAPS.split()]
    return [f"smacv2/{race}_{size}" for race in RACES for size in SIZES]


def composed(id: str) -> bool:
    """Return whether the id names armies of a size that is not listed."""
    return COMPOSED.fullmatch(id) is not None


def make(config: EnvironmentConfig, render: bool = False) -> StarCraft:
    return StarCraft(config)


def launchable(config: EnvironmentConfig, seed: int | None) -> Any:
    """Make the environment; the game itself starts at its first reset."""
    refuse_reserved(config.kwargs, RESERVED, f"is set by the id {config.id}")
    # Under continuing_episode the game's info tells a truncated battle from one decided in its last step.
    kwargs = {**config.kwargs, "seed": seed, "continuing_episode": True}
    if config.id.startswith("smac/"):
        from smac.env import StarCraft2Env

        check_arguments(StarCraft2Env, config.kwargs, config.id)
        return StarCraft2Env(map_name=config.id.partition("/")[2], **kwargs)
    from smacv2.env import StarCraft2Env as Game
    from smacv2.env import StarCraftCapabilityEnvWrapper

    check_arguments(Game, config.kwargs, config.id)
    match = COMPOSED.fullmatch(config.id)
    assert match is not None
    paper = {"conic_fov": False, "obs_own_pos": True, "use_unit_ranges": True, "min_attack_range": 2}
    armies = capabilities(match[1], int(match[2]), int(match[3]))
    return StarCraftCapabilityEnvWrapper(
        capability_config=armies, map_name=f"10gen_{match[1]}", **{**paper, "num_fov_actions": 12, **kwargs}
    )


def capabilities(race: str, units: int, enemies: int) -> dict[str, Any]:
    """Return SMACv2's settings for drawing and placing armies, as in the paper."""
    types, weights, never_alone = RACES[race]
    team: dict[str, Any] = {
        "dist_type": "weighted_teams",
        "unit_types": list(types),
        "weights": list(weights),
        "observe": True,
    }
    if never_alone:
        team["exception_unit_types"] = list(never_alone)
    places = {"dist_type": "surrounded_and_reflect", "p": 0.5, "map_x": 32, "map_y": 32}
    return {"n_units": units, "n_enemies": enemies, "team_gen": team, "start_positions": places}


class StarCraft:
    """One battle. Dead units can only take action 0 (nothing), which living units cannot take."""

    metadata: Mapping[str, Any] = {"render_fps": 8}

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config, self._launched = config, False
        self._game = launchable(config, None)
        facts = self._game.get_env_info()
        self._limit = min(facts["episode_limit"], config.max_episode_steps or facts["episode_limit"])
        self._share = np.float32(1 / facts["n_agents"])
        everyone = GroupSpec(
            agents=tuple(f"agent_{index}" for index in range(facts["n_agents"])),
            observation=_numbers(facts["obs_shape"]),
            action=Discrete(facts["n_actions"]),
            action_names=(*ORDERS, *(f"target {index}" for index in range(facts["n_actions"] - len(ORDERS)))),
        )
        self.spec = EnvSpec(
            config.id,
            {GROUP: everyone},
            state=_numbers(facts["state_shape"]),
            max_episode_steps=self._limit,
            restore="restart",
        )
        self._living: Array = np.ones(facts["n_agents"], bool)
        self._steps = 0

    def reset(self, seed: int) -> Frame:
        if not self._launched:
            self._game = launchable(self._config, seed % 2**31)
            self._launched = True
        self._game.reset()
        self._steps = 0
        self._living = np.ones_like(self._living)
        return self._frame(np.zeros_like(self._living, np.float32))

    def step(self, action: dict[str, Array]) -> Frame:
        orders = np.where(self._living, action[GROUP], 0)
        reward, ended, info = self._game.step(orders.tolist())
        self._steps += 1
        before = self._living
        # every unit, alive or not, gets an equal part, so that the sum is the team's reward
        frame = self._frame(np.full(len(before), reward, np.float32) * self._share)
        decided = ended and "battle_won" in info and not info.get("episode_limit", False)
        frame.terminated = bool(decided)
        frame.truncated = not decided and (bool(ended) or self._steps >= self._limit)  # also when the game crashed
        frame.won = bool(decided and info["battle_won"])
        if not frame.terminated and not frame.truncated and (before & ~self._living).any():
            frame.died = {GROUP: before & ~self._living}
        return frame

    def render(self) -> Array | None:
        picture = self._game.render(mode="rgb_array")
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        if self._launched:
            self._game.close()

    def _frame(self, reward: Array) -> Frame:
        allowed = np.array(self._game.get_avail_actions(), bool)
        self._living = ~allowed[:, 0]
        return Frame(
            obs={GROUP: np.array(self._game.get_obs(), np.float32)},
            reward={GROUP: reward},
            active={GROUP: self._living},
            mask={GROUP: allowed},
            state=np.array(self._game.get_state(), np.float32),
            won=False,
        )


def _numbers(size: int) -> Box:
    return Box(-np.inf, np.inf, (size,), np.float32)
