"""Tune PPO on CartPole-v1 from defaults that learn nothing, with 30 short trials of Optuna.

    python benchmarks/tune_cartpole.py --out benchmarks/results/tune-cartpole.json
    python benchmarks/tune_cartpole.py --seeds 1 --steps 20000 --out benchmarks/results/tune-cartpole-one-seed.json

The best trial is then trained on five new seeds. With the same --runs-dir an interrupted search continues.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import yaml
from learn import cadenza
from outcome import keep, machine, result_file, versions

SPEC, TRIALS, SOLVED = "CartPole-v1:ppo", 30, 475
BAD = [
    "algorithm.learning_rate=1e-6",
    "algorithm.gamma=0.5",
    "algorithm.gae_lambda=0.5",
    "algorithm.n_steps=512",
    "algorithm.n_epochs=1",
    "algorithm.clip_range=0.01",
]
MEASURED = ["evaluation.episodes=50", "evaluation.every_steps=0", "checkpoint.every_steps=0"]
SPACE = {
    "algorithm.learning_rate": {"min": 1e-6, "max": 1e-1, "log": True},
    "algorithm.gamma": [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999],
    "algorithm.gae_lambda": {"min": 0.5, "max": 1.0},
    "algorithm.n_steps": [32, 64, 128, 256, 512],
    "algorithm.n_epochs": {"min": 1, "max": 20},
    "algorithm.clip_range": {"min": 0.01, "max": 0.4, "log": True},
}
FRESH = (11, 12, 13, 14, 15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", default="1,2,3", help="of each trial, which counts with their mean")
    parser.add_argument("--steps", default="30000", help="env_steps of each run")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs-dir", default=None)
    parser.add_argument("--out", type=result_file)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = arguments.runs_dir or place
        space = Path(root) / "tune-cartpole.yaml"
        space.parent.mkdir(parents=True, exist_ok=True)
        space.write_text(yaml.safe_dump(SPACE, sort_keys=False))
        common = ["--runs-dir", root, "--quiet"]
        before = cadenza("train", SPEC, *BAD, *MEASURED, "--max-timesteps", arguments.steps, "--seed", "1", *common)
        flags = ["--space", str(space), "--trials", str(TRIALS), "--max-timesteps", arguments.steps]
        flags += ["--seeds", arguments.seeds, "--jobs", str(arguments.jobs)]
        result = cadenza("tune", SPEC, *BAD, *MEASURED, *flags, "--runs-dir", root)
        fresh = {}
        for seed in FRESH:
            run = cadenza("train", result["best_config"], "--seed", str(seed), *common)
            fresh[seed] = run["eval/return_mean"]
    trials = result["trials"]
    solving = [trial["trial"] for trial in trials if (trial["value"] or 0) >= SOLVED]
    keep(
        {
            "what": f"{SPEC}, bad defaults ({', '.join(BAD)}), {TRIALS} trials, Optuna's TPE",
            "trial": f"the mean of seeds {arguments.seeds} after {arguments.steps} env_steps, 50 episodes each",
            "solved_at": SOLVED,
            "before": before["eval/return_mean"],
            "best": result["best"]["value"],
            "best_params": result["best"]["params"],
            "first_solving_trial": min(solving, default=None),
            "solving_trials": len(solving),
            "best_on_fresh_seeds": fresh,
            "importance": result["importance"],
            "trials": [{key: trial[key] for key in ("trial", "state", "value", "params")} for trial in trials],
            "versions": versions("cadenza", "torch", "gymnasium", "numpy", "optuna"),
            "machine": machine(),
        },
        arguments.out,
    )


if __name__ == "__main__":
    main()
