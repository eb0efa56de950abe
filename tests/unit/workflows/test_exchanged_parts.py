"""Parts of a user's in the place of built-in ones: they train, resume exactly, and are refused where they misfit."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

import cadenza
from cadenza import events
from cadenza.config.load import load
from cadenza.engine.build import assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.lab.session import train
from harness.collecting import PHASE, collected
from harness.run_digests import digests
from harness.traced_runs import COMMON, DIFFUSION, DQN, DREAMS, LATENTS, PPO, REPLAY, SAC, SEARCH, WORLD_MODELS

MINE = "harness.own_parts"
SHORT = [
    "training.max_timesteps=300",
    "environment.max_episode_steps=40",
    "evaluation.every_steps=0",
    "evaluation.episodes=1",
]
NET = f"{{network: '{MINE}:Gated', kwargs: {{units: 5}}}}"
CASES: dict[str, tuple[str, list[str]]] = {
    "head": ("Pendulum-v1:ppo", [*PPO, f"algorithm.head={{name: '{MINE}:Laplace', kwargs: {{scale: 0.5}}}}"]),
    "head and estimator with a state": (
        "Pendulum-v1:reinforce",
        [
            "algorithm.episodes_per_update=2",
            "algorithm.policy_targets=advantages",
            f"algorithm.head={MINE}:Laplace",
            f"algorithm.advantage={MINE}:Fading",
        ],
    ),
    "estimator with a state": (
        "CartPole-v1:ppo",
        [*PPO, f"algorithm.advantage={{_target_: {MINE}.Fading, rate: 0.1}}"],
    ),
    "V-trace": ("CartPole-v1:ppo", [*PPO, "algorithm.advantage=vtrace", "algorithm.normalize_value=true"]),
    "n steps": ("CartPole-v1:a2c", ["algorithm.advantage={name: n_step, kwargs: {n: 3}}"]),
    "head and critics of SAC": (
        "Pendulum-v1:sac",
        [
            *REPLAY,
            f"algorithm.head={{name: '{MINE}:Squeezed', kwargs: {{width: 0.5}}}}",
            f"algorithm.critic={NET}",
            "algorithm.actor.hidden_sizes=[16]",
        ],
    ),
    "head of discrete SAC": ("CartPole-v1:sac", [*SAC, f"algorithm.head={MINE}:Tempered"]),
    "layers of DQN": ("CartPole-v1:dqn", [*DQN[:-1], f"algorithm.hidden={NET}", "algorithm.dueling=true"]),
    "all parts of Dreamer": (
        "toy/identity_box:dreamer_v3",
        [
            *DREAMS,
            f"algorithm.dynamics={{_target_: {MINE}.Deterministic, reach: 2.0, _partial_: true}}",
            f"algorithm.decoder={MINE}:Numbers",
            f"algorithm.encoder={MINE}:Encoder",
            f"algorithm.actor={MINE}:Gated",
            f"algorithm.critic={{_target_: {MINE}.Gated, units: 3}}",
            "algorithm.returns=n_step",
        ],
    ),
    "search and dynamics of PlaNet": (
        "Pendulum-v1:planet",
        [
            *(setting for setting in DREAMS if "classes" not in setting),
            *SEARCH,
            f"algorithm.planner={{name: '{MINE}:shooting', kwargs: {{spread: 0.5}}}}",
            f"algorithm.dynamics={MINE}:Deterministic",
        ],
    ),
    "all parts of TD-MPC": (
        "Pendulum-v1:tdmpc2",
        [
            *(setting for setting in LATENTS if "depth" not in setting),
            f"algorithm.dynamics={{name: '{MINE}:Gated', kwargs: {{units: 7}}}}",
            f"algorithm.planner={MINE}:best_sample",
            f"algorithm.critic={MINE}:Gated",
            f"algorithm.policy={{_target_: {MINE}.Reflex, std: 0.2}}",
            f"algorithm.encoder={MINE}:Encoder",
        ],
    ),
    "memory of a policy": (
        "toy/recall:ppo",
        [*PPO, "algorithm.torso.memory.size=6", f"algorithm.torso.memory.type={{_target_: {MINE}.Average, leak: 0.4}}"],
    ),
    "vision and controller of World Models": (
        "toy/glimpse:world_models",
        [
            *WORLD_MODELS,
            f"algorithm.representation={MINE}:Pixels",
            f"algorithm.evolution.network={{_target_: {MINE}.Gated, units: 3}}",
        ],
    ),
    "network of Diffusion Policy": (
        "Pendulum-v1:diffusion_policy",
        [*(setting for setting in DIFFUSION if "unet" not in setting), f"algorithm.denoiser={MINE}:Flat"],
    ),
    "memory and search of World Models": (
        "Pendulum-v1:world_models",
        [
            *(setting for setting in WORLD_MODELS if "vision" not in setting and "trials" not in setting),
            *SEARCH,
            "algorithm.controller=plan",
            "algorithm.train_ratio=0.1",
            "algorithm.horizon=3",
            "algorithm.evolution.population=64",
            f"algorithm.dynamics={{_target_: {MINE}.Leaky, leak: 0.3}}",
            f"algorithm.planner={MINE}:shooting",
        ],
    ),
}


def built(spec: str, *settings: str) -> dict[str, Any]:
    """Return the decisions of a run that is built and does not begin."""
    config = load(spec, [*SHORT, *settings])
    decisions: dict[str, Any] = {}
    assemble(config, check(config), decisions).close()
    return decisions


class Interruption:
    """Stops a run at its second row of metrics."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, event: Any) -> None:
        match event:
            case events.Started(stop=stop):
                self.stop = stop
            case events.Row():
                self.rows += 1
                if self.rows == 2:
                    self.stop()


