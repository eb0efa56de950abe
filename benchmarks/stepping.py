"""Environments stepped alone (random actions): ours, and the bare loop over the family's own fastest interface.

    python benchmarks/stepping.py --families ale,minigrid --out benchmarks/results/stepping.json

The two take turns of a few hundredths of a second, so that whatever else the machine does falls on both. What ours
does beyond the bare loop is all that training needs: seeds per episode, time limits, final observations, one array of
observations, a record of every action. Needs the extras of the families that are asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from outcome import keep, machine, versions

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.random_actions import random_actions
from cadenza.envs.seeds import TRAIN, EpisodeSeeds
from cadenza.envs.vector import cores, make_vector

TURN = 16  # steps of all environments
COUNT = 8
Steps = Callable[[Any], None]  # one step of all environments, by the actions ours is given
CONTROL, DOOM = ("walker", "walk"), "basic"
CONFIGS = {
    "ale": EnvironmentConfig(id="ALE/Pong-v5", frame_stack=4, kwargs={"repeat_action_probability": 0.0}),
    "minigrid": EnvironmentConfig(id="MiniGrid-DoorKey-5x5-v0"),
    "dmc": EnvironmentConfig(id="dmc/" + "-".join(CONTROL)),
    "vizdoom": EnvironmentConfig(id=f"VizDoom-{DOOM}"),
}


def ale() -> Steps:
    """ALE's own vector environment: frames stacked, a thread for each game as ours has them."""
    from ale_py import AtariVectorEnv

    env = AtariVectorEnv(game="pong", num_envs=COUNT, num_threads=COUNT, stack_num=4, noop_max=30)
    env.reset(seed=0)

    def step(actions: Any) -> None:
        env.step(actions)

    return step


def minigrid() -> Steps:
    import gymnasium
    from minigrid.wrappers import FlatObsWrapper

    id = CONFIGS["minigrid"].id
    envs = [FlatObsWrapper(gymnasium.make(id, disable_env_checker=True).unwrapped) for _ in range(COUNT)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)

    def step(actions: Any) -> None:
        for env, action in zip(envs, actions.tolist(), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def dmc() -> Steps:
    from dm_control import suite

    one_vector = {"flat_observation": True}
    envs = [suite.load(*CONTROL, {"random": seed}, environment_kwargs=one_vector) for seed in range(COUNT)]
    for env in envs:
        env.reset()

    def step(actions: Any) -> None:
        for env, action in zip(envs, actions, strict=True):
            if env.step(action).last():
                env.reset()

    return step


def vizdoom() -> Steps:
    import vizdoom as doom

    games = []
    for seed in range(COUNT):
        game = doom.DoomGame()
        game.load_config(str(Path(doom.scenarios_path) / f"{DOOM}.cfg"))
        game.set_window_visible(False)
        game.set_sound_enabled(False)
        game.set_screen_format(doom.ScreenFormat.CRCGCB)
        game.set_screen_resolution(doom.ScreenResolution.RES_160X120)
        game.set_seed(seed)
        with contextlib.chdir(tempfile.gettempdir()):  # it leaves a file where it is started
            game.init()
        games.append(game)
    buttons = games[0].get_available_buttons_size()
    presses = [[float(button == action - 1) for button in range(buttons)] for action in range(buttons + 1)]

    def step(actions: Any) -> None:
        for game, action in zip(games, actions.tolist(), strict=True):
            game.make_action(presses[action], 4)
            if game.is_episode_finished():
                game.new_episode()
            _ = game.get_state().screen_buffer

    return step


BARE: dict[str, Callable[[], Steps]] = {"ale": ale, "minigrid": minigrid, "dmc": dmc, "vizdoom": vizdoom}


def measure(family: str, seconds: float) -> dict[str, Any]:
    env = make_vector(CONFIGS[family], EpisodeSeeds(0, TRAIN), num_envs=COUNT)
    random = np.random.default_rng(0)
    given = [random_actions(env.spec.groups, env.current, random) for _ in range(TURN)]
    plain = [action["agent"][:, 0] for action in given]
    bare = BARE[family]()
    took: dict[str, list[float]] = {"ours": [], "bare": []}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for name, step, actions in (("ours", env.step, given), ("bare", bare, plain)):
            began = time.perf_counter()
            for action in actions:
                step(action)
            took[name].append(time.perf_counter() - began)
        env.episodes()
    env.close()
    typical = {name: statistics.median(found) for name, found in took.items()}
    return {
        "id": CONFIGS[family].id,
        "num_envs": COUNT,
        "turns": len(took["ours"]),
        "env_steps_per_second": {name: round(TURN * COUNT / value) for name, value in typical.items()},
        "ours_by_bare": round(typical["bare"] / typical["ours"], 3),
        "ours_by_bare_means": round(sum(took["bare"]) / sum(took["ours"]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--families", default=",".join(CONFIGS))
    parser.add_argument("--seconds", type=float, default=20, help="of each round of a family, for both together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    for family in options.families.split(","):
        found[family] = [measure(family, options.seconds) for _ in range(options.rounds)]
        print(family, found[family], file=sys.stderr)
    packages = versions("cadenza", "gymnasium", "numpy", "ale-py", "minigrid", "dm-control", "vizdoom")
    settings = {"cores": cores(), "load": os.getloadavg()[0], "steps_a_turn": TURN}
    keep({**settings, "families": found, "versions": packages, "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
