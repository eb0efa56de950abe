"""Updates per second, decision times and kernels on a CUDA device, with synthetic environments of the peers' shapes.

    python benchmarks/gpu.py --out results.json                    # every item
    python benchmarks/gpu.py dreamer tdmpc2/5m runtime.tf32=true   # items by the start of their name; overrides
    python benchmarks/gpu.py sac --profile                         # the kernels of two updates as well

A gradient step includes sampling from the replay (PPO: shuffling the rollout), the copy to the device and what is
written back. Times are medians over chunks of steps, each of which ends with a synchronisation.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from cadenza.config.load import load
from cadenza.config.registry import register_environment
from cadenza.engine.build import assemble
from cadenza.engine.collector import Collector
from cadenza.engine.launch import check
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.trees import map_tree
from cadenza.types import Mode, PhaseInfo, Step

PHASE = PhaseInfo("train", "online", 0, 1000)
WARM = 8  # updates before the measurement: they include the capture of graphs
SECONDS = 2.0  # of a measurement
CHUNKS = 12


class Noise(gymnasium.Env[np.ndarray, Any]):
    """Random observations and rewards; episodes have 500 steps."""

    def __init__(self, shape: tuple[int, ...] = (24,), actions: int = 6, discrete: bool = False) -> None:
        if len(shape) == 3:
            self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        else:
            self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = spaces.Discrete(actions) if discrete else spaces.Box(-1, 1, (actions,), np.float32)
        self.count = 0

    def _observe(self) -> np.ndarray:
        if self.observation_space.dtype == np.uint8:
            return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)
        return self.np_random.standard_normal(self.observation_space.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), float(self.np_random.standard_normal()), False, self.count == 500, {}


ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "noise/vector": {},
    "noise/image": {"shape": (64, 64, 3)},
    "noise/cheetah": {"shape": (17,)},
    "noise/cartpole": {"shape": (4,), "actions": 2, "discrete": True},
}
REPLAY = ["algorithm.buffer_size=4000", "algorithm.warmup_steps=2000"]
# so many rows that a batch seldom begins at one whose latents the last updates have just computed, as in a long run
LARGE = ["environment.num_envs=64", "algorithm.buffer_size=100000", "algorithm.warmup_steps=60000"]
WIDE = ["algorithm.actor.hidden_sizes=[256,256]", "algorithm.critic.hidden_sizes=[256,256]"]
ITEMS: dict[str, tuple[str, list[str]]] = {
    "dreamer/vector-1m": ("noise/vector:dreamer_v3", ["size=1m", *LARGE]),
    "dreamer/vector-12m": ("noise/vector:dreamer_v3", ["size=12m", *LARGE]),
    "dreamer/image-12m": ("noise/image:dreamer_v3", ["size=12m", *LARGE]),
    "dreamer/image-50m": ("noise/image:dreamer_v3", ["size=50m", *LARGE]),
    "tdmpc2/5m": (
        "noise/vector:tdmpc2",
        ["size=5", "algorithm.model.ends=false", "algorithm.pretrain_updates=0", *REPLAY],
    ),
    "sac": ("noise/cheetah:sac", REPLAY),
    "dqn": ("noise/cartpole:dqn", [*REPLAY, "algorithm.batch_size=64"]),
    "ppo": ("noise/cheetah:ppo", ["algorithm.n_steps=2048", "algorithm.batch_size=256", *WIDE]),
}


class Again:
    """A rollout store that returns its rollout again and again."""

    def __init__(self, rollout: Any) -> None:
        self.rollout = rollout

    def take(self) -> Any:
        return self.rollout


def timed(function: Callable[[], Any], seconds: float = SECONDS) -> dict[str, float]:
    """Return the median, the 10th and the 90th percentile of the milliseconds of one call."""
    for _ in range(WARM):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    calls = max(1, int(seconds / CHUNKS / (time.perf_counter() - start)))
    times = []
    for _ in range(CHUNKS):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start) / calls)
    times.sort()
    return {"ms": statistics.median(times), "p10": times[1], "p90": times[-2]}


def kernels(function: Callable[[], Any], calls: int = 2, top: int = 40) -> dict[str, Any]:
    """Return the number of kernels of one call, the milliseconds that the device is busy, and the longest kernels."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    spent: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in events:
        spent[event.name[:110]] += event.time_range.elapsed_us()
        counts[event.name[:110]] += 1
    return {
        "kernels": len(events) / calls,
        "busy_ms": sum(spent.values()) / calls / 1000,
        "longest": [[name, counts[name] / calls, round(us / calls / 1000, 4)] for name, us in spent.most_common(top)],
    }


