"""Runs that learn from replay, killed 20 times each at random moments and within saves, beside the same left alone.

    python benchmarks/kills.py --kills 20 --seed 2 --out benchmarks/results/kills-replay.json

Every kill is a SIGKILL of the whole process group. Hashes are of what the runs ended with.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import keep, machine, versions

from cadenza.orchestration.verify import compare, uninterrupted

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.killing import SAVING, SEALING, digests, episode_records, kill_and_resume
from harness.replay_runs import RUNS


def killed_and_left_alone(command: list[str], kills: int, seed: int, root: Path) -> dict[str, Any]:
    began = time.monotonic()
    whole = uninterrupted(command, root / "whole")
    named = (*SAVING, *2 * SEALING)  # about half of them while rows are put into segments
    killed, moments = kill_and_resume(command, root / "killed", kills, random.Random(seed), named)
    left_alone, afterwards = digests(whole), digests(killed)
    equal = {kind: left_alone[kind] == afterwards[kind] for kind in left_alone}
    equal |= {"episodes": episode_records(whole) == episode_records(killed), "state": compare(whole, killed) is None}
    return {
        "command": command,
        "kills": len(moments),
        "moments": moments,
        "digests": {kind: {"left_alone": left_alone[kind], "killed": afterwards[kind]} for kind in left_alone},
        "equal": equal,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = {}
    for number, (name, command) in enumerate(RUNS.items()):
        with tempfile.TemporaryDirectory() as root:
            steps = ["--max-timesteps", str(options.steps)]
            runs[name] = killed_and_left_alone([*command, *steps], options.kills, options.seed + number, Path(root))
    everything = all(all(run["equal"].values()) and run["kills"] == options.kills for run in runs.values())
    result = {"all_equal": everything, "seed": options.seed, "runs": runs}
    keep(result | {"versions": versions("torch", "numpy", "gymnasium"), "machine": machine()}, options.out)
    sys.exit(not everything)


if __name__ == "__main__":
    main()
