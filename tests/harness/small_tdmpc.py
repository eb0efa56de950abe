"""TD-MPC small enough for slow reference computations, and its outputs as plain numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cadenza.workflows.tdmpc_steps import StretchBatch, UpdateNoise

SMALL = [
    "environment.num_envs=2",
    "algorithm.buffer_size=400",
    "algorithm.warmup_steps=80",
    "algorithm.pretrain_updates=0",
    "algorithm.batch_size=6",
    "algorithm.horizon=3",
    *(f"algorithm.planning.{key}" for key in ("horizon=3", "samples=10", "policy_samples=2", "elites=4")),
    *(f"algorithm.model.{key}" for key in ("latent=16", "units=8", "encoder_units=8", "ends=true")),
    "runtime.threads=1",
]


def stirred(workflow: Any) -> None:
    """Set all weights to random values, those of the slow copies, too."""
    generator = torch.Generator().manual_seed(5)
    for net in (workflow.model, *(target.net for target in workflow.targets.values())):
        for parameter in net.parameters():
            with torch.no_grad():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def batch_of(workflow: Any, actions: int = 1, seed: int = 0) -> tuple[StretchBatch, UpdateNoise]:
    """Return a batch with episodes that end within a stretch, and noise that drops half of the critics' units."""
    generator, config = torch.Generator().manual_seed(seed), workflow.config
    steps, many, critics = config.horizon, config.batch_size, config.model.critics
    valid = torch.ones(steps, many)
    valid[2:, 1] = 0
    valid[1:, 2] = 0
    terminated = torch.zeros(steps, many)
    terminated[1, 1] = 1
    batch = StretchBatch(
        obs={"vector": torch.randn(steps + 1, many, 3, generator=generator)},
        action=2 * torch.rand(steps, many, actions, generator=generator) - 1,
        reward=torch.randn(steps, many, generator=generator),
        terminated=terminated,
        valid=valid,
        weight=torch.rand(many, generator=generator),
    )
    normal = [torch.randn(steps + extra, many, actions, generator=generator) for extra in (0, 1)]
    dropout = [
        (torch.rand(members, states * many, config.model.units, generator=generator) < 0.5).float()
        for members, states in ((critics, steps), (2, steps + 1))
    ]
    return batch, UpdateNoise(
        normal[0], normal[1], torch.tensor([critics - 1, 0]), torch.tensor([0, critics - 1]), *dropout
    )


def number(workflow: Any, output: Tensor) -> float:
    """Return the number that one output of a network represents."""
    if workflow.config.model.numbers == "plain":
        return float(output)
    probs = torch.softmax(output.double(), -1)
    inner = float(sum(p * (-10 + 0.2 * k) for k, p in enumerate(probs)))
    return math.copysign(math.exp(abs(inner)) - 1, inner)


def cost(workflow: Any, output: Tensor, target: float) -> float:
    """Return the loss of one output for a target."""
    if workflow.config.model.numbers == "plain":
        return (float(output) - target) ** 2
    place = (math.copysign(math.log(1 + abs(target)), target) + 10) / 0.2
    low = math.floor(place)
    logs = torch.log_softmax(output.double(), -1)
    return -float((1 - place + low) * logs[low] + (place - low) * logs[low + 1])
