"""DQN on real experience against plain loops that share no code with it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.base.streams import Streams
from cadenza.config.load import load
from cadenza.data.replay import ReplayStore
from cadenza.engine.build import assemble
from cadenza.engine.launch import check
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.errors import ConfigError
from cadenza.ops.td import TDBatch, project, quantile_huber
from cadenza.types import Context, EnvSpec, GroupSpec, Mode, PhaseInfo, Step
from cadenza.workflows.dqn import DQN
from cadenza.workflows.dqn_config import DQNConfig
from harness.collecting import warming
from harness.experience import Experience

PHASE = PhaseInfo("train", "online", 300, 1000)
SMALL = ["environment.num_envs=2", "algorithm.warmup_steps=300", "algorithm.train_every=300", "algorithm.batch_size=48"]


@pytest.fixture
def warmed_up() -> Iterator[Callable[..., tuple[Any, ReplayStore]]]:
    with warming(SMALL, PHASE) as warm:

        def warm_up(spec: str, *overrides: str) -> tuple[Any, ReplayStore]:
            workflow, store = warm(spec, *overrides)
            return stirred(workflow), store

        yield warm_up


def stirred(workflow: Any) -> Any:
    """With networks that judge everything differently, the target networks too."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for net in (*workflow.nets.values(), *(target.net for target in workflow.targets.values())):
            for parameter in net.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return workflow


def a_copy_of(generator: np.random.Generator) -> np.random.Generator:
    twin = np.random.Generator(np.random.PCG64())
    twin.bit_generator.state = generator.bit_generator.state
    return twin


# the plain implementation: one transition, one agent, one layer at a time


def plain_output(net: Any, obs: Any, noise: list[Any]) -> Any:
    """[n, K]"""
    noise = list(noise)

    def through(stream: Any, x: Any) -> Any:
        for index, layer in enumerate(stream.layers):
            weight, bias = layer.weight, layer.bias
            if noise:
                drawn = noise.pop(0)
                e_in, e_out = drawn[: weight.shape[1]], drawn[weight.shape[1] :]
                weight = weight + layer.weight_sigma * torch.outer(e_out, e_in)
                bias = bias + layer.bias_sigma * e_out
            x = weight @ x + bias
            if index < len(stream.layers) - 1:
                x = torch.relu(x)
        return x

    obs = torch.as_tensor(obs, dtype=torch.float32)
    for layer in list(net.torso.mix)[::2]:
        obs = torch.relu(layer.weight @ obs + layer.bias)
    output = through(net.advantage, obs).reshape(net.actions, net.atoms)
    if net.value is None:
        return output
    return through(net.value, obs)[None] + output - output.mean(0)


def plain_values(config: DQNConfig, output: Any) -> list[float]:
    output = output.detach()
    if config.distribution == "c51":
        support = torch.linspace(config.v_min, config.v_max, config.atoms)
        return [float(torch.softmax(row, 0) @ support) for row in output]
    return [float(row.mean()) for row in output]


def slow_projection(probs: list[float], returns: list[float], v_min: float, v_max: float) -> list[float]:
    """Algorithm 1 of Bellemare et al. 2017."""
    spread, step = [0.0] * len(probs), (v_max - v_min) / (len(probs) - 1)
    for prob, wanted in zip(probs, returns, strict=True):
        place = (min(max(wanted, v_min), v_max) - v_min) / step
        low, high = math.floor(place + 1e-9), math.ceil(place - 1e-9)
        if low == high:
            spread[low] += prob
        else:
            spread[low] += prob * (high - place)
            spread[high] += prob * (place - low)
    return spread


def slow_quantile_loss(quantiles: Any, returns: list[float], kappa: float) -> Any:
    """Equation 10 of Dabney et al. 2018, summed over quantiles and averaged over returns."""
    total = torch.zeros(())
    for i, quantile in enumerate(quantiles):
        for wanted in returns:
            error = wanted - quantile
            size = error.abs()
            bend = 0.5 * error**2 if size <= kappa else kappa * (size - 0.5 * kappa)
            level = (i + 0.5) / len(quantiles)
            total = total + abs(level - float(error < 0)) * bend / kappa / len(returns)
    return total


