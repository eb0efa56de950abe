"""PPO on one real rollout against a plain implementation that shares no code with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.config.load import load
from cadenza.data.rollout import Rollout
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.envs.toys.toy import chain_values
from cadenza.errors import ConfigError
from cadenza.ops.surrogate import FIGURES
from harness import collecting
from harness.collecting import PHASE, Holding
from harness.lab import Lab


@pytest.fixture
def collected() -> Iterator[Any]:
    made: list[Assembly] = []

    def collect(spec: str, *overrides: str) -> tuple[Any, Rollout]:
        config = load(spec, list(overrides))
        assembly = assemble(config, check(config), {})
        made.append(assembly)
        return assembly.workflow, collecting.collected(assembly)

    yield collect
    for assembly in made:
        assembly.close()


# time limits shorter than many episodes: both kinds of end occur
TASKS = [
    ("CartPole-v1:ppo", "environment.max_episode_steps=15", "algorithm.normalize_obs=rolling"),
    ("Pendulum-v1:ppo", "environment.max_episode_steps=20", "algorithm.n_steps=32", "algorithm.batch_size=0.5"),
    ("CartPole-v1:ppo", "algorithm.value_clip_range=0.2", "algorithm.entropy_coef=0.01"),
    ("toy/masked:ppo", "environment.kwargs={allowed: 3}", "algorithm.n_steps=16", "algorithm.entropy_coef=0.1"),
]


@torch.no_grad()
def plain_value(net: Any, obs: np.ndarray) -> float:
    return float(net.critic(torch.as_tensor(obs, dtype=torch.float32)))


def plain_advantages(net: Any, rollout: Rollout, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """One environment and one step at a time, from the definition."""
    data = rollout.groups["agent"]
    steps, envs = rollout.terminated.shape
    finals = {(t, n): k for k, (t, n) in enumerate(zip(*rollout.final_index, strict=True))}
    advantage, value = np.zeros((steps, envs)), np.zeros((steps, envs))
    for n in range(envs):
        running = 0.0
        for t in reversed(range(steps)):
            value[t, n] = plain_value(net, data["obs"][t, n, 0])
            if rollout.terminated[t, n]:
                following = 0.0
            elif rollout.truncated[t, n]:
                following = plain_value(net, rollout.final_obs["agent"][finals[t, n], 0])
            elif t + 1 < steps:
                following = plain_value(net, data["obs"][t + 1, n, 0])
            else:
                following = plain_value(net, rollout.after_obs["agent"][n, 0])
            delta = data["reward"][t, n, 0] + gamma * following - value[t, n]
            ended = rollout.terminated[t, n] or rollout.truncated[t, n]
            running = delta + (0.0 if ended else gamma * lam * running)
            advantage[t, n] = running
    return advantage, value


def plain_loss(workflow: Any, net: Any, rollout: Rollout, advantage: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The loss on the whole rollout after the policy moved, with torch.distributions."""
    config, data = workflow.config, rollout.groups["agent"]
    obs = torch.from_numpy(data["obs"]).float().flatten(0, 2)
    output = net.actor(obs)
    if isinstance(workflow.context.env.groups["agent"].action, spaces.Discrete):
        if "mask" in data:
            output = output + torch.where(torch.from_numpy(data["mask"]).flatten(0, 2), 0.0, -1e9)
        policy: Any = torch.distributions.Categorical(logits=output)
        action = torch.from_numpy(data["action"]).flatten()
    else:
        normal = torch.distributions.Normal(output, net.head.log_std.exp())
        policy = torch.distributions.Independent(normal, 1)
        action = torch.from_numpy(data["action"]).flatten(0, 2)
    log_prob, entropy = policy.log_prob(action), policy.entropy()
    ratio = (log_prob - plain_loss.old_log_prob).exp()  # type: ignore[attr-defined]
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = torch.min(ratio * scaled, torch.clamp(ratio, 0.8, 1.2) * scaled).mean()
    new_value, target = net.critic(obs)[:, 0], advantage + value
    error = (new_value - target) ** 2
    if config.value_clip_range is not None:
        held = value + torch.clamp(new_value - value, -config.value_clip_range, config.value_clip_range)
        error = torch.max(error, (held - target) ** 2)
    return -surrogate + config.value_coef * error.mean() - float(config.entropy_coef) * entropy.mean()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: " ".join(task))