def measure(item: str, overrides: list[str], profile: bool) -> dict[str, Any]:
    """Return the speed of an item of `ITEMS`."""
    spec, settings = ITEMS[item]
    config = load(spec, ["device=cuda", "environment.num_envs=1", *settings, *overrides])
    torch.cuda.reset_peak_memory_stats()
    assembly = assemble(config, check(config), {})
    workflow: Any = assembly.workflow
    task = PhaseScheduler(assembly.phases).next()
    assert task is not None
    assert assembly.env is not None
    store: Any = assembly.stores[task.buffer]
    mode = Mode(explore=True, phase=PHASE, streams=assembly.streams)
    Collector(assembly.env, workflow).collect(task, store, mode, lambda: False)
    if not hasattr(store, "sample"):
        store = Again(store.take())
    start = time.perf_counter()
    for _ in range(2 * WARM):
        updated = workflow.update(store, PHASE)
    steps, metrics = updated.updates, {key: float(value) for key, value in updated.metrics.items()}

    def update() -> None:
        workflow.update(store, PHASE)

    result: dict[str, Any] = {"item": item, "overrides": overrides, "steps_per_call": steps}
    result |= timed(update)
    result["updates_s"] = 1000 * steps / result["ms"]
    result["seconds"] = time.perf_counter() - start
    result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    result["finite"] = all(np.isfinite(list(metrics.values())))
    result["losses"] = {key: value for key, value in metrics.items() if "loss" in key or "grad_norm" in key}
    if profile:
        result["profile"] = kernels(update)
    whole, carry = assembly.env.reset(), workflow.initial_carry(1)
    parts = {field.name: getattr(whole, field.name) for field in fields(Step)}
    step = Step(**{key: map_tree(lambda x: x[:1], part) for key, part in parts.items() if part is not None})
    result["act_ms"] = timed(lambda: workflow.act(step, carry, mode), 1.0)["ms"]
    assembly.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="items by the start of their name, and overrides (key=value)")
    parser.add_argument("--profile", action="store_true", help="list the kernels of an update as well")
    parser.add_argument("--out", help="JSON file to add the results to")
    parser.add_argument("--label", default="", help="name of this set of results")
    options = parser.parse_args()
    for id, arguments in ENVIRONMENTS.items():
        register_environment(id)(partial(Noise, **arguments))
    overrides = [name for name in options.names if "=" in name]
    starts = tuple(name for name in options.names if "=" not in name) or ("",)
    results = []
    for item in ITEMS:
        if item.startswith(starts):
            try:
                result = measure(item, overrides, options.profile)
            except Exception as error:
                result = {"item": item, "overrides": overrides, "error": f"{type(error).__name__}: {error}"[:400]}
            result["label"] = options.label
            results.append(result)
            gc.collect()
            torch.cuda.empty_cache()
            brief = {key: value for key, value in result.items() if key not in ("profile", "losses")}
            if "profile" in result:
                brief |= {key: result["profile"][key] for key in ("kernels", "busy_ms")}
            print(*(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in brief.items()), flush=True)
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version()}
        with open(options.out, "w") as file:
            json.dump({"machine": machine, "command": sys.argv[1:], "items": results}, file, indent=1)


if __name__ == "__main__":
    main()
