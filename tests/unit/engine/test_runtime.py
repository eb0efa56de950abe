"""Decisions about threads, kernels, precision and compilation; every choice computes the same."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info

from cadenza.base import blas, resource_usage
from cadenza.config.load import load
from cadenza.engine import build, runtime
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.envs.vector import cores
from cadenza.errors import ConfigError
from cadenza.lab.playback import load_policy
from cadenza.lab.session import train
from harness import collecting


def decided(spec: str, *overrides: str, **before: Any) -> dict[str, Any]:
    config = load(spec, list(overrides))
    decisions = {"device": "cpu", **before}
    runtime.decide_runtime(config, check(config), decisions)
    return {key.removeprefix("runtime."): value for key, value in decisions.items() if key.startswith("runtime.")}


def test_vector_observations_use_one_thread_and_numpy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "has_compiler", lambda: True)
    long = "training.max_timesteps=1_000_000_000"
    assert decided("CartPole-v1:ppo", long) == {"threads": 1, "kernels": "numpy", "compile": False, "tf32": False}
    explicit = decided("CartPole-v1:ppo", "runtime.threads=3", "runtime.kernels=torch", "runtime.compile=true")
    assert explicit == {"threads": 1, "kernels": "torch", "compile": True, "tf32": False}
    assert decided("CartPole-v1:ppo", device="cuda")["kernels"] == "torch"


def test_images_use_every_core_and_long_runs_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = "algorithm.n_steps=128", "environment.num_envs=8", "algorithm.batch_size=256", "algorithm.n_epochs=4"

    def compiles(timesteps: int) -> bool:
        decisions = decided("toy/image:ppo", "environment.resize=36", *steps, f"training.max_timesteps={timesteps}")
        assert decisions["threads"] == cores()
        return bool(decisions["compile"])

    monkeypatch.setattr(runtime, "has_compiler", lambda: True)
    worth = runtime.WORTH_COMPILING * 256 // 4
    assert compiles(worth)
    assert not compiles(worth - 64)
    small = decided("toy/image:ppo", *steps, f"training.max_timesteps={worth}")
    assert small == {"threads": 1, "kernels": "numpy", "compile": False, "tf32": False}
    monkeypatch.setattr(runtime, "has_compiler", lambda: False)
    assert not compiles(worth)


@pytest.mark.parametrize(
    ("spec", "overrides", "threads"),
    [
        ("CartPole-v1:ppo", [], 1),
        ("CartPole-v1:ppo", ["algorithm.critic.hidden_sizes=[1024,1024]", "algorithm.batch_size=1.0"], 3),
        ("CartPole-v1:ippo", [], 1),
        ("CartPole-v1:reinforce", [], 1),
        ("CartPole-v1:dqn", [], 1),
        ("CartPole-v1:dqn", ["algorithm.hidden.hidden_sizes=[512,512]", "algorithm.batch_size=256"], 3),
        ("Pendulum-v1:sac", [], 1),
        ("CartPole-v1:dreamer_v3", [], 1),
        ("CartPole-v1:dreamer_v3", ["size=12m"], 3),
        ("Pendulum-v1:tdmpc2", ["size=5", "algorithm.batch_size=256"], 3),
        ("toy/image:ppo", ["environment.resize=36"], 3),
        ("FrozenLake-v1:qlearning", [], 3),  # nothing to compute with them, and nothing to lose
    ],
)
def test_more_threads_than_one_are_used_where_products_or_images_are_large(
    spec: str, overrides: list[str], threads: int
) -> None:
    assert decided(spec, *overrides, "runtime.threads=3")["threads"] == threads
    assert decided(spec, *overrides, "runtime.threads=3", **{"runtime.threads": 2})["threads"] == 2  # as it began


def test_a_resumed_run_keeps_its_decisions(tmp_path: Path) -> None:
    config = load("CartPole-v1:ppo", ["training.max_timesteps=512", "runtime.kernels=torch"])
    folder = train(config, tmp_path, [], quiet=True).folder
    assert folder.read_decisions()["runtime.kernels"] == "torch"
    older = {key: value for key, value in folder.read_decisions().items() if "runtime.k" not in key}
    config = load("CartPole-v1:ppo", ["training.max_timesteps=512"])
    runtime.decide_runtime(config, check(config), older)
    assert older["runtime.kernels"] == "torch"  # there was nothing else then


def test_numpy_kernels_are_refused_on_other_devices() -> None:
    with pytest.raises(ConfigError, match=r"runtime.kernels=numpy: only on the CPU, and this run is on cuda"):
        decided("CartPole-v1:ppo", "runtime.kernels=numpy", device="cuda")
    moved = decided("CartPole-v1:ppo", device="cuda", **{"runtime.threads": 1, "runtime.kernels": "numpy"})
    assert moved["kernels"] == "torch"  # resumed elsewhere


def test_configured_kernels_of_linear_algebra_start_the_command_again_or_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blas, "loaded", lambda: "Haswell")
    monkeypatch.setattr(blas, "is_wheel", lambda: True)
    monkeypatch.setattr(blas, "processor_flags", lambda: blas.AVX512)
    for setting in ("auto", "Haswell", "fastest"):  # this process is no command
        decided("CartPole-v1:ppo", f"runtime.blas={setting}")
    with pytest.raises(ConfigError, match=r"runtime.blas=SkylakeX: .* Haswell kernels, OPENBLAS_CORETYPE=SkylakeX has"):
        decided("CartPole-v1:ppo", "runtime.blas=SkylakeX")
    decided("CartPole-v1:ppo", "runtime.blas=SkylakeX", **{"runtime.threads": 1})  # a resumed run has its decision
    monkeypatch.setattr(blas, "may_start_again", True)
    with pytest.raises(blas.OtherKernelsError, match="SkylakeX"):
        decided("CartPole-v1:ppo", "runtime.blas=fastest")
    monkeypatch.setattr(blas, "processor_flags", lambda: blas.AVX2)
    with pytest.raises(ConfigError, match=r"runtime.blas=SkylakeX: .* this processor lacks avx512bw"):
        decided("CartPole-v1:ppo", "runtime.blas=SkylakeX")


def test_tf32_is_used_where_it_is_requested_and_available() -> None:
    assert decided("CartPole-v1:ppo", "runtime.tf32=true", device="cuda")["tf32"] is True
    assert decided("CartPole-v1:ppo", device="cuda")["tf32"] is False
    with pytest.raises(ConfigError, match=r"runtime.tf32=true: only on CUDA, and this run is on cpu"):
        decided("CartPole-v1:ppo", "runtime.tf32=true")
    begun = {"runtime.threads": 1, "runtime.tf32": True}
    assert decided("CartPole-v1:ppo", device="cuda", **begun)["tf32"] is True
    assert decided("CartPole-v1:ppo", **begun)["tf32"] is True  # resumed elsewhere, it may come back
    assert decided("CartPole-v1:ppo", device="cuda", **{"runtime.threads": 1})["tf32"] is False  # began before it
    for device, precision in (("cuda:1", "high"), ("cpu", "highest")):
        runtime.use_runtime({**begun, "device": device})
        assert torch.get_float32_matmul_precision() == precision


def test_loading_a_policy_keeps_the_precision_of_a_running_training(tmp_path: Path) -> None:
    folder = train(load("CartPole-v1:ppo", ["training.max_timesteps=256"]), tmp_path, [], quiet=True).folder
    try:
        torch.set_float32_matmul_precision("high")
        load_policy(folder)
        assert torch.get_float32_matmul_precision() == "high"
        config = load("CartPole-v1:ppo")
        assemble(config, check(config), {}).close()  # a training of its own has its own
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_bfloat16_is_for_dreamer_on_cuda() -> None:
    assert "bf16" not in decided("CartPole-v1:dreamer_v3", "runtime.bf16=true", device="cuda")
    with pytest.raises(ConfigError, match=r"runtime.bf16=true: only on CUDA, and this run is on cpu"):
        decided("CartPole-v1:dreamer_v3", "runtime.bf16=true")
    with pytest.raises(ConfigError, match=r"runtime.bf16=true: ppo computes in float32"):
        decided("CartPole-v1:ppo", "runtime.bf16=true", device="cuda")


def test_gradient_steps_are_captured_on_cuda_only() -> None:
    for algorithm in ("ppo", "sac"):
        assert decided(f"Pendulum-v1:{algorithm}", device="cuda")["compile"] is True
        assert decided(f"Pendulum-v1:{algorithm}")["compile"] is False
    assert decided("CartPole-v1:dqn", device="cuda")["compile"] is False


def test_updates_with_one_graph_are_captured_on_cuda_only() -> None:
    spec, long = "toy/image:dreamer_v3", ("environment.resize=64", "training.max_timesteps=1_000_000")
    assert decided(spec, *long)["compile"] is False
    assert decided(spec, device="cuda")["compile"] is True
    assert decided(spec, "runtime.compile=false", device="cuda:1")["compile"] is False
    with pytest.raises(ConfigError, match=r"runtime.compile=true: dreamer_v3 has it for device=cuda"):
        decided(spec, "runtime.compile=true")


def test_the_thread_limit_applies_to_numpy_too() -> None:
    before = torch.get_num_threads()
    try:
        runtime.use_threads(1)
        assert torch.get_num_threads() == 1
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        assert all(pool["num_threads"] == 1 for pool in pools)
    finally:
        runtime.use_threads(before)


def after_one_update(spec: str, choice: str, rollout: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return metrics and weights after an update, and its rollout, which the first call makes."""
    config = load(spec, [*SMALL, choice])
    assembly: Assembly = assemble(config, check(config), {})
    try:
        workflow: Any = assembly.workflow
        rollout = rollout or copy.deepcopy(collecting.collected(assembly))
        result = workflow.update(collecting.Holding(rollout), collecting.PHASE)
        return result.metrics, workflow.nets["agent"].state_dict(), rollout
    finally:
        assembly.close()


