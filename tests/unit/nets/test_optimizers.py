from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza.config import plugins
from cadenza.config.networks import OptimizerConfig
from cadenza.errors import ConfigError
from cadenza.nets.optimizers import optimizer


def train(net: torch.nn.Module, step: object, steps: range) -> None:
    for k in steps:
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(8, 3, generator=generator)
        for parameter in net.parameters():
            parameter.grad = None
        (net(x) ** 2).mean().backward()
        step(k)  # type: ignore[operator]


def network() -> Any:
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
OWN = {
    "torch's RAdam": OptimizerConfig("torch.optim:RAdam", kwargs={"weight_decay": 0.1}),
    "torch's Adafactor": OptimizerConfig("torch.optim:Adafactor"),  # with a state for rows and one for columns
}
LAPROP = {"laprop": OptimizerConfig("laprop", eps=1e-20, agc=0.3, warmup=5)}  # torch has none


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
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("which", [*OURS, *LAPROP, *OWN])
def test_each_goes_on_after_a_restore(which: str) -> None:
    whole, first, second = network(), network(), network()
    one, two, three = (optimizer(net, {**OURS, **LAPROP, **OWN}[which]) for net in (whole, first, second))
    train(whole, lambda k: one.step(rate(k)), range(10))
    train(first, lambda k: two.step(rate(k)), range(4))
    second.load_state_dict(first.state_dict())
    three.load_state_dict(two.state_dict())
    train(second, lambda k: three.step(rate(k)), range(4, 10))
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_are_views_of_one_vector_and_gradients_of_another() -> None:
    net = network()
    before = [p.clone() for p in net.parameters()]
    adam = optimizer(net, OptimizerConfig())
    for p, old in zip(net.parameters(), before, strict=True):
        assert torch.equal(p, old)
    (block,) = adam.blocks.values()
    assert len(block.values) == sum(p.numel() for p in net.parameters())
    (net(torch.ones(8, 3)) ** 2).mean().backward()
    torch.testing.assert_close(block.gradient, torch.cat([p.grad.flatten() for p in net.parameters()]))
    assert block.gradient.any()
    block.values.zero_()
    assert not any(p.any() for p in net.parameters())
    adam.zero_grad()
    assert not any(p.grad.any() for p in net.parameters())


def test_gradients_that_were_put_elsewhere_count_and_none_is_zero() -> None:
    net = network()
    sgd = optimizer(net, OptimizerConfig("sgd"))
    before = [p.clone() for p in net.parameters()]
    net.zero_grad()  # sets them to None
    net[0].weight.grad = torch.ones_like(net[0].weight)
    sgd.step(torch.tensor(0.1))
    torch.testing.assert_close(net[0].weight, before[0] - 0.1)
    for p, old in list(zip(net.parameters(), before, strict=True))[1:]:
        assert torch.equal(p, old)


@pytest.mark.parametrize("limit", [None, 0.01, 1e6])
def test_gradients_are_clipped_together_and_their_norms_told_apart(limit: float | None) -> None:
    net, reference = network(), network()
    parts = {"first": net[0], "rest": net[2], "silent": torch.nn.Tanh()}
    sgd = optimizer(net, OptimizerConfig("sgd"), parts)
    for one in (net, reference):
        (one(torch.ones(8, 3)) ** 2).mean().backward()
    first = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in reference[0].parameters()]))
    total = torch.nn.utils.clip_grad_norm_(reference.parameters(), float("inf") if limit is None else limit)
    norms = sgd.step(torch.tensor(0.1), limit)
    assert norms.keys() == {"first", "rest", "all"}
    torch.testing.assert_close(norms["all"], total)
    torch.testing.assert_close(norms["first"], first)
    for a, b in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
        torch.testing.assert_close(a, b - 0.1 * b.grad)


def test_frozen_parameters_are_nobodys_business() -> None:
    net = network()
    net[0].requires_grad_(False).double()
    before = net[0].weight.clone()
    adamw = optimizer(net, OptimizerConfig("adamw", weight_decay=0.1))
    net[2](torch.ones(8, 5)).sum().backward()
    adamw.step(torch.tensor(0.1))
    assert torch.equal(net[0].weight, before)
    assert adamw.state_dict()["means"].keys() == {"2.weight", "2.bias"}


def test_only_some_parts_can_be_moved() -> None:
    net = network()
    adam = optimizer(net, OptimizerConfig(), {"first": net[0], "rest": net[2]})
    for _ in range(2):  # the second time there is momentum everywhere
        before = [p.clone() for p in net.parameters()]
        adam.zero_grad()
        (net(torch.ones(8, 3)) ** 2).mean().backward()
        norms = adam.step(torch.tensor(0.1), 0.5, only=("rest",) if _ else None)
    assert norms.keys() == {"rest", "all"}
    moved = [not torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]
    steps = adam.state_dict()["steps"]
    assert [int(steps[name]) for name in ("0.weight", "2.weight")] == [1, 2]


