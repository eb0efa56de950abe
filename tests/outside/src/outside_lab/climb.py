"""Hill climbing on the weights of a linear policy: try them with noise, keep what earned more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim

from cadenza.config.schema import Hook, Phase
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import Acted, Context, EnvSpec, Mode, PhaseInfo, Step, Store, Tree, Updated


@dataclass(frozen=True)
class ClimbConfig:
    """Hill climbing."""

    name: str = setting("climb", "name of the variant")
    trial_steps: int = setting(80, "what each trial lasts", "env_steps")
    noise: float = setting(0.5, "standard deviation of what is added to the weights")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        for group in env.groups.values():
            if not isinstance(group.observation, spaces.Box) or not isinstance(group.action, spaces.Discrete):
                raise ConfigError(f"climb takes Box observations and Discrete actions; {env.id} has others")


class Tally:
    """What has been earned since last asked."""

    def __init__(self) -> None:
        self.earned, self.steps = 0.0, 0

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        self.earned += float(sum(reward.sum() for reward in after.reward.values()))
        self.steps += len(after.terminated)

    def ready(self) -> bool:
        return self.steps > 0

    def cut(self) -> None:
        pass

    def take(self) -> float:
        mean = self.earned / self.steps
        self.earned, self.steps = 0.0, 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        return {"earned": self.earned, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.earned, self.steps = state["earned"], state["steps"]


class Climb:
    """Hill climbing on a linear policy."""

    Config = ClimbConfig
    hooks = ("update",)

    def __init__(self, config: ClimbConfig, context: Context) -> None:
        self.config, self.context = config, context
        groups = context.env.groups.items()
        self.best = {name: torch.zeros(flatdim(group.observation), flatdim(group.action)) for name, group in groups}
        self.trial = {name: weights.clone() for name, weights in self.best.items()}
        self.record: float | None = None

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        weights = self.trial if mode.explore else self.best
        scores = {name: torch.from_numpy(step.obs[name]) @ weights[name] for name in weights}
        action = {name: score.argmax(-1).numpy().astype(np.int64) for name, score in scores.items()}
        return Acted(action, {name: {} for name in action}, carry)

    def update(self, store: Tally, phase: PhaseInfo) -> Updated:
        earned = store.take()
        if self.record is None or earned >= self.record:
            self.best, self.record = self.trial, earned
        noise = self.context.streams.torch("climb.noise")
        self.trial = {
            name: weights + self.config.noise * torch.randn(weights.shape, generator=noise)
            for name, weights in self.best.items()
        }
        return Updated(1, {"train/earned": earned, "train/record": self.record})

    def stores(self) -> dict[str, Store]:
        return {"tally": Tally()}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("train", (Hook("collect", steps=self.config.trial_steps), Hook("update")), buffer="tally"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.best = dict(state["best"])

    def state_dict(self) -> dict[str, Any]:
        return {"best": dict(self.best), "trial": dict(self.trial), "record": self.record}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.trial, self.record = dict(state["best"]), dict(state["trial"]), state["record"]