@pytest.mark.parametrize("case", CASES)
def test_a_run_with_own_parts_resumes_exactly(case: str, tmp_path: Path) -> None:
    spec, settings = CASES[case]
    overrides = [*COMMON, *SHORT, *settings]
    whole = train(load(spec, overrides), tmp_path / "whole", ["test"], True)
    halved = train(load(spec, overrides), tmp_path / "halved", ["test"], True, [Interruption()])
    assert halved.folder.read_status()["status"] == "interrupted"
    cadenza.Run(halved.folder).resume()
    assert digests(halved.folder.path) == digests(whole.folder.path)


@pytest.mark.parametrize(
    ("spec", "setting", "message"),
    [
        (
            "Pendulum-v1:world_models",
            f"algorithm.dynamics={MINE}:Memoryless",
            "dynamics 'harness.own_parts:Memoryless' lacks the method(s) initial, step, predict",
        ),
        (
            "Pendulum-v1:dreamer_v3",
            f"algorithm.dynamics={MINE}:TooShort",
            "dynamics 'harness.own_parts:TooShort': stoch of 2 observed steps has the shape [2, 3, 1], not [2, 3, 64]",
        ),
        (
            "Pendulum-v1:dreamer_v3",
            "algorithm.dynamics=torch.nn:Identity",
            "dynamics 'torch.nn:Identity' lacks the method(s) initial, noise, observe, observe_one, imagine_step, div",
        ),
        (
            "Pendulum-v1:dreamer_v3",
            f"algorithm.dynamics={{_target_: {MINE}.Deterministic, rech: 2}}",
            "dynamics 'harness.own_parts:Deterministic' cannot be made with actions, embedding, config and its kwargs",
        ),
        (
            "Pendulum-v1:dreamer_v3",
            f"algorithm.decoder={MINE}:Leaky",
            "decoder 'harness.own_parts:Leaky' cannot be made with space, config and its kwargs",
        ),
        (
            "Pendulum-v1:tdmpc2",
            f"algorithm.dynamics={MINE}:Memoryless",
            "dynamics 'harness.own_parts:Memoryless' cannot be made with inputs, outputs and its kwargs",
        ),
        (
            "Pendulum-v1:tdmpc2",
            f"algorithm.policy={MINE}:Unbound",
            "policy 'harness.own_parts:Unbound': log-density has the shape [3, 2, 1], not [3, 2]",
        ),
        (
            "Pendulum-v1:tdmpc2",
            f"algorithm.critic={MINE}:Memoryless",
            "network 'harness.own_parts:Memoryless' cannot be made with inputs, outputs and its kwargs",
        ),
        (
            "Pendulum-v1:world_models",
            f"algorithm.evolution.network={MINE}:Empty",
            "network 'harness.own_parts:Empty' has no parameters to evolve",
        ),
        (
            "Pendulum-v1:reinforce",
            f"algorithm.torso.memory.type={MINE}:Gated",
            "network 'harness.own_parts:Gated' lacks the method(s) initial",
        ),
        (
            "Pendulum-v1:ppo",
            f"algorithm.head={MINE}:Gated",
            "head 'harness.own_parts:Gated' cannot be made with space and its kwargs",
        ),
        (
            "Pendulum-v1:ppo",
            "algorithm.head=torch.nn:Identity",
            "head 'torch.nn:Identity' lacks the method(s) sample, mode, summary, evaluate",
        ),
        (
            "Pendulum-v1:sac",
            f"algorithm.head={MINE}:Laplace",
            "head 'harness.own_parts:Laplace' lacks the method(s) draw, to_unit",
        ),
        (
            "CartPole-v1:sac",
            f"algorithm.head={MINE}:Laplace",
            "head 'harness.own_parts:Laplace' lacks the method(s) log_probs",
        ),
        (
            "Pendulum-v1:sac",
            f"algorithm.critic.network={MINE}:Memoryless",
            "network 'harness.own_parts:Memoryless' cannot be made with inputs, outputs and its kwargs",
        ),
    ],
)
def test_a_part_that_does_not_fit_is_one_line(spec: str, setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(spec, setting)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("spec", "setting", "message"),
    [
        ("Pendulum-v1:tdmpc2", "algorithm.planner=mpi", "must be mppi or a search of yours .*; did you mean 'mppi'"),
        ("Pendulum-v1:tdmpc2", "algorithm.model.dropout=0.1", "model.dropout=0.1: does nothing without critic=mlp"),
        ("Pendulum-v1:dreamer_v3", f"algorithm.planner={MINE}:shooting", "planner=.*: does nothing without behaviour"),
        ("Pendulum-v1:sac", "algorithm.layer_norm=true", "critic.network: layer_norm and dropout are for"),
        ("Pendulum-v1:sac", "algorithm.log_std_init=-1", "log_std_init=-1.0: does nothing without head=auto"),
        ("CartPole-v1:dqn", "algorithm.noisy=true", "hidden.network: noisy is for cadenza's own layers"),
        ("Pendulum-v1:ppo", "algorithm.head.squash=true", "no effect with a head of yours"),
        ("toy/glimpse:world_models", "algorithm.memory.mixtures=3", "memory.mixtures=3: does nothing without dynamics"),
    ],
)
def test_settings_that_a_part_of_yours_does_not_take_are_refused(spec: str, setting: str, message: str) -> None:
    parts = {
        "sac": f"algorithm.critic.network={MINE}:Gated algorithm.head={MINE}:Squeezed",
        "tdmpc2": f"algorithm.critic={MINE}:Gated",
        "dqn": f"algorithm.hidden.network={MINE}:Gated",
        "ppo": f"algorithm.head.name={MINE}:Laplace",
        "world_models": f"algorithm.dynamics={MINE}:Leaky",
    }
    algorithm = spec.partition(":")[2]
    with pytest.raises(ConfigError, match=message):
        load(spec, [setting, *parts.get(algorithm, "").split()])


