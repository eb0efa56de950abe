"""Groups of a team that learn in turn, and critics that see more than their agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.config.load import load
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.nets.observe import VECTOR
from cadenza.workflows.ppo import PPO
from cadenza.workflows.ppo_config import PPOConfig
from harness import collecting
from harness.collecting import PHASE, Holding
from harness.lab import Lab

SMALL = (
    "environment.num_envs=3",
    "environment.groups=type",
    "algorithm.n_steps=16",
    "algorithm.batch_size=0.5",
    "algorithm.n_epochs=2",
)


@pytest.fixture
def assembled() -> Iterator[Any]:
    made: list[Assembly] = []

    def make(spec: str, *overrides: str) -> Assembly:
        config = load(spec, [*SMALL, *overrides])
        made.append(assemble(config, check(config), {}))
        return made[-1]

    yield make
    for assembly in made:
        assembly.close()


@pytest.mark.parametrize("spec", ["CartPole-v1:ppo", "Pendulum-v1:ppo"])
def test_one_group_in_turn_is_ppo_bit_for_bit(tmp_path: Path, spec: str) -> None:
    weights = []
    for update in ("together", "sequential"):
        lab = Lab(tmp_path / update)
        budget = "training.max_timesteps=2400", "evaluation.every_steps=null"
        run = lab.start(load(spec, [*SMALL, *budget, f"algorithm.update={update}", "seed=5"]))
        run.run()
        assert run.clock.updates == 50 * 4  # fifty rollouts, each two epochs of two minibatches
        workflow: Any = lab.opened[0].workflow
        weights.append({key: value.clone() for key, value in workflow.nets["agent"].state_dict().items()})
        lab.close()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_team_in_turn_equals_a_plain_implementation(assembled: Any) -> None:
    """Three groups, discrete, continuous and multi-discrete, agents that die: factor, losses and gradients."""
    assembly = assembled("toy/trio:happo", "algorithm.order=fixed", "algorithm.normalize_value=false")
    workflow, rollout = assembly.workflow, collecting.collected(assembly)
    steps, envs = rollout.terminated.shape
    moved = np.zeros((steps, envs))
    inputs: dict[str, Any] = {}
    fit = workflow._fit

    def spy(name: str, samples: Any, *rest: Any) -> Any:
        """What it is given, and the gradient of the first minibatch-free loss, before it learns."""
        every = torch.arange(samples.weight.shape[1])
        figures = workflow._gradients_at(name, samples, every, workflow._objective(name, rest[0]))
        gradients = [p.grad.clone() for p in workflow.nets[name].parameters()]
        before = plain_log_probs(workflow, name, rollout)
        result = fit(name, samples, *rest)
        inputs[name] = samples, figures, gradients, before, plain_log_probs(workflow, name, rollout)
        return result

    starts = {name: {k: v.clone() for k, v in net.state_dict().items()} for name, net in workflow.nets.items()}
    workflow._fit = spy
    workflow.update(Holding(rollout), PHASE)
    assert list(inputs) == ["scout", "gunner", "engineer"]
    reward = sum(rollout.groups[name]["reward"].sum(-1) for name in inputs)  # [T, N]
    for name, (samples, figures, gradients, before, after) in inputs.items():
        acted = rollout.groups[name]["active"]
        factor = np.exp(moved)[..., None].repeat(acted.shape[-1], -1)
        if name == "scout":
            assert samples.factor is None
        else:
            np.testing.assert_allclose(samples.factor[0].numpy(), factor.reshape(-1, acted.shape[-1]), rtol=1e-4)
            assert np.abs(factor - 1).max() > 1e-3
        workflow.nets[name].load_state_dict(starts[name])
        loss, policy_loss = plain_loss(workflow, name, rollout, reward, factor, before)
        assert float(figures[0]) == pytest.approx(float(loss), rel=1e-4, abs=1e-5)
        assert float(figures[1]) == pytest.approx(float(policy_loss), rel=1e-4, abs=1e-5)
        expected = torch.autograd.grad(loss, list(workflow.nets[name].parameters()))
        torch.testing.assert_close(gradients, list(expected), atol=2e-5, rtol=1e-3)
        moved += ((after - before) * acted).sum(-1)


def plain_log_probs(workflow: Any, name: str, rollout: Any) -> np.ndarray:
    """[T, N, A] from torch's distributions."""
    return plain_policy(workflow, name, rollout)[0].detach().numpy()


