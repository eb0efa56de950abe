"""TD-MPC's batches and losses against slow references, its updates; what its fields mean."""

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

from cadenza.config.load import load
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.lab.session import train
from cadenza.nets.latent_model import LatentModel
from cadenza.nets.normalisers import PercentileScale
from cadenza.workflows.tdmpc_steps import SlowNetworks, UpdateNoise, model_loss, policy_loss
from harness.collecting import PHASE, warming
from harness.small_tdmpc import SMALL, batch_of, cost, number, stirred

VARIANTS = ("tdmpc", "tdmpc2")
# of several critics the two that are drawn
SEVERAL = {"tdmpc": [], "tdmpc2": ["algorithm.model.critics=3"]}


def discount_of(workflow: Any) -> float:
    gamma: float = workflow.config.discount(workflow.context.env)
    return gamma


@pytest.fixture
def warmed() -> Iterator[Any]:
    with warming(SMALL) as warm:
        yield warm


def test_a_batch_is_what_was_drawn_time_first_and_actions_between_their_bounds(warmed: Any) -> None:
    workflow, store = warmed("Pendulum-v1:tdmpc")
    random = np.random.default_rng(0)
    drawn = store.stretches(6, 3, random)
    marked = {"valid": random.random((6, 3)) < 0.5, "terminated": random.random((6, 3)) < 0.5}
    drawn = replace(drawn, **marked, weight=random.random(6).astype(np.float32))
    batch, data = workflow._batch(drawn), drawn.groups["agent"]
    for b, t in np.ndindex(6, 3):
        assert batch.obs["vector"][t, b].tolist() == data["obs"][b, t, 0].tolist()
        assert float(batch.action[t, b]) == pytest.approx(float(data["action"][b, t, 0, 0]) / 2)  # 2 at most
        assert float(batch.reward[t, b]) == float(data["reward"][b, t, 0])
        assert float(batch.terminated[t, b]) == float(drawn.terminated[b, t])
        assert float(batch.valid[t, b]) == float(drawn.valid[b, t])
    assert batch.obs["vector"][3].tolist() == data["obs"][:, 3, 0].tolist()
    assert batch.weight.tolist() == drawn.weight.tolist()
    assert workflow._batch(replace(drawn, weight=None)).weight.tolist() == [1.0] * 6


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_models_loss_equals_a_walk_along_each_stretch(warmed: Any, variant: str) -> None:
    workflow, _ = warmed(f"Pendulum-v1:{variant}", *SEVERAL[variant])
    stirred(workflow)
    config, model, gamma = workflow.config, workflow.model, discount_of(workflow)
    batch, noise = batch_of(workflow)
    slow = SlowNetworks(**{name: target.net for name, target in workflow.targets.items()})
    result = model_loss(model, slow, batch, noise, gamma, config)
    steps, many = batch.reward.shape
    total, errors = 0.0, np.zeros(many)
    with torch.no_grad():
        for b in range(many):
            latent = model.encoder({"vector": batch.obs["vector"][0, b]})
            for t in range(steps):
                inputs = torch.cat([latent, batch.action[t, b]])
                following = {"vector": batch.obs["vector"][t + 1, b]}
                online, latent_after = model.encoder(following), model.dynamics(inputs)
                expected = online if slow.encoder is None else slow.encoder(following)
                action, _ = model.policy(online, noise.target[t, b])
                beyond = slow.critics(torch.cat([online, action])[None])[:, 0]
                value = min(number(workflow, beyond[k]) for k in noise.target_pair.tolist())
                target = float(batch.reward[t, b]) + gamma * (1 - float(batch.terminated[t, b])) * value
                critics = model.critics(inputs[None], None, noise.value_mask[:, t * many + b, None])[:, 0]
                counts = config.rho**t * float(batch.valid[t, b])
                part = config.consistency_coef * float((latent_after - expected).square().mean())
                part += config.reward_coef * cost(workflow, model.reward(inputs), float(batch.reward[t, b]))
                part += config.value_coef * sum(cost(workflow, c, target) for c in critics) / len(critics)
                logit = float(model.ends(latent_after))
                ended = math.log1p(math.exp(-logit if batch.terminated[t, b] else logit))
                part = counts * part + float(batch.valid[t, b]) * config.end_coef * ended
                total += float(batch.weight[b]) * part / (steps * many)
                errors[b] += counts * sum(abs(number(workflow, c) - target) for c in critics)
                latent = latent_after
    assert float(result.loss.detach()) == pytest.approx(total, rel=1e-4)
    np.testing.assert_allclose(result.error, errors, rtol=1e-3)


