"""The loss that stands in a workflow's file, in `ops/` or in a user's subclass is the one that trains."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.base.json_text import with_digest
from cadenza.config import registry
from cadenza.config.load import load
from cadenza.engine import runtime
from cadenza.engine.identity import differences, identity_of
from cadenza.engine.launch import check
from cadenza.errors import CheckpointError, ConfigError
from cadenza.lab.session import resume, train
from cadenza.ops import surrogate
from cadenza.records.checkpoint import Checkpoints, manifest_digest
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves
from cadenza.workflows import dqn, loss_check
from cadenza.workflows.ppo import PPO
from cadenza.workflows.ppo_config import PPOConfig
from cadenza.workflows.sac import SAC
from harness.command import resume as resume_command
from harness.command import train as train_command

OFF_POLICY = (
    "environment.num_envs=1",
    "algorithm.batch_size=16",
    "algorithm.buffer_size=500",
    "algorithm.warmup_steps=32",
)
LEAN = "evaluation.at_end=false", "logging.episodes=false", "training.max_timesteps=64"
RUNS: dict[str, tuple[str, ...]] = {
    "CartPole-v1:ppo": ("environment.num_envs=2", "algorithm.n_steps=16", "algorithm.n_epochs=2"),
    "CartPole-v1:dqn": (*OFF_POLICY, "algorithm.train_every=8", "algorithm.update_ratio=0.5"),
    "Pendulum-v1:sac": OFF_POLICY,
}


def trained(spec: str, root: Path, *settings: str) -> RunFolder:
    return train(load(spec, [*RUNS[spec], *LEAN, *settings]), root, [], quiet=True).folder


def weights(folder: RunFolder) -> dict[str, Any]:
    checkpoints = Checkpoints.from_run(folder)
    return dict(leaves(checkpoints.load(checkpoints.resolve("last"), "workflow")["workflow"]))


def same_weights(a: RunFolder, b: RunFolder) -> bool:
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(
        torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one
    )


@dataclass(frozen=True)
class Edit:
    """A replacement in the text of a module, whose `Class` is then the algorithm's workflow."""

    spec: str
    before: str
    after: str

    def __call__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entry = registry.ALGORITHMS[self.spec.partition(":")[2]]
        module = importlib.import_module(entry.workflow.partition(":")[0])  # type: ignore[union-attr]
        text = Path(module.__file__).read_text()
        assert self.before in text
        namespace = {"__name__": module.__name__}
        exec(compile(text.replace(self.before, self.after), module.__file__, "exec"), namespace)
        edited: Any = namespace[entry.workflow.partition(":")[2]]  # type: ignore[union-attr]
        monkeypatch.setitem(registry.ALGORITHMS, entry.name, replace(entry, workflow=edited))


PPO_RETURN = 'return objective.loss(judged["log_prob"], judged["entropy"], judged["value"], batch)'
EDITS = {
    "ppo": Edit("CartPole-v1:ppo", PPO_RETURN, PPO_RETURN.replace('judged["value"]', 'judged["value"] * 1.5')),
    "dqn": Edit("CartPole-v1:dqn", "loss = (losses * batch.weight).sum()", "loss = (losses * batch.weight).sum() * 2"),
    "sac, critics": Edit("Pendulum-v1:sac", "loss = 0.5 * masked_mean(", "loss = 0.6 * masked_mean("),
    "sac, policy": Edit("Pendulum-v1:sac", "loss, entropy = temperature * log_prob - value", "loss, entropy = -value"),
}