def plain_policy(workflow: Any, name: str, rollout: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies [T, N, A]."""
    data, net = rollout.groups[name], workflow.nets[name]
    output = net.actor(torch.from_numpy(data["obs"]))
    action = torch.from_numpy(data["action"])
    if name == "scout":
        output = output.masked_fill(~torch.from_numpy(data["mask"]), -1e30)
        choice = torch.distributions.Categorical(logits=output)
        return choice.log_prob(action), choice.entropy()
    if name == "gunner":
        normal = torch.distributions.Normal(output, net.head.log_std.exp())
        return normal.log_prob(action).sum(-1), normal.entropy().sum(-1)
    dials = [torch.distributions.Categorical(logits=part) for part in output.split(2, -1)]
    each = [dial.log_prob(action[..., index]) for index, dial in enumerate(dials)]
    return sum(each), sum(dial.entropy() for dial in dials)


def plain_loss(
    workflow: Any, name: str, rollout: Any, reward: np.ndarray, factor: np.ndarray, old: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """On the whole rollout: a team's advantages by the definition, then the sum of the paper's terms."""
    config, net = workflow.config, workflow.nets[name]
    steps, envs = rollout.terminated.shape
    value = net.critic(torch.from_numpy(rollout.state))[..., 0]
    finals = {(t, n): k for k, (t, n) in enumerate(zip(*rollout.final_index, strict=True))}
    old_value = value.detach().numpy()
    with torch.no_grad():
        at_end = net.critic(torch.from_numpy(rollout.final_state))[:, 0].numpy()
        at_edge = net.critic(torch.from_numpy(rollout.after_state))[:, 0].numpy()
    advantage = np.zeros((steps, envs))
    for n in range(envs):
        running = 0.0
        for t in reversed(range(steps)):
            ended = bool(rollout.terminated[t, n] or rollout.truncated[t, n])
            following = at_end[finals[t, n]] if ended else at_edge[n] if t == steps - 1 else old_value[t + 1, n]
            following = 0.0 if rollout.terminated[t, n] else following
            delta = reward[t, n] + config.gamma * following - old_value[t, n]
            running = delta + (0.0 if ended else config.gamma * config.gae_lambda * running)
            advantage[t, n] = running
    acted = torch.from_numpy(rollout.groups[name]["active"])
    target = torch.from_numpy((advantage + old_value).astype(np.float32))
    each = torch.from_numpy(advantage.astype(np.float32))[..., None].expand(acted.shape)
    each = (each - each[acted].mean()) / (each[acted].std() + 1e-8)
    log_prob, entropy = plain_policy(workflow, name, rollout)
    ratio = (log_prob - torch.from_numpy(old)).exp()
    surrogate = torch.minimum(ratio * each, ratio.clamp(0.8, 1.2) * each)
    policy_loss = -(torch.from_numpy(factor.astype(np.float32)) * surrogate)[acted].mean()
    value_loss = (value - target).square().mean()  # a team's future is worth knowing to its dead as well
    return policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy[acted].mean(), policy_loss


def test_in_turn_each_agent_is_a_group_unless_told_otherwise() -> None:
    assert load("toy/trio:happo", []).environment.groups == "agent"
    assert load("toy/trio:ppo", ["algorithm.update=sequential"]).environment.groups == "agent"
    assert load("toy/trio:happo", ["environment.groups=type"]).environment.groups == "type"
    assert load("toy/trio:mappo", []).environment.groups == "auto"
    assert set(check(load("toy/trio:happo", [])).groups) == {
        "scout_0",
        "scout_1",
        "gunner_0",
        "engineer_0",
        "engineer_1",
    }


def test_without_learning_the_factor_stays_one(assembled: Any) -> None:
    assembly = assembled("toy/trio:happo", "algorithm.learning_rate=1e-30")
    rollout = collecting.collected(assembly)
    factors = []
    fit = assembly.workflow._fit
    assembly.workflow._fit = lambda name, samples, *rest: factors.append(samples.factor) or fit(name, samples, *rest)
    assembly.workflow.update(Holding(rollout), PHASE)
    assert factors[0] is None
    assert all((factor == 1).all() for factor in factors[1:])


class Trusting(PPO):
    """HAPPO that hardly weighs what the groups before changed."""

    Config = PPOConfig

    def factor(self, name: str) -> torch.Tensor | None:
        factor = super().factor(name)
        return None if factor is None else factor.clamp(0.99, 1.01)


@pytest.mark.usefixtures("forgotten")
def test_a_subclass_reads_and_changes_the_factor(assembled: Any) -> None:
    team = ("algorithm.update=sequential", "algorithm.rewards=team", "algorithm.order=fixed")
    assembly = assembled(f"toy/trio:{__name__}:Trusting", *team, "algorithm.learning_rate=0.01")
    workflow, factors, fit = assembly.workflow, [], assembly.workflow._fit
    workflow._fit = lambda name, samples, *rest: factors.append(samples.factor) or fit(name, samples, *rest)
    workflow.update(Holding(collecting.collected(assembly)), PHASE)
    assert factors[0] is None
    assert all(((factor >= 0.99) & (factor <= 1.01)).all() for factor in factors[1:])
    assert any((factor != 1).any() for factor in factors[1:])
    assert (PPO.factor(workflow, "gunner") > 1.01).any()
    workflow.reset_factor()
    assert workflow.factor("gunner") is None
    before, after = torch.zeros(16, 3), torch.full((16, 3), 0.005)
    workflow.update_factor("scout", before, after)
    assert torch.equal(workflow.factor("gunner"), after.exp())


def test_the_order_is_drawn_for_each_rollout(assembled: Any) -> None:
    assembly = assembled("toy/trio:happo")
    orders = {tuple(assembly.workflow._order()) for _ in range(40)}
    assert len(orders) == 6


def test_what_another_team_changed_is_not_weighed_and_its_rewards_are_its_own(assembled: Any) -> None:
    teams = "environment.teams={red: [scout, engineer], blue: [gunner]}"
    assembly = assembled("toy/trio:happo", teams, "algorithm.order=fixed", "algorithm.normalize_value=false")
    workflow, rollout = assembly.workflow, collecting.collected(assembly)
    inputs, fit = {}, workflow._fit

    def spy(name: str, samples: Any, *rest: Any) -> Any:
        before = plain_log_probs(workflow, name, rollout)
        result = fit(name, samples, *rest)
        inputs[name] = samples.factor, (plain_log_probs(workflow, name, rollout) - before)
        return result

    workflow._fit = spy
    workflow.update(Holding(rollout), PHASE)
    assert inputs["scout"][0] is None
    assert inputs["gunner"][0] is None
    moved = (inputs["scout"][1] * rollout.groups["scout"]["active"]).sum(-1)  # the gunner's is not in it
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_allclose(inputs["engineer"][0][0, :, 0], np.exp(moved).ravel(), rtol=1e-4)
    earned, _ = workflow._earned("gunner", rollout)
    np.testing.assert_array_equal(earned, rollout.groups["gunner"]["reward"])


def test_critics_learn_from_agents_that_wait_and_policies_do_not(assembled: Any) -> None:
    assembly = assembled("classic/tictactoe:ippo")
    rollout = collecting.collected(assembly)
    for name in assembly.workflow.nets:
        acted = rollout.groups[name]["active"]
        assert 0.3 < acted.mean() < 0.7
        samples = assembly.workflow._prepare(name, rollout, PHASE)[0]
        np.testing.assert_array_equal(samples.weight[0], acted.reshape(samples.weight.shape[1:]))
        assert (samples.value_weight == 1).all()


@pytest.mark.parametrize("state", ["true", "false"])
def test_a_critic_with_an_encoder_of_ones_own_gets_what_it_sees_as_it_is(assembled: Any, state: str) -> None:
    encoder = "algorithm.torso.encoder=harness.encoders:SideBySide"
    assembly = assembled("toy/trio:mappo", encoder, f"environment.kwargs={{state: {state}}}")
    updated = assembly.workflow.update(Holding(collecting.collected(assembly)), PHASE)
    assert updated.updates == 3 * 4


@pytest.mark.parametrize("sees", ["state", "both"])
@pytest.mark.parametrize("normalize", ["false", "rolling"])
def test_a_critic_sees_the_state_and_its_policy_does_not(assembled: Any, sees: str, normalize: str) -> None:
    settings = f"algorithm.critic.sees={sees}", f"algorithm.normalize_obs={normalize}"
    assembly = assembled("toy/trio:mappo", *settings, "algorithm.groups={scout: {actor: {hidden_sizes: [8]}}}")
    workflow = assembly.workflow
    for _ in range(2):
        workflow.update(Holding(collecting.collected(assembly)), PHASE)
    rollout = collecting.collected(assembly)
    samples = workflow._prepare("scout", rollout, PHASE)[0]
    views, wide = (1, 15) if sees == "state" else (2, 15 + 4)  # one for both scouts, where they see the same
    assert samples.critic_obs[VECTOR].shape == (1, 16 * 3, views, wide)
    assert samples.obs[VECTOR].shape[-1] == 4
    state = samples.critic_obs[VECTOR][..., -15:].reshape(16, 3, views, 15)
    if normalize == "false":
        np.testing.assert_array_equal(state[:, :, -1], rollout.state)
    else:
        assert float(state.mean()) == pytest.approx(0, abs=0.2)
        assert float(state.std()) == pytest.approx(1, abs=0.3)
    assert workflow.nets["scout"].actor[0].out_features == 8
    assert workflow.nets["gunner"].actor[0].out_features == 64


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
def test_what_all_see_alike_is_judged_once_and_learned_from_as_often_as_there_are_agents(
    assembled: Any, kernels: str
) -> None:
    stateless = "algorithm.normalize_value=false", "algorithm.normalize_reward=false"  # the same is prepared twice
    settings = "algorithm.critic.sees=state", f"runtime.kernels={kernels}", *stateless
    assembly = assembled("toy/trio:mappo", *settings)
    workflow, rollout = assembly.workflow, collecting.collected(assembly)
    net, objective = workflow.nets["scout"], workflow._objective("scout", PHASE)
    results = []
    for views in (1, 2):
        workflow.views["scout"].agents = views
        samples = workflow._prepare("scout", rollout, PHASE)[0]
        assert samples.critic_obs[VECTOR].shape[2] == views
        figures = workflow._gradients_at("scout", samples, torch.arange(20), objective)
        gradients = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
        results.append((samples.advantage, samples.target, samples.old_value, figures, gradients))
    for once, twice in zip(*results, strict=True):
        torch.testing.assert_close(once, twice, rtol=1e-4, atol=1e-6)
    assert float(results[0][-1]["critic.0.weight"].abs().max()) > 1e-4


def test_a_state_that_all_see_counts_once_and_where_anybody_acted(assembled: Any) -> None:
    assembly = assembled("toy/trio:mappo", "algorithm.normalize_obs=rolling", "algorithm.critic.sees=state")
    view, rollout = assembly.workflow.views["scout"], collecting.collected(assembly)
    acted = torch.zeros(rollout.groups["scout"]["active"].shape, dtype=torch.bool)
    acted[:3, :, 0] = acted[2:5, :, 1] = True  # one of the two scouts, but for the third step
    view.learn({name: data["obs"] for name, data in rollout.groups.items()}, rollout.state, acted)
    norm = view.observer.norm
    assert int(norm.count) == 5 * 3
    np.testing.assert_allclose(norm.mean, rollout.state[:5].reshape(15, -1).mean(0), rtol=1e-5)


def test_where_there_is_no_state_a_critic_sees_what_everyone_sees(assembled: Any) -> None:
    assembly = assembled("toy/trio:mappo", "environment.kwargs={state: false}")
    samples = assembly.workflow._prepare("gunner", rollout := collecting.collected(assembly), PHASE)[0]
    observations = [rollout.groups[name]["obs"].reshape(16, 3, -1) for name in ("engineer", "gunner", "scout")]
    assert sorted(samples.critic_obs[VECTOR][0, 0, 0].tolist()) == sorted(
        np.concatenate(observations, -1)[0, 0].tolist()
    )


def test_values_are_learned_on_a_common_scale_and_advantages_are_not(assembled: Any) -> None:
    assembly = assembled("toy/trio:mappo")
    workflow = assembly.workflow
    rollout = collecting.collected(assembly)
    workflow.update(Holding(rollout), PHASE)
    scale = workflow.value_scales["gunner"]
    before = scale.norm.mean.clone(), scale.norm.var.clone()
    value = torch.randn(5)
    torch.testing.assert_close(scale.from_returns(scale.to_returns(value)), value, atol=1e-5, rtol=1e-5)
    rollout = collecting.collected(assembly)
    samples = workflow._prepare("gunner", rollout, PHASE)[0]
    assert scale.norm.count > 48
    assert not torch.equal(before[0], scale.norm.mean)
    with torch.no_grad():
        spoken = workflow.nets["gunner"].critic(torch.from_numpy(rollout.state)).reshape(1, -1, 1)
    # what the critic said is held against as it was said, before the scale moved
    torch.testing.assert_close(samples.old_value, spoken, atol=1e-5, rtol=1e-4)
    now, then = scale.norm, before
    returns = samples.target * now.var.sqrt().float() + now.mean.float()
    value = samples.old_value * then[1].sqrt().float() + then[0].float()
    torch.testing.assert_close(returns - value, samples.advantage, atol=1e-3, rtol=1e-3)


def test_settings_of_single_groups_are_their_own(assembled: Any) -> None:
    own = "algorithm.groups={gunner: {learning_rate: 1e-30, critic: {sees: own}}}"
    assembly = assembled("toy/trio:happo", own, "algorithm.learning_rate=0.01")
    workflow = assembly.workflow
    before = {name: [p.clone() for p in net.parameters()] for name, net in workflow.nets.items()}
    workflow.update(Holding(collecting.collected(assembly)), PHASE)
    still = {
        name: all(torch.allclose(a, b, 0, 1e-20) for a, b in zip(before[name], net.parameters(), strict=True))
        for name, net in workflow.nets.items()
    }
    assert still == {"scout": False, "gunner": True, "engineer": False}
    assert set(workflow.views) == {"scout", "engineer"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.groups={gunnr: {learning_rate: 0.1}}", "did you mean 'gunner'"),
        ("algorithm.groups={gunner: {n_steps: 3}}", "algorithm.groups.gunner.n_steps"),
        ("algorithm.groups={gunner: {learning_rte: 3}}", "learning_rate"),
        ("algorithm.groups={gunner: 3}", "algorithm.groups.gunner=3"),
        ("algorithm.groups={gunner: {batch_size: 7}}", "does not divide"),
        ("algorithm.groups={gunner: {torso: {memory: {type: gru, sequence_length: 5}}}}", "sequence_length=5 does not"),
        ("algorithm.groups={gunner: {torso: {memory: {type: none, sequence_length: 4}}}}", "type is none"),
        ("algorithm.groups={gunner: {torso: 4}}", "algorithm.groups.gunner.torso"),
    ],
)
def test_what_cannot_be_is_told(assembled: Any, override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        assembled("toy/trio:happo", override)


def memory(**groups: str) -> str:
    """The override that gives each of these groups memory settings of its own."""
    own = ", ".join(f"{name}: {{torso: {{memory: {settings}}}}}" for name, settings in groups.items())
    return f"algorithm.groups={{{own}}}"


GRU = "{type: gru, size: 8, sequence_length: %d}"


@pytest.mark.parametrize(
    ("group", "mixed", "alike"),
    [
        ("runner", memory(shooter=GRU % 4), ()),  # a memory for the other group alone
        ("runner", memory(runner=GRU % 4, shooter=GRU % 8), memory(runner=GRU % 4, shooter=GRU % 4)),
        ("shooter", memory(runner=GRU % 4, shooter=GRU % 8), memory(runner=GRU % 8, shooter=GRU % 8)),
    ],
)
def test_a_group_learns_the_same_whatever_memory_the_other_has(
    tmp_path: Path, group: str, mixed: Any, alike: Any
) -> None:
    weights = []
    for number, overrides in enumerate((mixed, alike)):
        lab = Lab(tmp_path / str(number))
        settings = [*SMALL, "algorithm.normalize_obs=false", *([overrides] if overrides else [])]
        run = lab.start(load("toy/pair:ippo", [*settings, "training.max_timesteps=192", "evaluation.at_end=false"]))
        run.run()
        workflow: Any = lab.opened[0].workflow
        weights.append({key: value.clone() for key, value in workflow.nets[group].state_dict().items()})
        lab.close()
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_one_group_may_do_without_the_memory_of_the_others(assembled: Any) -> None:
    common = [f"algorithm.torso.memory.{setting}" for setting in ("type=gru", "sequence_length=4", "burn_in=2")]
    workflow = assembled("toy/trio:happo", *common, memory(gunner="{type: none}")).workflow
    assert {name: net.has_memory for name, net in workflow.nets.items()} == {
        "scout": True,
        "gunner": False,
        "engineer": True,
    }
    debugged = workflow.config.for_one_environment(3)  # a debugger's: one environment, the same sequences
    assert [debugged.for_group(name).sequence_length for name in workflow.nets] == [4, 1, 4]
    alone = assembled("toy/trio:happo", memory(gunner=GRU % 4)).workflow.config.for_one_environment(3)
    assert [alone.for_group(name).sequence_length for name in workflow.nets] == [1, 4, 1]


def test_memories_of_policy_and_central_critic_are_both_kept(assembled: Any) -> None:
    assembly = assembled("toy/trio:happo", "algorithm.torso.memory.type=gru", "algorithm.batch_size=1.0")
    workflow = assembly.workflow
    rollout = collecting.collected(assembly)
    assert set(rollout.carry["scout"]) == {"torso", "critic"}
    updated = workflow.update(Holding(rollout), PHASE)
    assert updated.updates == 3 * 2
    assert all(np.isfinite(float(value)) for value in updated.metrics.values())


def test_of_opponents_the_newest_is_taken_for_the_best_and_they_play_different_games(tmp_path: Path) -> None:
    """What one wins the other loses, so sums are always 0; and the most likely moves are always the same game."""
    pytest.importorskip("pettingzoo", reason="the extra marl is not installed")
    often = "evaluation.every_steps=96", "evaluation.episodes=8", "training.max_timesteps=288"
    lab = Lab(tmp_path)
    run = lab.start(load("classic/tictactoe:ippo", [*SMALL, *often, "evaluation.num_envs=8"]))
    run.run()
    assert run.scores.best_at == run.clock.position
    games = run.evaluator(0, PHASE).episodes
    assert len({str([actions.tolist() for actions in episode.actions.values()]) for episode in games}) > 1
    lab.close()
