"""An algorithm that learns nothing and uses everything the engine offers: memory, extras, two stores, offline hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cadenza.config.schema import Hook, Phase
from cadenza.config.setting import setting
from cadenza.types import Acted, Context, EnvSpec, Mode, PhaseInfo, Step, Store, Tree, Updated


@dataclass(frozen=True)
class MemoryConfig:
    name: str = setting("memory", "name of the variant")
    offline: bool = setting(False, "whether the algorithm's own phases collect")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        pass


class Tape:
    """A store that records the memory of every step."""

    def __init__(self) -> None:
        self.carries: list[float] = []
        self.cuts = 0

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        self.carries.append(float(acted.extras["agent"]["memory"].sum()))

    def ready(self) -> bool:
        return True

    def cut(self) -> None:
        self.cuts += 1

    def state_dict(self) -> dict[str, Any]:
        return {"carries": list(self.carries), "cuts": self.cuts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.carries, self.cuts = list(state["carries"]), state["cuts"]


class Memory:
    hooks = ("update", "update_model")

    def __init__(self, config: MemoryConfig, context: Context) -> None:
        self.config, self.context = config, context
        self.weights = torch.zeros(3)
        self.phase_log: list[PhaseInfo] = []
        self.forced: list[Any] = []
        self.used: list[Store] = []

    def initial_carry(self, num_envs: int) -> Tree:
        return {"steps": torch.zeros(num_envs)}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Count the steps of each episode in the memory; draw random actions, also in evaluations."""
        steps = torch.where(torch.from_numpy(step.is_first), 0.0, carry["steps"]) + 1
        noise = torch.rand(len(steps), generator=mode.streams.torch("noise"))
        if mode.forced is not None:
            self.forced.append(mode.forced["agent"])
        action = (noise.numpy() < 0.5).astype(np.int64)[:, None]
        return Acted({"agent": action}, {"agent": {"memory": steps.numpy()[:, None]}}, {"steps": steps})

    def update(self, store: Store, phase: PhaseInfo) -> Updated:
        self.phase_log.append(phase)
        self.used.append(store)
        self.weights = self.weights + torch.rand(3, generator=self.context.streams.torch("learn"))
        return Updated(1, {"train/sum": self.weights.sum()})

    update_model = update

    def stores(self) -> dict[str, Store]:
        return {"main": Tape(), "other": Tape()}

    def phases(self) -> tuple[Phase, ...]:
        if self.config.offline:
            return (Phase("fit", (Hook("update"),), type="offline", buffer="main"),)
        return (Phase("train", (Hook("collect", steps=8), Hook("update")), buffer="main"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.weights = state["networks"]["weights"]

    def state_dict(self) -> dict[str, Any]:
        return {"networks": {"weights": self.weights}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["networks"]["weights"]