def test_advantages_loss_and_gradients_equal_a_plain_implementation(collected: Any, task: tuple[str, ...]) -> None:
    workflow, rollout = collected(*task)
    net, config = workflow.nets["agent"], workflow.config
    samples = workflow._prepare("agent", rollout, PHASE)[0]
    advantage, value = plain_advantages(net, rollout, config.gamma, config.gae_lambda)
    np.testing.assert_allclose(samples.advantage[0, :, 0], advantage.ravel(), atol=1e-5)
    np.testing.assert_allclose(samples.old_value[0, :, 0], value.ravel(), atol=1e-5)

    flat = [torch.from_numpy(x).float().flatten() for x in (advantage, value)]
    plain_loss.old_log_prob = samples.old_log_prob[0, :, 0]  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # move away from the policy that acted, so that clipping bites
        for parameter in net.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    expected = plain_loss(workflow, net, rollout, *flat)
    expected_gradients = torch.autograd.grad(expected, list(net.parameters()))
    every = torch.randperm(samples.weight.shape[1])
    assert workflow.kernels
    for by_hand in (True, False):
        if not by_hand:
            workflow.kernels.clear()
        figures = workflow._gradients_at("agent", samples, every, workflow._objective("agent", PHASE))
        assert 0 < float(figures[FIGURES.index("clip_fraction")]) < 1
        torch.testing.assert_close(figures[0], expected, atol=1e-5, rtol=1e-5)
        for ours, theirs in itertools.zip_longest(net.parameters(), expected_gradients):
            torch.testing.assert_close(ours.grad, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", ["toy/dot:ppo", "CartPole-v1:ppo"])
def test_rollouts_on_disk_train_the_same_weights(spec: str, tmp_path: Path) -> None:
    weights = []
    settings = ["algorithm.n_steps=8", "environment.num_envs=2", "algorithm.n_epochs=1", "evaluation.at_end=false"]
    for on_disk in ("false", "true"):
        lab = Lab(tmp_path / on_disk)
        run = lab.start(load(spec, [*settings, "training.max_timesteps=32", f"algorithm.buffer_on_disk={on_disk}"]))
        run.run()
        assert (run.folder.replay / "rollout").path.exists() is (on_disk == "true")
        workflow: Any = lab.opened[0].workflow
        weights.append(workflow.nets["agent"].state_dict())
        lab.close()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_an_update_without_a_memory_reads_images_in_place(collected: Any) -> None:
    workflow, rollout = collected("toy/dot:ppo", "algorithm.n_steps=4", "algorithm.batch_size=8")
    (images,) = workflow._prepare("agent", rollout, PHASE)[0].obs.values()
    assert images.data_ptr() == rollout.groups["agent"]["obs"].ctypes.data


def test_what_was_seen_of_images_while_acting_is_not_looked_at_again(collected: Any) -> None:
    workflow, rollout = collected("toy/dot:ppo", "algorithm.n_steps=4", "algorithm.batch_size=8")
    net, data = workflow.nets["agent"], rollout.groups["agent"]
    samples, cnn = workflow._prepare("agent", rollout, PHASE)[0], net.torso.encoder.cnns[0]
    with torch.no_grad():
        seen = cnn(torch.from_numpy(data["obs"]))
        value, output = net.critic(net.torso.mix(seen)), net.actor(net.torso.mix(seen))
        log_prob, _ = net.head.evaluate(output, None, torch.from_numpy(data["action"]))
    torch.testing.assert_close(samples.old_value.flatten(), value.flatten())
    torch.testing.assert_close(samples.old_log_prob.flatten(), log_prob.flatten())
    looked: list[int] = []
    cnn.register_forward_hook(lambda module, given, made: looked.append(len(given[0].flatten(0, -4))))
    workflow._prepare("agent", rollout, PHASE)[0]
    ended = len(rollout.final_index[0])
    assert sum(looked) == workflow.context.num_envs + ended  # what follows the rollout, and last states


def always_forward_with_true_values(workflow: Any) -> None:
    """Make the critic the true value function of the chain and the actor walk forward."""
    values = torch.from_numpy(chain_values(workflow.config.gamma)).float()
    net = workflow.nets["agent"]
    net.critic.forward = lambda x: (x @ values)[..., None]
    net.actor.forward = lambda x: torch.stack([torch.full(x.shape[:-1], -1e9), torch.zeros(x.shape[:-1])], -1)


VECTORIZE = ["vectorize=in_process", "vectorize=workers"] + [
    f"vectorize=gymnasium environment.autoreset={mode}" for mode in ("next_step", "same_step", "disabled")
]


@pytest.mark.parametrize("how", VECTORIZE)
def test_true_values_leave_no_advantage_on_the_chain(how: str) -> None:
    """Any wrong bootstrap, at a true end, at a time limit or at the rollout's edge, shows as an advantage."""
    settings = ["algorithm.n_steps=40", "algorithm.batch_size=1", "environment.num_envs=4"]
    config = load("toy/chain:ppo", ["runtime.kernels=torch", *settings, *f"environment.{how}".split()])
    assembly = assemble(config, check(config), {})
    try:
        always_forward_with_true_values(assembly.workflow)
        rollout = collecting.collected(assembly)
        active = rollout.groups["agent"]["active"][..., 0]
        assert (rollout.terminated & active).sum() > 3
        assert (rollout.truncated & ~rollout.terminated & active).sum() > 3
        samples = assembly.workflow._prepare("agent", rollout, PHASE)[0]  # type: ignore[attr-defined]
        np.testing.assert_allclose(samples.advantage[samples.weight > 0], 0, atol=1e-5)
    finally:
        assembly.close()


def test_dead_agents_weigh_nothing_and_end_their_own_sum(collected: Any) -> None:
    workflow, rollout = collected("toy/pair:ppo", "algorithm.n_steps=64", "algorithm.batch_size=1")
    runner = rollout.groups["runner"]
    assert runner["died"].any()
    assert not runner["active"].all()
    samples = workflow._prepare("runner", rollout, PHASE)[0]
    died = torch.from_numpy(runner["died"]).flatten(0, 1)[None]
    reward = torch.from_numpy(runner["reward"]).flatten(0, 1)[None]
    # at its death an agent's advantage is its last reward less its value: no bootstrap, nothing after
    torch.testing.assert_close(samples.advantage[died], (reward - samples.old_value)[died])
    every, objective = torch.arange(samples.weight.shape[1]), workflow._objective("runner", PHASE)
    net, found = workflow.nets["runner"], []
    kernels = dict(workflow.kernels)
    assert kernels
    for by_hand, of_the_dead in itertools.product((True, False), (0.0, 1e6)):
        samples.advantage[samples.weight == 0] = of_the_dead
        samples.target[samples.weight == 0] = of_the_dead
        workflow.kernels = kernels if by_hand else {}
        figures = workflow._gradients_at("runner", samples, every, objective)
        found.append((figures, [parameter.grad.clone() for parameter in net.parameters()]))
    for figures, gradients in found[1:]:
        torch.testing.assert_close(figures, found[0][0])
        torch.testing.assert_close(gradients, found[0][1])


def test_where_nobody_acts_no_value_is_learned(collected: Any) -> None:
    workflow, rollout = collected("toy/chain:ppo")
    rollout.groups["agent"]["active"][3] = False
    samples = workflow._prepare("agent", rollout, PHASE)[0]
    assert (samples.value_weight == samples.weight).all()
    assert (samples.weight == 0).sum() == rollout.groups["agent"]["active"].shape[1]


def test_target_kl_stops_an_update(collected: Any) -> None:
    settings = ["algorithm.learning_rate=0.05", "algorithm.n_steps=32", "algorithm.batch_size=0.25"]
    workflow, rollout = collected("CartPole-v1:ppo", *settings, "algorithm.target_kl=0.001")
    assert 1 <= workflow.update(Holding(rollout), PHASE).updates < workflow.config.n_epochs * 4


def test_an_update_reports_what_it_did(collected: Any) -> None:
    workflow, rollout = collected("CartPole-v1:ppo", "algorithm.batch_size=0.5")
    before = [parameter.clone() for parameter in workflow.nets["agent"].parameters()]
    result = workflow.update(Holding(rollout), PHASE)
    assert result.updates == workflow.config.n_epochs * 2
    logged = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "explained_variance")
    for name in (*logged, "grad_norm/all", "grad_norm/actor", "grad_norm/critic"):
        assert torch.isfinite(result.metrics[f"train/{name}"])
    assert float(result.metrics["train/learning_rate"]) == pytest.approx(1e-3)
    assert any(not torch.equal(a, b) for a, b in zip(before, workflow.nets["agent"].parameters(), strict=True))


