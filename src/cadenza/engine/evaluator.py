"""Measures a policy: whole episodes only, in environments and with seeds of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadenza.base.streams import EVALUATION, Streams
from cadenza.config.schema import RunConfig
from cadenza.envs.seeds import EVAL, EpisodeSeeds
from cadenza.envs.vector import decide_vectorize, make_vector
from cadenza.types import Episode, GroupSpec, Metrics, Mode, PhaseInfo, VectorEnv, Workflow

EPISODES_APART = 1 << 20  # evaluation k starts at this multiple of k, so that no two share an episode seed


@dataclass(frozen=True)
class Evaluation:
    episodes: list[Episode]
    asked: int
    groups: Mapping[str, GroupSpec]

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
        if self.episodes[0].won is not None:
            metrics["eval/win_rate"] = float(np.mean([bool(episode.won) for episode in self.episodes]))
        parts = [returns_within(episode, self.groups) for episode in self.episodes]
        return metrics | {f"eval/{name}": float(np.mean([part[name] for part in parts])) for name in parts[0]}


def returns_within(episode: Episode, groups: Mapping[str, GroupSpec]) -> dict[str, float]:
    """What a team's return is made of: that of each group where there are several, of each agent where a group has."""
    found = {}
    for name, returns in episode.returns.items():
        if len(groups) > 1:
            found[f"{name}/return_mean"] = float(returns.sum())
        if len(returns) > 1:
            agents = zip(groups[name].agents, returns.tolist(), strict=True)
            found |= {f"{name}/{agent}/return_mean": earned for agent, earned in agents}
    return found


class Evaluator:
    """Evaluations of one run; the environments are made at the first and kept."""

    def __init__(self, config: RunConfig, workflow: Workflow, decisions: dict[str, Any]) -> None:
        self.config = config
        self.workflow = workflow
        self.num_envs = min(config.evaluation.num_envs, config.evaluation.episodes)
        self.decisions: dict[str, Any] = decisions.setdefault("evaluation", {})
        decide_vectorize(config.environment, self.num_envs, self.decisions)
        self.env: VectorEnv | None = None

    def __call__(self, number: int, phase: PhaseInfo, stop: Callable[[], bool] = lambda: False) -> Evaluation:
        """Evaluation `number`: always the same episodes, whenever and wherever it is made."""
        settings, seed = self.config.evaluation, self.config.seed
        if self.env is None:
            seeds = EpisodeSeeds(seed, EVAL)
            self.env = make_vector(self.config.environment, seeds, num_envs=self.num_envs, decisions=self.decisions)
        explore = self.env.spec.turns and self.env.spec.competitive  # else all episodes might be one and the same game
        mode = Mode(explore, phase=phase, streams=Streams(seed, branch=(EVALUATION, number)))
        first = number * EPISODES_APART
        return evaluate(self.workflow, self.env, settings.episodes, mode, first, settings.timeout_seconds, stop)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


def evaluate(
    workflow: Workflow,
    env: VectorEnv,
    episodes: int,
    mode: Mode,
    first: int = 0,
    timeout_seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """`episodes` finished episodes from number `first` on, shared out evenly over the environments.

    Each environment gives its first ones, however long they take, so that short episodes are not preferred.
    """
    share, rest = divmod(episodes, env.num_envs)
    wanted = [share + (index < rest) for index in range(env.num_envs)]
    missing = episodes
    kept: list[Episode] = []
    step = env.reset(first)
    carry = workflow.initial_carry(env.num_envs)
    deadline = time.monotonic() + timeout_seconds if timeout_seconds else None
    while missing and not stop() and (deadline is None or time.monotonic() < deadline):
        acted = workflow.act(step, carry, mode)
        carry = acted.carry
        step = env.step(acted.action)
        if (step.terminated | step.truncated).any():
            ended = [episode for episode in env.episodes() if episode.number - first < wanted[episode.env]]
            kept += ended
            missing -= len(ended)
    return Evaluation(sorted(kept, key=lambda episode: (episode.number, episode.env)), episodes, env.spec.groups)