def test_the_policys_loss_equals_a_slow_reference() -> None:
    """Actions of two numbers, and values whose spread is not one."""
    for variant, trusts in (("tdmpc", min), ("tdmpc2", lambda pair: sum(pair) / 2)):
        config = load(f"Pendulum-v1:{variant}", [*SMALL, *SEVERAL[variant]]).algorithm
        std = config.policy_std if variant == "tdmpc" else None
        model = LatentModel(Box(-1, 1, (3,)), 2, config.model, std)
        scale = PercentileScale(torch.device("cpu"), rate=1.0, floor=1e-3) if config.scale_values else None
        workflow = SimpleNamespace(config=config, model=model, targets={})
        stirred(workflow)
        batch, noise = batch_of(workflow, actions=2)
        latents = torch.rand(config.horizon + 1, config.batch_size, 16, generator=torch.Generator().manual_seed(1))
        coef = torch.tensor(0.3)
        loss, _ = policy_loss(model, latents, batch, noise, scale, coef, config)
        values, entropies = np.zeros((2, config.horizon + 1, config.batch_size))
        with torch.no_grad():
            for t, b in np.ndindex(values.shape):
                action, log_prob = model.policy(latents[t, b], noise.policy[t, b])
                mask = noise.policy_mask[:, t * config.batch_size + b, None]
                outputs = model.critics(torch.cat([latents[t, b], action])[None], noise.policy_pair, mask)[:, 0]
                values[t, b] = trusts([number(workflow, output) for output in outputs])
                entropies[t, b] = -2 * float(log_prob)
        low, high = np.percentile(values[0], [5, 95])  # where stretches begin
        spread = 1.0 if scale is None else high - low
        assert scale is None or abs(spread - 1) > 0.1
        reached = np.concatenate([np.ones((1, config.batch_size)), batch.valid.numpy()])
        counts = config.rho ** np.arange(config.horizon + 1)[:, None] * reached
        total = -float((counts * (values / spread + 0.3 * entropies)).mean())
        assert float(loss.detach()) == pytest.approx(total, rel=1e-4)


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
    clipped = torch.stack([p.grad.norm() for p in workflow.model_parameters]).norm()
    assert norm > 0.002
    assert float(clipped) == pytest.approx(0.001, rel=1e-2)
    moved = {
        part: max(float((p - before[f"{part}.{name}"]).detach().abs().max()) for name, p in net.named_parameters())
        for part, net in (("encoder", workflow.model.encoder), ("dynamics", workflow.model.dynamics))
    }
    rate = 3e-4  # how far Adam's first step goes
    assert moved == pytest.approx({"encoder": 0.25 * rate, "dynamics": rate}, rel=0.05)


def test_slow_copies_move_at_every_second_update_and_priorities_are_the_errors(warmed: Any) -> None:
    workflow, store = warmed("Pendulum-v1:tdmpc", "algorithm.target_every=2", "algorithm.tau=0.1")
    stirred(workflow)
    random = np.random.default_rng(0)
    store.update_priorities(store.stretches(60, 3, random).index, random.random(60))
    slow = [p for target in workflow.targets.values() for p in target.net.parameters()]
    before = [p.detach().clone() for p in slow]
    numbers, normals = (workflow.context.streams.numpy("replay"), workflow.context.streams.torch("update"))
    states = numbers.bit_generator.state, normals.get_state()
    drawn = store.stretches(6, 3, numbers, 0.4)
    copies = SlowNetworks(**{name: target.net for name, target in workflow.targets.items()})
    batch, noise = workflow._batch(drawn), UpdateNoise(**workflow._update_noise())
    result = model_loss(workflow.model, copies, batch, noise, discount_of(workflow), workflow.config)
    numbers.bit_generator.state = states[0]
    normals.set_state(states[1])
    updated = workflow.update(store, PHASE)
    assert len(set(drawn.weight.tolist())) > 3
    assert float(updated.metrics["train/model_loss"]) == pytest.approx(float(result.loss.detach()), rel=1e-4)
    errors = dict(zip(drawn.index.tolist(), result.error.tolist(), strict=True))
    weights = store.priorities.state_dict()["weights"]
    assert [float(weights[i]) for i in errors] == pytest.approx([e**0.6 for e in errors.values()], rel=1e-3)
    assert all(torch.equal(now, then) for now, then in zip(slow, before, strict=True))
    workflow.update(store, PHASE)
    followed = [p for name in workflow.targets for p in getattr(workflow.model, name).parameters()]
    for now, then, net in zip(slow, before, followed, strict=True):
        torch.testing.assert_close(now, 0.9 * then + 0.1 * net)
        assert not torch.equal(now, then)


