"""Measure bytes and seconds of a checkpoint after 10,000 new transitions, with a replay of 1,000,000 rows nearly full.

    python benchmarks/checkpoint_cost.py --out benchmarks/results/checkpoint-cost.json

The limit is twice the new transitions, plus the networks, plus 4 bytes a row if there are priorities.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outcome import keep, machine, result_file, versions

from cadenza.config.load import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.checkpoint_cost import checkpoint_cost
from harness.lab import Lab

ROWS, BEFORE, NEW = 1_000_000, 930_000, 10_000  # ends of episodes take rows, too
RUNS = {
    "DQN on CartPole-v1": ["CartPole-v1:dqn"],
    "DQN on CartPole-v1, priorities": ["CartPole-v1:dqn", "algorithm.priority_alpha=0.6"],
    "SAC on HalfCheetah-v5": ["HalfCheetah-v5:sac"],
    "SAC on HalfCheetah-v5, replay on disk": ["HalfCheetah-v5:sac", "algorithm.buffer_on_disk=true"],
}


def measure(spec: str, *settings: str) -> dict[str, Any]:
    config = load(spec, [*settings, f"algorithm.buffer_size={ROWS}", "environment.num_envs=10"])
    with tempfile.TemporaryDirectory() as root:
        lab = Lab(Path(root))
        cost = checkpoint_cost(lab.start(config), BEFORE, NEW)
        lab.close()
    seconds = {"seconds": round(cost.seconds, 3), "first_seconds": round(cost.first_seconds, 3)}
    return {**asdict(cost), **seconds, "allowed": cost.allowed, "within": cost.written <= cost.allowed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    runs = {name: measure(*settings) for name, settings in RUNS.items()}
    result = {"rows": ROWS, "held_before": BEFORE, "new_transitions": NEW, "bytes_and_seconds": runs}
    keep(result | {"versions": versions("torch", "numpy", "safetensors"), "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
