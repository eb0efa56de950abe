"""A small algorithm that learns to predict rewards, and fails at a selected gradient step in a selected way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.schema import Hook, Phase
from cadenza.config.setting import setting
from cadenza.types import Acted, Context, EnvSpec, Mode, PhaseInfo, Step, Store, Tree, Updated

STEPS = 4  # gradient steps of an update


@dataclass(frozen=True)
class LearnerConfig:
    name: str = setting("learner", "name of the variant")
    fault: Literal["", "module", "loss", "gradient", "parameter", "step", "state", "raise", "acting"] = setting(
        "", "what goes wrong"
    )
    fault_at: int = setting(0, "first gradient step that fails", "updates")
    dead: bool = setting(False, "whether no unit of the first layer is ever active")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        pass


class Recent:
    """The observations and rewards of the latest steps."""

    def __init__(self) -> None:
        self.obs = np.zeros((0, 4), np.float32)
        self.reward = np.zeros((0, 1), np.float32)

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        self.obs = np.concatenate([self.obs, step.obs["agent"][:, 0]])[-64:]
        self.reward = np.concatenate([self.reward, after.reward["agent"]])[-64:]

    def ready(self) -> bool:
        return len(self.obs) > 0

    def cut(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"obs": self.obs, "reward": self.reward}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.obs, self.reward = state["obs"], state["reward"]


class Odd(nn.Module):
    """The identity, or a division by zero if `broken`."""

    broken = False

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.zeros_like(x) if self.broken else x


class Learner:
    hooks = ("update",)

    def __init__(self, config: LearnerConfig, context: Context) -> None:
        self.config, self.context = config, context
        self.nets: dict[str, Any] = {
            "body": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Odd()),
            "head": nn.Sequential(nn.Linear(8, 1)),
        }
        if config.dead:
            nn.init.constant_(self.nets["body"][0].bias, -1e6)
        self.scale = nn.Parameter(torch.ones(()))
        parameters = [p for net in self.nets.values() for p in net.parameters()]
        self.optimizer = torch.optim.SGD([*parameters, self.scale], lr=0.01)
        self.mean = torch.zeros(4)
        self.steps = 0

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        with torch.inference_mode():
            guess = self.nets["body"](torch.from_numpy(step.obs["agent"]))
        noise = torch.rand(len(guess), generator=mode.streams.torch("noise"))
        extras = {"guess": guess.sum(-1).numpy()}
        if self.fails("acting"):
            extras["guess"] = extras["guess"] * np.float32("nan")
        return Acted({"agent": (noise < 0.5).long().numpy()[:, None]}, {"agent": extras}, carry)

    def fails(self, fault: str) -> bool:
        return self.config.fault == fault and self.steps >= self.config.fault_at

    def update(self, store: Recent, phase: PhaseInfo) -> Updated:
        for _ in range(STEPS):
            rows = torch.randint(len(store.obs), (16,), generator=self.context.streams.torch("rows"))
            obs, reward = torch.from_numpy(store.obs)[rows], torch.from_numpy(store.reward)[rows]
            if self.fails("raise"):
                raise ValueError("asked to fail")
            self.nets["body"][2].broken = self.fails("module")
            loss = (self.nets["head"](self.nets["body"](obs - self.mean)) * self.scale - reward).square().mean()
            if self.fails("loss"):
                loss = loss + torch.log(loss - loss) * 0
            if self.fails("gradient"):
                loss = loss + torch.sqrt(self.nets["head"][0](torch.ones(8)) * 0).sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.param_groups[0]["lr"] = float("inf") if self.fails("step") else 0.01
            self.optimizer.step()
            self.steps += 1
            if self.fails("parameter"):
                self.nets["head"][0].weight.data[0, 3] = torch.inf
        self.mean = self.mean * 0.9 + obs.mean(0) * (torch.nan if self.fails("state") else 0.1)
        return Updated(STEPS, {"train/loss": loss.detach()})

    def stores(self) -> dict[str, Store]:
        return {"recent": Recent()}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("train", (Hook("collect", steps=32), Hook("update")), buffer="recent"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        for name, net in self.nets.items():
            net.load_state_dict(state["networks"][name])

    def state_dict(self) -> dict[str, Any]:
        networks = {name: net.state_dict() for name, net in self.nets.items()}
        return {"networks": networks, "scale": self.scale.data, "mean": self.mean, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_weights(state)
        self.scale.data.copy_(state["scale"])
        self.mean, self.steps = state["mean"], state["steps"]
