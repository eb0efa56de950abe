from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from cadenza.nets.adam import Adam


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


def test_it_equals_torchs_adam_bit_for_bit_over_a_schedule() -> None:
    ours, theirs = network(), network()
    mine = Adam(ours.named_parameters(), eps=1e-5)
    reference = torch.optim.Adam(theirs.parameters(), lr=torch.tensor(0.0), eps=1e-5, fused=True)

    def step_theirs(k: int) -> None:
        reference.param_groups[0]["lr"] = rate(k)
        reference.step()

    train(ours, lambda k: mine.step(rate(k)), range(20))
    train(theirs, step_theirs, range(20))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_it_goes_on_after_a_restore() -> None:
    whole, first, second = network(), network(), network()
    one, two, three = (Adam(net.named_parameters(), eps=1e-8) for net in (whole, first, second))
    train(whole, lambda k: one.step(rate(k)), range(10))
    train(first, lambda k: two.step(rate(k)), range(4))
    second.load_state_dict(first.state_dict())
    three.load_state_dict(two.state_dict())
    train(second, lambda k: three.step(rate(k)), range(4, 10))
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_without_a_gradient_stay() -> None:
    net = network()
    optimizer = Adam(net.named_parameters(), eps=1e-8)
    before = net[2].weight.clone()  # type: ignore[index,operator]
    net[0].weight.grad = torch.ones_like(net[0].weight)  # type: ignore[index,arg-type]
    optimizer.step(torch.tensor(0.1))
    assert torch.equal(net[2].weight, before)  # type: ignore[index,arg-type]
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_training_never_imports_the_compiler(tmp_path: Path) -> None:
    arguments = ["train", "CartPole-v1:ppo", "--max-timesteps", "512", "--quiet", "--runs-dir", str(tmp_path)]
    code = f"import sys; from cadenza.cli.main import run; run({arguments}); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
