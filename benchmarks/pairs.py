"""Compare the processor seconds of two versions of the code: interleaved pairs, and the interval of their ratio.

    git worktree add /tmp/before COMMIT
    python benchmarks/pairs.py --before /tmp/before/src --after src --pairs 20 --out benchmarks/results/pairs.json

A ratio above 1 means that the later code is faster. The interval is the 95 % bootstrap interval of the median ratio.
"""

from __future__ import annotations

import argparse
import atexit
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from outcome import keep, machine, result_file, versions

# the networks and minibatches of the tasks `ppo-cartpole` and `ppo-halfcheetah-8` of `cadenza bench`
BENCH = [
    "environment.num_envs=8",
    "algorithm.n_epochs=10",
    "algorithm.learning_rate=0.0003",
    "algorithm.clip_range=0.2",
    "algorithm.normalize_obs=false",
    "algorithm.normalize_reward=false",
    *(f"algorithm.{net}.hidden_sizes=[64,64]" for net in ("actor", "critic")),
    *(f"algorithm.{net}.activation=tanh" for net in ("actor", "critic")),
]
SMALL = ["evaluation.every_steps=0", "evaluation.at_end=false", "logging.every_steps=100000", "runtime.threads=1"]
# prints the processor seconds that a method of the Orchestrator took: saving, in a run which saves at every cycle, or
# all of training, without the start and the report
METHOD = """
import sys, time
from cadenza.cli.main import run
try:
    from cadenza.engine.orchestrator import Orchestrator
except ImportError:  # before the packages were arranged in layers
    from cadenza.orchestration.orchestrator import Orchestrator
spent, method = 0.0, Orchestrator.{name}
def timed(*arguments, **settings):
    global spent
    began = time.process_time()
    try:
        return method(*arguments, **settings)
    finally:
        spent += time.process_time() - began
Orchestrator.{name} = timed
code = run(sys.argv[1:])
print(spent)
sys.exit(code)
"""
SAVES, RUN = METHOD.replace("{name}", "save"), METHOD.replace("{name}", "run")
TIMED = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "cadenza", *sys.argv[1:]], capture_output=True).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
sys.exit(code)
"""
Task = Callable[[str], float]  # from the folder of a version's source to processor seconds


def seconds(source: str, program: str, *arguments: str) -> float:
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}: {process.stderr}")
    return float(process.stdout.splitlines()[-1])


def training(program: str, *settings: str) -> Task:
    def run(source: str) -> float:
        with tempfile.TemporaryDirectory() as root:
            return seconds(source, program, "train", *settings, *SMALL, "--quiet", "--runs-dir", root)

    return run


def resuming(source: str) -> float:
    """Measure the resumption of a finished run with a larger budget; each version resumes copies of its own run."""
    with tempfile.TemporaryDirectory() as root:
        shutil.copytree(finished(source), root, dirs_exist_ok=True)
        return seconds(source, TIMED, "resume", "@last", "--max-timesteps", "2048", "--quiet", "--runs-dir", root)


@cache
def finished(source: str) -> str:
    root = tempfile.mkdtemp(prefix="cadenza-pairs-")
    atexit.register(shutil.rmtree, root)
    seconds(source, TIMED, "train", "CartPole-v1:ppo", *SMALL, "--max-timesteps", "1024", "--quiet", "--runs-dir", root)
    return root


TASKS: dict[str, Task] = {
    "start and 256 steps of PPO": training(TIMED, "CartPole-v1:ppo", "training.max_timesteps=256"),
    "resume and 1024 steps of PPO": resuming,
    "200 saves of PPO": training(
        SAVES, "CartPole-v1:ppo", "training.max_timesteps=51200", "checkpoint.every_steps=256", "algorithm.n_epochs=1"
    ),
    "200 saves of DQN": training(
        SAVES,
        "CartPole-v1:dqn",
        "training.max_timesteps=3300",
        "checkpoint.every_steps=16",
        "algorithm.buffer_size=2000",
        "algorithm.warmup_steps=100",
        "algorithm.train_every=16",
        "algorithm.update_ratio=0.0625",
    ),
    "60,000 steps of PPO": training(TIMED, "CartPole-v1:ppo", "training.max_timesteps=60000"),
    "training PPO on CartPole, 8 x 128": training(
        RUN,
        "CartPole-v1:ppo",
        "training.max_timesteps=61440",
        "algorithm.n_steps=128",
        "algorithm.batch_size=256",
        *BENCH,
    ),
    "training PPO on HalfCheetah, 8 x 256": training(
        RUN,
        "HalfCheetah-v5:ppo",
        "training.max_timesteps=20480",
        "algorithm.n_steps=256",
        "algorithm.batch_size=64",
        *BENCH,
    ),
    "8,000 steps of DQN": training(TIMED, "CartPole-v1:dqn", "training.max_timesteps=8000"),
    "600 steps of SAC": training(
        TIMED, "HalfCheetah-v5:sac", "training.max_timesteps=600", "algorithm.warmup_steps=100"
    ),
}


def interval(ratios: list[float], draws: int = 10_000) -> list[float]:
    """Return the 95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return [round(medians[int(draws * share)], 4) for share in (0.025, 0.975)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", default="", help="tasks with this in their name")
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    before, after = (str(Path(place).resolve()) for place in (options.before, options.after))
    results = {}
    for name, task in TASKS.items():
        if options.only not in name:
            continue
        pairs = []
        for turn in range(options.pairs + 1):
            order = (before, after) if turn % 2 else (after, before)
            spent = {source: task(source) for source in order}
            if turn:  # the first pair warms caches
                pairs.append((spent[before], spent[after]))
        ratios = [one / other for one, other in pairs]
        low, high = interval(ratios)
        results[name] = {
            "median_ratio": round(statistics.median(ratios), 4),
            "interval": [low, high],
            "seconds": [[round(one, 4), round(other, 4)] for one, other in pairs],
        }
        print(f"{name}: {results[name]['median_ratio']} [{low}, {high}]", file=sys.stderr, flush=True)
    keep({"pairs": results, "versions": versions("torch", "numpy"), "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
