"""Measures a policy: whole episodes only, in environments and with seeds of their own."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from cadenza.types import Episode, Metrics, VectorEnv, Workflow

EPISODES_APART = 1 << 20  # evaluation k starts at this multiple of k, so that no two share an episode seed


@dataclass(frozen=True)
class Evaluation:
    episodes: list[Episode]
    asked: int

    @property
    def returns(self) -> list[float]:
        return [episode.total for episode in self.episodes]

    def metrics(self) -> Metrics:
        """Empty when not a single episode was finished in time."""
        if not self.episodes:
            return {}
        returns = np.array(self.returns)
        metrics = {
            "eval/return_mean": float(returns.mean()),
            "eval/return_std": float(returns.std()),
            "eval/return_min": float(returns.min()),
            "eval/return_max": float(returns.max()),
            "eval/length_mean": float(np.mean([episode.length for episode in self.episodes])),
            "eval/episodes": len(self.episodes),
        }
        groups = self.episodes[0].returns
        if len(groups) > 1:
            for name in groups:
                metrics[f"eval/{name}/return_mean"] = float(np.mean([e.returns[name].sum() for e in self.episodes]))
        return metrics


def evaluate(
    workflow: Workflow, env: VectorEnv, episodes: int, number: int = 0, timeout_seconds: float | None = None
) -> Evaluation:
    """`episodes` finished episodes, shared out evenly over the environments.

    Each environment gives its first ones, however long they take, so that short episodes are not preferred.
    """
    first = number * EPISODES_APART
    share, rest = divmod(episodes, env.num_envs)
    wanted = [share + (index < rest) for index in range(env.num_envs)]
    missing = episodes
    kept: list[Episode] = []
    step = env.reset(first)
    carry = workflow.initial_carry(env.num_envs)
    deadline = time.monotonic() + timeout_seconds if timeout_seconds else None
    while missing and (deadline is None or time.monotonic() < deadline):
        acted = workflow.act(step, carry, "exploit")
        carry = acted.carry
        step = env.step(acted.action)
        if (step.terminated | step.truncated).any():
            ended = [episode for episode in env.episodes() if episode.number - first < wanted[episode.env]]
            kept += ended
            missing -= len(ended)
    return Evaluation(sorted(kept, key=lambda episode: (episode.number, episode.env)), episodes)
