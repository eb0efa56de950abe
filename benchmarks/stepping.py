"""Measure the speed of environments alone (random actions) beside a bare loop over the family's fastest interface.

    python benchmarks/stepping.py --families ale,minigrid --out benchmarks/results/stepping.json

The two alternate in turns of a few hundredths of a second, so that other load on the machine affects both. Beyond the
bare loop, cadenza does what training needs: time limits, final observations, one array of observations that outlives
the next step, a record of every action. Both play the same episodes with the same seeds, except that ALE's vector
environment is seeded once. Needs the extras of the selected families.
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
from outcome import keep, machine, result_file, versions

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import cores, make_vector

TURN = 16  # steps of all environments
COUNT = 8
SEEDS = EpisodeSeeds(0, TRAIN)  # both play the same episodes: how long a step takes depends on what happens in it
Steps = Callable[[Any], Any]  # one step of all environments with the same actions as ours; returns the observations
CONTROL, DOOM = ("walker", "walk"), "basic"
CONFIGS = {
    "ale": EnvironmentConfig(id="ALE/Pong-v5", frame_stack=4),
    "ale-unsticky": EnvironmentConfig(id="ALE/Pong-v5", frame_stack=4, kwargs={"repeat_action_probability": 0.0}),
    "minigrid": EnvironmentConfig(id="MiniGrid-DoorKey-5x5-v0"),
    "dmc": EnvironmentConfig(id="dmc/" + "-".join(CONTROL)),
    "vizdoom": EnvironmentConfig(id=f"VizDoom-{DOOM}"),
}


def ale(sticky: float = 0.25) -> Steps:
    """Make ALE's own vector environment with frames stacked; it uses a thread for each processor."""
    from ale_py import AtariVectorEnv

    options = {"stack_num": 4, "noop_max": 30, "use_fire_reset": False, "repeat_action_probability": sticky}
    env = AtariVectorEnv(game="pong", num_envs=COUNT, num_threads=COUNT, **options)
    env.reset(seed=np.array([SEEDS(index, 0) for index in range(COUNT)]))

    def step(actions: Any) -> Any:
        return env.step(actions)[0]

    return step


def minigrid() -> Steps:
    import gymnasium
    from minigrid.wrappers import FlatObsWrapper

    id = CONFIGS["minigrid"].id
    envs = [FlatObsWrapper(gymnasium.make(id, disable_env_checker=True).unwrapped) for _ in range(COUNT)]
    played = [0] * COUNT
    for index, env in enumerate(envs):
        env.reset(seed=SEEDS(index, 0))

    def step(actions: Any) -> Any:
        observations = []
        for index, (env, action) in enumerate(zip(envs, actions.tolist(), strict=True)):
            obs, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                played[index] += 1
                obs, _ = env.reset(seed=SEEDS(index, played[index]))
            observations.append(obs)
        return observations

    return step


def dmc() -> Steps:
    from dm_control import suite

    one_vector = {"flat_observation": True}
    envs = [suite.load(*CONTROL, {"random": 0}, environment_kwargs=one_vector) for _ in range(COUNT)]
    played = [0] * COUNT

    def begin(index: int) -> Any:
        envs[index].task.random.seed(np.random.SeedSequence(SEEDS(index, played[index])).generate_state(8))
        return envs[index].reset()

    for index in range(COUNT):
        begin(index)

    def step(actions: Any) -> Any:
        observations = []
        for index, (env, action) in enumerate(zip(envs, actions, strict=True)):
            time_step = env.step(action)
            if time_step.last():
                played[index] += 1
                time_step = begin(index)
            observations.append(time_step.observation["observations"])
        return observations

    return step


def vizdoom() -> Steps:
    import vizdoom as doom
    from gymnasium.utils.seeding import np_random

    drawn = [[int(np_random(SEEDS(index, n))[0].integers(2**31)) for n in range(4000)] for index in range(COUNT)]
    played, games = [0] * COUNT, []
    for index in range(COUNT):
        game = doom.DoomGame()
        game.load_config(str(Path(doom.scenarios_path) / f"{DOOM}.cfg"))
        game.set_window_visible(False)
        game.set_sound_enabled(False)
        game.set_screen_format(doom.ScreenFormat.CRCGCB)
        game.set_screen_resolution(doom.ScreenResolution.RES_160X120)
        game.set_seed(drawn[index][0])
        with contextlib.chdir(tempfile.gettempdir()):  # it writes a file to the current folder
            game.init()
        games.append(game)
    buttons = games[0].get_available_buttons_size()
    presses = [[float(button == action - 1) for button in range(buttons)] for action in range(buttons + 1)]

    def step(actions: Any) -> Any:
        images = []
        for index, (game, action) in enumerate(zip(games, actions.tolist(), strict=True)):
            game.make_action(presses[action], 4)
            if game.is_episode_finished():
                played[index] += 1
                game.set_seed(drawn[index][played[index]])
                game.new_episode()
            images.append(game.get_state().screen_buffer)
        return images

    return step


BARE: dict[str, Callable[[], Steps]] = {
    "ale": ale,
    "ale-unsticky": lambda: ale(0.0),
    "minigrid": minigrid,
    "dmc": dmc,
    "vizdoom": vizdoom,
}


def measure(family: str, seconds: float) -> dict[str, Any]:
    env = make_vector(CONFIGS[family], SEEDS, num_envs=COUNT)
    random = np.random.default_rng(0)
    sampled = [random_actions(env.spec.groups, env.current, random) for _ in range(TURN)]
    plain = [action["agent"][:, 0] for action in sampled]
    bare = BARE[family]()
    took: dict[str, list[float]] = {"ours": [], "bare": []}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for name, step, actions in (("ours", env.step, sampled), ("bare", bare, plain)):
            began = time.perf_counter()
            for action in actions:
                step(action)
            took[name].append(time.perf_counter() - began)
        env.episodes()
    env.close()
    typical = {name: statistics.median(times) for name, times in took.items()}
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
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    results = {}
    for family in options.families.split(","):
        results[family] = [measure(family, options.seconds) for _ in range(options.rounds)]
        print(family, results[family], file=sys.stderr)
    packages = versions("cadenza", "gymnasium", "numpy", "ale-py", "minigrid", "dm-control", "vizdoom")
    settings = {"cores": cores(), "load": os.getloadavg()[0], "steps_a_turn": TURN}
    keep({**settings, "families": results, "versions": packages, "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
