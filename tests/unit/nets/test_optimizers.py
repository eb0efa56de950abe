from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza.config.networks import OptimizerConfig
from cadenza.nets.optimizers import clip_gradients, optimizer


def train(net: torch.nn.Module, step: object, steps: range) -> None:
    for k in steps:
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(8, 3, generator=generator)
        for parameter in net.parameters():
            parameter.grad = None
        (net(x) ** 2).mean().backward()
        step(k)  # type: ignore[operator]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def rate(k: int) -> torch.Tensor:
    return torch.tensor(0.01 / (k + 1))


THEIRS: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.0), eps=1e-5, fused=True),
    "adam decay": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.0), eps=1e-5, weight_decay=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.0), eps=1e-5, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.0),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.0, eps=1e-5),
    "rmsprop momentum": lambda p: torch.optim.RMSprop(p, lr=0.0, eps=1e-5, momentum=0.9, alpha=0.9),
}
OURS = {
    "adam": OptimizerConfig(),
    "adam decay": OptimizerConfig(weight_decay=0.1),
    "adamw": OptimizerConfig("adamw", weight_decay=0.1),
    "sgd": OptimizerConfig("sgd"),
    "sgd momentum": OptimizerConfig("sgd", momentum=0.9, weight_decay=0.1),
    "rmsprop": OptimizerConfig("rmsprop"),
    "rmsprop momentum": OptimizerConfig("rmsprop", momentum=0.9, alpha=0.9),
}


@pytest.mark.parametrize("which", OURS)
def test_each_equals_torchs_over_a_schedule(which: str) -> None:
    ours, theirs = network(), network()
    mine = optimizer(ours, OURS[which])
    reference = THEIRS[which](theirs.parameters())

    def step_theirs(k: int) -> None:
        reference.param_groups[0]["lr"] = rate(k) if "adam" in which else float(rate(k))
        reference.step()

    train(ours, lambda k: mine.step(rate(k)), range(20))
    train(theirs, step_theirs, range(20))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        if "adam" in which:  # the same kernel
            assert torch.equal(a, b)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("which", OURS)
def test_each_goes_on_after_a_restore(which: str) -> None:
    whole, first, second = network(), network(), network()
    one, two, three = (optimizer(net, OURS[which]) for net in (whole, first, second))
    train(whole, lambda k: one.step(rate(k)), range(10))
    train(first, lambda k: two.step(rate(k)), range(4))
    second.load_state_dict(first.state_dict())
    three.load_state_dict(two.state_dict())
    train(second, lambda k: three.step(rate(k)), range(4, 10))
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_without_a_gradient_stay() -> None:
    net = network()
    adam = optimizer(net, OptimizerConfig())
    before = net[2].weight.clone()  # type: ignore[index,operator]
    net[0].weight.grad = torch.ones_like(net[0].weight)  # type: ignore[index,arg-type]
    adam.step(torch.tensor(0.1))
    assert torch.equal(net[2].weight, before)  # type: ignore[index,arg-type]
    adam.zero_grad()
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("limit", [None, 0.01, 1e6])
def test_gradients_are_clipped_together_and_their_norms_told_apart(limit: float | None) -> None:
    net, reference = network(), network()
    for one in (net, reference):
        (one(torch.ones(8, 3)) ** 2).mean().backward()
    first = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in reference[0].parameters()]))  # type: ignore
    total = torch.nn.utils.clip_grad_norm_(reference.parameters(), float("inf") if limit is None else limit)
    norms = clip_gradients({"first": net[0], "rest": net[2], "silent": torch.nn.Tanh()}, limit)  # type: ignore[index]
    assert norms.keys() == {"first", "rest", "all"}
    torch.testing.assert_close(norms["all"], total)
    torch.testing.assert_close(norms["first"], first)
    for a, b in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_training_never_imports_the_compiler(tmp_path: Path) -> None:
    arguments = ["train", "CartPole-v1:ppo", "--max-timesteps", "512", "--quiet", "--runs-dir", str(tmp_path)]
    code = f"import sys; from cadenza.cli.main import run; run({arguments}); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
