"""An algorithm with replay whose weights and priorities depend on everything that it samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cadenza.config.schema import Hook, Phase
from cadenza.config.setting import setting
from cadenza.data.replay import ReplayStore
from cadenza.types import Acted, Context, EnvSpec, Mode, PhaseInfo, Step, Store, Tree, Updated


@dataclass(frozen=True)
class ReplayProbeConfig:
    name: str = setting("replay_probe", "name of the variant")
    capacity: int = setting(200, "rows")
    on_disk: bool = setting(False, "where they are")
    fault_at: int | None = setting(None, "update from which on the loss is not finite")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        pass


class ReplayProbe:
    Config = ReplayProbeConfig
    hooks = ("update",)

    def __init__(self, config: ReplayProbeConfig, context: Context) -> None:
        self.config, self.context = config, context
        self.weights = torch.zeros(3)
        self.updates = 0

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        action = mode.streams.numpy("act").integers(0, 2, step.is_first.shape)[:, None]
        return Acted({"agent": action}, {"agent": {}}, carry)

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        batch = store.sample(8, self.context.streams.numpy("replay"), n_step=3, gamma=0.9, beta=0.5)
        sampled = np.concatenate([batch.groups["agent"][name].ravel() for name in ("obs", "next_obs", "reward")])
        self.weights = self.weights * 0.9 + float(sampled.mean(dtype=np.float64))
        store.update_priorities(batch.index, np.abs(batch.groups["agent"]["obs"].sum(axis=(1, 2))) + 0.1)
        self.updates += 1
        bad = self.config.fault_at is not None and self.updates >= self.config.fault_at
        return Updated(1, {"train/loss": self.weights.sum() * (float("nan") if bad else 1.0)})

    def stores(self) -> dict[str, Store]:
        config = self.config
        return {"replay": ReplayStore(config.capacity, self.context.num_envs, alpha=0.6, on_disk=config.on_disk)}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("train", (Hook("collect", steps=8), Hook("update")), buffer="replay"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.weights = state["networks"]["weights"]

    def state_dict(self) -> dict[str, Any]:
        return {"networks": {"weights": self.weights}, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_weights(state)
        self.updates = state["updates"]
