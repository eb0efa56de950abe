"""The same learning proof on stable-baselines3: PPO with the hyperparameters of our `ppo_cleanrl` experiments.

    PEER_PYTHON benchmarks/learn_sb3.py HalfCheetah-v5 --seeds 3 --out benchmarks/results/sb3-halfcheetah.json

Run it with the Python of an environment where stable-baselines3 is installed. It needs nothing of cadenza.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from outcome import keep, machine, versions


def one_seed(env_id: str, seed: int, steps: int, episodes: int) -> dict[str, Any]:
    import numpy as np
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    began = time.perf_counter()
    env = VecNormalize(make_vec_env(env_id, n_envs=1, seed=seed), gamma=0.99)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=2048,
        batch_size=64,
        n_epochs=10,
        learning_rate=lambda left: 3e-4 * left,
        clip_range=0.2,
        clip_range_vf=0.2,
        vf_coef=0.25,  # its value loss is a plain mean square, as ours; CleanRL's has a further factor of one half
        seed=seed,
        device="cpu",
    )
    model.learn(steps)
    seconds = time.perf_counter() - began
    env.training, env.norm_reward = False, False
    measured = VecNormalize(make_vec_env(env_id, n_envs=1, seed=12345), training=False, norm_reward=False)
    measured.obs_rms = env.obs_rms
    returns, _ = evaluate_policy(model, measured, episodes, deterministic=True, return_episode_rewards=True)
    row = {
        "seed": seed,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "env_steps": model.num_timesteps,
        "seconds": round(seconds, 1),
    }
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tasks = [(given.env, seed, given.steps, given.episodes) for seed in range(1, given.seeds + 1)]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        rows = pool.starmap(one_seed, tasks, chunksize=1)
    packages = ("stable_baselines3", "torch", "gymnasium", "mujoco", "numpy")
    result = {
        "command": " ".join(["benchmarks/learn_sb3.py", *sys.argv[1:]]),
        "seeds": rows,
        "versions": versions(*packages),
        "machine": machine(),
    }
    keep(result, given.out)


if __name__ == "__main__":
    main()
