"""Kill runs of many kinds 20 times each, at random moments and during saves, and compare them with undisturbed ones.

    python benchmarks/kills.py --runs replay --kills 20 --seed 2 --out benchmarks/results/kills-replay.json
    python benchmarks/kills.py --runs families --kills 5 --out benchmarks/results/kills-families.json
    python benchmarks/kills.py --runs each_phase --kills 160 --tasks 12 --forked
    python benchmarks/kills.py --runs others

Every kill is a SIGKILL of the whole process group. Hashes are of the final states. With --forked, processes start
without a new interpreter, so that many more kills fit into the same time.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from outcome import keep, machine, result_file, versions

from cadenza.records.folder import find
from cadenza.tools.verify import compare, uninterrupted

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness import diffusion_policy_runs, dreamer_runs, replay_runs, resume_runs, tdmpc_runs, world_model_runs
from harness.command import episode_records
from harness.killing import OFTEN, SAVING, SEALING, UntilDead, digests, forked, fresh, kill_and_resume

REPLAY = {name: [*command, "--max-timesteps", "10000"] for name, command in replay_runs.RUNS.items()}
DREAMS = {name: [*command, "--max-timesteps", "3000"] for name, command in dreamer_runs.RUNS.items()}
LONGER = [  # so that some of 20 kills, about 15 tasks apart, fall into each phase
    "algorithm.rollout_steps=12800",
    "algorithm.vision_updates=60",
    "algorithm.memory_updates=60",
    "evaluation.every_steps=1024",
]
CHUNKS = {name: [*command, "--max-timesteps", "6000"] for name, command in diffusion_policy_runs.RUNS.items()}
PLANS = {name: [*command, "--max-timesteps", "6000"] for name, command in tdmpc_runs.RUNS.items()}
GENERATIONS = {"World Models": 150, "World Models, dreaming": 250}  # a dreamt one is a single task
PHASES = {
    name: [*command, *LONGER, f"algorithm.generations={GENERATIONS[name]}"]
    for name, command in world_model_runs.RUNS.items()
}
LONGEST = [  # so that at least 20 of 160 kills, 3 to 5 tasks apart, fall into each phase
    "algorithm.rollout_steps=32000",
    "algorithm.vision_updates=130",
    "algorithm.memory_updates=130",
    "evaluation.every_steps=16384",
]
EACH_PHASE = {
    name: [*command, *LONGEST, f"algorithm.generations={GENERATIONS[name]}"]
    for name, command in world_model_runs.RUNS.items()
}
OTHERS = {name: [*command, *OFTEN, "--max-timesteps", "60000"] for name, command in resume_runs.RUNS.items()}
# Kinds of environments: most are in the middle of an episode at each checkpoint, and some end in each run.
BRIEF = [
    "algorithm.n_steps=32",
    "algorithm.n_epochs=1",
    "algorithm.batch_size=64",
    "environment.num_envs=4",
    "environment.max_episode_steps=150",
    "checkpoint.every_steps=256",
    "evaluation.every_steps=2048",
    "evaluation.episodes=2",
    "evaluation.num_envs=2",
    "training.max_timesteps=5120",
]
SMALL = ["algorithm.torso.cnn.features=32", *BRIEF]
SCREEN, DOOM = "environment.kwargs.screen_size=36", ["environment.grayscale=true", "environment.resize=36"]
FAMILIES = {
    "ALE, never loaded again": ["ALE/Pong-v5:ppo", SCREEN, *SMALL],
    "ALE, sticky actions": ["ALE/BeamRider-v5:ppo", "environment.frame_stack=4", SCREEN, *SMALL],
    "MiniGrid": ["MiniGrid-DoorKey-5x5-v0:ppo", *BRIEF],
    "MiniGrid, moving obstacles": ["MiniGrid-Dynamic-Obstacles-6x6-v0:ppo", "environment.kwargs.sees=grid", *BRIEF],
    "DeepMind Control": ["dmc/walker-walk:ppo", "algorithm.normalize_obs=rolling", *BRIEF],
    "ViZDoom": ["VizDoom-basic:ppo", *DOOM, *SMALL],
    "ViZDoom, monsters": ["VizDoom-deadly_corridor:ppo", *DOOM, *SMALL],
}
RUNS = {"replay": REPLAY, "dreams": DREAMS, "phases": PHASES, "chunks": CHUNKS, "plans": PLANS, "others": OTHERS}
RUNS["all"] = REPLAY | DREAMS | PHASES | CHUNKS | PLANS | OTHERS
RUNS["each_phase"] = EACH_PHASE  # for many kills
RUNS["families"] = FAMILIES  # not of all: they need extras


def killed_and_left_alone(
    command: list[str], kills: int, tasks: int | None, seed: int, root: Path, until_dead: UntilDead
) -> dict[str, Any]:
    began = time.monotonic()
    whole = uninterrupted(command, root / "whole")
    replay = command not in [*OTHERS.values(), *FAMILIES.values()]
    named = [*SAVING, *2 * SEALING] if replay else [*SAVING]  # about half of them while rows are put into segments
    rng, tasks = random.Random(seed), tasks or (64 if replay else 8)
    phases: list[str] = []  # in which it died

    def watched(arguments: list[str], place: Path, failpoint: str, pause: float) -> bool:
        dead = until_dead(arguments, place, failpoint, pause)
        if dead:
            status = find(place, "@last").read_status() if (place / "@last").exists() else {}
            phases.append(status.get("phase", {}).get("name", "none yet"))
        return dead

    order = rng.sample(named, len(named))
    killed, moments = kill_and_resume(command, root / "killed", kills, rng, order, watched, tasks)
    left_alone, afterwards = digests(whole), digests(killed)
    equal = {kind: left_alone[kind] == afterwards[kind] for kind in left_alone}
    equal |= {"episodes": episode_records(whole) == episode_records(killed), "state": compare(whole, killed) is None}
    return {
        "command": command,
        "kills": len(moments),
        "moments": moments,
        "phases": dict(Counter(phases)),
        "digests": {kind: {"left_alone": left_alone[kind], "killed": afterwards[kind]} for kind in left_alone},
        "equal": equal,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", choices=RUNS, default="all")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tasks", type=int, help="between two kills, at most, unless a save is waited for")
    parser.add_argument("--forked", action="store_true", help="processes that are copies of this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    runs = {}
    for number, (name, command) in enumerate(RUNS[options.runs].items()):
        with tempfile.TemporaryDirectory() as root:
            seed, until_dead = options.seed + number, forked if options.forked else fresh
            runs[name] = killed_and_left_alone(command, options.kills, options.tasks, seed, Path(root), until_dead)
    everything = all(all(run["equal"].values()) and run["kills"] == options.kills for run in runs.values())
    result = {"all_equal": everything, "seed": options.seed, "runs": runs}
    keep(result | {"versions": versions("torch", "numpy", "gymnasium"), "machine": machine()}, options.out)
    sys.exit(not everything)


if __name__ == "__main__":
    main()
