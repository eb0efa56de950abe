"""SAC's losses against an independent implementation, and what its fields mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.config.load import load
from cadenza.config.networks import NetworkConfig, OptimizerConfig
from cadenza.engine.build import assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.nets.observe import VECTOR
from harness.collecting import PHASE, warming

SMALL = "algorithm.batch_size=16", "algorithm.buffer_size=500", "algorithm.warmup_steps=64"
NARROW = "algorithm.actor.hidden_sizes=[16]", "algorithm.critic.hidden_sizes=[16, 8]"


@pytest.fixture
def warmed() -> Iterator[Any]:
    with warming([*SMALL, *NARROW]) as warm:
        yield warm


def batch_of(workflow: Any, store: Any) -> Any:
    config = workflow.config
    drawn = store.sample(config.batch_size, np.random.default_rng(0), config.n_step, config.gamma)
    return workflow._batch("agent", drawn)


def forwards(net: Any, member: int, x: torch.Tensor) -> torch.Tensor:
    """One critic, layer by layer."""
    for index, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        x = x @ weight[member] + bias[member, 0]
        if index < len(net.weights) - 1:
            if net.scales:
                x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)
                x = x * net.scales[index][member, 0] + net.shifts[index][member, 0]
            x = torch.relu(x)
    return x


def lowest(critics: Any, *inputs: torch.Tensor) -> torch.Tensor:
    x = torch.cat(inputs, -1)
    members = len(critics.critics.weights[0])
    return torch.stack([forwards(critics.critics, k, x) for k in range(members)])


def parts_of(workflow: Any) -> tuple[Any, Any, Any]:
    return workflow.policies["agent"], workflow.critics["agent"], workflow.targets["agent"].net


def move_away(*nets: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for net in nets:
            for parameter in net.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("extra", [(), ("algorithm.layer_norm=true", "algorithm.critics=3", "algorithm.n_step=3")])
def test_losses_equal_a_plain_implementation_with_continuous_actions(warmed: Any, extra: tuple[str, ...]) -> None:
    settings = "environment.max_episode_steps=30", "runtime.kernels=torch"
    workflow, store = warmed("Pendulum-v1:sac", *settings, *extra)
    policy, critics, targets = parts_of(workflow)
    move_away(policy, critics, targets)
    batch, temperature = batch_of(workflow, store), torch.tensor(0.3)
    assert (batch.goes_on > 0).all()  # a time limit is no end

    def draw(obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = policy.actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        inner = mean + normal.stddev * noise
        squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
        return torch.tanh(inner), squashed.log_prob(torch.tanh(inner)).sum(-1)

    noises = torch.Generator()
    noises.set_state(workflow.context.streams.torch("policy.agent", workflow.device).get_state())
    shape = (*batch.reward.shape, 1)
    loss, value = workflow._critic_loss("agent", batch, temperature)
    action, log_prob = draw(batch.next_obs[VECTOR], torch.empty(shape).normal_(generator=noises))
    following = lowest(targets, batch.next_obs[VECTOR], action).amin(0)[..., 0] - temperature * log_prob
    expected_target = (batch.reward + batch.goes_on * following).detach()
    values = lowest(critics, batch.obs[VECTOR], batch.action / 2)[..., 0]  # Pendulum's actions reach from -2 to 2
    expected = sum(0.5 * (one - expected_target).square().mean() for one in values)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(value, values.mean().detach(), atol=1e-5, rtol=1e-5)

    loss, entropy = workflow._policy_loss("agent", batch, temperature)
    action, log_prob = draw(batch.obs[VECTOR], torch.empty(shape).normal_(generator=noises))
    value = lowest(critics, batch.obs[VECTOR], action).amin(0)[..., 0]
    expected = (temperature * log_prob - value).mean()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(entropy, -log_prob.mean().detach(), atol=1e-4, rtol=1e-4)
    ours, theirs = (torch.autograd.grad(x, list(policy.parameters()), retain_graph=True) for x in (loss, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("trusts", ["min", "mean"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_by_hand_equal_those_of_autograd(warmed: Any, trusts: str, activation: str) -> None:
    """On the same batch and with the same noise, agents that did not act and deviations at their bounds among them."""
    settings = f"algorithm.actor.activation={activation}", f"algorithm.critic.activation={activation}"
    found = []
    for kernels in ("numpy", "torch"):
        made = f"algorithm.policy_trusts={trusts}", f"runtime.kernels={kernels}", "algorithm.critics=3"
        workflow, store = warmed("HalfCheetah-v5:sac", *settings, *made)
        assert bool(workflow.kernels) == (kernels == "numpy")
        policy, critics, _ = parts_of(workflow)
        move_away(*parts_of(workflow))
        with torch.no_grad():
            policy.actor[-1].bias[-1] = 4.0  # this deviation would be above its bound
        batch = batch_of(workflow, store)
        batch.weight[::5] = 0.0
        figures = [float(x) for x in workflow._critic_gradients("agent", batch, torch.tensor(0.3))]
        figures += [float(x) for x in workflow._policy_gradients("agent", batch, torch.tensor(0.3))]
        gradients = [p.grad.clone() for net in (critics, policy) for p in net.parameters() if p.grad is not None]
        found.append((figures, gradients))
    by_hand, by_autograd = found
    assert by_hand[0] == pytest.approx(by_autograd[0], rel=1e-4)
    assert len(by_hand[1]) == len(by_autograd[1]) == 6 + 4
    assert all(gradient.abs().sum() > 0 for gradient in by_hand[1])
    torch.testing.assert_close(by_hand[1], by_autograd[1], atol=2e-5, rtol=2e-4)


def test_actions_by_hand_are_the_policys(warmed: Any) -> None:
    workflow, _ = warmed("HalfCheetah-v5:sac")
    policy = workflow.policies["agent"]
    move_away(policy)
    vector = np.random.default_rng(0).standard_normal((5, 1, 17), np.float32)
    with torch.no_grad():
        expected = policy.head.mode(policy({VECTOR: torch.from_numpy(vector)}), None).numpy()
    np.testing.assert_allclose(workflow.kernels["agent"].act(vector, None), expected, atol=1e-6)
    many = np.repeat(vector[:1], 20_000, 0)
    drawn = np.arctanh(workflow.kernels["agent"].act(many, np.random.default_rng(1)).clip(-1 + 1e-6, 1 - 1e-6))
    with torch.no_grad():
        mean, log_std = policy({VECTOR: torch.from_numpy(vector[:1])}).chunk(2, -1)
        log_std = log_std + workflow.config.log_std_init
    np.testing.assert_allclose(np.median(drawn, 0), mean[0], atol=0.05)
    within = (np.abs(drawn - mean.numpy()) < log_std.exp().numpy()).mean(0)
    np.testing.assert_allclose(within, 0.683, atol=0.02)


def test_losses_equal_a_plain_implementation_with_discrete_actions(warmed: Any) -> None:
    workflow, store = warmed("CartPole-v1:sac", "algorithm.warmup_steps=400", "algorithm.n_step=5")
    policy, critics, targets = parts_of(workflow)
    move_away(policy, critics, targets)
    batch, temperature = batch_of(workflow, store), torch.tensor(0.3)
    assert (batch.goes_on == 0).any()
    loss, _ = workflow._critic_loss("agent", batch, temperature)
    total = 0.0
    for k in range(len(batch.reward)):
        probs = torch.softmax(policy.actor(batch.next_obs[VECTOR][k, 0]), -1)
        q = lowest(targets, batch.next_obs[VECTOR][k, 0]).amin(0)
        soft = sum(float(p * (q_a - temperature * p.log())) for p, q_a in zip(probs, q, strict=True))
        target = float(batch.reward[k, 0] + batch.goes_on[k, 0] * soft)
        for one in lowest(critics, batch.obs[VECTOR][k, 0]):
            total += 0.5 * (float(one[batch.action[k, 0]]) - target) ** 2 / len(batch.reward)
    assert float(loss) == pytest.approx(total, rel=1e-4)
    loss, entropy = workflow._policy_loss("agent", batch, temperature)
    choice = torch.distributions.Categorical(logits=policy.actor(batch.obs[VECTOR]))
    q = lowest(critics, batch.obs[VECTOR]).amin(0).detach()
    expected = (choice.probs * (temperature * choice.logits - q)).sum(-1).mean()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(entropy, choice.entropy().mean().detach(), atol=1e-5, rtol=1e-4)


def test_an_update_moves_each_part_in_its_turn(warmed: Any) -> None:
    settings = "algorithm.policy_every=2", "algorithm.target_every=3", "algorithm.tau=0.25"
    workflow, store = warmed("Pendulum-v1:sac", *settings)
    kinds = ("policies", "critics", "targets", "temperatures")

    def snapshot() -> dict[str, Any]:
        nets = dict(zip(kinds, (*parts_of(workflow), workflow.temperatures["agent"]), strict=True))
        return {kind: [p.clone() for p in net.parameters()] for kind, net in nets.items()}

    moved = []
    for _ in range(6):
        before = snapshot()
        result = workflow.update(store, PHASE)
        assert all(math.isfinite(value) for value in result.metrics.values())
        after = snapshot()
        moved.append({k for k in kinds if any(not torch.equal(a, b) for a, b in zip(before[k], after[k], strict=True))})
        if "targets" in moved[-1]:
            for old, new, towards in zip(before["targets"], after["targets"], after["critics"], strict=True):
                torch.testing.assert_close(new, old + 0.25 * (towards - old))
    assert [("policies" in m, "temperatures" in m) for m in moved] == [(True, True), (False, False)] * 3
    assert ["targets" in m for m in moved] == [False, False, True] * 2
    assert all("critics" in m for m in moved)


def test_the_temperature_falls_when_there_is_more_entropy_than_asked_for(warmed: Any) -> None:
    for target, rises in ((-100.0, False), (100.0, True)):
        workflow, store = warmed("Pendulum-v1:sac", f"algorithm.target_entropy={target}")
        before = float(workflow.temperatures["agent"].now())
        for _ in range(3):
            workflow.update(store, PHASE)
        assert (float(workflow.temperatures["agent"].now()) > before) == rises


def test_each_part_goes_at_its_own_step_size(warmed: Any) -> None:
    """Adam's first step is as long as its step size."""
    rates = "algorithm.learning_rate=0.002", "algorithm.critic_learning_rate=0.03"
    workflow, store = warmed("Pendulum-v1:sac", *rates, "algorithm.temperature_learning_rate=0.4")
    parts = {"policies": 0.002, "critics": 0.03, "temperatures": 0.4}
    before = {part: [p.detach().clone() for p in getattr(workflow, part)["agent"].parameters()] for part in parts}
    workflow.update(store, PHASE)
    for part, rate in parts.items():
        after = getattr(workflow, part)["agent"].parameters()
        moved = max(float((p - q).abs().max()) for p, q in zip(after, before[part], strict=True))
        assert moved == pytest.approx(rate, rel=1e-2), part