def test_a_group_that_never_acts_learns_nothing_and_harms_nothing(collected: Any) -> None:
    workflow, rollout = collected("toy/pair:ppo", "algorithm.normalize_obs=rolling", "algorithm.batch_size=1")
    rollout.groups["runner"]["active"][:] = False
    before = [parameter.clone() for parameter in workflow.nets["runner"].parameters()]
    metrics = workflow.update(Holding(rollout), PHASE).metrics
    assert all(torch.isfinite(torch.as_tensor(value)) for value in metrics.values())
    assert not any(name.startswith("train/runner") for name in metrics)
    assert all(torch.equal(a, b) for a, b in zip(before, workflow.nets["runner"].parameters(), strict=True))
    assert torch.isfinite(workflow.observers["runner"].norm.mean).all()


def test_the_central_state_is_there_for_a_central_critic(collected: Any) -> None:
    _, rollout = collected("toy/pair:ppo", "environment.num_envs=3", "algorithm.n_steps=16", "algorithm.batch_size=1")
    assert rollout.state.shape == (16, 3, 11)
    assert rollout.after_state.shape == (3, 11)
    assert rollout.final_state.shape == (len(rollout.final_index[0]), 11)
    # the state is all that the groups see
    np.testing.assert_array_equal(rollout.state[..., 6:], rollout.groups["shooter"]["obs"][:, :, 0])
    np.testing.assert_array_equal(rollout.final_state[:, 6:], rollout.final_obs["shooter"][:, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["environment.id=toy/pair", "algorithm.head.squash=true"], ""),
        (["algorithm.head.std=state"], "algorithm.head is about continuous actions, and CartPole-v1 has none"),
        (["algorithm.learning_rate={schedule: linear, start_value: 0.1, end_value: -0.1}"], "algorithm.learning_rate"),
        (["algorithm.learning_rate={schedule: linear, start_value: 0, end_value: 0.1}"], ""),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: list[str], message: str) -> None:
    if not message:
        check(load("CartPole-v1:ppo", settings))
        return
    with pytest.raises(ConfigError, match=message):
        check(load("CartPole-v1:ppo", settings))


def test_weights_are_borrowed_without_the_sums_of_episodes_under_way(collected: Any) -> None:
    settings = ["algorithm.normalize_obs=true", "algorithm.normalize_reward=true", "algorithm.n_steps=32"]
    theirs, rollout = collected("CartPole-v1:ppo", *settings, "environment.num_envs=4", "algorithm.batch_size=1.0")
    theirs.update(Holding(rollout), PHASE)
    ours, _ = collected("CartPole-v1:ppo", *settings, "environment.num_envs=2", "algorithm.batch_size=1.0")
    ours.load_weights(theirs.state_dict())
    assert torch.equal(ours.reward_scales["agent"].norm.var, theirs.reward_scales["agent"].norm.var)
    assert ours.reward_scales["agent"].running.shape == (2, 1)
    assert torch.equal(ours.observers["agent"].norm.mean, theirs.observers["agent"].norm.mean)
    without, _ = collected("CartPole-v1:ppo", "algorithm.normalize_reward=true")
    with pytest.raises(ConfigError, match=r"algorithm\.normalize_obs"):
        without.load_weights(theirs.state_dict())