def plain_loss(config: DQNConfig, output: Any, following: Any, reward: float, discount: float) -> tuple[Any, float]:
    """Of one transition, and its priority; `following` is the output for the best next action."""
    value = plain_values(config, output[None])[0]
    if config.distribution == "c51":
        support = torch.linspace(config.v_min, config.v_max, config.atoms).tolist()
        returns = [reward + discount * z for z in support]
        aim = slow_projection(torch.softmax(following, 0).tolist(), returns, config.v_min, config.v_max)
        log_probs = torch.log_softmax(output, 0)
        loss: Any = -sum(p * log_probs[k] for k, p in enumerate(aim))
        return loss, float(loss.detach()) + sum(p * math.log(p) for p in aim if p > 0)
    returns = [reward + discount * float(z) for z in following]
    if config.distribution == "quantile":
        return slow_quantile_loss(output, returns, config.kappa), abs(sum(returns) / len(returns) - value)
    error = output[0] - returns[0]
    size = error.abs()
    huber = 0.5 * error**2 if size < 1 else size - 0.5
    return error**2 if config.loss == "mse" else huber, float(size.detach())


def plain_group_loss(workflow: Any, name: str, sampled: Any, noises: tuple[Any, Any]) -> tuple[Any, np.ndarray]:
    config, net, target = workflow.config, workflow.nets[name], workflow.targets[name].net
    data, losses = sampled.groups[name], []
    start = int(workflow.context.env.groups[name].action.start)
    surprise = np.zeros(data["active"].shape)
    for row, agent in np.ndindex(data["active"].shape):
        if not data["active"][row, agent]:
            continue
        with torch.no_grad():
            following = plain_output(target, data["next_obs"][row, agent], noises[1])
            chooser = plain_output(net, data["next_obs"][row, agent], noises[0]) if config.double else following
        values = plain_values(config, chooser)
        allowed = data["next_mask"][row, agent] if "next_mask" in data else [True] * len(values)
        best = max((a for a in range(len(values)) if allowed[a]), key=lambda a: values[a], default=0)
        output = plain_output(net, data["obs"][row, agent], noises[0])[int(data["action"][row, agent]) - start]
        discount = 0.0 if data["terminated"][row, agent] else float(sampled.discount[row])
        loss, found = plain_loss(config, output, following[best], float(data["reward"][row, agent]), discount)
        losses.append(loss * (1.0 if sampled.weight is None else float(sampled.weight[row])))
        surprise[row, agent] = found
    return torch.stack(losses).mean(), surprise


def check_an_update(workflow: Any, store: ReplayStore, beta: float = 1.0) -> Any:
    """One update of the workflow against the plain implementation; the batch it was made with."""
    config, streams, gradients = workflow.config, workflow.context.streams, {}
    sampled = store.sample(config.batch_size, a_copy_of(streams.numpy("replay")), config.n_step, config.gamma, beta)
    expected, surprise = {}, np.zeros(config.batch_size)
    for name, net in workflow.nets.items():
        noise = torch.Generator().set_state(streams.torch(f"noise.{name}").get_state())
        loss, errors = plain_group_loss(
            workflow, name, sampled, (net.draw(noise), workflow.targets[name].net.draw(noise))
        )
        expected[name] = loss.detach(), torch.autograd.grad(loss, list(net.parameters()))
        surprise = np.maximum(surprise, errors.max(1))

        def instead(rate: Any, norm: Any, name: str = name, net: Any = net) -> Any:
            gradients[name] = [parameter.grad.clone() for parameter in net.parameters()]
            return {"all": torch.zeros(())}

        workflow.optimizers[name].step = instead
    found = workflow.update(store, PHASE)
    assert found.updates == len(workflow.nets)
    for name, (loss, slopes) in expected.items():
        prefix = "train/" if len(expected) == 1 else f"train/{name}/"
        assert float(found.metrics[f"{prefix}loss"]) == pytest.approx(float(loss), rel=1e-4)
        assert any(slope.any() for slope in slopes)
        for ours, theirs in zip(gradients[name], slopes, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5 * float(theirs.abs().max()) + 1e-6)
    if store.priorities is not None:
        weights = store.priorities.state_dict()["weights"][sampled.index]
        last = {int(slot): row for row, slot in enumerate(sampled.index)}  # a slot may be drawn twice
        for row in last.values():
            assert weights[row] == pytest.approx(surprise[row] ** config.priority_alpha, rel=1e-2, abs=1e-3)
    return sampled