def change_surrogate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the value loss that of Huber."""
    huber = lambda value, old, target, reach: torch.nn.functional.smooth_l1_loss(value, target, reduction="none")  # noqa: E731
    monkeypatch.setattr(surrogate, "value_error", huber)


def change_huber(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dqn, "huber", lambda error: error.abs())


CHANGES: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    **{name: (edit.spec, edit) for name, edit in EDITS.items()},
    "a function of ops/ that ppo uses": ("CartPole-v1:ppo", change_surrogate),
    "a function of ops/ that dqn uses": ("CartPole-v1:dqn", change_huber),
}


@pytest.mark.parametrize("change", CHANGES)
def test_edited_loss_trains_on_default_settings(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, edit = CHANGES[change]
    original = trained(spec, tmp_path / "original", "runtime.kernels=torch")
    edit(monkeypatch)
    by_default = trained(spec, tmp_path / "auto")
    decisions = by_default.read_decisions()
    assert decisions["runtime.kernels"] == "torch"
    assert f"do not compute the loss of {spec.partition(':')[2]} (group agent: " in decisions["runtime.kernels.reason"]
    assert same_weights(by_default, trained(spec, tmp_path / "torch", "runtime.kernels=torch"))
    assert not same_weights(by_default, original)
    with pytest.raises(ConfigError, match=r"runtime.kernels=numpy: the hand-written kernels do not compute the loss"):
        trained(spec, tmp_path / "numpy", "runtime.kernels=numpy")
    assert not list((tmp_path / "numpy").glob("*"))


@pytest.mark.parametrize("spec", RUNS)
def test_loss_as_it_stands_keeps_the_kernels(spec: str, tmp_path: Path) -> None:
    decisions = trained(spec, tmp_path).read_decisions()
    assert decisions["runtime.kernels"] == "numpy"
    assert "runtime.kernels.reason" not in decisions
    assert len(decisions["runtime.loss"]["agent"]) >= 5


class Entropic(PPO):
    """PPO with a loss of its own."""

    def _loss(self, net: Any, batch: Any, objective: Any) -> tuple[Any, Any]:
        loss, figures = super()._loss(net, batch, objective)
        return loss + 1e-6 * sum(parameter.square().sum() for parameter in net.parameters()), figures


class Adaptive(PPO):
    """PPO whose loss needs what only a training has."""

    def update(self, store: Any, phase: Any) -> Any:
        self.progress = phase.now / phase.horizon
        return super().update(store, phase)

    def _loss(self, net: Any, batch: Any, objective: Any) -> tuple[Any, Any]:
        loss, figures = super()._loss(net, batch, objective)
        return loss * (1 + self.progress), figures


class Noisy(SAC):
    """SAC whose loss draws random numbers of the process."""

    def _policy_loss(self, name: str, batch: Any, temperature: Any) -> tuple[Any, Any]:
        loss, entropy = super()._policy_loss(name, batch, temperature)
        return loss * (1 + torch.rand(())), entropy


OWN: dict[str, tuple[type, str]] = {
    "a weight decay of a millionth": (Entropic, "the gradient of "),
    "a value that an update sets": (Adaptive, "AttributeError: 'Adaptive' object has no attribute 'progress'"),
}


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("case", OWN)
def test_loss_overridden_in_a_subclass_trains(case: str, tmp_path: Path) -> None:
    workflow, reason = OWN[case]
    registry.register_algorithm("own", config=PPOConfig)(workflow)
    settings = RUNS["CartPole-v1:ppo"]
    config = load("CartPole-v1:own", [*settings, *LEAN])
    folder = train(config, tmp_path / "auto", [], quiet=True).folder
    assert reason in folder.read_decisions()["runtime.kernels.reason"]
    by_torch = replace(config, runtime=replace(config.runtime, kernels="torch"))
    assert same_weights(folder, train(by_torch, tmp_path / "torch", [], quiet=True).folder)


class Single(nn.Module):
    """A network, or an encoder, that works in single precision only."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__()
        inputs, outputs = sizes if len(sizes) > 1 else (sizes[0].shape[0], 8)
        self.layer, self.features = nn.Linear(inputs, outputs), outputs

    def forward(self, x: Any) -> torch.Tensor:
        return self.layer((x["vector"] if isinstance(x, dict) else x).float())