SMALL = "algorithm.n_steps=16", "environment.num_envs=4", "algorithm.batch_size=1", "algorithm.n_epochs=3"
CHOICES = {"CartPole-v1:ppo": "runtime.kernels={numpy,torch}", "toy/image:ppo": "runtime.compile={true,false}"}


@pytest.mark.parametrize("spec", CHOICES)
def test_numpy_and_torch_kernels_compute_the_same_update(spec: str) -> None:
    key, values = CHOICES[spec].split("=")
    one, other = values.strip("{}").split(",")
    metrics, weights, rollout = after_one_update(spec, f"{key}={one}", None)
    expected_metrics, expected_weights, _ = after_one_update(spec, f"{key}={other}", rollout)
    torch.testing.assert_close(weights, expected_weights, atol=1e-4, rtol=1e-3)
    for name, value in expected_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(value), abs=1e-4, rel=1e-3), name


@pytest.mark.parametrize(("spec", "calls"), [("toy/image:ppo", 1), ("toy/identity:ppo", 0)])
def test_memory_of_large_images_is_kept(spec: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[None] = []
    monkeypatch.setattr(build, "keep_memory", lambda: kept.append(None))
    config = load(spec, ["environment.resize=36"] if calls else [])
    assemble(config, check(config), {}).close()
    assert len(kept) == calls


@pytest.mark.skipif(not resource_usage.keep_memory(), reason="only newer versions of glibc can be told")
def test_the_allocator_reuses_memory_of_large_arrays() -> None:
    code = (
        "import resource, sys, numpy\nfrom cadenza.base.resource_usage import keep_memory\n"
        "keep_memory() if sys.argv[1:] else None\n"
        "numpy.ones(40_000_000, numpy.uint8)\n"  # the first array's pages are new in either case
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20): numpy.ones(40_000_000, numpy.uint8)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    anew, reused = (
        int(subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=True).stdout)
        for arguments in ([], ["keep"])
    )
    assert reused < anew / 5