def test_training_never_imports_the_compiler(tmp_path: Path) -> None:
    arguments = ["train", "CartPole-v1:ppo", "--max-timesteps", "512", "--quiet", "--runs-dir", str(tmp_path)]
    code = f"import sys; from cadenza.cli.main import run; run({arguments}); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def laprop_by_hand(
    parameters: list[list[float]], gradients: list[list[list[float]]], rates: list[float], config: OptimizerConfig
) -> list[list[float]]:
    """Compute LaProp number by number, with averages as explicit sums over all gradients so far."""
    first, second = config.betas
    values = [list(tensor) for tensor in parameters]
    held: list[list[list[float]]] = []  # the gradients, once they were held to the norm
    moves: list[list[list[float]]] = []
    for n, now in enumerate(gradients, 1):
        kept, divided = [], []
        for k, gradient in enumerate(now):
            size, own = (math.sqrt(math.fsum(x * x for x in vector)) for vector in (gradient, values[k]))
            limit = config.agc * max(1e-3, own) if config.agc else math.inf
            kept.append([x * min(1.0, limit / size) if size else 0.0 for x in gradient])
        held.append(kept)
        for k, gradient in enumerate(kept):
            weights = [second ** (n - j) for j in range(1, n + 1)]
            squares = [
                math.fsum(w * past[k][i] ** 2 for w, past in zip(weights, held, strict=True)) / math.fsum(weights)
                for i in range(len(gradient))
            ]
            divided.append([g / (math.sqrt(s) + config.eps) for g, s in zip(gradient, squares, strict=True)])
        moves.append(divided)
        weights = [first ** (n - j) for j in range(1, n + 1)]
        ramp = min(1.0, (n - 1) / config.warmup) if config.warmup else 1.0
        for k, tensor in enumerate(values):
            for i in range(len(tensor)):
                mean = math.fsum(w * past[k][i] for w, past in zip(weights, moves, strict=True)) / math.fsum(weights)
                tensor[i] -= rates[n - 1] * ramp * (mean + config.weight_decay * tensor[i])
    return values


@pytest.mark.parametrize(
    "config",
    [
        OptimizerConfig("laprop", eps=1e-20),
        OptimizerConfig("laprop", eps=1e-8, agc=0.3, warmup=7),
        OptimizerConfig("laprop", eps=1e-20, betas=(0.5, 0.9), weight_decay=0.1, agc=0.01),
    ],
)
def test_laprop_equals_its_definition_number_by_number(config: OptimizerConfig) -> None:
    net = network().double()
    with torch.no_grad():
        net[2].bias.zero_()  # the smallest norm there is
    mine = optimizer(net, config)
    start = [p.flatten().tolist() for p in net.parameters()]
    generator = torch.Generator().manual_seed(0)
    gradients, rates = [], []
    for k in range(15):
        now = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * 10 ** (k % 5 - 3) for p in net.parameters()]
        for parameter, gradient in zip(net.parameters(), now, strict=True):
            parameter.grad = gradient
        gradients.append([gradient.flatten().tolist() for gradient in now])
        rates.append(0.01 / (k + 1))
        norms = mine.step(torch.tensor(rates[-1], dtype=torch.float64))
        before = math.sqrt(sum(x * x for gradient in gradients[-1] for x in gradient))
        assert float(norms["all"]) == pytest.approx(before)  # what is told is the norm before it was held
    for ours, by_hand in zip(net.parameters(), laprop_by_hand(start, gradients, rates, config), strict=True):
        assert ours.flatten().tolist() == pytest.approx(by_hand, rel=1e-5, abs=1e-9)


def test_a_gradient_is_held_to_a_share_of_its_tensor_and_one_of_zeros_stays() -> None:
    net = torch.nn.Linear(4, 3)
    sgd = optimizer(net, OptimizerConfig("sgd", agc=0.5))
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    net.weight.grad, net.bias.grad = 100 * torch.ones(3, 4), torch.zeros(3)
    sgd.step(torch.tensor(1.0))
    assert float((net.weight.detach() - weight).norm()) == pytest.approx(0.5 * float(weight.norm()), rel=1e-5)
    assert torch.equal(net.bias, bias)


def test_warm_up_belongs_to_laprop() -> None:
    with pytest.raises(ConfigError, match="warmup belongs to laprop, not to adam"):
        OptimizerConfig(warmup=10)


