"""REINFORCE on real episodes against plain loops that share no code with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.config.load import load
from cadenza.data.episode_store import Episodes
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.envs.toys.toy import chain_values
from cadenza.errors import ConfigError
from harness import collecting
from harness.collecting import PHASE, Holding

SMALL = ["environment.num_envs=3", "algorithm.episodes_per_update=6"]


@pytest.fixture
def collected() -> Iterator[Any]:
    made: list[Assembly] = []

    def collect(spec: str, *overrides: str, prepare: Any = None) -> tuple[Any, Episodes]:
        config = load(spec, [*SMALL, *overrides])
        assembly = assemble(config, check(config), {})
        made.append(assembly)
        if prepare is not None:
            prepare(assembly.workflow)
        return assembly.workflow, collecting.collected(assembly)

    yield collect
    for assembly in made:
        assembly.close()


def plain_returns(workflow: Any, episodes: Episodes, e: int) -> list[float]:
    """Compute the targets of one episode by definition, with the baseline's value at a time limit."""
    config, length = workflow.config, int(episodes.length[e])
    reward = episodes.groups["agent"]["reward"][:length, e, 0].tolist()
    if config.policy_targets == "advantages" and not episodes.terminated[e]:
        with torch.no_grad():
            last = torch.from_numpy(episodes.final_obs["agent"][e, 0])
            reward[-1] += config.gamma * float(workflow.nets["agent"].critic(last))
    return [sum(config.gamma**k * r for k, r in enumerate(reward[t:])) for t in range(length)]


