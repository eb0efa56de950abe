"""`--debug`: faults are located and repeated, and a healthy run is the same with it as without."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import harness.faulty_learner
from cadenza.config.load import load
from cadenza.config.registry import ALGORITHMS, Algorithm
from cadenza.config.schema import DebugConfig, RunConfig
from cadenza.engine.events import Probe
from cadenza.engine.orchestrator import Orchestrator
from cadenza.errors import ConfigError, DivergenceError, NotFoundError
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import read
from cadenza.tools.diagnose import diagnose, starting_point
from cadenza.tools.verify import compare, final_state
from cadenza.watch.nan_operations import FirstBad
from cadenza.watch.workflow_contents import WorkflowContents
from harness.command import cadenza, last, train
from harness.faulty_environment import FAULTY
from harness.faulty_learner import STEPS
from harness.lab import Lab

SHORT = ["environment.num_envs=4", "evaluation.episodes=2", "evaluation.every_steps=0", "evaluation.at_end=false"]
SHORT += ["logging.every_steps=1", "training.max_timesteps=160", "checkpoint.every_steps=64"]
SMALL_PPO = ["algorithm.n_steps=16", "algorithm.n_epochs=2", "algorithm.batch_size=32"]
IN_FIRST_CYCLE, IN_TRACED_CYCLE, LATER = 2, STEPS + 1, 3 * STEPS + 2
SITES = {
    "module": ("nets.body.2", "from finite inputs and parameters"),
    "loss": ("loss", "though every module's output is"),
    "gradient": ("nets.head.0", "gets a gradient from the loss"),
    "parameter": ("nets.head.0.weight", "when its module is called"),
    "step": ("nets.body.0.weight", "after a step of optimizer"),
}


@pytest.fixture(autouse=True)
def registered_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "harness.faulty_learner"
    entry = Algorithm("learner", "for tests", f"{module}:LearnerConfig", f"{module}:Learner")
    monkeypatch.setitem(ALGORITHMS, "learner", entry)


def configured(*overrides: str, debug: bool = True) -> RunConfig:
    config = load("CartPole-v1:learner", [*SHORT, *overrides])
    return replace(config, debug=DebugConfig(enabled=debug))


def faulty(fault: str, at: int, debug: bool = True) -> RunConfig:
    return configured(f"algorithm.fault={fault}", f"algorithm.fault_at={at}", debug=debug)


def diagnosis(run: Orchestrator) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run.folder.path / "debug" / "diagnosis.json").read_text())
    return report


def file_digests(folder: RunFolder) -> dict[str, str]:
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("at", [IN_FIRST_CYCLE, IN_TRACED_CYCLE, LATER])
@pytest.mark.parametrize("fault", SITES)
def test_a_fault_is_reported_with_its_site_and_update(lab: Lab, fault: str, at: int) -> None:
    site, words = SITES[fault]
    run = lab.start(faulty(fault, at))
    run.save()
    with pytest.raises(DivergenceError) as caught:
        run.run()
    report, step = diagnosis(run), at // STEPS * 32 + 32
    assert (report["site"], report["updates"], report["env_steps"]) == (site, at + 1, step)
    assert str(caught.value).startswith(f"{site} ")
    assert words in str(caught.value)
    assert f"(step {step}, in update {at + 1} of `update`)" in str(caught.value)
    assert f"`cadenza debug {run.folder.reference}`" in str(caught.value)
    assert report["values"]["nan"] + report["values"]["inf"] > 0
    assert all(loss is not None for loss in report["recent"].get("train/loss", []))
    assert not any(map(torch.isnan, run.checkpoints.load(run.checkpoints.resolve("last"))["workflow"]["mean"]))


def test_a_diagnosis_describes_inputs_outputs_and_recent_metrics(lab: Lab) -> None:
    run = lab.start(faulty("module", LATER))
    with pytest.raises(DivergenceError):
        run.run()
    report = diagnosis(run)
    assert report["module"] == "Odd"
    assert report["values"]["shape"] == report["inputs"]["input 0"]["shape"] == [16, 8]
    assert report["inputs"]["input 0"]["finite_fraction"] == 1.0
    assert report["values"]["finite_fraction"] < 1.0
    assert report["values"].keys() >= {"nan", "inf", "dtype"}
    assert report["inputs"]["input 0"].keys() >= {"min", "max", "mean"}
    assert len(report["recent"]["train/loss"]) == LATER // STEPS


@pytest.mark.parametrize("at", [IN_FIRST_CYCLE, IN_TRACED_CYCLE])
def test_a_nan_in_the_workflow_s_state_is_reported_after_the_update(lab: Lab, at: int) -> None:
    run = lab.start(faulty("state", at))
    with pytest.raises(DivergenceError, match=rf"mean is not finite .* after update {at // STEPS * STEPS + STEPS} "):
        run.run()
    assert diagnosis(run)["site"] == "mean"


def test_a_nan_in_extras_is_reported_during_collection(lab: Lab) -> None:
    run = lab.start(faulty("acting", LATER))
    with pytest.raises(DivergenceError, match=r"extras\.agent\.guess is not finite"):
        run.run()
    report = diagnosis(run)
    assert (report["during"], report["updates"]) == ("collect", LATER // STEPS * STEPS + STEPS)
    assert diagnose(run.folder, None, None)["site"] == "extras.agent.guess"


@pytest.mark.parametrize("fault", SITES)
def test_debug_repeats_the_saved_failing_update(lab: Lab, fault: str) -> None:
    run = lab.start(faulty(fault, LATER))
    run.save()
    with pytest.raises(DivergenceError):
        run.run()
    before = file_digests(run.folder)
    report = diagnose(run.folder, None, None)
    assert report["from"] == f"step-{128:012d}-{3 * STEPS:012d}"  # the state just before the update, not a checkpoint
    assert (report["site"], report["updates"]) == (SITES[fault][0], LATER + 1)
    assert file_digests(run.folder) == before
    if fault == "gradient":
        assert report["backward"]["function"] == "MulBackward0"  # where the infinite slope of the root meets a zero
        assert "torch.sqrt(" in report["backward"]["code"]
    elif fault == "loss":
        assert "torch.log(loss - loss)" in report["operation"]["code"]
        assert Path(report["operation"]["where"].rpartition(":")[0]) == Path(harness.faulty_learner.__file__)
    elif fault == "module":
        assert "x / torch.zeros_like(x)" in report["operation"]["code"]


@pytest.mark.parametrize("fault", SITES)
def test_a_run_without_debug_is_diagnosed_from_its_last_checkpoint(lab: Lab, fault: str) -> None:
    run = lab.start(faulty(fault, LATER, debug=False))
    run.save()
    with pytest.raises(DivergenceError, match=f"`cadenza debug {run.folder.reference}`"):
        run.run()
    before = file_digests(run.folder)
    report = diagnose(run.folder, None, None)
    assert report["from"] == run.checkpoints.resolve("last")
    assert (report["site"], report["updates"]) == (SITES[fault][0], LATER + 1)
    assert file_digests(run.folder) == before


def test_an_exception_in_an_update_is_saved_and_diagnosed(lab: Lab) -> None:
    run = lab.start(faulty("raise", LATER))
    with pytest.raises(ValueError, match="asked to fail") as raised:
        run.run()
    assert raised.value.__cause__ is None
    assert diagnosis(run)["error"] == "ValueError: asked to fail"
    report = diagnose(run.folder, None, None)
    assert (report["found"], report["error"]) == (True, "ValueError: asked to fail")
    assert report["updates"] == LATER + 1


def test_diagnosis_starts_from_a_checkpoint_that_is_newer_than_the_saved_failure(lab: Lab) -> None:
    run = lab.start(faulty("raise", LATER))
    run.save()
    with pytest.raises(ValueError, match="asked to fail"):
        run.run()
    failed = diagnose(run.folder, None, None)["from"]
    assert failed > run.checkpoints.resolve("last")
    again = lab.open(configured(debug=False), run.folder, run.folder.read_decisions())  # with the fault mended
    again.load_state(run.checkpoints.load(run.checkpoints.resolve("last")))
    again.run()
    assert run.checkpoints.resolve("last") > failed
    assert starting_point(run.folder, None)[1] == run.checkpoints.resolve("last")


def test_diagnosis_of_a_healthy_run_finds_nothing(lab: Lab) -> None:
    run = lab.start(configured(debug=False))
    run.save()
    run.run()
    report = diagnose(run.folder, "last", None)
    assert (report["found"], report["env_steps"]) == (False, 160)
    with pytest.raises(NotFoundError, match="no checkpoint '77'"):
        diagnose(run.folder, "77", None)


def test_diagnosis_stops_after_the_requested_steps(lab: Lab) -> None:
    run = lab.start(faulty("module", LATER, debug=False))
    run.save()
    with pytest.raises(DivergenceError):
        run.run()
    first = run.checkpoints.names()[0]
    assert diagnose(run.folder, first, 32)["found"] is False


@pytest.mark.parametrize("spec", ["CartPole-v1:learner", "CartPole-v1:ppo"])
def test_a_run_with_debug_equals_one_without(lab: Lab, spec: str) -> None:
    config = load(spec, [*SHORT, *(SMALL_PPO if spec.endswith("ppo") else [])])
    plain = lab.start(config, "plain")
    observed = lab.start(replace(config, debug=DebugConfig(enabled=True)), "observed")
    for run in (plain, observed):
        run.run()
    expected, rows = read(plain.folder.metrics), read(observed.folder.metrics)
    assert len(expected) == 5 - (spec.endswith("ppo") and 2)
    for a, b in zip(expected, rows, strict=True):
        assert {key: b.get(key) for key in a if not key.startswith(("time/", "digest"))} == {
            key: value for key, value in a.items() if not key.startswith(("time/", "digest"))
        }
        assert (a["digest/weights"], a["digest/experience"]) == (b["digest/weights"], b["digest/experience"])
    ours, theirs = final_state(plain.folder), final_state(observed.folder)
    skipped = ("metrics.", "clock.seconds", "buffer.", "last", "best")
    for path in ours:
        if not path.startswith(skipped):
            assert path in theirs
            assert repr(ours[path]) == repr(theirs[path]), path


def test_a_run_with_debug_resumes_bit_for_bit(lab: Lab) -> None:
    whole, part = lab.start(configured(), "whole"), lab.start(configured(), "part")
    whole.run()
    part.run(until=lambda clock: clock.env_steps >= 32)
    again = lab.resume(part)
    again.run(until=lambda clock: clock.env_steps >= 96)
    lab.resume(part).run()
    assert compare(whole.folder, part.folder) is None


def test_without_debug_the_run_calls_its_parts_directly(lab: Lab) -> None:
    run = lab.start(configured(debug=False))
    assert run.collector is not None
    assert type(run.probe) is Probe
    assert (run.collector.act, run.evaluator.act) == (run.workflow.act, run.workflow.act)
    assert run.collector.step == run.collector.env.step
    assert not run.workflow.nets["body"]._forward_hooks  # type: ignore[attr-defined]
    run.run()
    assert not (run.folder.path / "debug").exists()


def test_debug_metrics_cover_every_module(lab: Lab) -> None:
    run = lab.start(configured("algorithm.dead=true"))
    run.run()
    rows = read(run.folder.metrics)
    for module in ("nets.head.0", "scale"):
        assert rows[0][f"debug/grad_norm/{module}"] > 0
        assert rows[0][f"debug/update_ratio/{module}"] > 0
    # the learning rate is 0.01 and nothing clips: what the step did is what the gradient says
    change = rows[0]["debug/update_ratio/scale"] / rows[0]["debug/grad_norm/scale"]
    assert change == pytest.approx(0.01, rel=0.05)
    assert rows[0]["debug/weight_norm/scale"] == pytest.approx(1, rel=0.1)
    assert rows[0]["debug/grad_norm/nets.body.0"] == 0
    assert rows[0]["debug/dead_units/nets.body.1"] == 1.0


def test_debug_writes_a_profile_and_a_trace_of_the_second_cycle(lab: Lab) -> None:
    run = lab.start(configured())
    run.run()
    text = (run.folder.path / "debug" / "profile.txt").read_text()
    whole, traced = text.split("the traced cycles")
    assert [line.split()[0] for line in whole.splitlines()[1:] if line] == [
        "collect",
        "act",
        "env",
        "save",
        "tracing",
        "update",
    ]
    assert "aten::" in traced
    trace = json.loads((run.folder.path / "debug" / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    names = [event["name"] for event in events if event["cat"] == "user_annotation"]
    assert names.count("collect") == names.count("update") == 1
    assert names.count("collect/act") == 8
    update = next(event for event in events if event["name"] == "update")
    inside = [event["name"] for event in events if 0 <= event["ts"] - update["ts"] < update["dur"]]
    assert "aten::addmm" in inside
    assert "aten::isfinite" not in inside  # the trace shows the algorithm, not the checks


def test_a_negative_number_of_profile_cycles_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"debug\.profile_cycles=-1"):
        load("CartPole-v1:ppo", ["debug.profile_cycles=-1"])


@dataclass
class Pair:
    left: nn.Module
    right: list[nn.Module] = field(default_factory=list)


class Assorted:
    """A workflow whose parts are in every kind of container."""

    def __init__(self) -> None:
        self.optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
        self.pair = Pair(nn.Linear(1, 1), [nn.Linear(1, 1)])
        self.again = self.pair.left
        self.alpha = torch.zeros(1, requires_grad=True)
        self.table = torch.zeros(3)
        self.optimizers = {"left": torch.optim.Adam([*self.pair.left.parameters(), self.alpha])}

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_workflow_contents_include_parts_in_containers_and_dataclasses() -> None:
    contents = WorkflowContents(Assorted())
    assert list(contents.modules) == ["pair.left", "pair.right.0"]
    assert list(contents.parameters) == [
        *(f"pair.{side}.{kind}" for side in ("left", "right.0") for kind in ("weight", "bias")),
        "alpha",
    ]
    assert list(contents.optimizers) == ["optimizer", "optimizers.left"]
    assert list(contents.updated_by("optimizers.left")) == ["pair.left", "alpha"]


def test_debug_commands_locate_an_exploding_learning_rate(tmp_path: Path) -> None:
    spec = ["CartPole-v1:ppo", *SMALL_PPO, "algorithm.learning_rate=1e30", "environment.num_envs=4"]
    message = train(tmp_path, *spec, "--debug").refused(70, "not finite", "(step 64, in update 2 of `update`)")
    assert f"cadenza debug {last(tmp_path).reference}" in message
    result = cadenza("debug", "@last", "--runs-dir", tmp_path, "--json").succeeded()
    report = json.loads(result.out)
    assert (report["found"], report["updates"]) == (True, 2)
    assert message.startswith(f"error: {report['site']} {report['what']}")
    train(tmp_path, *spec, "--max-timesteps", "2000").refused(70, f"cadenza debug {last(tmp_path).reference}")
    result = cadenza("debug", "@last", "--runs-dir", tmp_path).succeeded()
    assert result.out.startswith(f"{report['site']} {report['what']}")
    assert "at step 64, in update 2, during `update`" in result.out


def test_a_nan_policy_of_sac_is_reported_as_one_update_and_not_as_the_environment_s_fault(tmp_path: Path) -> None:
    spec = ["Pendulum-v1:sac", "algorithm.learning_rate=1e18", "--max-timesteps", "2000"]
    train(tmp_path, *spec).refused(70, "policies.agent.actor.0.weight is not finite by step 101 (update 1)")
    report = json.loads(cadenza("debug", "@last", "--runs-dir", tmp_path, "--json").succeeded().out)
    assert (report["site"], report["env_steps"], report["updates"]) == ("policies.agent.actor.0.weight", 101, 1)


def test_uninitialised_memory_is_not_reported_as_nan() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills it with NaN
    try:
        with FirstBad() as first:
            torch.empty(3).fill_(1.0)
            torch.ones(3).new_empty(3)
            torch.ones(3).log().neg().sqrt()
            assert first.operation is None
            torch.zeros(3) / 0
    finally:
        torch.use_deterministic_algorithms(before)
    assert first.nan is not None
    assert "div" in first.nan["function"]


def test_a_nan_reward_is_reported_as_an_environment_fault(tmp_path: Path) -> None:
    spec = [f"{FAULTY}:ppo", *SMALL_PPO, "environment.num_envs=2", "environment.kwargs={reward_nan_at: 40}"]
    message = train(tmp_path, *spec, "--debug").refused(70, "reward")
    report = json.loads(cadenza("debug", "@last", "--runs-dir", tmp_path, "--json").succeeded().out)
    assert report["error"].startswith("EnvironmentFault: ")
    assert report["during"] == "collect"
    assert message.startswith(f"error: {report['error'].removeprefix('EnvironmentFault: ')[:40]}")


def test_debug_shortens_the_budget_and_keeps_the_horizon(tmp_path: Path) -> None:
    def training(*arguments: str) -> tuple[Any, Any, bool]:
        out = cadenza("train", "CartPole-v1:ppo", *arguments, "--cfg").succeeded().out
        path = tmp_path / "config.yaml"
        path.write_text(out)
        config = load(str(path))
        return config.training.max_timesteps, config.training.horizon, config.debug.enabled

    assert training() == (100_000, None, False)
    assert training("--debug") == (5000, 100_000, True)
    assert training("--debug", "--max-timesteps", "9000") == (9000, None, True)
    assert training("--debug", "training.max_timesteps=300") == (300, None, True)
    assert training("--debug", "--max-updates", "30") == (None, None, True)


def test_debug_shortens_a_budget_in_updates(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    budget = ["training.max_timesteps=null", "training.max_updates=20000"]
    path.write_text(cadenza("train", "CartPole-v1:ppo", *budget, "--cfg").succeeded().out)
    path.write_text(cadenza("train", path, "--debug", "--cfg").succeeded().out)
    training = load(str(path)).training
    assert (training.max_timesteps, training.max_updates, training.horizon) == (None, 500, 20_000)


def test_gradients_of_hand_written_kernels_are_measured_and_checked(lab: Lab) -> None:
    small = ["environment.num_envs=2", "algorithm.n_steps=16", "training.max_timesteps=96", "debug.enabled=true"]
    run = lab.start(load("CartPole-v1:ppo", [*small, "debug.profile_cycles=0", "logging.every_steps=1"]))
    assert "agent" in run.workflow.kernels  # type: ignore[attr-defined]
    run.run()
    row = read(run.folder.metrics)[0]
    for module in ("actor.0", "actor.4", "critic.2"):
        assert row[f"debug/grad_norm/nets.agent.{module}"] > 0
        assert row[f"debug/update_ratio/nets.agent.{module}"] > 0

    again = lab.start(load("CartPole-v1:ppo", small), "again")
    kernel: Any = again.workflow.kernels["agent"]  # type: ignore[attr-defined]
    kernel.critic_rest.layers[0].by_input = lambda gradient, out: np.multiply(out, np.nan, out=out)
    with pytest.raises(DivergenceError, match=r"nets.agent.critic.0.weight has a gradient that is not finite"):
        again.run()


def test_an_algorithm_s_own_error_names_the_original_run(tmp_path: Path) -> None:
    settings = ["algorithm.priority_alpha=8", "algorithm.learning_rate=10", "algorithm.warmup_steps=64"]
    train(tmp_path, "CartPole-v1:dqn", *settings).refused(70, "a priority is not finite")
    result = cadenza("debug", "@last", "--runs-dir", tmp_path).succeeded().out
    assert f"`cadenza debug {last(tmp_path).reference}`" in result
    assert "cadenza-debug-" not in result
