"""Compare learned tables with the exact optimum, by dynamic programming on the environments' own models.

    python benchmarks/tabular.py --seeds 10 --out benchmarks/results/tabular.json

The compared values are exact: the expected return, under the time limit and over the distribution of initial states,
of the policy that takes each state's best entry, and the best return of any policy, even one that knows the time left.
The same is computed without time limit, discounted as in training.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from outcome import keep, machine, result_file, versions

from cadenza.config.load import load
from cadenza.lab.playback import load_policy
from cadenza.lab.session import train
from cadenza.records.folder import RunFolder

SPECS = ("FrozenLake-v1:qlearning", "CliffWalking-v1:qlearning", "Taxi-v4:qlearning")
QUICK = ["evaluation.every_steps=0", "evaluation.episodes=1", "logging.every_steps=20_000", "checkpoint.every_steps=0"]


@dataclass(frozen=True)
class Model:
    """The transition probabilities and rewards of an environment; terminating transitions have no next state."""

    following: np.ndarray  # [S, n, S] probabilities
    reward: np.ndarray  # [S, n] expected
    start: np.ndarray  # [S] probabilities

    @classmethod
    def of(cls, id: str) -> Model:
        env: Any = gymnasium.make(id).unwrapped
        states, actions = int(env.observation_space.n), int(env.action_space.n)
        following, reward = np.zeros((states, actions, states)), np.zeros((states, actions))
        for state, choices in env.P.items():
            for action, outcomes in choices.items():
                for probability, after, earned, terminated in outcomes:
                    reward[state, action] += probability * earned
                    following[state, action, after] += probability * (not terminated)
        return cls(following, reward, np.asarray(env.initial_state_distrib, float))

    def within(self, steps: int, policy: np.ndarray | None = None) -> float:
        """Return the expected return of a policy [S], or the optimum, under a time limit."""
        value = np.zeros(len(self.start))
        for _ in range(steps):
            choices = self.reward + self.following @ value
            value = choices.max(1) if policy is None else choices[np.arange(len(value)), policy]
        return float(self.start @ value)

    def discounted(self, gamma: float, policy: np.ndarray | None = None) -> float:
        """Return the discounted value of a policy [S] without time limit, or the optimum by policy iteration."""
        rows = np.arange(len(self.start))
        current = np.zeros(len(rows), int) if policy is None else policy
        while True:
            following, reward = self.following[rows, current], self.reward[rows, current]
            value = np.linalg.solve(np.eye(len(rows)) - gamma * following, reward)
            choices = self.reward + gamma * self.following @ value
            better = choices.max(1) > value + 1e-9
            if policy is not None or not better.any():
                return float(self.start @ value)
            current = np.where(better, choices.argmax(1), current)


def best_entries(workflow: Any) -> np.ndarray:
    """Return the best allowed action of each state [S] by the table."""
    table = workflow.tables["agent"]
    return np.asarray(np.where(table.allowed, table.values.mean(0), -np.inf).argmax(1))


def one_seed(spec: str, seed: int, root: Path) -> dict[str, Any]:
    """Train the tuned experiment; return the exact value of its table and the distance to the optimum."""
    config = load(spec, [*QUICK, f"seed={seed}"])
    result = train(config, root, ["benchmark"], quiet=True).summary()
    player, _ = load_policy(RunFolder(Path(result["dir"])))
    policy, model = best_entries(player.workflow), Model.of(config.environment.id)
    limit, gamma = player.spec.max_episode_steps, config.algorithm.gamma
    assert limit is not None
    value = {"return": model.within(limit, policy), "discounted": model.discounted(gamma, policy)}
    best = {"return": model.within(limit), "discounted": model.discounted(gamma)}
    return {
        "spec": spec,
        "seed": seed,
        "value": value,
        "optimum": best,
        "shortfall": {key: (best[key] - value[key]) / abs(best[key]) for key in best},
        "env_steps": result["env_steps"],
        "seconds": result["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for spec in options.specs:
            for seed in range(options.seeds):
                rows.append(one_seed(spec, seed, Path(root)))
                print(rows[-1], file=sys.stderr)
    result = {
        "compared": "exact values of the greedy policy and of the optimum, by dynamic programming",
        "worst_shortfall": {
            spec: max(max(row["shortfall"].values()) for row in rows if row["spec"] == spec) for spec in options.specs
        },
        "seeds": rows,
        "machine": machine(),
        "versions": versions("cadenza", "torch", "gymnasium", "numpy"),
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
