"""Hooks that train one part of an algorithm, and phases made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cadenza.config.load import load
from cadenza.engine.build import SYNONYMS, phases_of
from cadenza.engine.launch import check
from cadenza.engine.signals import STOP
from cadenza.errors import ConfigError
from cadenza.records.codec import digest
from harness.collecting import PHASE, warming
from harness.lab import Lab
from harness.traced_runs import DREAMING, DREAMS, LATENTS, PPO, SAC

QUIET = ["device=cpu", "evaluation.every_steps=0", "evaluation.at_end=false"]
JOINT = "{name: joint, hooks: [collect, update_world_model, update_controller], duration_cycles: 3}"
MODELS = {
    "dreamer_v1": ("toy/identity_box:dreamer_v1", DREAMS),
    "dreamer_v2": ("toy/identity:dreamer_v2", DREAMS),
    "dreamer_v3": ("toy/identity:dreamer_v3", DREAMS),
    "tdmpc": ("toy/identity_box:tdmpc", [*LATENTS, "algorithm.model.critics=2"]),
    "tdmpc2": ("toy/identity_box:tdmpc2", LATENTS),
    "world_models": ("toy/identity:world_models", DREAMING),
}
MODEL_FREE = {
    "sac, numpy": ("Pendulum-v1:sac", [*SAC, "runtime.kernels=numpy"]),
    "sac, torch": ("toy/identity:sac", [*SAC, "runtime.kernels=torch"]),
    "ppo, numpy": ("toy/identity:ppo", [*PPO, "runtime.kernels=numpy"]),
    "ppo, a shared torso": ("toy/identity:ppo", [*PPO, "runtime.kernels=torch", "algorithm.torso.hidden_sizes=[8]"]),
    "ppo, torsos of their own": ("toy/identity:ppo", [*PPO, "algorithm.torso={hidden_sizes: [8], shared: false}"]),
    "happo": ("toy/pair:happo", PPO),
    "reinforce": ("CartPole-v1:reinforce", ["algorithm.policy_targets=advantages"]),
}
VALUES = ("critic", "critics", "targets")  # words in the names of tensors


@pytest.fixture
def warmed() -> Iterator[Any]:
    with warming(QUIET) as warm:
        yield warm


@pytest.fixture
def lab(tmp_path: Any) -> Iterator[Lab]:
    opened = Lab(tmp_path)
    yield opened
    opened.close()


def tensors(tree: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of a state by its dotted name, copied."""
    if isinstance(tree, torch.Tensor):
        return {name: tree.clone()}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return {key: x for part, value in items for key, x in tensors(value, f"{name}.{part}").items()}


def changed_by(workflow: Any, hook: str, store: Any) -> set[str]:
    """Call a hook; return the names of the tensors that it changed."""
    before = tensors(workflow.state_dict())
    getattr(workflow, hook)(store, PHASE)
    return {name for name, x in tensors(workflow.state_dict()).items() if not torch.equal(x, before[name])}


def weights_of(changed: set[str]) -> set[str]:
    return {name for name in changed if not name.startswith((".optimizers", ".normalisers"))}


