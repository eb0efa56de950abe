"""Check for every environment of a family that a restored one continues like the original, bit for bit.

    python benchmarks/repeatable.py ALE --steps 300 --kwargs '{"repeat_action_probability": 0}'
    python benchmarks/repeatable.py ALE --only Pong --steps 5000 --out benchmarks/results/repeatable-pong.json

An environment takes random actions and is reset at random moments. Each time its state is then loaded into a fresh one,
and both continue with the same actions. The exit code is 1 if an observation or a reward differs. For a family with
many or slow environments this takes too long for a test.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
from outcome import keep, machine, result_file

from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import CadenzaError
from cadenza.trees import leaves
from cadenza.types import Step

FIELDS = ("obs", "final_obs", "reward", "terminated", "truncated", "is_first", "active", "died", "mask", "state", "won")


def frame_bytes(step: Step) -> list[bytes]:
    arrays = leaves({name: getattr(step, name) for name in FIELDS})
    return [leaf.tobytes() for _, leaf in arrays if leaf is not None]


def differences(id: str, kwargs: dict[str, Any], steps: int, rounds: int) -> dict[str, Any]:
    """Return the step at which a used and a fresh environment first differ, in each round; None if they never do."""
    config, random = EnvironmentConfig(id=id, kwargs=kwargs), np.random.default_rng(0)

    def made() -> Any:
        return make_vector(config, EpisodeSeeds(0, TRAIN), num_envs=1)

    used, parted, began = made(), [], time.perf_counter()
    try:
        for number in range(1, rounds + 1):
            used.reset(number)
            for _ in range(int(random.integers(1, steps))):
                used.step(random_actions(used.spec.groups, used.current, random))
            fresh = made()
            fresh.load_state_dict(used.state_dict())
            parted.append(None)
            for step in range(1, steps + 1):
                action = random_actions(used.spec.groups, used.current, random)
                if frame_bytes(used.step(action)) != frame_bytes(fresh.step(action)):
                    parted[-1] = step
                    break
            fresh.close()
        return {"restore": used.spec.restore, "parted": parted, "seconds": round(time.perf_counter() - began, 1)}
    finally:
        used.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("family", choices=environments.families())
    parser.add_argument("--only", default="", help="ids that contain this")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kwargs", type=json.loads, default={})
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for id in environments.families()[options.family]:
        if options.only in id:
            try:
                results[id] = differences(id, options.kwargs, options.steps, options.rounds)
            except CadenzaError as problem:
                results[id] = {"error": str(problem)}
            print(id, json.dumps(results[id]), file=sys.stderr, flush=True)
    wrong = [id for id, one in results.items() if "error" in one or any(one["parted"])]
    settings = {name: getattr(options, name) for name in ("family", "kwargs", "steps", "rounds")}
    keep({**settings, "asked": len(results), "differing": wrong, "by_id": results, "machine": machine()}, options.out)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
