"""Measure the steps per second of a run's environments with random actions, and with its policy.

    python benchmarks/rollouts.py CarRacing-v3:world_models --out benchmarks/results/rollouts-carracing.json

Both alternate, so that other load on the machine affects both; the overhead is that of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from outcome import keep, machine, result_file, versions

from cadenza.config.load import load
from cadenza.engine.build import assemble
from cadenza.engine.launch import check
from cadenza.envs.random_actions import random_actions
from cadenza.errors import CadenzaError
from cadenza.types import Mode, PhaseInfo


def measure(spec: str, settings: list[str], rounds: int, steps: int) -> dict[str, Any]:
    config = load(spec, settings)
    assembly = assemble(config, check(config), {})
    env, workflow = assembly.env, assembly.workflow
    assert env is not None
    mode = Mode(explore=True, phase=PhaseInfo("controller", "online", 0, 1), streams=assembly.streams)
    random = assembly.streams.numpy("random_actions")
    seconds: dict[str, list[float]] = {"alone": [], "with_policy": []}
    step, carry = env.current, workflow.initial_carry(env.num_envs)
    for number in range(rounds + 1):  # the first warms up
        for kind, times in seconds.items():
            began = time.perf_counter()
            for _ in range(steps):
                if kind == "alone":
                    action = random_actions(env.spec.groups, step, random)
                else:
                    action, _, carry = workflow.act(step, carry, mode)
                step = env.step(action)
            if number:
                times.append((time.perf_counter() - began) / steps)
    assembly.close()
    median = {kind: statistics.median(times) for kind, times in seconds.items()}
    return {
        "spec": spec,
        "settings": settings,
        "num_envs": env.num_envs,
        "threads": assembly.decisions["runtime.threads"],
        "vectorize": config.environment.vectorize,
        "env_steps_per_second": {kind: round(env.num_envs / value, 1) for kind, value in median.items()},
        "seconds_per_vec_step": {kind: [round(value, 5) for value in times] for kind, times in seconds.items()},
        "overhead": round(median["with_policy"] / median["alone"] - 1, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("spec")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    try:
        result = measure(options.spec, options.settings, options.rounds, options.steps)
    except CadenzaError as problem:
        parser.error(str(problem))
    keep(result | {"versions": versions("torch", "numpy", "gymnasium"), "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
