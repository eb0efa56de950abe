"""Dreamer's batches, losses and latents against slow references; what its fields mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cadenza.base.files import SafePath
from cadenza.config.load import load
from cadenza.data.replay import ReplayStore
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.lab.view.imagination import record_imagination
from cadenza.nets import world_model
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.rssm import RSSMState
from cadenza.watch.module_statistics import Statistics
from cadenza.watch.nan_checks import FiniteChecks
from cadenza.watch.workflow_contents import WorkflowContents
from cadenza.workflows import dreamer
from cadenza.workflows.dreamer_behaviour import (
    ImaginedSteps,
    arrival_returns,
    imagine,
    plan,
    reach_weights,
    start_states,
    v1_losses,
    v2_losses,
    v3_losses,
)
from cadenza.workflows.dreamer_latents import compress
from cadenza.workflows.dreamer_model import divergence_losses, model_loss
from harness.collecting import PHASE, warming

SMALL = [
    "environment.num_envs=2",
    "algorithm.buffer_size=400",
    "algorithm.warmup_steps=80",
    "algorithm.batch_size=3",
    "algorithm.batch_length=7",
    "algorithm.horizon=4",
    "algorithm.pretrain_updates=0",
    *(f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8", "depth=2")),
]
NONE = torch.zeros(())


@pytest.fixture
def warmed() -> Iterator[Any]:
    with warming(SMALL) as warm:
        yield warm


def parts_of(workflow: Any, store: Any) -> tuple[Any, Any, Any]:
    """A batch, the states the model finds in it, and noise to imagine with."""
    config = workflow.config
    drawn = store.sequences(config.batch_size, config.batch_length + 1, np.random.default_rng(0))
    batch = workflow._batch(workflow._to_device(drawn))
    noise = workflow.model.rssm.noise(config.batch_length, config.batch_size, generator=workflow._stream("test"))
    _, observed, _ = model_loss(workflow.model, batch, noise, config)
    return batch, observed.state, workflow._imagination_noise(workflow.behaviour.actor)


def shake(workflow: Any) -> None:
    """Weights that start at zero would hide mistakes."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for net in (*workflow.networks.values(), *([workflow.target.net] if workflow.target else [])):
            for parameter in net.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


# what is drawn


def test_a_row_has_the_action_and_reward_that_led_to_it(warmed: Any) -> None:
    """In the chain the reward for an action is how far it went, so all can be told from the cells."""
    workflow, store = warmed("toy/chain:dreamer_v3")
    drawn = store.sequences(64, 8, np.random.default_rng(0))
    batch = workflow._batch(workflow._to_device(drawn))
    cell = batch.obs["vector"].argmax(-1)
    before = torch.from_numpy(drawn.groups["agent"]["obs"][:, :-1, 0].argmax(-1)).T
    goes_on = ~batch.first
    assert goes_on.any()
    assert batch.first.any()
    assert torch.equal((cell - before)[goes_on], batch.reward.long()[goes_on])
    assert torch.equal(batch.action.argmax(-1)[goes_on], batch.reward.long()[goes_on])
    assert not batch.reward[batch.first].any()
    assert torch.equal(batch.terminal, cell == 8)  # the time limit ends episodes, too, and is no terminal state
    assert (batch.last & ~batch.terminal).any()
    assert not batch.last[:-1][~batch.first[1:]].any()
    assert batch.last[:-1][batch.first[1:]].all()