SHORT_EPISODES = "environment.max_episode_steps=15"  # than many without: both kinds of end occur
C51 = ["algorithm.distribution=c51", "algorithm.atoms=11", "algorithm.v_min=-2", "algorithm.v_max=8"]
PRIORITIES = ["algorithm.priority_alpha=0.6", "algorithm.priority_beta=0.5"]
VARIANTS = {
    "plain": [],
    "squared": ["algorithm.loss=mse"],
    "double": ["algorithm.double=true"],
    "dueling double": ["algorithm.dueling=true", "algorithm.double=true"],
    "dueling, shared layers": ["algorithm.dueling=true", "algorithm.torso={hidden_sizes: [12], activation: relu}"],
    "three steps": ["algorithm.n_step=3"],
    "priorities": [*PRIORITIES, "algorithm.n_step=2"],
    "no hidden layer": ["algorithm.hidden.hidden_sizes=[]"],
    "c51": C51,
    "c51, dueling double, priorities": [*C51, *PRIORITIES, "algorithm.dueling=true", "algorithm.double=true"],
    "quantile": ["algorithm.distribution=quantile", "algorithm.atoms=5"],
    "quantile, double, narrow": ["algorithm.distribution=quantile", "algorithm.atoms=4", "algorithm.kappa=0.1"],
    "noisy": ["algorithm.noisy=true", "algorithm.double=true"],
    "all": [*C51, *PRIORITIES, *(f"algorithm.{key}=true" for key in ("noisy", "dueling", "double"))],
}


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradient_equal_a_plain_implementation(warmed_up: Any, variant: str, kernels: str) -> None:
    settings = [*VARIANTS[variant], f"runtime.kernels={kernels}", "algorithm.hidden.hidden_sizes=[16,8]"]
    settings = settings if variant != "no hidden layer" else settings[:-1]
    workflow, store = warmed_up("CartPole-v1:dqn", SHORT_EPISODES, *settings)
    plain = workflow.config.distribution == "none" and not workflow.config.noisy
    assert ("agent" in workflow.kernels) == (plain and kernels == "numpy")
    sampled = check_an_update(workflow, store, beta=0.5)
    terminated = sampled.groups["agent"]["terminated"]
    assert 0 < terminated.sum() < len(terminated)


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
@pytest.mark.parametrize("double", ["true", "false"])
def test_next_actions_are_among_those_allowed(warmed_up: Any, kernels: str, double: str) -> None:
    settings = ["environment.kwargs={allowed: 2}", f"runtime.kernels={kernels}", f"algorithm.double={double}"]
    workflow, store = warmed_up("toy/masked:dqn", *settings, "algorithm.hidden.hidden_sizes=[8]")
    sampled = check_an_update(workflow, store)
    assert not sampled.groups["agent"]["next_mask"].all()


# two groups, one with a second agent that dies, and actions that do not begin at 0

GROUPS = EnvSpec(
    "made up",
    {
        "runner": GroupSpec(("a", "b"), spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3)),
        "shooter": GroupSpec(("c",), spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2, start=5)),
    },
)


def groups(kernels: str = "numpy", seed: int = 0, **settings: Any) -> DQN:
    torch.manual_seed(seed)
    config = DQNConfig(batch_size=48, **settings)
    return DQN(config, Context(GROUPS, 3, torch.device("cpu"), Streams(seed), kernels))


def lived(workflow: DQN, steps: int = 100) -> ReplayStore:
    experience, store, random = Experience(3), workflow.stores()["replay"], np.random.default_rng(0)
    soften(experience.step)
    for _ in range(steps):
        step, acted, after = experience.transition()
        soften(after)
        acted.action["shooter"] = random.integers(5, 7, (3, 1))
        store.add(step, acted, after)
    assert isinstance(store, ReplayStore)
    return store


def soften(step: Step) -> None:
    """Large numbers would make for large values."""
    step.obs = {name: np.sin(obs) for name, obs in step.obs.items()}
    step.final_obs = {name: np.sin(obs) for name, obs in step.final_obs.items()}


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
def test_groups_learn_each_for_itself_and_the_dead_weigh_nothing(kernels: str) -> None:
    workflow = stirred(groups(kernels, n_step=2, double=True, priority_alpha=0.7, priority_beta=1.0))
    sampled = check_an_update(workflow, lived(workflow))
    assert not sampled.groups["runner"]["active"].all()
    assert not sampled.groups["runner"]["next_mask"].all()


