"""A run's policy as a model for elsewhere: what it takes, that it acts as the run does, and that a check which fails
says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cadenza as library
from cadenza.errors import CadenzaError
from cadenza.lab.playback import load_policy
from cadenza.tools.export_policy import FACTS, Differences, as_torchscript, build_model, check_model, torchscript_call
from harness.command import cadenza, last, train

ROLLOUT = ["algorithm.n_steps=16", "algorithm.n_epochs=1", "algorithm.batch_size=32", "environment.num_envs=2"]
REPLAY = ["algorithm.buffer_size=200", "algorithm.batch_size=8", "environment.num_envs=2"]
QUICK = ["evaluation.every_steps=null", "evaluation.at_end=false", "checkpoint.every_steps=0", "--max-timesteps", "64"]
NORMALISED = ["Pendulum-v1:ppo", *ROLLOUT, "algorithm.normalize_obs=true", *QUICK]
REMEMBERING = ["toy/recall:ppo", *ROLLOUT, "algorithm.torso.memory.size=8", *QUICK]


def exported(root: Path, out: Path, *arguments: object) -> dict[str, Any]:
    outcome = cadenza("export", "@last", "--out", out, "--runs-dir", root, "--json", *arguments).succeeded()
    result: dict[str, Any] = json.loads(outcome.out.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("run", "inputs"),
    [
        pytest.param(["toy/dict:reinforce", *QUICK], ["obs.noise", "obs.useful"], id="several observations"),
        pytest.param(["toy/masked:dqn", *REPLAY, *QUICK], ["obs", "mask"], id="masks"),
        pytest.param(["toy/image:dqn", "algorithm.distribution=c51", *REPLAY, *QUICK], ["obs"], id="images"),
        pytest.param(["toy/identity_box:sac", *REPLAY, *QUICK], ["obs"], id="squashed"),
        pytest.param(["toy/switches:ppo", *ROLLOUT, *QUICK], ["obs"], id="switches"),
        pytest.param(["harness.odd_spaces:Shifted:ppo", *ROLLOUT, *QUICK], ["obs.a", "obs.b"], id="not from 0"),
        pytest.param(
            [*REMEMBERING, "algorithm.torso.memory.type=transformer"],
            ["obs", "carry.0.seen", "carry.0.count", "is_first"],
            id="transformer",
        ),
        pytest.param(
            ["toy/trio:mappo", *ROLLOUT, *QUICK],
            ["scout.obs", "scout.mask", "gunner.obs", "engineer.obs"],
            id="a team",
        ),
    ],
)
def test_torchscript_export_works_for_all_kinds_of_policies(run: list[str], inputs: list[str], tmp_path: Path) -> None:
    train(tmp_path, *run).succeeded()
    result = exported(tmp_path, tmp_path / "policy.pt", "--format", "torchscript")
    assert list(result["inputs"]) == inputs
    assert result["largest_difference"] < 1e-5
    assert (result["observations_checked"], result["choices_differing"]) == (193, 0)


def test_an_onnx_model_acts_like_the_run_with_its_normaliser_and_memory(tmp_path: Path) -> None:
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    import onnxruntime

    train(tmp_path, *REMEMBERING, "algorithm.torso.memory.type=lstm", "algorithm.normalize_obs=true").succeeded()
    out = tmp_path / "policy.onnx"
    lines = cadenza("export", "@last", "--format", "onnx", "--out", out, "--runs-dir", tmp_path).succeeded().out
    assert "takes obs float32[N, 3], carry.0.h float32[N, 8], carry.0.c float32[N, 8], is_first bool[N]" in lines
    assert "193 random observations: largest difference" in lines
    session, policy = onnxruntime.InferenceSession(out), library.load("@last", runs_dir=tmp_path)
    facts = json.loads(session.get_modelmeta().custom_metadata_map[FACTS])
    assert (facts["run"], facts["environment"]) == (last(tmp_path).id, "toy/recall")
    assert facts["outputs"] == ["action", "output", "next_carry.0.h", "next_carry.0.c"]
    observations = np.random.default_rng(0).random((12, 1, 3), np.float32)
    memory = {f"carry.0.{part}": np.full((1, 8), 9, np.float32) for part in "hc"}  # emptied where episodes begin
    for step, obs in enumerate(observations):
        inputs = {"obs": obs, **memory, "is_first": np.array([step == 0])}
        action, _, *after = session.run(facts["outputs"], inputs)
        memory = dict(zip(memory, after, strict=True))
        assert action[0] == policy(obs[0])


def test_an_exported_model_with_other_actions_is_refused(tmp_path: Path) -> None:
    train(tmp_path, *NORMALISED).succeeded()
    player, _ = load_policy(last(tmp_path))
    model, other = build_model(player), build_model(load_policy(last(tmp_path))[0])
    assert check_model(player, model, torchscript_call(as_torchscript(other, "{}"), model))["largest_difference"] < 1e-5
    next(other.parameters()).add_(0.1)
    with pytest.raises(CadenzaError, match="does not act as the run does: its action differs by up to 0"):
        check_model(player, model, torchscript_call(as_torchscript(other, "{}"), model))


def test_differences_are_relative_to_each_output_and_counted_by_group() -> None:
    large, small = np.array([5000.0]), np.array([0.05])
    differences = Differences()
    differences.numbers("output", large, large + 0.1)
    differences.numbers("action", small, small)
    differences.refuse({})
    differences.numbers("action", small, small + 0.01)
    with pytest.raises(CadenzaError, match=r"its action differs by up to 0\.01"):
        differences.refuse({})
    few, many = np.zeros(20, int), np.zeros(20_000, int)
    differences, other = Differences(), few.copy()
    other[:1] = 1  # a near tie
    differences.discrete("scout.action", few, other)
    differences.discrete("rest.action", many, many)
    differences.refuse({"scout.action": 0.0, "rest.action": 0.0})
    other[:4] = 1
    differences.discrete("scout.action", few, other)
    with pytest.raises(CadenzaError, match=r"it chose another scout\.action in 5 of 40 cases"):
        differences.refuse({"scout.action": 0.0, "rest.action": 0.0})
    differences.refuse({"scout.action": 0.1, "rest.action": 0.0})


def test_a_model_acts_in_the_environments_own_bounds(tmp_path: Path) -> None:
    train(tmp_path, "Pendulum-v1:sac", "environment.rescale_actions=true", *REPLAY, *QUICK).succeeded()
    out = tmp_path / "policy.pt"
    described = exported(tmp_path, out, "--format", "torchscript")["actions"]["action"]
    assert (described["low"], described["high"]) == (-2, 2)
    model, policy = torch.jit.load(out), library.load("@last", runs_dir=tmp_path)
    observations = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_allclose(
        model(torch.from_numpy(observations))[0], [2 * policy(obs) for obs in observations], atol=1e-5
    )


def test_impossible_exports_of_models_are_refused(tmp_path: Path) -> None:
    train(tmp_path, "FrozenLake-v1:qlearning", *QUICK).succeeded()
    out = tmp_path / "policy.pt"
    outcome = cadenza("export", "@last", "--format", "torchscript", "--out", out, "--runs-dir", tmp_path)
    outcome.refused(2, "qlearning", "cannot be exported as a model", "cadenza.load")
    several = cadenza("export", "@last", "@last", "--format", "onnx", "--out", out, "--runs-dir", tmp_path)
    several.refused(2, "--format onnx takes one RUN")
    cadenza("export", "@last", "--format", "torchscript", "--runs-dir", tmp_path, "--json").refused(2, "--out FILE")
    nowhere = tmp_path / "no" / "policy.pt"
    cadenza("export", "@last", "--format", "onnx", "--out", nowhere, "--runs-dir", tmp_path).refused(2, "no folder")
    assert not out.exists()