def test_sequences_start_at_stored_latents_which_are_renewed(warmed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workflow, store = warmed("toy/identity:dreamer_v3")
    drawn = store.sequences(3, 8, np.random.default_rng(0))
    stored = drawn.groups["agent"]
    assert stored["deter"].dtype == np.int8
    assert stored["stoch"].dtype == np.uint8
    assert stored["stoch"].max() <= 4
    start = workflow._batch(workflow._to_device(drawn)).start
    assert np.allclose(start.deter.numpy(), stored["deter"][:, 0, 0] / 127)
    assert torch.equal(start.stoch.view(3, 3, 4).sum(-1), torch.from_numpy(stored["stoch"][:, 0, 0] > 0).float())
    states: list[RSSMState] = []
    monkeypatch.setattr(dreamer, "compress", lambda state, *rest: (states.append(state), compress(state, *rest))[1])
    generator = workflow.context.streams.numpy("replay")
    before = generator.bit_generator.state
    workflow.update(store, PHASE)
    generator.bit_generator.state = before
    index = store.sequences(3, 8, generator).index[:, 1:]
    now = store._revisions.arrays["agent"]["deter"][index][:, :, 0]
    expected = states[0].deter.detach().mul(127).round().char().transpose(0, 1).numpy()
    last_wins = {slot: value for slot, value in zip(index.ravel(), expected.reshape(-1, 8), strict=True)}
    assert all(np.array_equal(now.reshape(-1, 8)[i], last_wins[slot]) for i, slot in enumerate(index.ravel()))


def test_without_stored_latents_a_sequence_starts_with_zeros(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v2")
    batch = workflow._batch(workflow._to_device(store.sequences(3, 8, np.random.default_rng(0))))
    assert batch.first[0].all()
    assert not batch.start.deter.any()
    assert batch.reward[0].any()  # what was earned stays true


def test_revised_latents_are_part_of_the_replays_state(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v3", "algorithm.buffer_size=60")
    workflow.update(store, PHASE)
    again = ReplayStore(60, 2, revisable=("deter", "stoch"))
    again.load_state_dict(store.state_dict())
    a, b = (one.sequences(16, 8, np.random.default_rng(1)).groups["agent"] for one in (store, again))
    assert all(np.array_equal(a[key], b[key]) for key in ("deter", "stoch", "obs", "action"))


def test_acting_and_learning_compute_the_same_states(warmed: Any) -> None:
    """The same memory, step by step in the environment and over a sequence of the replay."""
    workflow, store = warmed("toy/identity_box:dreamer_v3")
    drawn = store.sequences(1, 9, np.random.default_rng(3))
    batch = workflow._batch(workflow._to_device(drawn))
    rssm, model = workflow.model.rssm, workflow.model
    with torch.no_grad():
        embedding = model.encode(batch.obs)
        certain = torch.full((8, 1, 3), 0.5)
        state, deters = batch.start, []
        for t in range(8):
            step = rssm.observe(
                embedding[t : t + 1], batch.action[t : t + 1], batch.first[t : t + 1], state, certain[:1]
            )
            state = RSSMState(step.state.deter[0], step.state.stoch[0])
            deters.append(state.deter)
        whole = rssm.observe(embedding, batch.action, batch.first, batch.start, certain)
    torch.testing.assert_close(torch.stack(deters), whole.state.deter)
    stored = torch.from_numpy(
        drawn.groups["agent"]["deter"][:, 1, 0].astype(np.float32) / 127
    )  # its sample was another
    assert torch.allclose(stored, whole.state.deter[0], atol=1e-2)  # but the memory knows only what came before


# the model's loss


def test_v3_clips_each_states_divergence_before_the_mean(warmed: Any) -> None:
    """Gotcha: the free nats are of a state, all variables together, and not of the batch."""
    workflow, store = warmed("toy/identity:dreamer_v3")
    shake(workflow)
    config, model = replace(workflow.config, free_nats=0.5), workflow.model
    batch = workflow._batch(workflow._to_device(store.sequences(3, 8, np.random.default_rng(0))))
    noise = model.rssm.noise(7, 3, generator=workflow._stream("test"))
    observed = model.rssm.observe(model.encode(batch.obs), batch.action, batch.first, batch.start, noise)
    post, prior = (parameters[0].detach().double() for parameters in (observed.post, observed.prior))
    each = [
        [sum(float(p.exp() @ (p - q)) for p, q in zip(post[t, b], prior[t, b], strict=True)) for b in range(3)]
        for t in range(7)
    ]
    numbers = [number for row in each for number in row]
    assert min(numbers) < 0.5 < max(numbers)
    expected = sum(max(number, 0.5) for number in numbers) / len(numbers)
    losses = divergence_losses(model, observed, config)
    assert float(losses["loss/dynamics"][0].detach()) == pytest.approx(expected, rel=1e-4)
    assert float(losses["loss/representation"][0].detach()) == pytest.approx(expected, rel=1e-4)
    assert (losses["loss/dynamics"][1], losses["loss/representation"][1]) == (1.0, 0.1)


@pytest.mark.parametrize("variant", ["dreamer_v1", "dreamer_v2", "dreamer_v3", "planet"])
def test_every_part_of_a_model_learns(warmed: Any, variant: str) -> None:
    workflow, store = warmed(f"toy/identity_box:{variant}")
    shake(workflow)
    batch = workflow._batch(workflow._to_device(store.sequences(3, 8, np.random.default_rng(0))))
    noise = workflow.model.rssm.noise(7, 3, generator=workflow._stream("test"))
    config = replace(workflow.config, free_nats=0.0, vector_scale=3.0)
    loss, _, terms = model_loss(workflow.model, batch, noise, config)
    loss.backward()
    still = [name for name, p in workflow.model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still
    scales = {"loss/reward": config.reward_scale, "loss/continue": config.continue_scale, "loss/vector": 3.0}
    scales |= {"loss/dynamics": 1.0, "loss/representation": 0.1, "loss/kl": config.kl_scale}
    total = sum(scales.get(name, 1.0) * float(term) for name, term in terms.items() if name != "kl")
    assert float(loss) == pytest.approx(total, rel=1e-4)


def test_an_untrained_v3_predicts_no_reward_and_no_value_at_all(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v3")
    _, state, _ = parts_of(workflow, store)
    features = state.features()
    for head in (workflow.model.reward, workflow.behaviour.critic, workflow.behaviour.slow_critic):
        assert not head.mean(head(features)).any()


# behaviour


def slow_returns(reward: list[float], cont: list[float], value: list[float], lam: float) -> list[float]:
    """v3: R[t] is made of what stands at t + 1."""
    returns: list[Any] = []
    after = value[-1]
    for t in reversed(range(len(reward) - 1)):
        after = reward[t + 1] + cont[t + 1] * ((1 - lam) * value[t + 1] + lam * after)
        returns.insert(0, after)
    return returns


def table(x: torch.Tensor) -> list[list[float]]:
    """[T, N] as lists over time, one for each start."""
    return x.detach().double().T.tolist()


@pytest.mark.parametrize("environment", ["toy/chain", "toy/identity_box"])
def test_v3s_losses_equal_those_of_the_paper(warmed: Any, environment: str) -> None:
    workflow, store = warmed(f"{environment}:dreamer_v3", "algorithm.batch_size=8")
    shake(workflow)
    config, model, behaviour = workflow.config, workflow.model, workflow.behaviour
    batch, state, noise = parts_of(workflow, store)
    assert bool(batch.terminal.any()) == (environment == "toy/chain")
    coef = torch.tensor(0.01)
    losses = v3_losses(model, behaviour, batch, state, noise, coef, config)

    imagined = imagine(model, behaviour.actor, start_states(state.detach()), noise, gradients=False)
    features = imagined.features
    heads = [(model.reward, features), (behaviour.critic, features), (behaviour.slow_critic, features)]
    reward, value, slow = (table(head.mean(head(x))) for head, x in heads)
    cont = table(torch.sigmoid(model.goes_on(features)[..., 0]))
    returns = [slow_returns(*rows, config.return_lambda) for rows in zip(reward, cont, value, strict=True)]

    # gotcha: the scale follows the returns, not the advantages
    ends = 0.01 * np.quantile(np.array(returns), [0.05, 0.95])
    assert behaviour.return_scale.ends.tolist() == pytest.approx(ends.tolist(), rel=1e-4)
    policy = behaviour.actor(features)
    log_prob = table(behaviour.actor.log_prob(policy, imagined.action))
    entropy = table(behaviour.actor.entropy(policy))
    judged = behaviour.critic(features)
    actor = critic = 0.0
    horizon, starts = config.horizon, len(returns)
    for n in range(starts):
        weight = 1.0
        for t in range(horizon):
            weight *= cont[n][t]
            advantage = (returns[n][t] - value[n][t]) / max(1.0, ends[1] - ends[0])
            actor -= weight * (log_prob[n][t] * advantage + 0.01 * entropy[n][t])
            targets = torch.tensor([returns[n][t], slow[n][t]])
            critic += weight * float(behaviour.critic.loss(judged[t, n].expand(2, -1), targets).sum())
    assert float(losses.actor) == pytest.approx(actor / (starts * horizon), rel=1e-3, abs=1e-5)
    assert float(losses.metrics["critic_loss"]) == pytest.approx(critic / (starts * horizon), rel=1e-3)

    # on what really happened: every state's bootstrap is what was imagined from it
    boot = torch.tensor([row[0] for row in returns]).view(batch.reward.shape)
    inputs = state.features()
    judged, slow_seen = behaviour.critic(inputs), behaviour.slow_critic.mean(behaviour.slow_critic(inputs))
    replayed, (steps, count) = 0.0, batch.reward.shape
    for b in range(count):
        after = float(boot[-1, b])
        for t in reversed(range(steps - 1)):
            goes_on = 0.0 if batch.terminal[t + 1, b] else config.gamma
            trust = 0.0 if batch.last[t + 1, b] else config.return_lambda
            after = float(batch.reward[t + 1, b]) + goes_on * ((1 - trust) * float(boot[t + 1, b]) + trust * after)
            if not batch.last[t, b]:
                targets = torch.tensor([after, float(slow_seen[t, b])])
                replayed += float(behaviour.critic.loss(judged[t, b].expand(2, -1), targets).sum())
    assert float(losses.metrics["replay_critic_loss"]) == pytest.approx(replayed / ((steps - 1) * count), rel=1e-3)
    assert float(losses.critic) == pytest.approx(
        critic / (starts * horizon) + 0.3 * replayed / ((steps - 1) * count), rel=1e-3
    )


def test_v3_teaches_the_model_by_the_replayed_values_alone(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v3")
    shake(workflow)
    batch, state, noise = parts_of(workflow, store)
    model, behaviour, config = workflow.model, workflow.behaviour, workflow.config
    encoder = list(model.encode.parameters())

    def reached(config: Any) -> bool:
        losses = v3_losses(model, behaviour, batch, state, noise, NONE, config)
        loss = losses.actor + losses.critic
        gradients = torch.autograd.grad(loss, encoder, allow_unused=True, retain_graph=True)
        return any(gradient is not None and bool(gradient.any()) for gradient in gradients)

    assert reached(config)
    assert not reached(replace(config, replay_value_scale=0.0))


def test_v3s_losses_are_equal_when_computed_in_chunks(warmed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workflow, store = warmed("toy/identity:dreamer_v3")
    shake(workflow)
    batch, state, noise = parts_of(workflow, store)
    behaviour, results = workflow.behaviour, []
    starts, sizes = batch.reward.numel(), []
    for rows in (10_000, starts, 1):  # whole, step by step, and never less than a step
        monkeypatch.setattr(world_model, "CHUNK_ROWS", rows)
        sizes.append([len(part) for part in world_model.chunks(noise.latent)])
        behaviour.return_scale.ends.zero_()
        losses = v3_losses(workflow.model, behaviour, batch, state, noise, NONE, workflow.config)
        learned = [*behaviour.actor.parameters(), *behaviour.critic.parameters()]
        results.append((losses, torch.autograd.grad(losses.actor + losses.critic, learned, retain_graph=True)))
    assert sizes == [[4], [1] * 4, [1] * 4]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-6)


def slow_own_returns(reward: list[float], discount: list[float], value: list[float], lam: float) -> list[float]:
    """v1 and v2: R[t] begins with the reward of state t itself."""
    returns: list[Any] = []
    after = value[-1]
    for t in reversed(range(len(reward) - 1)):
        after = reward[t] + discount[t] * ((1 - lam) * value[t + 1] + lam * after)
        returns.insert(0, after)
    return returns


def test_returns_and_weights_of_v1_and_v2() -> None:
    torch.manual_seed(0)
    reward, value = torch.randn(6, 4), torch.randn(6, 4)
    discount = torch.rand(6, 4)
    got = table(arrival_returns(reward, discount, value, 0.95))
    for n, rows in enumerate(zip(table(reward), table(discount), table(value), strict=True)):
        assert got[n] == pytest.approx(slow_own_returns(*rows, 0.95), rel=1e-5, abs=1e-6)
    # gotcha: a state's discount is about what follows it
    for weights, row in zip(table(reach_weights(discount)), table(discount), strict=True):
        assert weights == pytest.approx([math.prod(row[:t]) for t in range(6)], rel=1e-5)


@pytest.mark.parametrize("environment", ["toy/chain", "toy/identity_box"])
def test_v2s_losses_equal_those_of_the_authors(warmed: Any, environment: str) -> None:
    workflow, store = warmed(f"{environment}:dreamer_v2", "algorithm.batch_size=8")
    shake(workflow)
    config, model, behaviour = workflow.config, workflow.model, workflow.behaviour
    batch, state, noise = parts_of(workflow, store)
    losses = v2_losses(model, behaviour, batch, state, noise, torch.tensor(0.01), config)
    imagined = imagine(model, behaviour.actor, start_states(state.detach()), noise, gradients=False)
    features = imagined.features
    reward, value, fast = (
        table(head.mean(head(features))) for head in (model.reward, behaviour.slow_critic, behaviour.critic)
    )
    discount = table(torch.sigmoid(model.goes_on(features)[..., 0]))
    policy = behaviour.actor(features)
    log_prob, entropy = table(behaviour.actor.log_prob(policy, imagined.action)), table(behaviour.actor.entropy(policy))
    dynamics = environment == "toy/identity_box"
    actor = critic = 0.0
    horizon, ends = config.horizon, batch.terminal.flatten().tolist()
    for n, end in enumerate(ends):
        discount[n][0] = 0.0 if end else config.gamma  # what is known of the start
        target = slow_own_returns(reward[n], discount[n], value[n], config.return_lambda)
        weight = 1.0
        for t in range(horizon):
            critic += weight * 0.5 * (fast[n][t] - target[t]) ** 2
            if t < horizon - 1:
                gain = target[t + 1] if dynamics else log_prob[n][t] * (target[t + 1] - value[n][t])
                actor -= weight * (gain + 0.01 * entropy[n][t])
            weight *= discount[n][t]
    assert any(ends) == (environment == "toy/chain")
    assert float(losses.critic) == pytest.approx(critic / (len(ends) * horizon), rel=1e-3)
    assert float(losses.actor) == pytest.approx(actor / (len(ends) * (horizon - 1)), rel=1e-3, abs=1e-5)


def test_v1s_losses_equal_those_of_the_authors(warmed: Any) -> None:
    workflow, store = warmed("toy/chain:dreamer_v1", "algorithm.batch_size=8")
    shake(workflow)
    config, model, behaviour = workflow.config, workflow.model, workflow.behaviour
    batch, state, noise = parts_of(workflow, store)
    losses = v1_losses(model, behaviour, batch, state, noise, NONE, config)
    features = imagine(model, behaviour.actor, start_states(state.detach()), noise, gradients=False).features[1:]
    reward, value = (table(head.mean(head(features))) for head in (model.reward, behaviour.critic))
    discount = table(torch.sigmoid(model.goes_on(features)[..., 0]))
    actor = critic = 0.0
    ends = batch.terminal.flatten().tolist()
    for n, end in enumerate(ends):
        target = slow_own_returns(reward[n], discount[n], value[n], config.return_lambda)
        for t in range(config.horizon - 1):
            weight = 0.0 if end else math.prod(discount[n][:t])
            actor -= weight * target[t]
            critic += weight * 0.5 * (value[n][t] - target[t]) ** 2
    assert float(losses.actor) == pytest.approx(actor / (len(ends) * (config.horizon - 1)), rel=1e-3)
    assert float(losses.critic) == pytest.approx(critic / (len(ends) * (config.horizon - 1)), rel=1e-3)


def test_gradients_reach_a_policy_through_its_actions_alone(warmed: Any) -> None:
    """Gotcha: what the policy sees is detached, what it does is not."""
    workflow, store = warmed("toy/identity_box:dreamer_v2")
    shake(workflow)
    model, actor = workflow.model, workflow.behaviour.actor
    _, state, noise = parts_of(workflow, store)
    start = RSSMState(*(part.requires_grad_() for part in start_states(state.detach())))
    imagined: ImaginedSteps = imagine(model, actor, start, noise, gradients=True)
    assert torch.autograd.grad(imagined.action.sum(), start, allow_unused=True, retain_graph=True) == (None, None)
    later = torch.autograd.grad(imagined.features[-1].sum(), actor.net.out.weight, retain_graph=True)[0]
    assert later.any()
    first = torch.autograd.grad(imagined.features[0].sum(), actor.net.out.weight)[0]
    assert not first.any()


def test_each_network_of_v2_moves_by_its_own_loss(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v2")
    before = {name: [p.clone() for p in net.parameters()] for name, net in workflow.networks.items()}
    workflow.update_world_model(store, PHASE)

    def moved(name: str) -> bool:
        pairs = zip(before[name], workflow.networks[name].parameters(), strict=True)
        return any(not torch.equal(old, new) for old, new in pairs)

    assert [moved(name) for name in ("model", "actor", "critic")] == [True, False, False]
    workflow.update(store, PHASE)
    assert moved("actor")
    assert moved("critic")


def test_the_slow_critic_follows_its_settings(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v2", "algorithm.slow_critic_every=3")
    head, slow = workflow.behaviour.critic, workflow.behaviour.slow_critic

    def same() -> bool:
        return all(torch.equal(a, b) for a, b in zip(head.parameters(), slow.parameters(), strict=True))

    assert [(workflow.update(store, PHASE), same())[1] for _ in range(6)] == [False, False, True] * 2


def test_the_search_finds_the_rewarded_action() -> None:
    """A world whose reward is how near the action is to 0.6, and far more by chance: a search that finds the action."""
    config = load("toy/identity_box:planet", ["algorithm.planning.elites=8"]).algorithm

    class World:
        class rssm:
            @staticmethod
            def imagine_step(state: RSSMState, action: torch.Tensor, noise: torch.Tensor) -> RSSMState:
                return RSSMState(action, noise)

        class reward:
            def __new__(cls, features: torch.Tensor) -> torch.Tensor:  # type: ignore[misc]
                return 100 * features[..., :1] - (features[..., -1:] - 0.6).square()

            @staticmethod
            def mean(output: torch.Tensor) -> torch.Tensor:
                return output[..., 0]

    generator = torch.Generator().manual_seed(0)
    tried, luck = torch.randn(6, 2, 64, 3, 1, generator=generator), torch.randn(3, 2, 1, generator=generator)
    model: Any = World
    action = plan(model, RSSMState(torch.zeros(2, 1), torch.zeros(2, 1)), tried, luck, config)
    assert action.flatten().tolist() == pytest.approx([0.6, 0.6], abs=0.05)


def test_imagine_returns_predictions_beside_the_truth(warmed: Any) -> None:
    workflow, store = warmed("toy/dict:dreamer_v3")
    drawn = store.sequences(2, 8, np.random.default_rng(0))
    imagination = workflow.imagine(drawn, 3, seed=0)
    assert imagination.obs["vector"].shape == imagination.predicted_obs["vector"].shape == (2, 7, 5)
    assert imagination.reward.shape == imagination.predicted_reward.shape == (2, 7)
    drawn.groups["agent"]["obs"]["useful"][:, 5:] = 9.0  # what it is not shown changes nothing
    again = workflow.imagine(drawn, 3, seed=0)
    assert np.array_equal(imagination.predicted_obs["vector"], again.predicted_obs["vector"])
    assert not np.array_equal(imagination.obs["vector"], again.obs["vector"])


def test_imagination_is_written_as_pictures(warmed: Any, tmp_path: Path) -> None:
    workflow, store = warmed("toy/image:dreamer_v3")
    picture, video = record_imagination(workflow, {"replay": store}, SafePath(tmp_path))
    with Image.open(video.path) as frames:
        assert 10 < frames.n_frames <= 16  # type: ignore[attr-defined]  # no further than an episode goes
    assert picture.stat().st_size > 1000


def test_the_scale_of_returns_is_part_of_the_state(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v3")
    workflow.update(store, PHASE)
    again = PercentileScale(torch.device("cpu"))
    again.load_state_dict(workflow.state_dict()["normalisers"]["returns"])
    assert torch.equal(again.ends, workflow.scale.ends)


@pytest.mark.parametrize(
    ("spec", "overrides", "message"),
    [
        ("toy/pair:dreamer_v3", [], "dreamer_v3 models the world of one agent; toy/pair has 3"),
        ("CartPole-v1:planet", [], "planet plans continuous actions; those of CartPole-v1 are discrete"),
        ("toy/dials:dreamer_v2", [], "dreamer_v2 takes Discrete actions and Box actions of floats"),
        ("toy/identity:dreamer_v3", ["algorithm.model.reward=normal"], "algorithm.behaviour=v3: needs"),
        ("toy/identity:dreamer_v1", ["algorithm.actor_gradient=auto"], "behaviour=v1 takes dynamics alone"),
        ("toy/identity:dreamer_v2", ["algorithm.horizon=1"], "algorithm.horizon=1: behaviour=v2 needs at least 2"),
        ("toy/identity:dreamer_v1", ["algorithm.entropy_coef=0.01"], "algorithm.entropy_coef: actor_head=tanh_normal"),
        ("toy/identity:dreamer_v3", ["algorithm.model.deter=20"], "algorithm.model.deter=20: must be a multiple"),
        ("toy/identity:dreamer_v3", ["algorithm.buffer_size=50"], "algorithm.buffer_size=50: must be at least"),
        ("toy/identity_box:planet", ["algorithm.planning.elites=2000"], "only 1000 candidates are drawn"),
    ],
)
def test_impossible_settings_are_refused(spec: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(load(spec, overrides))


@pytest.mark.parametrize(
    ("variant", "override", "needed"),
    [
        ("dreamer_v3", "kl_balance=0.5", "kl=v2"),
        ("dreamer_v2", "representation_scale=0.2", "kl=v3"),
        ("dreamer_v1", "replay_value_scale=0.1", "behaviour=v3"),
        ("dreamer_v2", "planning.elites=7", "behaviour=plan"),
        ("planet", "actor_layers=2", "behaviour=v1 or v2 or v3"),
        ("planet", "continue_scale=2", "model.continues"),
        ("dreamer_v1", "slow_critic_rate=0.5", "slow_critic_every"),
        ("dreamer_v1", "model.unimix=0.1", "model.latent=categorical"),
        ("dreamer_v3", "model.min_std=0.3", "model.latent=gaussian"),
        ("dreamer_v2", "model.blocks=4", "model.cell=block"),
    ],
)
def test_settings_of_another_variant_are_refused(variant: str, override: str, needed: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm.{override.split('=')[0]}=.*: does nothing without {needed}"):
        load(f"Pendulum-v1:{variant}", [f"algorithm.{override}"])


def test_a_dataset_without_latents_gives_inputs_of_the_same_shapes(warmed: Any) -> None:
    """So that one captured update serves before anything is stored, and afterwards."""
    workflow, store = warmed("toy/identity:dreamer_v3")
    drawn = store.sequences(3, 8, np.random.default_rng(0))
    bare = {"agent": {key: value for key, value in drawn.groups["agent"].items() if key not in ("deter", "stoch")}}
    with_latents, without_latents = workflow._to_device(drawn), workflow._to_device(replace(drawn, groups=bare))
    assert [(key, x.shape, x.dtype) for key, x in with_latents.items()] == [
        (key, x.shape, x.dtype) for key, x in without_latents.items()
    ]
    batch = workflow._batch(without_latents)
    assert not batch.start.deter.any()
    assert not batch.start.stoch.any()
    assert batch.first[0].all()
    assert torch.equal(batch.first[1:], with_latents["is_first"][1:])
    assert torch.equal(batch.reward, workflow._batch(with_latents).reward)


@pytest.mark.parametrize("latent", ["categorical", "gaussian"])
def test_a_row_without_latents_starts_with_zeros(warmed: Any, latent: str) -> None:
    """As those of a dataset beside others that have their latents by now."""
    workflow, store = warmed("toy/identity:dreamer_v3", f"algorithm.model.latent={latent}")
    drawn = store.sequences(64, 8, np.random.default_rng(0))
    for key in ("deter", "stoch"):
        drawn.groups["agent"][key][::2, 0] = 0
    first = workflow._batch(workflow._to_device(drawn)).first[0].numpy()
    assert first[::2].all()
    np.testing.assert_array_equal(first[1::2], drawn.is_first[1::2, 1])
    assert not first.all()


def test_debug_checks_know_that_the_slow_critic_does_not_learn(warmed: Any) -> None:
    workflow, store = warmed("toy/identity:dreamer_v3")
    owned = WorkflowContents(workflow)
    FiniteChecks(owned)
    Statistics(owned)
    still = set(owned.parameters) - set(owned.learned)
    assert still
    assert all(name.startswith("behaviour.slow_critic.") for name in still)
    workflow.update(store, PHASE)


def test_sizes_are_overlays() -> None:
    config = load("toy/identity:dreamer_v3", ["size=12m"]).algorithm.model
    assert (config.deter, config.hidden, config.classes, config.units, config.depth) == (2048, 256, 16, 256, 16)
    assert load("toy/identity:dreamer_v1", ["size=tiny"]).algorithm.model.latent == "gaussian"
    assert load("CartPole-v1:dreamer_v3", []).algorithm.model.deter == 128
    assert load("CartPole-v1:dreamer_v3", ["size=1m"]).algorithm.model.deter == 512


def test_making_a_batch_does_not_change_the_drawn_sequences(warmed: Any) -> None:
    workflow, store = warmed("CartPole-v1:dreamer_v2", "algorithm.batch_size=1")
    generator = np.random.default_rng(1)
    for _ in range(20):
        drawn = store.sequences(1, 8, generator)
        before = drawn.is_first.copy()
        batch = workflow._batch(workflow._to_device(drawn))
        np.testing.assert_array_equal(drawn.is_first, before)
        assert bool(batch.first[0, 0])
        assert float(batch.reward[0, 0]) == (0.0 if before[0, 1] else 1.0)  # CartPole's