def of_the_controller(name: str) -> bool:
    return name.startswith((".networks.actor", ".networks.critic", ".targets.critic.", ".controller")) or (
        ".policy." in name
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_policy_is_trained_in_a_frozen_world_model_and_the_reverse(name: str, warmed: Any) -> None:
    spec, settings = MODELS[name]
    workflow, store = warmed(spec, *settings)
    # with initial values of 0 a policy of Dreamer v3 has nothing to gain at first
    workflow.update_world_model(store, PHASE)
    workflow.update_controller(store, PHASE)
    changed = changed_by(workflow, "update_controller", store)
    assert changed
    model = {name for name in weights_of(changed) if not of_the_controller(name)}
    if name.startswith("tdmpc"):
        assert all(".policy" in name for name in weights_of(changed))
    assert not model, "the world model changed"
    assert not any(name.startswith(".optimizers.model") for name in changed)
    changed = weights_of(changed_by(workflow, "update_world_model", store))
    assert changed
    assert not any(of_the_controller(name) for name in changed), "the controller changed"


@pytest.mark.parametrize("name", MODEL_FREE)
def test_values_and_policy_are_trained_apart(name: str, warmed: Any) -> None:
    spec, settings = MODEL_FREE[name]

    def changes(hook: str) -> set[str]:
        workflow, store = warmed(spec, *settings)
        return weights_of(changed_by(workflow, hook, store))

    values, policy = changes("update_value"), changes("update_policy")
    assert values
    assert policy
    assert all(any(word in name for word in VALUES) for name in values if ".dead" not in name)
    assert not any(word in name for name in policy for word in VALUES)


def test_an_update_of_one_part_reports_its_own_figures_alone(warmed: Any) -> None:
    spec, settings = MODEL_FREE["ppo, numpy"]

    def reported(hook: str) -> set[str]:
        workflow, store = warmed(spec, *settings)
        return {name.removeprefix("train/") for name in getattr(workflow, hook)(store, PHASE).metrics}

    values, policy = reported("update_value"), reported("update_policy")
    assert values == {"value_loss", "explained_variance", "learning_rate", "grad_norm/critic", "grad_norm/all"}
    assert {"policy_loss", "kl", "entropy", "clip_fraction"} <= policy
    assert not {"value_loss", "explained_variance", "grad_norm/critic"} & policy


def test_a_shared_torso_learns_from_the_loss_of_the_policy_alone(warmed: Any) -> None:
    spec, settings = MODEL_FREE["ppo, a shared torso"]
    both = []
    for coef in (0.5, 100.0):
        workflow, store = warmed(spec, *settings, f"algorithm.value_coef={coef}")
        workflow.update_policy(store, PHASE)
        both.append(digest(workflow.nets["agent"].state_dict()))
    assert both[0] == both[1]


def test_critics_follow_alone_and_the_policy_at_every_call(warmed: Any) -> None:
    """`policy_every` paces the joint update; a phase of updates of the policy is not skipped by it."""
    workflow, store = warmed("Pendulum-v1:sac", *SAC, "algorithm.policy_every=2")
    workflow.update_value(store, PHASE)
    assert workflow.updates == 1
    assert any(
        ".policy" in name or name.startswith(".policies") for name in changed_by(workflow, "update_policy", store)
    )
    assert workflow.updates == 1
    assert not any(name.startswith(".targets") for name in changed_by(workflow, "update_policy", store))


def names_of(spec: str, phases: str, *settings: str) -> list[list[str]]:
    config = load(spec, [*QUIET, *settings, f"training.phases=[{phases}]"])
    return [[hook.name for hook in phase.hooks] for phase in phases_of(config, check(config))]


@pytest.mark.parametrize(
    ("spec", "hooks"),
    [
        ("CartPole-v1:dreamer_v3", ["collect", "update_world_model", "update_controller"]),
        ("Pendulum-v1:sac", ["collect", "update_value", "update_policy"]),
        ("CartPole-v1:ppo", ["collect", "update"]),
        ("toy/pair:mappo", ["collect", "update"]),
    ],
)
def test_the_names_of_world_models_stand_for_values_and_policy(spec: str, hooks: list[str]) -> None:
    assert names_of(spec, JOINT) == [hooks]


def test_values_alone_have_one_name_more() -> None:
    values = "{name: joint, hooks: [collect, update_world_model], duration_cycles: 3}"
    for spec in ("CartPole-v1:dqn", "toy/identity:qlearning", "CartPole-v1:ppo"):
        assert names_of(spec, values) == [["collect", "update_value"]]
    with pytest.raises(
        ConfigError, match=r"phase joint: unknown hook 'update_controller'.*known: collect, .*update_value"
    ):
        names_of("CartPole-v1:dqn", JOINT)


def test_planet_has_no_controller_that_learns() -> None:
    with pytest.raises(ConfigError, match=r"phase joint: unknown hook 'update_controller'.*update_world_model"):
        names_of("Pendulum-v1:planet", JOINT)
    with pytest.raises(
        ConfigError, match="phase joint: unknown hook 'update_controler'; did you mean 'update_controller'"
    ):
        names_of("CartPole-v1:dreamer_v3", JOINT.replace("controller", "controler"))


def test_hooks_of_one_rollout_are_called_equally_often() -> None:
    twice = "{name: joint, hooks: [collect, {name: update_value, times: 2}, update_policy], duration_cycles: 3}"
    with pytest.raises(ConfigError, match="phase joint: update_value and update_policy learn from the same steps"):
        names_of("CartPole-v1:ppo", twice)


def test_hooks_with_a_collect_between_them_learn_from_a_rollout_each(lab: Lab) -> None:
    apart = "{name: apart, hooks: [collect, update_value, collect, update_policy], duration_cycles: 2}"
    assert names_of("CartPole-v1:ppo", apart) == [["collect", "update_value", "collect", "update_policy"]]
    both = ["collect", "update_value", "evaluate", "update_policy"]
    twice = f"{{name: twice, hooks: [{', '.join(both + both)}], duration_cycles: 2}}"
    assert names_of("CartPole-v1:ppo", twice) == [["collect", "update", "evaluate"] * 2]
    run = lab.start(load("CartPole-v1:ppo", [*QUIET, *PPO, f"training.phases=[{apart}]"]), "apart")
    run.run()
    assert run.scheduler.next() is None


def test_both_hooks_of_ppo_compute_what_update_computes(lab: Lab) -> None:
    def trained(name: str, hooks: str) -> str:
        phases = f"training.phases=[{{name: joint, hooks: [collect, {hooks}], duration_cycles: 3}}]"
        run = lab.start(load("CartPole-v1:ppo", [*QUIET, *PPO, "environment.num_envs=2", phases]), name)
        run.run()
        return digest(run.workflow.state_dict())

    assert trained("apart", "update_value, update_policy") == trained("together", "update")


RANDOM = "{name: data_collection, hooks: [{name: collect, steps: 80}], actions: random, duration_cycles: 1}"
MODEL = "{name: train_world_model, type: offline, buffer: replay, hooks: [update_world_model], duration_updates: 3}"
POLICY = "{name: train_policy, type: offline, buffer: replay, hooks: [update_controller], duration_updates: 3}"
RESUMED = {
    "dreamer_v2": ("toy/identity:dreamer_v2", [*DREAMS, "algorithm.pretrain_updates=0"]),
    "tdmpc2": ("toy/identity_box:tdmpc2", LATENTS),
    "sac": ("Pendulum-v1:sac", SAC),
    "world_models": ("toy/identity:world_models", DREAMING),
}


@pytest.mark.parametrize("name", RESUMED)
def test_the_phases_of_the_document_resume_exactly_between_two_hooks(name: str, lab: Lab) -> None:
    spec, settings = RESUMED[name]
    phases = f"training.phases=[{RANDOM}, {MODEL}, {POLICY}, {JOINT}]"
    config = load(spec, [*QUIET, *settings, phases])
    whole = lab.start(config, "whole")
    whole.run()
    for hook, calls in (("update_world_model", 2), ("update_controller", 2), ("update_world_model", 5)):
        run = lab.start(config, f"{hook}{calls}")
        interrupt(run, SYNONYMS[hook] if name == "sac" else hook, calls)
        assert run.run() == STOP
        again = lab.resume(run)
        assert again.run() is None
        assert digest(again.workflow.state_dict()) == digest(whole.workflow.state_dict())


def interrupt(run: Any, hook: str, calls: int) -> None:
    """Let a signal arrive during a call of a hook."""
    method, count = getattr(run.workflow, hook), iter(range(1, 1000))

    def interrupted(*arguments: Any) -> Any:
        if next(count) == calls:
            run.signals.stop()
        return method(*arguments)

    setattr(run.workflow, hook, interrupted)