@pytest.mark.parametrize(
    ("spec", "setting", "part"),
    [
        ("Pendulum-v1:ppo", f"algorithm.head={MINE}:Laplace", "Laplace"),
        ("CartPole-v1:ppo", f"algorithm.actor.network={MINE}:Gated", "Gated"),
        ("CartPole-v1:ppo", f"algorithm.torso.encoder={MINE}:Encoder", "Encoder"),
        ("Pendulum-v1:sac", f"algorithm.critic.network={MINE}:Gated", "Gated"),
        ("Pendulum-v1:sac", f"algorithm.head={MINE}:Squeezed", "Squeezed"),
        ("CartPole-v1:dqn", f"algorithm.hidden.network={MINE}:Gated", "Gated"),
    ],
)
def test_decisions_say_that_no_kernel_knows_a_part_of_yours(spec: str, setting: str, part: str) -> None:
    decisions = built(spec, setting)
    assert decisions["runtime.kernels"] == "torch"
    assert decisions["runtime.kernels.reason"] == f"runtime.kernels: torch: no hand-written kernel knows {MINE}:{part}"
    assert decisions["runtime.loss"]["agent"]  # the loss is recorded all the same, with parts of ours


@pytest.mark.parametrize("setting", ["algorithm.advantage=vtrace", f"algorithm.advantage={MINE}:Fading"])
def test_kernels_compute_the_loss_whatever_estimates_advantages(setting: str) -> None:
    decisions = built("CartPole-v1:ppo", setting)
    assert decisions["runtime.kernels"] == "numpy"
    assert "runtime.kernels.reason" not in decisions


