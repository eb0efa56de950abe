"""Run the learning proofs of `learn.py` with stable-baselines3 and the hyperparameters of our experiments.

    PEER_PYTHON benchmarks/learn_sb3.py HalfCheetah-v5:ppo --seeds 3 --out benchmarks/results/sb3-halfcheetah.json

Run it with the Python of an environment where stable-baselines3 is installed. It does not import cadenza.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from outcome import keep, machine, result_file, seeds, versions


@dataclass(frozen=True)
class Recipe:
    """An algorithm of stable-baselines3 with the settings of one of our experiments."""

    algorithm: str
    steps: int
    settings: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=dict)
    normalize: bool = False
    num_envs: int = 1
    wrapper: str | None = None  # `module:Class`, around each environment; importing the module registers it
    floats: bool = False  # observations as float32: VecNormalize converts those of bytes back to bytes
    atari: bool = False  # its preprocessing of Atari games, with four frames stacked


PPO_CLEANRL = Recipe(
    "PPO",
    1_000_000,
    {
        "n_steps": 2048,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": lambda left: 3e-4 * left,
        "clip_range": 0.2,
        "clip_range_vf": 0.2,
        "vf_coef": 0.25,  # its value loss is a plain mean square, as ours; CleanRL's has a further factor of one half
    },
    normalize=True,
)
RECIPES = {
    "HalfCheetah-v5:ppo": PPO_CLEANRL,
    "Hopper-v5:ppo": PPO_CLEANRL,
    # rl-zoo3's tuned hyperparameters from here on
    "CartPole-v1:dqn": Recipe(
        "DQN",
        50_000,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
        },
        {"net_arch": [256, 256]},
    ),
    "MountainCar-v0:dqn": Recipe(
        "DQN",
        120_000,
        {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
        },
        {"net_arch": [256, 256]},
    ),
    "Pendulum-v1:sac": Recipe("SAC", 20_000, {"learning_rate": 1e-3}),
    "HalfCheetah-v5:sac": Recipe("SAC", 100_000, {"learning_starts": 10_000}),
    "MiniGrid-DoorKey-5x5-v0:ppo": Recipe(
        "PPO",
        100_000,
        {"n_steps": 128, "batch_size": 64, "n_epochs": 10, "learning_rate": 2.5e-4},
        normalize=True,
        num_envs=8,
        wrapper="minigrid.wrappers:FlatObsWrapper",
        floats=True,
    ),
    "ALE/Pong-v5:ppo": Recipe(
        "PPO",
        10_000_000,
        {
            "n_steps": 128,
            "batch_size": 256,
            "n_epochs": 4,
            "learning_rate": lambda left: 2.5e-4 * left,
            "clip_range": lambda left: 0.1 * left,
            "ent_coef": 0.01,
        },
        num_envs=8,
        atari=True,
    ),
}


def environments(recipe: Recipe, env_id: str, count: int, seed: int) -> Any:
    import numpy as np
    from gymnasium.wrappers import DtypeObservation
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    if recipe.atari:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        plain = {"frameskip": 1, "repeat_action_probability": 0.0}
        return VecFrameStack(make_atari_env(env_id, n_envs=count, seed=seed, env_kwargs=plain), 4)
    module, _, name = (recipe.wrapper or "").partition(":")
    wrapper = getattr(importlib.import_module(module), name) if recipe.wrapper else None
    if wrapper is not None and recipe.floats:
        return make_vec_env(env_id, count, seed, wrapper_class=lambda env: DtypeObservation(wrapper(env), np.float32))
    return make_vec_env(env_id, n_envs=count, seed=seed, wrapper_class=wrapper)


def one_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    import numpy as np
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    torch.set_num_threads(1)
    recipe, env_id = RECIPES[options.recipe], options.recipe.split(":")[0]
    began = time.perf_counter()
    env = environments(recipe, env_id, recipe.num_envs, seed)
    if recipe.normalize:
        env = VecNormalize(env, gamma=0.99)
    make = getattr(stable_baselines3, recipe.algorithm)
    policy = "CnnPolicy" if recipe.atari else "MlpPolicy"
    model = make(policy, env, policy_kwargs=recipe.policy, seed=seed, device=options.device, **recipe.settings)
    with tempfile.TemporaryDirectory() as folder:
        measured: VecEnv = environments(recipe, env_id, 1, 12345)
        if isinstance(env, VecNormalize):
            measured = VecNormalize(measured, training=False, norm_reward=False)
        often = {"eval_freq": options.every // recipe.num_envs, "n_eval_episodes": options.looks, "log_path": folder}
        watch = EvalCallback(measured, deterministic=True, warn=False, verbose=1, **often) if options.every else None
        model.learn(options.steps or recipe.steps, callback=watch)
    seconds = time.perf_counter() - began
    curve = {}
    if watch is not None:
        for step, scores in zip(watch.evaluations_timesteps, watch.evaluations_results, strict=True):
            curve[str(step)] = round(float(np.mean(scores)), 2)
    measured = environments(recipe, env_id, 1, 12345)
    if isinstance(env, VecNormalize):
        measured = VecNormalize(measured, training=False, norm_reward=False)
        measured.obs_rms = env.obs_rms
    returns, _ = evaluate_policy(model, measured, options.episodes, deterministic=True, return_episode_rewards=True)
    row = {
        "seed": seed,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "return_min": float(np.min(returns)),
        "env_steps": model.num_timesteps,
        "seconds": round(seconds, 1),
        "curve": curve,
    }
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--seeds", type=seeds, default="1,2,3", metavar="N or A,B,…", help="how many, or which")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--every", type=int, default=0, metavar="STEPS", help="evaluations on the way, so often")
    parser.add_argument("--looks", type=int, default=5, metavar="N", help="episodes of those")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=result_file, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, help="not as many as our experiment has; schedules are shorter then, too")
    options = parser.parse_args()
    tasks = [(options, seed) for seed in options.seeds]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        rows = pool.starmap(one_seed, tasks, chunksize=1)
    wrapper = RECIPES[options.recipe].wrapper
    beside = [wrapper.split(".")[0]] if wrapper else []
    packages = ("stable_baselines3", "torch", "gymnasium", "mujoco", "numpy", *beside)
    result = {
        "command": " ".join(["benchmarks/learn_sb3.py", *sys.argv[1:]]),
        "seeds": rows,
        "versions": versions(*packages),
        "machine": machine() | {"runs at a time": options.jobs},
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