VARIANTS = [
    ["algorithm.policy_targets=returns"],
    ["algorithm.policy_targets=returns", "algorithm.returns_type=mc:episode", "algorithm.normalize_targets=false"],
    ["algorithm.policy_targets=advantages", "environment.max_episode_steps=12", "algorithm.entropy_coef=0.01"],
    ["algorithm.policy_targets=advantages", "algorithm.normalize_targets=false"],
]


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_targets_and_gradient_equal_a_plain_implementation(collected: Any, variant: list[str]) -> None:
    workflow, episodes = collected("CartPole-v1:reinforce", *variant, "algorithm.max_grad_norm=null")
    config, net = workflow.config, workflow.nets["agent"]
    if "max_episode_steps" in " ".join(variant):
        assert not episodes.terminated.all()
    batch = workflow._prepare("agent", episodes, workflow.config)
    log_probs, targets, entropies = [], [], []
    for e, length in enumerate(episodes.length.tolist()):
        returns = plain_returns(workflow, episodes, e)
        for t in range(length):
            obs = torch.from_numpy(episodes.groups["agent"]["obs"][t, e, 0])
            policy = torch.distributions.Categorical(logits=net.actor(obs))
            log_probs.append(policy.log_prob(torch.tensor(episodes.groups["agent"]["action"][t, e, 0])))
            entropies.append(policy.entropy())
            credit = returns[t] if config.returns_type == "mc:rtg" else returns[0]
            baseline = float(net.critic(obs).detach()) if config.policy_targets == "advantages" else 0.0
            targets.append(credit - baseline)
            assert float(batch.returns[t, e, 0]) == pytest.approx(returns[t], rel=1e-4)
    target = torch.tensor(targets)
    if config.normalize_targets:
        target = (target - target.mean()) / target.std()
    expected = -(torch.stack(log_probs) * target).mean() - config.entropy_coef * torch.stack(entropies).mean()
    gradients = torch.autograd.grad(expected, list(net.actor.parameters()))

    steps: list[Any] = []

    def instead(name: str, loss: torch.Tensor, *step: Any) -> dict[str, torch.Tensor]:
        steps.append(torch.autograd.grad(loss, list(net.actor.parameters())))
        return {}

    workflow._step = instead
    workflow._fit("agent", batch, PHASE, value=False)
    for ours, theirs in zip(steps[0], gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("estimator", ["monte_carlo", "gae", "n_step", "vtrace", "td_lambda"])
def test_a_true_baseline_leaves_no_advantage_on_the_chain(collected: Any, estimator: str) -> None:
    """A wrong bootstrap at a time limit, or one at a true end, shows as an advantage."""

    def forward_with_true_values(workflow: Any) -> None:
        values = torch.from_numpy(chain_values(workflow.config.gamma)).float()
        net = workflow.nets["agent"]
        net.critic.forward = lambda x: (x @ values)[..., None]
        net.actor.forward = lambda x: torch.stack([torch.full(x.shape[:-1], -1e9), torch.zeros(x.shape[:-1])], -1)

    settings = ["algorithm.policy_targets=advantages", "algorithm.normalize_targets=false"]
    workflow, episodes = collected(
        "toy/chain:reinforce",
        *settings,
        f"algorithm.advantage={estimator}",
        "algorithm.episodes_per_update=20",
        "runtime.kernels=torch",
        prepare=forward_with_true_values,
    )
    assert episodes.terminated.any()
    assert not episodes.terminated.all()
    batch = workflow._prepare("agent", episodes, workflow.config)
    np.testing.assert_allclose(batch.target[batch.weight > 0], 0, atol=1e-5)
    np.testing.assert_allclose(batch.returns[batch.weight > 0], batch.value[batch.weight > 0], atol=1e-5)


@pytest.mark.parametrize("targets", ["returns", "advantages"])
def test_an_update_changes_exactly_the_trained_parameters(collected: Any, targets: str) -> None:
    workflow, episodes = collected("CartPole-v1:reinforce", f"algorithm.policy_targets={targets}")
    net = workflow.nets["agent"]
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    result = workflow.update(Holding(episodes), PHASE)
    now = dict(net.named_parameters())
    moved = {name.split(".")[0] for name, tensor in before.items() if not torch.equal(tensor, now[name])}
    assert moved == ({"actor"} if targets == "returns" else {"actor", "critic"})
    assert result.updates == (1 if targets == "returns" else 1 + workflow.config.baseline_epochs)
    assert all(torch.isfinite(torch.as_tensor(value)) for value in result.metrics.values())


def test_a_death_ends_that_agents_sum(collected: Any) -> None:
    workflow, episodes = collected("toy/pair:reinforce", "algorithm.policy_targets=returns")
    data = episodes.groups["runner"]
    assert data["died"].any()
    batch = workflow._prepare("runner", episodes, workflow.config)
    died = torch.from_numpy(data["died"])
    torch.testing.assert_close(batch.returns[died], torch.from_numpy(data["reward"])[died])
    valued, _ = collected("toy/pair:reinforce", "algorithm.policy_targets=advantages")
    valued.nets["runner"].critic.forward = lambda x: torch.full((*x.shape[:-1], 1), 7.0)
    data["died"][-1] |= data["active"][-1]  # someone who dies in the very step that the time limit cuts off
    batch, died = valued._prepare("runner", episodes, valued.config), torch.from_numpy(data["died"])
    torch.testing.assert_close(batch.returns[died], torch.from_numpy(data["reward"])[died])
    assert not batch.weight[~torch.from_numpy(data["active"])].any()


@pytest.mark.parametrize("targets", ["returns", "advantages"])
def test_spaces_need_not_begin_at_zero(collected: Any, targets: str) -> None:
    workflow, episodes = collected("harness.odd_spaces:Shifted:reinforce", f"algorithm.policy_targets={targets}")
    assert episodes.length.min() < episodes.length.max()
    result = workflow.update(Holding(episodes), PHASE)
    assert all(torch.isfinite(torch.as_tensor(value)) for value in result.metrics.values())


def test_a_shared_torso_is_moved_by_the_policy_alone(collected: Any) -> None:
    settings = ["algorithm.policy_targets=advantages", "algorithm.torso.hidden_sizes=[8]"]
    workflow, episodes = collected("CartPole-v1:reinforce", *settings)
    net, batch = workflow.nets["agent"], workflow._prepare("agent", episodes, workflow.config)
    value = net(batch.obs, {}, batch.first).value
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    workflow._step("agent", (value - batch.returns).square().mean(), torch.tensor(0.01), 0.5, ("critic",))
    now = dict(net.named_parameters())
    assert {name.split(".")[0] for name, tensor in before.items() if not torch.equal(tensor, now[name])} == {"critic"}


def test_sequences_shorter_than_an_episode_are_refused() -> None:
    with pytest.raises(ConfigError, match="learns from whole episodes"):
        load("CartPole-v1:reinforce", ["algorithm.torso.memory={type: gru, sequence_length: 8}"])


def test_a2c_is_the_plain_policy_gradient() -> None:
    """One pass over the whole rollout: the ratio is one, so the clipped objective's gradient is A2C's."""
    config = load("CartPole-v1:a2c", ["environment.num_envs=4"])
    assembly = assemble(config, check(config), {})
    try:
        workflow: Any = assembly.workflow
        rollout = collecting.collected(assembly)
        samples, net = workflow._prepare("agent", rollout, PHASE)[0], workflow.nets["agent"]
        loss, _ = workflow._loss(net, samples, workflow._objective("agent", PHASE))
        obs = torch.from_numpy(rollout.groups["agent"]["obs"]).flatten(0, 2)
        policy = torch.distributions.Categorical(logits=net.actor(obs))
        log_prob = policy.log_prob(torch.from_numpy(rollout.groups["agent"]["action"]).flatten())
        values = net.critic(obs)[:, 0]
        advantage, target = samples.advantage.flatten(), samples.target.flatten()
        plain = -(log_prob * advantage).mean() + 0.5 * (values - target).square().mean()
        ours, theirs = (torch.autograd.grad(x, list(net.parameters())) for x in (loss, plain))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert workflow.config.n_epochs * len(rollout.terminated) == 5
    finally:
        assembly.close()