def test_the_discount_follows_the_length_of_episodes(warmed: Any) -> None:
    assert discount_of(warmed("Pendulum-v1:tdmpc2")[0]) == pytest.approx(1 - 5 / 200)
    assert discount_of(warmed("Pendulum-v1:tdmpc2", "environment.max_episode_steps=40")[0]) == 0.95
    assert discount_of(warmed("Pendulum-v1:tdmpc2", "algorithm.gamma=0.9")[0]) == 0.9
    assert discount_of(warmed("Pendulum-v1:tdmpc")[0]) == 0.99


@pytest.mark.parametrize(
    ("spec", "overrides", "message"),
    [
        ("CartPole-v1:tdmpc2", [], "tdmpc2 plans continuous actions; those of CartPole-v1 are discrete"),
        ("toy/pair:tdmpc", [], "tdmpc models the world of one agent; toy/pair has"),
        ("Pendulum-v1:tdmpc2", ["algorithm.planning.elites=600"], "algorithm.planning.elites=600: only 128"),
        ("Pendulum-v1:tdmpc2", ["algorithm.model.latent=60"], "algorithm.model.latent=60: must be a multiple"),
        ("Pendulum-v1:tdmpc2", ["algorithm.planning.horizon=0"], "algorithm.planning.horizon=0: must be at least 1"),
        ("Pendulum-v1:tdmpc2", ["algorithm.buffer_size=4"], "algorithm.buffer_size=4: must be at least 6"),
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
def test_invalid_settings_are_refused_in_one_line(spec: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(load(spec, overrides))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_sizes_are_selected_by_numbers() -> None:
    sizes = {name: load("dmc/walker-walk:tdmpc2", [f"size={name}"]).algorithm.model for name in (1, 5)}
    assert [(model.latent, model.units, model.critics) for model in sizes.values()] == [(128, 384, 2), (512, 512, 5)]


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


def test_it_learns_where_episodes_terminate(warmed: Any) -> None:
    """A pole that leans over by more than 0.2 ends an episode, and so does time, which is nothing to predict."""
    sizes = ["warmup_steps=600", "buffer_size=2000", "batch_size=64", "learning_rate=0.005"]
    nets = ["model.units=32", "model.encoder_units=32", "model.critics=2"]
    settings = [f"algorithm.{one}" for one in (*sizes, *nets)]
    workflow, store = warmed("InvertedPendulum-v5:tdmpc2", "environment.max_episode_steps=5", *settings)
    batch = workflow._batch(store.stretches(500, 3, np.random.default_rng(0)))
    leans = batch.obs["vector"][1:, :, 1].abs() > 0.2
    assert torch.equal(batch.terminated.bool(), leans & batch.valid.bool())
    assert 20 < leans[0].sum() < 250
    assert bool((batch.valid == 0).any())
    for _ in range(200):
        workflow.update(store, PHASE)
    with torch.no_grad():
        latent = workflow.model.encoder({"vector": batch.obs["vector"][0]})
        logit = workflow.model.ends(workflow.model.step(latent, batch.action[0])).squeeze(-1)
    ends, others = logit[leans[0]], logit[~leans[0]]
    assert float((ends[:, None] > others).float().mean()) > 0.85  # by chance 0.5
    assert torch.sigmoid(ends).mean() > 3 * torch.sigmoid(others).mean()


def test_pairs_are_two_critics_of_all_and_dropout_takes_its_share(warmed: Any) -> None:
    workflow, _ = warmed("Pendulum-v1:tdmpc2", "algorithm.model.critics=5", "algorithm.model.dropout=0.25")
    pairs = workflow._critic_pairs(200, torch.Generator().manual_seed(0))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert set(pairs.flatten().tolist()) == set(range(5))
    noise = UpdateNoise(**workflow._update_noise())
    assert noise.target_pair.shape == noise.policy_pair.shape == (2,)
    assert noise.value_mask is not None
    assert noise.policy_mask is not None
    assert noise.value_mask.shape == (5, 3 * 6, 8)
    assert noise.policy_mask.shape == (2, 4 * 6, 8)
    for mask in (noise.value_mask, noise.policy_mask):
        assert set(mask.unique().tolist()) == {0.0, 1.0}
        assert float(mask.mean()) == pytest.approx(0.75, abs=0.1)