def act(workflow: Any, count: int, explore: bool, now: int = 0, **changes: Any) -> tuple[Any, Any]:
    """Many actions on one and the same step, and the step."""
    step = Experience(count).step
    for name in step.obs:
        step.obs[name] = np.broadcast_to(np.array([0.3, -0.7], np.float32), step.obs[name].shape).copy()
        step.mask = {"runner": np.broadcast_to(np.array([True, False, True]), (count, 2, 3))}
    mode = Mode(explore, PhaseInfo("train", "online", now, 1000), Streams(1), **changes)
    return workflow.act(step, {}, mode).action, step


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
def test_epsilon_is_the_share_of_random_actions_among_those_allowed(kernels: str) -> None:
    workflow, count = stirred(groups(kernels)), 20_000
    best = {name: int(actions[0, 0]) for name, actions in act(workflow, 1, explore=False)[0].items()}
    with torch.no_grad():
        seen = {"vector": torch.tensor([0.3, -0.7])}
        values = {name: net(seen).numpy() for name, net in workflow.nets.items()}
    assert best["shooter"] == 5 + int(values["shooter"].argmax())
    assert best["runner"] == int(np.where([True, False, True], values["runner"], -np.inf).argmax())
    for now, epsilon in ((0, 1.0), (50, 0.525), (100, 0.05), (1000, 0.05)):
        actions, _ = act(workflow, count, explore=True, now=now)
        assert set(np.unique(actions["runner"])) == {0, 2}
        assert set(np.unique(actions["shooter"])) == {5, 6}
        for name, chosen in actions.items():
            assert (chosen != best[name]).mean() == pytest.approx(epsilon / 2, abs=0.012)
    assert act(groups(kernels, evaluation_epsilon=1.0), count, explore=False)[0]["shooter"].std() > 0.4


def test_what_is_forced_is_done() -> None:
    forced = {"runner": np.ones((4, 2), np.int64), "shooter": np.full((4, 1), 6)}
    assert act(groups(), 4, explore=True, forced=forced)[0] is forced


def test_noise_explores_is_drawn_from_named_generators_and_is_gone_in_evaluations() -> None:
    workflow = stirred(groups(noisy=True, noisy_sigma=3.0, epsilon=0.0))
    store, step, streams = lived(workflow), Experience(1).step, Streams(1)
    before = torch.get_rng_state()

    def values(explore: bool) -> np.ndarray:
        return workflow._values("runner", step, Mode(explore, PHASE, streams))

    np.testing.assert_array_equal(values(False), values(False))
    assert not np.allclose(values(True), values(True))
    workflow.update(store, PHASE)
    torch.testing.assert_close(torch.get_rng_state(), before)


def test_a_noisy_layer_has_the_mean_and_the_spread_of_the_paper() -> None:
    layer: Any = groups(noisy=True).nets["runner"].advantage.layers[0]
    x, draw = torch.tensor([1.0, -2.0]), torch.Generator().manual_seed(0)
    with torch.no_grad():
        drawn = torch.stack([layer(x, layer.draw(draw)) for _ in range(20_000)])
        torch.testing.assert_close(drawn.mean(0), layer(x), atol=0.05, rtol=0)
        # E f(e)^2 = E|e| = sqrt(2/pi); weights have a product of two such factors, biases one
        mean = math.sqrt(2 / math.pi)
        sigma = 0.5 / math.sqrt(2)
        variance = sigma**2 * (mean**2 * float(x.square().sum()) + mean)
        torch.testing.assert_close(drawn.var(0).mean(), torch.tensor(variance), rtol=0.05, atol=0)


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
def test_a_hard_target_is_a_copy_every_so_many_gradient_steps(kernels: str) -> None:
    workflow = groups(kernels, target_every=3)
    store = lived(workflow)
    first = copy.deepcopy(workflow.targets["runner"].net.state_dict())
    for step in range(1, 7):
        workflow.update(store, PHASE)
        now, own = workflow.targets["runner"].net.state_dict(), workflow.nets["runner"].state_dict()
        expected = first if step < 3 else own if step % 3 == 0 else None
        for key in now if expected is not None else ():
            torch.testing.assert_close(now[key], expected[key], rtol=0, atol=0)
        assert step % 3 == 0 or not torch.equal(now["advantage.layers.0.weight"], own["advantage.layers.0.weight"])


