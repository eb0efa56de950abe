"""Measure the time from the start of a process to its first environment step, alternating with Stable-Baselines3.

    python benchmarks/start.py --peer PYTHON --rounds 7 --out benchmarks/results/start.json

PYTHON is an interpreter that has stable-baselines3; both train PPO on eight CartPole-v1 with the same settings.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from outcome import keep, machine, result_file

PEER = """
import os
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
env.step_async = lambda actions: os._exit(0)
settings = dict(n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, device="cpu")
PPO("MlpPolicy", env, **settings).learn(256)
"""


def seconds(command: list[str], **environment: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=os.environ | environment, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"cadenza": [], "stable-baselines3": []}
    with tempfile.TemporaryDirectory() as root:
        # killed right after the first collect: 32 vector steps late, which counts against us
        command = [sys.executable, "-m", "cadenza", "train", "CartPole-v1:ppo", "--quiet", "--runs-dir", root]
        for _ in range(options.rounds + 1):
            times["cadenza"].append(seconds(command, CADENZA_FAILPOINT="run:task@1"))
            times["stable-baselines3"].append(seconds([options.peer, "-c", PEER]))
    medians = {name: round(statistics.median(values[1:]), 2) for name, values in times.items()}  # the first warms up
    result = {
        "seconds": {name: [round(value, 2) for value in values[1:]] for name, values in times.items()},
        "median": medians,
        "ratio": round(medians["cadenza"] / medians["stable-baselines3"], 2),
        "load": os.getloadavg(),
        "machine": machine(),
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
