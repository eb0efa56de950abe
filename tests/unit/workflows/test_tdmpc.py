"""TD-MPC's batches, losses, plans and their memory against slow references; what its fields mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor

from cadenza.config.load import load
from cadenza.config.world_models import PathIntegralConfig
from cadenza.data.normalisers import PercentileScale
from cadenza.errors import ConfigError
from cadenza.nets.latent_model import LatentModel
from cadenza.orchestration.build import Assembly, assemble
from cadenza.orchestration.launch import check, train
from cadenza.types import Mode
from cadenza.workflows.tdmpc_steps import Batch, Noise, PlanNoise, Slow, model_loss, plan, policy_loss
from harness.collecting import PHASE, filled
from harness.lab import Lab

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
QUICK = ["algorithm.update_ratio=0.25", "algorithm.planning.iterations=2", "evaluation.at_end=false"]
VARIANTS = ("tdmpc", "tdmpc2")
NONE = torch.zeros(())


@pytest.fixture
def warmed() -> Iterator[Any]:
    made: list[Assembly] = []

    def warm(spec: str, *overrides: str) -> tuple[Any, Any]:
        """The workflow, and its replay after the warm-up."""
        config = load(spec, [*SMALL, *overrides])
        assembly = assemble(config, check(config), {})
        made.append(assembly)
        return assembly.workflow, filled(assembly)

    yield warm
    for assembly in made:
        assembly.close()


def stirred(workflow: Any) -> None:
    """Weights that are not zero anywhere, those of the slow copies among them."""
    generator = torch.Generator().manual_seed(5)
    for net in (workflow.model, *(target.net for target in workflow.targets.values())):
        for parameter in net.parameters():
            with torch.no_grad():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def batch_of(workflow: Any, actions: int = 1, seed: int = 0) -> tuple[Batch, Noise]:
    generator, config = torch.Generator().manual_seed(seed), workflow.config
    steps, many = config.horizon, config.batch_size
    taken = torch.ones(steps, many)
    taken[2:, 1] = 0  # an episode that ends within a stretch
    taken[1:, 2] = 0
    terminated = torch.zeros(steps, many)
    terminated[1, 1] = 1
    batch = Batch(
        obs={"vector": torch.randn(steps + 1, many, 3, generator=generator)},
        action=2 * torch.rand(steps, many, actions, generator=generator) - 1,
        reward=torch.randn(steps, many, generator=generator),
        terminated=terminated,
        taken=taken,
        weight=torch.rand(many, generator=generator),
    )
    normal = (torch.randn(steps + extra, many, actions, generator=generator) for extra in (0, 1))
    return batch, Noise(*normal, torch.tensor([1, 0]), torch.tensor([0, 1]))


def number(workflow: Any, output: Tensor) -> float:
    """What one output of a network stands for."""
    if workflow.config.model.numbers == "plain":
        return float(output)
    probs = torch.softmax(output.double(), -1)
    inner = float(sum(p * (-10 + 0.2 * k) for k, p in enumerate(probs)))
    return math.copysign(math.exp(abs(inner)) - 1, inner)


def cost(workflow: Any, output: Tensor, target: float) -> float:
    if workflow.config.model.numbers == "plain":
        return (float(output) - target) ** 2
    place = (math.copysign(math.log(1 + abs(target)), target) + 10) / 0.2
    low = math.floor(place)
    logs = torch.log_softmax(output.double(), -1)
    return -float((1 - place + low) * logs[low] + (place - low) * logs[low + 1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_models_loss_is_what_a_walk_along_each_stretch_gives(warmed: Any, variant: str) -> None:
    workflow, _ = warmed(f"Pendulum-v1:{variant}")
    stirred(workflow)
    config, model, gamma = workflow.config, workflow.model, workflow.gamma
    batch, noise = batch_of(workflow)
    slow = Slow(**{name: target.net for name, target in workflow.targets.items()})
    found = model_loss(model, slow, batch, noise, gamma, config)
    steps, many = batch.reward.shape
    total, errors = 0.0, np.zeros(many)
    with torch.no_grad():
        for b in range(many):
            latent = model.encoder({"vector": batch.obs["vector"][0, b]})
            for t in range(steps):
                inputs = torch.cat([latent, batch.action[t, b]])
                seen = {"vector": batch.obs["vector"][t + 1, b]}
                online, latent_after = model.encoder(seen), model.dynamics(inputs)
                wanted = online if slow.encoder is None else slow.encoder(seen)
                action, _ = model.policy(online, noise.target[t, b])
                beyond = slow.critics(torch.cat([online, action])[None])[:, 0]
                value = min(number(workflow, beyond[k]) for k in noise.target_pair.tolist())
                target = float(batch.reward[t, b]) + gamma * (1 - float(batch.terminated[t, b])) * value
                critics = model.critics(inputs[None])[:, 0]
                counts = config.rho**t * float(batch.taken[t, b])
                part = config.consistency_coef * float((latent_after - wanted).square().mean())
                part += config.reward_coef * cost(workflow, model.reward(inputs), float(batch.reward[t, b]))
                part += config.value_coef * sum(cost(workflow, c, target) for c in critics) / len(critics)
                logit = float(model.ends(latent_after))
                ended = math.log1p(math.exp(-logit if batch.terminated[t, b] else logit))
                part = counts * part + float(batch.taken[t, b]) * config.end_coef * ended
                total += float(batch.weight[b]) * part / (steps * many)
                errors[b] += counts * sum(abs(number(workflow, c) - target) for c in critics)
                latent = latent_after
    assert float(found.loss.detach()) == pytest.approx(total, rel=1e-4)
    np.testing.assert_allclose(found.error, errors, rtol=1e-3)


def test_the_policy_climbs_what_it_trusts() -> None:
    """Actions of two numbers, and values whose spread is not one."""
    for variant, trusts in (("tdmpc", min), ("tdmpc2", lambda pair: sum(pair) / 2)):
        config = load(f"Pendulum-v1:{variant}", SMALL).algorithm
        std = config.policy_std if variant == "tdmpc" else None
        model = LatentModel(Box(-1, 1, (3,)), 2, config.model, std)
        scale = PercentileScale(torch.device("cpu"), rate=1.0, floor=1e-3) if config.scale_values else None
        workflow = SimpleNamespace(config=config, model=model, targets={})
        stirred(workflow)
        batch, noise = batch_of(workflow, actions=2)
        latents = torch.rand(config.horizon + 1, config.batch_size, 16, generator=torch.Generator().manual_seed(1))
        coef = torch.tensor(0.3)
        loss, _ = policy_loss(model, latents, batch, noise, scale, coef, config)
        spread = 1.0 if scale is None else float(scale.spread())
        assert scale is None or abs(spread - 1) > 0.1
        total = 0.0
        with torch.no_grad():
            for t, b in np.ndindex(config.horizon + 1, config.batch_size):
                action, log_prob = model.policy(latents[t, b], noise.policy[t, b])
                outputs = model.critics(torch.cat([latents[t, b], action])[None])[:, 0]
                value = trusts([number(workflow, outputs[k]) for k in noise.policy_pair.tolist()])
                reached = 1.0 if t == 0 else float(batch.taken[t - 1, b])
                total -= reached * config.rho**t * (value / spread - 0.3 * 2 * float(log_prob))
        assert float(loss.detach()) == pytest.approx(total / latents[..., 0].numel(), rel=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gradient_step_moves_every_network_and_the_slow_ones_follow(warmed: Any, variant: str) -> None:
    workflow, store = warmed(f"Pendulum-v1:{variant}")
    before = {name: p.detach().clone() for name, p in workflow.model.named_parameters()}
    slow = {name: [p.clone() for p in target.net.parameters()] for name, target in workflow.targets.items()}
    for _ in range(3):  # at first rewards and values are zero, and nothing behind them moves
        updated = workflow.update(store, PHASE)
    assert updated.updates == 1
    assert all(math.isfinite(float(value)) for value in updated.metrics.values())
    parts = {name.split(".")[0] for name, p in workflow.model.named_parameters() if not torch.equal(p, before[name])}
    assert parts == {"encoder", "dynamics", "reward", "ends", "critics", "policy"}
    for name, target in workflow.targets.items():
        pairs = zip(target.net.parameters(), slow[name], strict=True)
        assert any(not torch.equal(now, then) for now, then in pairs)
    assert set(workflow.targets) == ({"critics", "encoder"} if variant == "tdmpc" else {"critics"})


def test_the_encoder_learns_at_its_own_rate_within_the_norm_of_all(warmed: Any) -> None:
    workflow, store = warmed("Pendulum-v1:tdmpc2", "algorithm.encoder_rate=0.25", "algorithm.max_grad_norm=0.001")
    before = {name: p.detach().clone() for name, p in workflow.model.named_parameters()}
    norm = float(workflow.update(store, PHASE).metrics["train/grad_norm/model"])
    clipped = torch.stack([p.grad.norm() for p in workflow.taught]).norm()
    assert norm > 0.002
    assert float(clipped) == pytest.approx(0.001, rel=1e-2)
    moved = {
        part: max(float((p - before[f"{part}.{name}"]).detach().abs().max()) for name, p in net.named_parameters())
        for part, net in (("encoder", workflow.model.encoder), ("dynamics", workflow.model.dynamics))
    }
    rate = 3e-4  # how far Adam's first step goes
    assert moved == pytest.approx({"encoder": 0.25 * rate, "dynamics": rate}, rel=0.05)


def test_slow_copies_move_at_every_second_update_and_priorities_are_the_errors(warmed: Any) -> None:
    workflow, store = warmed("Pendulum-v1:tdmpc", "algorithm.target_every=2")
    stirred(workflow)
    slow = [p for target in workflow.targets.values() for p in target.net.parameters()]
    before = [p.detach().clone() for p in slow]
    numbers, normals = (workflow.context.streams.numpy("replay"), workflow.context.streams.torch("update"))
    states = numbers.bit_generator.state, normals.get_state()
    drawn = store.stretches(6, 3, numbers, 0.4)
    copies = Slow(**{name: target.net for name, target in workflow.targets.items()})
    batch, noise = workflow._batch(drawn), Noise(**workflow._noise())
    found = model_loss(workflow.model, copies, batch, noise, workflow.gamma, workflow.config)
    numbers.bit_generator.state = states[0]
    normals.set_state(states[1])
    workflow.update(store, PHASE)
    errors = dict(zip(drawn.index.tolist(), found.error.tolist(), strict=True))
    weights = store.priorities.state_dict()["weights"]
    assert [float(weights[i]) for i in errors] == pytest.approx([e**0.6 for e in errors.values()], rel=1e-3)
    assert all(torch.equal(now, then) for now, then in zip(slow, before, strict=True))
    workflow.update(store, PHASE)
    assert not any(torch.equal(now, then) for now, then in zip(slow, before, strict=True))


def test_large_actions_get_more_rounds() -> None:
    assert [PathIntegralConfig().rounds(size) for size in (1, 19, 20, 38)] == [6, 6, 8, 8]
    assert PathIntegralConfig(iterations=3).rounds(38) == 3


def test_a_plan_is_scored_by_rewards_until_an_end_and_the_value_beyond(warmed: Any) -> None:
    workflow, _ = warmed("Pendulum-v1:tdmpc2", "algorithm.planning.iterations=1", "algorithm.planning.elites=1")
    stirred(workflow)
    config, model = workflow.config, workflow.model
    latent = torch.rand(2, 16, generator=torch.Generator().manual_seed(2))
    noise: PlanNoise = workflow._plan_noise(2, 3, torch.Generator().manual_seed(3))
    with torch.inference_mode():
        found = plan(model, latent, torch.zeros(2, 3, 1), noise, torch.tensor(0.05), 0.9, config)
        for n in range(2):
            plans, state = [], latent[n].expand(2, -1)
            for t in range(3):
                action, _ = model.policy(state, noise.policy[t, n])
                plans.append(action)
                state = model.step(state, action)
            tried = [*torch.stack(plans, 1), *(2.0 * noise.plans[0, n]).clamp(-1, 1)]
            scores = []
            for number_of, actions in enumerate(tried):
                state, total, counts = latent[n], 0.0, 1.0
                for action in actions:
                    total += counts * number(workflow, model.reward(torch.cat([state, action])))
                    state, counts = model.step(state, action), 0.9 * counts
                    counts *= float(model.ends(state)) <= 0
                action, _ = model.policy(state, noise.after[0, n, number_of])
                values = model.critics(torch.cat([state, action])[None])[:, 0]
                total += counts * sum(number(workflow, values[k]) for k in noise.pairs[0].tolist()) / 2
                scores.append(total)
            best = [tried[i] for i, score in enumerate(scores) if score >= max(scores) - 1e-4]  # actions at bounds tie
            assert any(torch.allclose(found.mean[n], one) for one in best)
            assert torch.equal(found.action[n], found.mean[n, 0])
            assert max(scores) > min(scores)


def test_a_plan_begins_where_the_last_one_has_led_but_not_in_a_new_episode(warmed: Any) -> None:
    one_round = [
        "algorithm.planning.iterations=1",
        "algorithm.planning.momentum=0.999",
        "algorithm.planning.samples=11",
    ]
    workflow, _ = warmed("Pendulum-v1:tdmpc2", *one_round)
    env = assemble(config := load("Pendulum-v1:tdmpc2", SMALL), check(config), {})
    assert env.env is not None
    step = env.env.reset()
    carry = {"mean": torch.tensor([[[0.2], [0.4], [0.6]], [[-0.2], [-0.4], [-0.6]]])}
    later = replace(step, is_first=np.array([False, True]))
    acted = workflow.act(later, carry, Mode(explore=False, phase=PHASE, streams=env.streams))
    # with that momentum the mean hardly moves from where it began
    torch.testing.assert_close(acted.carry["mean"][0, :, 0], torch.tensor([0.4, 0.6, 0.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(acted.carry["mean"][1, :, 0], torch.zeros(3), atol=0.01, rtol=0)
    assert env.env.spec.groups["agent"].action.contains(acted.action["agent"][0, 0])
    env.close()


def test_plans_and_their_floor_of_noise_follow_their_schedules(warmed: Any) -> None:
    longer = "algorithm.planning.horizon={schedule: linear, start_value: 1, end_value: 3, end: 100}"
    workflow, store = warmed(
        "Pendulum-v1:tdmpc2", longer, "algorithm.planning.min_std={start_value: 2, end_value: 0.1}"
    )
    stirred(workflow)
    env = assemble(config := load("Pendulum-v1:tdmpc2", SMALL), check(config), {})
    assert env.env is not None
    step, lengths = env.env.reset(), []
    for now in (0, 49, 50, 99, 100, 1000):
        mode = Mode(explore=True, phase=replace(PHASE, now=now), streams=env.streams)
        acted = workflow.act(step, workflow.initial_carry(2), mode)
        lengths.append(int((acted.carry["mean"][0, :, 0] != 0).sum()))
    assert lengths == [1, 1, 2, 2, 3, 3]
    workflow.update(store, replace(PHASE, now=60))
    acted = workflow.act(step, workflow.initial_carry(2), Mode(explore=False, phase=PHASE, streams=env.streams))
    assert int((acted.carry["mean"][0, :, 0] != 0).sum()) == 2  # measured as it stood when it last learned
    workflow.load_weights(workflow.state_dict())
    acted = workflow.act(step, workflow.initial_carry(2), Mode(explore=False, phase=PHASE, streams=env.streams))
    assert int((acted.carry["mean"][0, :, 0] != 0).sum()) == 3  # weights from elsewhere: as at the end of their run
    env.close()


def test_the_discount_goes_by_the_length_of_episodes(warmed: Any) -> None:
    assert warmed("Pendulum-v1:tdmpc2")[0].gamma == pytest.approx(1 - 5 / 200)
    assert warmed("Pendulum-v1:tdmpc2", "environment.max_episode_steps=40")[0].gamma == 0.95
    assert warmed("Pendulum-v1:tdmpc2", "algorithm.gamma=0.9")[0].gamma == 0.9
    assert warmed("Pendulum-v1:tdmpc")[0].gamma == 0.99


@pytest.mark.parametrize(
    ("spec", "overrides", "message"),
    [
        ("CartPole-v1:tdmpc2", [], "tdmpc2 plans continuous actions; those of CartPole-v1 are discrete"),
        ("toy/pair:tdmpc", [], "tdmpc models the world of one agent; toy/pair has"),
        ("Pendulum-v1:tdmpc2", ["algorithm.planning.elites=600"], "algorithm.planning.elites=600: only 128"),
        ("Pendulum-v1:tdmpc2", ["algorithm.model.latent=60"], "algorithm.model.latent=60: must be a multiple"),
        ("Pendulum-v1:tdmpc2", ["algorithm.planning.horizon=0"], "algorithm.planning.horizon: must be at least 1"),
        ("Pendulum-v1:tdmpc2", ["algorithm.buffer_size=4"], "algorithm.buffer_size=4: at least 6"),
        ("Pendulum-v1:tdmpc2", ["size=12m"], "size=12m is not for this algorithm"),
        ("Pendulum-v1:tdmpc2", ["algorithm.policy_std=0.1"], "policy_std=0.1: does nothing without policy=noisy"),
        ("Pendulum-v1:tdmpc2", ["algorithm.priority_beta=1"], "priority_beta=1.0: does nothing without priority_alpha"),
        ("Pendulum-v1:tdmpc", ["algorithm.entropy_coef=1"], "entropy_coef=1.0: does nothing without policy=squashed"),
        ("Pendulum-v1:tdmpc", ["algorithm.model.bins=9"], "model.bins=9: does nothing without model.numbers=two_hot"),
        ("Pendulum-v1:tdmpc", ["size=5"], "algorithm.model.critics=5: TD-MPC (model.style=elu) has 2"),
        (
            "Pendulum-v1:tdmpc2",
            ["algorithm.warmup_steps=0", "algorithm.pretrain_updates=500"],
            "pretrain_updates=500: does nothing without warmup_steps",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(spec: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(load(spec, overrides))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_sizes_are_called_by_numbers() -> None:
    sizes = {name: load("dmc/walker-walk:tdmpc2", [f"size={name}"]).algorithm.model for name in (1, 5)}
    assert [(model.latent, model.units, model.critics) for model in sizes.values()] == [(128, 384, 2), (512, 512, 5)]


def test_a_warm_started_plan_survives_a_resumption_in_the_middle_of_an_episode(lab: Lab) -> None:
    config = load("Pendulum-v1:tdmpc2", [*SMALL, *QUICK, "training.max_timesteps=160"])
    whole = lab.start(config, "whole")
    whole.run()
    first = lab.start(config, "parts")
    first.run(until=lambda clock: clock.env_steps >= 120)
    first.save()
    second = lab.resume(first)
    assert bool(second.collector.carry["mean"].any())
    assert torch.equal(second.collector.carry["mean"], first.collector.carry["mean"])
    second.run()
    assert torch.equal(second.collector.carry["mean"], whole.collector.carry["mean"])
    assert second.collector.checksum == whole.collector.checksum


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_a_tiny_task(variant: str, tmp_path: Path) -> None:
    small = [
        "training.max_timesteps=260",
        "algorithm.warmup_steps=200",
        "algorithm.pretrain_updates=100",
        "algorithm.update_ratio=0.25",
        "algorithm.batch_size=32",
        "algorithm.gamma=0.5",  # each step is a task of its own
        "algorithm.learning_rate=0.005",
        *(f"algorithm.planning.{key}" for key in ("horizon=1", "samples=32", "policy_samples=4", "elites=8")),
        "algorithm.planning.min_std=0.1",
        "algorithm.planning.iterations=2",
        *(f"algorithm.model.{key}" for key in ("latent=16", "units=32", "encoder_units=32", "ends=false", "critics=2")),
        "evaluation.episodes=4",
        "evaluation.num_envs=4",
        "evaluation.every_steps=0",
        "runtime.threads=1",
    ]
    result = train(load(f"toy/identity_box:{variant}", small), tmp_path, ["test"], quiet=True)
    assert result.summary()["eval/return_mean"] >= -2.5  # 0 at best; at random 16 steps of 2/3 each


def test_pairs_are_two_critics_of_all_and_dropout_takes_its_share(warmed: Any) -> None:
    workflow, _ = warmed("Pendulum-v1:tdmpc2", "algorithm.model.critics=5", "algorithm.model.dropout=0.25")
    pairs = workflow._pairs(200, torch.Generator().manual_seed(0))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert set(pairs.flatten().tolist()) == set(range(5))
    noise = Noise(**workflow._noise())
    assert noise.target_pair.shape == noise.policy_pair.shape == (2,)
    assert noise.value_kept is not None
    assert noise.policy_kept is not None
    assert noise.value_kept.shape == (5, 3 * 6, 8)
    assert noise.policy_kept.shape == (2, 4 * 6, 8)
    for kept in (noise.value_kept, noise.policy_kept):
        assert set(kept.unique().tolist()) == {0.0, 1.0}
        assert float(kept.mean()) == pytest.approx(0.75, abs=0.1)
