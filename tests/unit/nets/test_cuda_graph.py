"""CUDA graphs of whole updates, if there is a device: equal numbers; nothing is destroyed during a capture."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cadenza.config.load import load
from cadenza.data.replay import ReplayStore
from cadenza.engine import build
from cadenza.engine.build import assemble
from cadenza.engine.collector import Collector
from cadenza.engine.launch import check
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.nets.cuda_graph import WARM, Captured, no_garbage_collection
from cadenza.trees import leaves, map_tree
from cadenza.types import Mode
from harness.collecting import PHASE, Holding, filled

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")

SMALL = [
    "device=cuda",
    "environment.num_envs=2",
    "algorithm.buffer_size=400",
    "algorithm.warmup_steps=80",
    "algorithm.batch_size=3",
    "algorithm.horizon=4",
    "algorithm.pretrain_updates=0",
]
DREAMS = [
    "algorithm.batch_length=7",
    *(f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8", "depth=2")),
]

LATENTS = [
    *(f"algorithm.planning.{key}" for key in ("horizon=3", "samples=10", "policy_samples=2", "elites=4")),
    *(f"algorithm.model.{key}" for key in ("latent=16", "units=8", "encoder_units=8")),
]


@on_cuda
def test_every_call_of_a_capture_runs_the_function_once() -> None:
    total = torch.zeros((), device="cuda")

    def add(inputs: dict[str, Any]) -> dict[str, Any]:
        total.add_(inputs["x"].sum())
        return {"double": 2 * inputs["x"]}

    captured, expected = Captured(add), 0.0
    for number in range(WARM + 4):
        for size in (3, 5):
            out = captured({"x": torch.full((size,), float(number), device="cuda")})
            expected += size * number
            assert out["double"].tolist() == [2.0 * number] * size
            assert float(total) == expected


@on_cuda
@pytest.mark.parametrize("variant", ["dreamer_v1", "dreamer_v2", "dreamer_v3", "planet", "tdmpc", "tdmpc2"])
def test_captured_updates_and_plans_equal_eager_ones(variant: str) -> None:
    results = []
    sizes = LATENTS if variant.startswith("tdmpc") else DREAMS
    for compile in ("auto", "false"):
        config = load(f"toy/identity_box:{variant}", [*SMALL, *sizes, f"runtime.compile={compile}"])
        assembly = assemble(config, check(config), {})
        assert assembly.decisions["runtime.compile"] == (compile == "auto")
        task = PhaseScheduler(assembly.phases).next()
        assert task is not None
        assert assembly.env is not None
        store: Any = assembly.stores["replay"]
        assert isinstance(store, ReplayStore)
        mode = Mode(explore=True, phase=PHASE, streams=assembly.streams)
        Collector(assembly.env, assembly.workflow).collect(task, store, mode, lambda: False)
        workflow: Any = assembly.workflow
        metrics = [workflow.update(store, PHASE).metrics for _ in range(WARM + 3)]
        states = [leaf for _, leaf in leaves(workflow.state_dict()) if isinstance(leaf, torch.Tensor)]
        step, carry = assembly.env.reset(), workflow.initial_carry(2)
        actions = []
        for _ in range(WARM + 3):
            acted = workflow.act(step, carry, mode)
            carry = acted.carry
            actions.append(acted.action["agent"])
        results.append((metrics, states, actions))
        assembly.close()
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


def without_graph(function: Any, generators: Any = tuple) -> Any:
    """Stand in for `Captured` on a CPU: the function itself, of tensors."""
    return lambda inputs: function(
        map_tree(lambda x: x if isinstance(x, torch.Tensor) else torch.from_numpy(x), inputs)
    )


MODEL_FREE = {
    "toy/identity_box:sac": ["algorithm.warmup_steps=80", "algorithm.batch_size=16", "algorithm.policy_every=2"],
    "toy/identity:sac": ["algorithm.warmup_steps=80", "algorithm.batch_size=16", "algorithm.learning_rate=lin_0.001"],
    "toy/identity_box:droq": ["algorithm.warmup_steps=80", "algorithm.batch_size=16"],
    "toy/identity_box:ppo": [
        "algorithm.n_steps=20",
        "algorithm.batch_size=20",
        "algorithm.clip_range=lin_0.3",
        "algorithm.n_epochs=5",
    ],
    "toy/image:ppo": ["algorithm.n_steps=8", "algorithm.n_epochs=5"],
    "toy/trio:happo": ["algorithm.n_steps=16", "algorithm.n_epochs=5", "algorithm.batch_size=16"],
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_cuda)])
@pytest.mark.parametrize("spec", list(MODEL_FREE))
def test_gradient_steps_as_graphs_equal_eager_ones(spec: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    if device == "cpu":
        monkeypatch.setattr("cadenza.nets.cuda_graph.Captured", without_graph)
        monkeypatch.setattr(build, "uses_cuda_graphs", lambda config, _: config.runtime.compile == "auto")
    for compile in ("auto", "false"):
        overrides = [
            f"device={device}",
            "runtime.kernels=torch",
            "environment.num_envs=2",
            f"runtime.compile={compile}",
        ]
        config = load(spec, [*overrides, *MODEL_FREE[spec]])
        assembly = assemble(config, check(config), {})
        workflow: Any = assembly.workflow
        assert workflow.context.captures == (compile == "auto")
        store = filled(assembly)
        source = Holding(store.take()) if hasattr(store, "take") else store
        metrics = [workflow.update(source, PHASE).metrics for _ in range(12 if device == "cuda" else 4)]
        results.append((metrics, [x for _, x in leaves(workflow.state_dict()) if isinstance(x, torch.Tensor)]))
        assembly.close()
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


class Ring:
    """An object that refers to itself, like a workflow with its captured update: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collecting() -> Iterator[None]:
    before = gc.isenabled()
    gc.enable()
    yield
    gc.enable() if before else gc.disable()


@pytest.mark.usefixtures("collecting")
def test_garbage_is_collected_before_a_capture_and_not_during_it() -> None:
    old = weakref.ref(Ring())
    with no_garbage_collection():
        assert old() is None
        assert not gc.isenabled()
        fresh = weakref.ref(Ring())
        made: list[list[int]] = [[] for _ in range(100_000)]  # far more than sets off a collection
        assert fresh() is not None
    del made
    assert gc.isenabled()
    gc.collect()
    assert fresh() is None


@pytest.mark.usefixtures("collecting")
@pytest.mark.parametrize("collects", [True, False])
def test_garbage_collection_is_restored_after_a_failed_capture(collects: bool) -> None:
    gc.enable() if collects else gc.disable()
    with pytest.raises(ZeroDivisionError), no_garbage_collection():
        1 / 0  # noqa: B018
    assert gc.isenabled() == collects


@on_cuda
def test_a_capture_survives_the_deletion_of_earlier_graphs() -> None:
    def double(inputs: dict[str, Any]) -> dict[str, Any]:
        made: list[list[int]] = [[] for _ in range(100_000)]
        return {"double": (2 + 0 * len(made)) * inputs["x"]}

    for number in range(3):
        ring: Any = Ring()
        ring.captured = Captured(double)
        for _ in range(WARM + 2):
            out = ring.captured({"x": torch.full((3,), float(number), device="cuda")})
        assert out["double"].tolist() == [2.0 * number] * 3
        del ring