def test_an_optimizer_of_a_user_steps_as_it_does_alone() -> None:
    ours, theirs = network(), network()
    mine = optimizer(ours, OWN["torch's RAdam"])
    reference = torch.optim.RAdam(theirs.parameters(), weight_decay=0.1)

    def step_theirs(k: int) -> None:
        reference.param_groups[0]["lr"] = float(rate(k))
        reference.step()

    train(ours, lambda k: mine.step(rate(k)), range(20))
    train(theirs, step_theirs, range(20))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    assert mine.state_dict()["state"].keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_an_optimizer_of_a_user_leaves_idle_parts_and_their_gradients_alone() -> None:
    net = network()
    radam = optimizer(net, OWN["torch's RAdam"], {"first": net[0], "rest": net[2]})
    (net(torch.ones(8, 3)) ** 2).mean().backward()
    before = [p.clone() for p in net.parameters()]
    gradients = [p.grad.clone() for p in net.parameters()]
    radam.step(0.1, only=["rest"])
    moved = [not torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]
    for p, gradient in zip(net.parameters(), gradients, strict=True):
        assert torch.equal(p.grad, gradient)


class Replacing(torch.optim.Optimizer):
    """Puts new tensors where the parameters were, and counts steps in 64 bits."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1.0})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", torch.zeros((), dtype=torch.int64)) + 1
                p.data = p.data - group["lr"] * p.grad / state["count"]


def test_values_that_an_optimizer_puts_elsewhere_reach_kernels_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered["optimizer"], "replacing", Replacing)
    net, same = network(), network()
    config = OptimizerConfig("replacing")
    one, two = optimizer(net, config), optimizer(same, config)
    view = net[0].weight.detach().numpy()  # as a kernel on NumPy holds it
    train(net, lambda k: one.step(0.1), range(3))
    assert (view == net[0].weight.detach().numpy()).all()
    assert torch.equal(one.blocks["net"].values, torch.cat([p.flatten() for p in net.parameters()]))
    same.load_state_dict(net.state_dict())
    two.load_state_dict(one.state_dict())
    assert two.state_dict()["state"]["0.weight"]["count"].dtype == torch.int64
    train(net, lambda k: one.step(0.1), range(3, 5))
    train(same, lambda k: two.step(0.1), range(3, 5))
    for a, b in zip(net.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)


class Clearing(torch.optim.SGD):
    """Drops the gradients after each step."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.zero_grad()


def test_gradients_of_kernels_survive_an_optimizer_that_drops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered["optimizer"], "clearing", Clearing)
    net = network()
    clearing = optimizer(net, OptimizerConfig("clearing"), {"first": net[0], "rest": net[2]})
    gradient = net[0].weight.grad.numpy()  # as a kernel on NumPy holds it
    before = net[0].weight.detach().clone()
    for only in (None, ["rest"], None):
        gradient[:] = 1
        clearing.step(0.5, only=only)
    torch.testing.assert_close(net[0].weight.detach(), before - 2 * 0.5)


def test_loading_makes_no_state_for_parameters_that_never_moved() -> None:
    nets = network(), network()
    one, other = (optimizer(net, OWN["torch's RAdam"], {"first": net[0], "rest": net[2]}) for net in nets)
    (nets[0](torch.ones(8, 3)) ** 2).mean().backward()
    one.step(0.1, only=["rest"])
    assert one.state_dict()["state"].keys() == {"2.weight", "2.bias"}
    other.load_state_dict(one.state_dict())
    assert other.state_dict()["state"].keys() == {"2.weight", "2.bias"}


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("torch.optim:LBFGS", {}, "cannot make a step from gradients alone"),
        ("torch.optim:RAdam", {"speed": 1}, "cannot be made with its kwargs"),
        ("torch.nn:Identity", {}, "must be a torch.optim.Optimizer, not a Identity"),
        ("torch.optim:Sgd", {}, "cannot import 'torch.optim:Sgd'"),
    ],
)
def test_an_optimizer_that_cannot_work_is_refused(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optimizer(network(), OptimizerConfig(name, kwargs=kwargs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "radam"}, "'radam': must be one of adam, adamw, sgd, rmsprop, laprop, or an import path"),
        ({"name": "torch.optim:RAdam", "eps": 0.1}, "eps belongs to cadenza's own optimizers"),
        ({"name": "torch.optim:RAdam", "kwargs": {"lr": 0.1}}, "the step size is the algorithm's learning_rate"),
        ({"kwargs": {"lr": 0.1}}, "kwargs belong to an optimizer of yours, not to adam"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**settings)