def test_where_actions_are_forbidden_less_entropy_is_asked_for(warmed: Any) -> None:
    """Else the temperature would rise for ever: what is asked for could not be reached."""
    workflow, store = warmed("toy/masked:sac", "environment.kwargs={allowed: 2}", "algorithm.learning_rate=0.01")
    batch = batch_of(workflow, store)
    assert batch.mask.float().sum(-1).mean() == 2
    assert float(workflow.temperatures["agent"].target_entropy(batch.mask, batch.weight)) == pytest.approx(
        0.98 * math.log(2)
    )
    assert workflow.temperatures["agent"].target_entropy(None, batch.weight) > 0.98 * math.log(2) + 0.1
    for _ in range(150):
        workflow.update(store, PHASE)
    assert float(workflow.temperatures["agent"].now()) < 2


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
def test_actions_of_double_precision_are_learned_from(warmed: Any, kernels: str) -> None:
    workflow, store = warmed("Pendulum-v1:sac", f"runtime.kernels={kernels}")
    rows = store.ring.arrays["groups"]["agent"]
    rows["action"] = rows["action"].astype(np.float64)
    assert math.isfinite(workflow.update(store, PHASE).metrics["train/critic_loss"])


def test_a_group_of_which_nobody_acted_stays_as_it_is(warmed: Any) -> None:
    workflow, store = warmed("Pendulum-v1:sac")
    store.ring.arrays["groups"]["agent"]["active"][:] = False
    before = [p.clone() for net in parts_of(workflow) for p in net.parameters()]
    assert not [key for key in workflow.update(store, PHASE).metrics if "loss" in key]
    after = [p for net in parts_of(workflow) for p in net.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_fixed_temperature_stays(warmed: Any) -> None:
    workflow, store = warmed("Pendulum-v1:sac", "algorithm.temperature=0.2")
    assert float(workflow.update(store, PHASE).metrics["train/temperature"]) == pytest.approx(0.2)
    assert float(workflow.update(store, PHASE).metrics["train/temperature"]) == pytest.approx(0.2)


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
def test_the_first_actions_lie_as_close_together_as_is_asked(warmed: Any, kernels: str) -> None:
    workflow, store = warmed("Pendulum-v1:sac", "algorithm.log_std_init=-4", f"runtime.kernels={kernels}")
    entropy = float(workflow.update(store, PHASE).metrics["train/entropy"])
    assert entropy == pytest.approx(0.5 * math.log(2 * math.pi * math.e) - 4, abs=0.8)  # of a normal that narrow


def test_dropout_is_drawn_from_the_runs_own_generators(warmed: Any) -> None:
    found = []
    for _ in range(2):
        workflow, store = warmed("Pendulum-v1:sac", "algorithm.dropout=0.5")
        torch.rand(_ + 1)  # whatever else draws globally
        found.append(float(workflow.update(store, PHASE).metrics["train/critic_loss"]))
    assert found[0] == found[1]
    workflow, store = warmed("Pendulum-v1:sac")
    assert float(workflow.update(store, PHASE).metrics["train/critic_loss"]) != found[0]


@pytest.mark.parametrize(
    ("spec", "override", "words"),
    [
        ("toy/dials:sac", "algorithm.tau=0.01", "takes Discrete actions and Box actions"),
        ("Pendulum-v1:sac", "algorithm.dropout=1.0", "algorithm.dropout=1"),
        ("Pendulum-v1:sac", "algorithm.torso.memory.type=gru", "has no memory"),
        ("Pendulum-v1:sac", "algorithm.tau=2", "algorithm.tau=2"),
        ("Pendulum-v1:sac", "algorithm.log_std_init=3", r"must be in \[-20, 2\]"),
        ("CartPole-v1:sac", "algorithm.log_std_init=-1", "does nothing for the discrete actions of CartPole-v1"),
        ("Pendulum-v1:sac", "algorithm.torso.shared=false", "separate torsos"),
        (
            "Pendulum-v1:sac",
            "algorithm={temperature: 0.1, target_entropy: 3.0}",
            "does nothing without temperature=auto",
        ),
        (
            "Pendulum-v1:sac",
            "algorithm={temperature: 0.1, temperature_learning_rate: 0.1}",
            "does nothing without temperature=auto",
        ),
        ("Pendulum-v1:sac", "algorithm={buffer_size: 30, n_step: 40}", "at least 42"),
        ("classic/tictactoe:sac", "algorithm.tau=0.1", "played in turns"),
        ("classic/tictactoe:dqn", "algorithm.tau=0.1", "played in turns"),
    ],
)
def test_what_cannot_be_is_told(spec: str, override: str, words: str) -> None:
    def build() -> None:
        config = load(spec, [override])
        assemble(config, check(config), {})

    with pytest.raises(ConfigError, match=words):
        build()


def test_what_a_block_leaves_out_is_the_algorithms_default() -> None:
    """Not that of the block's class: relu here, where an MLP's own is tanh."""
    config: Any = load(
        "Pendulum-v1:sac", ["algorithm.critic.hidden_sizes=[16]", "algorithm.optimizer.weight_decay=0.1"]
    )
    assert config.algorithm.critic == NetworkConfig((16,), "relu")
    assert config.algorithm.optimizer == OptimizerConfig(eps=1e-8, weight_decay=0.1)