def test_network_of_this_test_fails_in_double_precision() -> None:
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        Single(2, 2).double()(torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("key", ["algorithm.actor.network", "algorithm.critic.network", "algorithm.torso.encoder"])
def test_loss_of_a_users_network_is_checked_with_a_network_of_cadenzas(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = f"{key}={__name__}:Single"
    for kernels in ("auto", "numpy"):
        folder = trained("CartPole-v1:ppo", tmp_path / kernels, network, f"runtime.kernels={kernels}")
        decisions = folder.read_decisions()
        reason = f"runtime.kernels: torch: no hand-written kernel knows {__name__}:Single"
        expected = ("numpy", None) if kernels == "numpy" else ("torch", reason)
        assert (decisions["runtime.kernels"], decisions.get("runtime.kernels.reason")) == expected
        assert len(decisions["runtime.loss"]["agent"]) >= 5
    change_surrogate(monkeypatch)
    with pytest.raises(CheckpointError, match="the loss of group agent, as computed"):
        resume(folder, 128, quiet=True)
    edited = trained("CartPole-v1:ppo", tmp_path / "edited", network, "runtime.kernels=numpy")  # there is no kernel
    assert edited.read_decisions()["runtime.kernels"] == "numpy"


def single_advantage(reward: torch.Tensor, value: torch.Tensor, *rest: Any) -> torch.Tensor:
    return reward - nn.functional.linear(value, torch.ones(1, 1, dtype=torch.float32))


def test_loss_with_a_users_advantage_and_optimizer_is_checked() -> None:
    own = [f"algorithm.advantage={__name__}:single_advantage", "algorithm.optimizer.name=torch.optim:RAdam"]
    config = load("CartPole-v1:ppo", own)
    decisions = {"device": "cpu", "runtime.kernels": "numpy"}
    assert runtime.check_loss(config, check(config), decisions) is None
    assert decisions["runtime.kernels"] == "numpy"
    assert loss_check.loss_examples(config, check(config), "numpy").keys() == {"agent"}  # those have a kernel


def test_loss_of_one_groups_own_network_is_checked() -> None:
    own = [f"algorithm.groups.marine.{key}" for key in (f"actor.network={__name__}:Single", "gamma=0.9")]
    config = load("skirmish/3m:mappo", own)
    decisions = {"device": "cpu", "runtime.kernels": "numpy"}
    assert runtime.check_loss(config, check(config), decisions) is None
    assert decisions["runtime.kernels"] == "numpy"
    assert loss_check.loss_examples(config, check(config), "numpy") == {}


WITHOUT_KERNEL: dict[str, tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = {
    "a memory": ("CartPole-v1:ppo", "algorithm.torso.memory.type=gru", change_surrogate),
    "another activation": ("CartPole-v1:ppo", "algorithm.actor.activation=silu", change_surrogate),
    "several choices at once": ("toy/dials:ppo", "algorithm.n_epochs=1", change_surrogate),
    "switches": ("toy/switches:ppo", "algorithm.n_epochs=1", change_surrogate),
    "squashed actions": ("Pendulum-v1:ppo", "algorithm.head={squash: true, std: state}", change_surrogate),
    "quantiles": ("CartPole-v1:dqn", "algorithm.distribution=quantile", EDITS["dqn"]),
    "noisy layers": ("CartPole-v1:dqn", "algorithm.noisy=true", EDITS["dqn"]),
    "layer norm": ("Pendulum-v1:sac", "algorithm.layer_norm=true", EDITS["sac, critics"]),
    "discrete actions": ("CartPole-v1:sac", "algorithm.dropout=0.1", EDITS["sac, critics"]),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", WITHOUT_KERNEL)
def test_loss_without_a_kernel_is_recorded(case: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, setting, edit = WITHOUT_KERNEL[case]
    config = load(spec, [setting])
    decisions: dict[str, Any] = {"device": device, "runtime.kernels": {"cpu": "numpy"}.get(device, "torch")}
    assert runtime.check_loss(config, check(config), decisions) is None
    before = identity_of(config, (), decisions)
    assert runtime.check_loss(config, check(config), decisions) is None
    assert differences(before, config, identity_of(config, (), decisions), edited=False) == []
    edit(monkeypatch)
    runtime.check_loss(config, check(config), decisions)
    (change,) = differences(before, config, identity_of(config, (), decisions), edited=False)
    assert str(change).startswith("the loss of group agent, as computed on a made-up batch: [")
    assert decisions["runtime.kernels"] == {"cpu": "numpy"}.get(device, "torch")


def test_group_that_an_older_version_did_not_record_is_no_change() -> None:
    config = load("skirmish/3m:happo")
    decisions: dict[str, Any] = {"device": "cpu", "runtime.kernels": "numpy"}
    runtime.check_loss(config, check(config), decisions)
    before = identity_of(config, (), decisions)
    del before["decisions"]["runtime.loss"]["marine_1"]
    assert differences(before, config, identity_of(config, (), decisions), edited=False) == []


def test_user_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_surrogate(monkeypatch)
    outcome = train_command(tmp_path, "CartPole-v1:ppo", *RUNS["CartPole-v1:ppo"], *LEAN).succeeded()
    (line,) = (line for line in outcome.warnings if "runtime.kernels" in line)
    assert line.startswith("warning: runtime.kernels: torch, which is slower: the hand-written kernels do not compute")
    assert "policy_loss" not in line
    assert "(group agent: loss is " in line
    later = resume_command(tmp_path, "@last", "--max-timesteps", 128).succeeded().warnings
    assert not any("runtime.kernels" in line for line in later)
    refused = train_command(tmp_path, "CartPole-v1:ppo", *RUNS["CartPole-v1:ppo"], *LEAN, "runtime.kernels=numpy")
    refused.refused(2, "runtime.kernels=numpy", "loss is ", "runtime.kernels=torch")


def test_check_draws_from_no_stream_and_leaves_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("Pendulum-v1:sac")
    decisions = {"device": "cpu", "runtime.kernels": "numpy"}
    examples = [loss_check.loss_examples(config, check(config), kernels) for kernels in ("torch", "numpy", "torch")]
    assert loss_check.first_difference(examples[0], examples[1]) is None
    assert loss_check.summary(examples[0]["agent"]) == loss_check.summary(examples[2]["agent"])
    assert torch.get_default_dtype() == torch.float32
    monkeypatch.setattr(SAC, "_critic_loss", Noisy._policy_loss)  # fails
    runtime.check_loss(config, check(config), decisions)
    assert decisions["runtime.kernels"] == "torch"
    assert torch.get_default_dtype() == torch.float32


def test_resume_with_another_loss_is_refused_and_accepted_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained("CartPole-v1:ppo", tmp_path)
    change_surrogate(monkeypatch)
    loss = "the loss of group agent, as computed on a made-up batch: "
    changes = f'runtime.kernels: "numpy" → "torch"; {loss}' r"\[22\.2.*… → \[2\.18"
    with pytest.raises(CheckpointError, match=changes):
        resume(folder, 128, quiet=True)
    assert folder.read_decisions()["runtime.kernels"] == "numpy"
    resume(folder, 128, quiet=True, accept_changes=True)
    decisions = folder.read_decisions()
    assert decisions["runtime.kernels"] == "torch"
    assert set(decisions["accepted"][0]["changes"]) == {"decisions.runtime.kernels", "decisions.runtime.loss.agent"}
    resume(folder, 192, quiet=True)  # accepted once and for all
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="the loss of group agent, as computed"):
        resume(folder, 256, quiet=True)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_resume_with_a_loss_that_cannot_be_computed_is_refused(
    kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_command(
        tmp_path, "CartPole-v1:ppo", *RUNS["CartPole-v1:ppo"], *LEAN, f"runtime.kernels={kernels}"
    ).succeeded()
    longer = ("@last", "--max-timesteps", 128)
    monkeypatch.setattr(PPO, "_loss", lambda *arguments: 1 / 0)
    refused = resume_command(tmp_path, *longer)
    refused.refused(78, "the loss of group agent, as computed on a made-up batch: [22.2", "→ (cannot be computed)")
    (warning,) = refused.warnings
    assert "on a made-up batch, ZeroDivisionError: " in warning
    monkeypatch.undo()
    resume_command(tmp_path, *longer).succeeded()


@pytest.mark.usefixtures("forgotten")
def test_loss_that_can_never_be_computed_is_told_once(tmp_path: Path) -> None:
    registry.register_algorithm("own", config=PPOConfig)(Adaptive)
    settings = (*RUNS["CartPole-v1:ppo"], *LEAN, "runtime.kernels=torch")
    (warning,) = train_command(tmp_path, "CartPole-v1:own", *settings).succeeded().warnings
    assert warning.startswith("warning: a resume cannot notice that the loss of own changed (on a made-up batch, Attri")
    assert not resume_command(tmp_path, "@last", "--max-timesteps", 128).succeeded().warnings
    registry.ALGORITHMS["own"] = replace(registry.ALGORITHMS["own"], workflow=PPO)
    resume_command(tmp_path, "@last", "--max-timesteps", 192).refused(78, "(cannot be computed) → [22.1")


def test_resume_with_an_algorithm_that_is_no_longer_checked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained("CartPole-v1:ppo", tmp_path)
    monkeypatch.delattr(PPO, "loss_example")
    with pytest.raises(CheckpointError, match=r"on a made-up batch: \[22.2.* → \(cannot be computed\)"):
        resume(folder, 128, quiet=True)


def test_resume_of_a_run_with_an_edited_loss_needs_that_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EDITS["dqn"](monkeypatch)
    folder = trained("CartPole-v1:dqn", tmp_path, "runtime.kernels=torch")
    assert "runtime.kernels.reason" not in folder.read_decisions()
    resume(folder, 128, quiet=True)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="the loss of group agent, as computed"):
        resume(folder, 192, quiet=True)


def test_resume_does_not_compare_bits(tmp_path: Path) -> None:
    """As on another processor, with other linear algebra."""
    folder = trained("Pendulum-v1:sac", tmp_path)
    decisions = folder.read_decisions()
    stored = {group: [x * (1 + 1e-7) for x in row] for group, row in decisions["runtime.loss"].items()}
    forget_loss(folder, {"runtime.loss": stored})
    resume(folder, 128, quiet=True)
    assert folder.read_decisions()["runtime.loss"] == stored


def test_run_of_an_older_version_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained("CartPole-v1:ppo", tmp_path, "runtime.kernels=torch")
    forget_loss(folder, {})
    change_surrogate(monkeypatch)
    resume(folder, 128, quiet=True)
    assert "runtime.loss" in folder.read_decisions()


def forget_loss(folder: RunFolder, instead: dict[str, Any]) -> None:
    """Replace the record of the loss in a run's decisions and in its checkpoints."""
    decisions = {key: value for key, value in folder.read_decisions().items() if key != "runtime.loss"} | instead
    folder.decisions.path.write_text(json.dumps(with_digest(decisions)))
    for checkpoint in folder.checkpoints.glob("step-*"):
        manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
        del manifest["run"]["decisions"]["runtime.loss"]
        manifest["run"]["decisions"] |= instead
        manifest["digest"] = manifest_digest(manifest)
        (checkpoint / "MANIFEST.json").path.write_text(json.dumps(manifest))