def test_vtrace_of_ppo_estimates_each_epoch_by_the_present_policy() -> None:
    config = load("CartPole-v1:ppo", [*PPO, "environment.num_envs=2", "algorithm.advantage=vtrace"])
    with contextlib.closing(assemble(config, check(config), {})) as assembly:
        workflow: Any = assembly.workflow
        rollout = collected(assembly)
    samples, again = workflow._prepare("agent", rollout, PHASE)
    assert again is not None
    fresh = again()
    assert torch.allclose(fresh.advantage, samples.advantage, atol=1e-6)
    assert torch.equal(fresh.old_log_prob, samples.old_log_prob)
    net = workflow.nets["agent"]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        result = net(samples.obs, {}, samples.first)
        log_prob = net.head.evaluate(result.output, None, samples.action)[0]
    moved = again()
    assert not torch.allclose(moved.target, samples.target, atol=1e-2)
    assert torch.equal(moved.old_log_prob, samples.old_log_prob)
    end = rollout.terminated[-1] | rollout.truncated[-1]
    last = torch.arange(len(end)) + (len(rollout.terminated) - 1) * len(end)  # samples are time by time
    rho = (log_prob - samples.old_log_prob).exp().clamp(max=1)[0, last, 0]
    reward = torch.from_numpy(rollout.groups["agent"]["reward"][-1, :, 0])
    after = net({"vector": torch.from_numpy(rollout.after_obs["agent"])}, {}, samples.first[:, last]).value[..., 0]
    expected = rho * (reward + config.algorithm.gamma * after.detach() - result.value[0, last, 0])
    goes_on = torch.from_numpy(~end)
    assert torch.allclose(moved.advantage[0, last, 0][goes_on], expected[goes_on], atol=1e-5)


@pytest.mark.parametrize("estimator", ["vtrace", f"{MINE}:Corrected"])
def test_v_trace_does_not_depend_on_the_actions_of_agents_whose_turn_it_is_not(estimator: str) -> None:
    settings = ["device=cpu", "runtime.kernels=torch", *PPO, f"algorithm.advantage={estimator}"]
    config = load("classic/tictactoe_v3:ppo", settings)
    with contextlib.closing(assemble(config, check(config), {})) as assembly:
        workflow: Any = assembly.workflow
        rollout = collected(assembly)
        name, net = next(iter(workflow.nets.items()))
        idle = ~rollout.groups[name]["active"]
        assert idle.any()
        first, again = workflow._prepare(name, rollout, PHASE)
        with torch.no_grad():
            for parameter in net.actor.parameters():
                parameter.add_(torch.randn_like(parameter))
        before = again()
        assert not torch.equal(before.target, first.target)
        rollout.groups[name]["action"][idle] = 8 - rollout.groups[name]["action"][idle]
        after = again()
    for x, y in ((before.target, after.target), (before.advantage, after.advantage)):
        assert torch.equal(x, y)
