"""Evaluation of a policy: whole episodes, in environments and with seeds of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cadenza.base.streams import EVALUATION, Streams
from cadenza.config.schema import RunConfig
from cadenza.envs.ledger import EVAL, EpisodeSeeds
from cadenza.envs.vector import decide_vectorize, make_vector
from cadenza.types import EnvSpec, Episode, GroupSpec, Metrics, Mode, PhaseInfo, VectorEnv, Workflow

EPISODES_APART = 1 << 20  # evaluation k begins with episode k times this, so that no two share an episode seed
FIRST_REPORT = 10.0  # seconds until a line of progress; each further one after twice as long


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one evaluation; fewer than `requested` if it timed out."""

    episodes: list[Episode]
    requested: int
    groups: Mapping[str, GroupSpec]
    limit: int | None = None  # time limit of the evaluation, if the environment has none or a longer one
    cut: int = 0  # episodes that this limit truncated

    @property
    def returns(self) -> list[float]:
        """The return of each episode, over all agents."""
        return [episode.total for episode in self.episodes]

    def problems(self) -> list[str]:
        """Return what is wrong with the evaluation: episodes that it truncated, or did not finish in time."""
        problems = []
        if self.cut:
            episodes = f"{self.cut} of {len(self.episodes)} episodes"
            problems.append(f"{episodes} reached evaluation.max_episode_steps={self.limit}: counted as truncated")
        if len(self.episodes) < self.requested:
            problems.append(f"timed out with {len(self.episodes)} of {self.requested} episodes finished")
        return problems

    def metrics(self) -> Metrics:
        """Return the metrics `eval/…` of the finished episodes; empty if none finished within the time limit."""
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
    """Return the shares of an episode's return: of each group if there are several, of each agent of a larger group."""
    parts = {}
    for name, returns in episode.returns.items():
        if len(groups) > 1:
            parts[f"{name}/return_mean"] = float(returns.sum())
        if len(returns) > 1:
            agents = zip(groups[name].agents, returns.tolist(), strict=True)
            parts |= {f"{name}/{agent}/return_mean": share for agent, share in agents}
    return parts


class Evaluator:
    """The evaluations of one run. The first one makes the environments, the others use them again."""

    def __init__(self, config: RunConfig, workflow: Workflow, decisions: dict[str, Any], spec: EnvSpec) -> None:
        self.config = config
        self.workflow = workflow
        self.act = workflow.act  # a probe may stand around it
        self.report: Callable[[str], object] = lambda line: None  # receives the progress of a long evaluation
        self.num_envs = min(config.evaluation.num_envs, config.evaluation.episodes)
        self.limit = config.evaluation.episode_limit(spec.max_episode_steps)
        self.decisions: dict[str, Any] = decisions.setdefault("evaluation", {})
        decide_vectorize(config.environment, self.num_envs, self.decisions)
        self.env: VectorEnv | None = None

    def __call__(self, number: int, phase: PhaseInfo, stop: Callable[[], bool] = lambda: False) -> Evaluation:
        """Make evaluation `number`; its episodes depend on the seed, the number and the policy alone."""
        settings, seed = self.config.evaluation, self.config.seed
        if self.env is None:
            seeds, environment = EpisodeSeeds(seed, EVAL), self.config.environment
            if self.limit is not None:
                environment = replace(environment, max_episode_steps=self.limit)
            self.env = make_vector(environment, seeds, num_envs=self.num_envs, decisions=self.decisions)
        # a deterministic game between opponents would be one and the same in all episodes
        explore = settings.explore or (self.env.spec.turns and self.env.spec.competitive)
        mode = Mode(explore, phase=phase, streams=Streams(seed, branch=(EVALUATION, number)))
        start = time.monotonic()
        deadline, report_at = start + (settings.timeout_seconds or math.inf), start + FIRST_REPORT
        # below a wrapper, which may repeat actions, the limit counts steps that are not the agent's
        least = 0 if self.config.environment.wrappers else self.limit or 0
        first, steps, cut = number * EPISODES_APART, 0, 0
        finished: list[Episode] = []
        quota = self._quota(settings.episodes)
        step, carry = self.env.reset(first), self.workflow.initial_carry(self.num_envs)
        while len(finished) < settings.episodes and not stop() and (now := time.monotonic()) < deadline:
            acted = self.act(step, carry, mode)
            carry = acted.carry
            step = self.env.step(acted.action)
            steps += self.num_envs
            if (step.terminated | step.truncated).any():
                new = [episode for episode in self.env.episodes() if episode.number - first < quota[episode.env]]
                finished += new
                if self.limit is not None:
                    cut += sum(step.truncated[episode.env] and episode.length >= least for episode in new)
            if now >= report_at:
                self.report(f"evaluating: {len(finished)} of {settings.episodes} episodes, {steps:,} steps")
                report_at = start + 2 * (now - start)
        finished.sort(key=lambda episode: (episode.number, episode.env))
        return Evaluation(finished, settings.episodes, self.env.spec.groups, self.limit, int(cut))

    def _quota(self, episodes: int) -> list[int]:
        """Return how many first episodes of each environment count; else short episodes would be preferred."""
        share, rest = divmod(episodes, self.num_envs)
        return [share + (index < rest) for index in range(self.num_envs)]

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