@pytest.mark.parametrize("double", ["true", "false"])
def test_several_gradient_steps_at_once_are_those_taken_one_by_one(warmed_up: Any, double: str) -> None:
    settings = [f"algorithm.double={double}", "algorithm.target_every=5", "algorithm.hidden.hidden_sizes=[16,8]"]
    settings += ["algorithm.batch_size=400", "runtime.kernels=numpy"]
    runs = [warmed_up("MountainCar-v0:dqn", *settings) for _ in range(2)]  # no episode ends: the same are drawn
    (together, store), (singly, same) = runs
    done: list[int] = []
    metrics: dict[str, Any] = {}
    while sum(done) < 6:
        result = together.update(store, replace(PHASE, due=6 - sum(done)))
        assert result.updates == result.calls
        done.append(result.calls)
        for key, value in result.metrics.items():
            metrics[key] = metrics.get(key, 0.0) + float(value) * result.calls / 6
    assert done == [2, 2, 1, 1]  # no more than 1024 transitions, none after the target network changes
    rows = [singly.update(same, PHASE).metrics for _ in range(6)]
    for key, value in metrics.items():
        assert value == pytest.approx(np.mean([float(row[key]) for row in rows]), rel=1e-4)
    for one, other in zip(together.nets["agent"].parameters(), singly.nets["agent"].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [["runtime.kernels=torch"], ["algorithm.priority_alpha=0.6"]])
def test_what_learning_changes_between_gradient_steps_is_asked_for_at_each(warmed_up: Any, settings: list[str]) -> None:
    workflow, store = warmed_up("CartPole-v1:dqn", *settings)
    assert workflow.update(store, replace(PHASE, due=9)).calls == 1


def test_a_soft_target_moves_a_little_each_time() -> None:
    workflow = stirred(groups(target_every=1, tau=0.25))
    before = {key: value.clone() for key, value in workflow.targets["shooter"].net.state_dict().items()}
    workflow.update(lived(workflow), PHASE)
    own = workflow.nets["shooter"].state_dict()
    for key, value in workflow.targets["shooter"].net.state_dict().items():
        torch.testing.assert_close(value, 0.75 * before[key] + 0.25 * own[key])


def test_borrowed_weights_are_the_targets_too_and_the_state_is_complete() -> None:
    giver, taker, store = stirred(groups()), groups(seed=1), lived(groups())
    for _ in range(3):
        giver.update(store, PHASE)
    taker.load_weights(giver.state_dict())
    for net in (taker.nets["runner"], taker.targets["runner"].net):
        for key, value in net.state_dict().items():
            torch.testing.assert_close(value, giver.nets["runner"].state_dict()[key], rtol=0, atol=0)
    taker.load_state_dict(giver.state_dict())
    assert taker.gradient_steps == {"runner": 3, "shooter": 3}
    taker.context.streams.load_state_dict(giver.context.streams.state_dict())
    a, b = giver.update(store, PHASE), taker.update(store, PHASE)
    assert {key: float(value) for key, value in a.metrics.items()} == {k: float(v) for k, v in b.metrics.items()}
    for key, value in giver.targets["shooter"].net.state_dict().items():
        torch.testing.assert_close(value, taker.targets["shooter"].net.state_dict()[key], rtol=0, atol=0)


# distributions


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_the_projection_equals_a_slow_loop_and_keeps_probability_and_mean(discount: float) -> None:
    generator = torch.Generator().manual_seed(0)
    support = torch.linspace(-3, 5, 9)
    probs = torch.softmax(torch.randn(20, 9, generator=generator), -1)
    rewards = torch.randn(20, 1, generator=generator) * 4
    returns = rewards + discount * support
    found = project(probs, returns, support)
    for row in range(20):
        expected = slow_projection(probs[row].tolist(), returns[row].tolist(), -3, 5)
        assert found[row].tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(found.sum(-1), torch.ones(20))
    torch.testing.assert_close(found @ support, (probs * returns.clamp(-3, 5)).sum(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 3.0])
def test_the_quantile_loss_equals_a_slow_loop_and_is_least_at_the_quantiles(kappa: float) -> None:
    generator = torch.Generator().manual_seed(0)
    quantiles, returns = torch.randn(6, 5, generator=generator), 3 * torch.randn(6, 7, generator=generator)
    found = quantile_huber(quantiles, returns, kappa)
    for row in range(6):
        assert float(found[row]) == pytest.approx(
            float(slow_quantile_loss(quantiles[row], returns[row].tolist(), kappa))
        )
    sample = torch.rand(2001, generator=generator)
    levels = (torch.arange(4) + 0.5) / 4
    best = sample.quantile(levels)
    for shift in (-0.05, 0.05):
        assert quantile_huber(best, sample, 0.001) < quantile_huber(best + shift, sample, 0.001)


# phases and settings


def test_what_the_zoo_does_on_cartpole_is_done_exactly() -> None:
    config = load("CartPole-v1:dqn", [])
    assembly = assemble(config, check(config), {})
    assembly.close()
    scheduler, seen = PhaseScheduler(assembly.phases), []
    for _ in range(3 + 3 * 129):
        task = scheduler.next()
        assert task is not None
        seen.append((task.phase.name, task.phase.actions, task.hook.name))
        collects = task.hook.name == "collect"
        scheduler.advance(
            task.amount if collects else 1, env_steps=task.amount if collects else 0, updates=not collects
        )
        assert not collects or task.amount == 256
    warmup, visit = ("warmup", "random", "collect"), [("train", "policy", "collect")]
    visit += [("train", "policy", "update")] * 128
    assert seen == [warmup] * 3 + visit * 3
    assert config.algorithm.target_every == 128


WRONG = [
    ("CartPole-v1:dqn", "algorithm.epsilon=1.5", "algorithm.epsilon=1.5: must be in [0, 1]"),
    ("CartPole-v1:dqn", "algorithm.tau=0", "algorithm.tau=0: must be in (0, 1]"),
    ("CartPole-v1:dqn", "algorithm.update_ratio=0", "algorithm.update_ratio=0: must be above 0"),
    ("CartPole-v1:dqn", "algorithm.n_step=0", "algorithm.n_step=0: must be at least 1"),
    ("CartPole-v1:dqn", "algorithm.warmup_steps=-1", "algorithm.warmup_steps=-1: must be at least 0"),
    (
        "CartPole-v1:dqn",
        "algorithm.buffer_size=2",
        "algorithm.buffer_size=2: must be at least 3 for environment.num_envs=1",
    ),
    ("CartPole-v1:dqn", "algorithm.torso.memory.type=lstm", "dqn learns from single transitions and has no memory"),
    ("CartPole-v1:dqn", "algorithm.torso.shared=false", "algorithm.torso.shared=false: dqn has one network"),
    (
        "CartPole-v1:dqn",
        "algorithm.duelling=true",
        "unknown key 'algorithm.duelling'; did you mean 'algorithm.dueling'",
    ),
    ("CartPole-v1:rainbow", "algorithm.v_min=20", "algorithm.v_min=20: must be below algorithm.v_max=10"),
    ("CartPole-v1:rainbow", "algorithm.loss=mse", "algorithm.loss=mse is for plain values"),
    ("CartPole-v1:rainbow", "algorithm.atoms=1", "algorithm.atoms=1: must be at least 2"),
    ("Pendulum-v1:dqn", "seed=1", "dqn takes Discrete actions; Pendulum-v1 (group agent) has Box"),
    ("toy/pair:rainbow", "seed=1", "rainbow takes Discrete actions; toy/pair (group shooter) has Box"),
]


@pytest.mark.parametrize(("spec", "override", "message"), WRONG)
def test_mistakes_are_named(spec: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(load(spec, [override]))
    assert message in str(refusal.value)


def test_rainbow_is_dqn_with_everything_on() -> None:
    settings = load("CartPole-v1:rainbow", []).algorithm
    assert isinstance(settings, DQNConfig)
    assert all((settings.double, settings.dueling, settings.noisy, settings.priority_alpha))
    assert (settings.n_step, settings.distribution, settings.epsilon) == (3, "c51", 0.0)


def test_an_idle_agents_action_touches_no_other_row(warmed_up: Any) -> None:
    workflow, _ = warmed_up("CartPole-v1:dqn", SHORT_EPISODES, "runtime.kernels=numpy")
    kernel, net = workflow.kernels["agent"], workflow.nets["agent"]
    rows, one = np.ones((2, 1), np.float32), np.array([[1.0], [0.0]], np.float32)  # the second agent is idle
    obs = np.ones((2, 1, 4), np.float32)
    gradients = []
    for idle in (0, -1):
        batch = TDBatch(obs, np.array([[1], [idle]]), 5 * rows, obs, None, 0 * rows, one, one)
        list(kernel.gradients(batch, 1, False, True))
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*gradients, strict=True))
    assert any(gradient.any() for gradient in gradients[0])
