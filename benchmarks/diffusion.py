"""Learning proofs of Diffusion Policy: two ways around an obstacle, distilled experts, and PushT.

python benchmarks/diffusion.py fork --out benchmarks/results/diffusion-fork.json
python benchmarks/diffusion.py distil --expert Pendulum-v1:sac --out benchmarks/results/diffusion-pendulum.json
python benchmarks/diffusion.py pusht --updates 16000 --seeds 1 device=cuda --out benchmarks/results/diffusion-pusht.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from learn import cadenza
from outcome import keep, machine, result_file, versions

from cadenza.data.datasets import open_dataset
from cadenza.data.ring_steps import FIRST
from cadenza.workflows.diffusion_policy_config import DIFFUSION

MEASURED = 200  # episodes of toy/fork
PLAYED = 100  # episodes of an expert to learn from, and of every policy to be measured
PUSHED = 200  # demonstrations of PushT
SOLVED = 0.95  # coverage from which PushT's reward is 1 and its episode over
TOGETHER = "evaluation.num_envs=50"  # for every policy: the episodes that are played depend on it
LEARNERS = {"diffusion": "none", "cloning": "cloning"}


def learn(spec: str, dataset: Path, seed: int, updates: int, overrides: list[str], root: Path) -> str:
    """Train a policy on these demonstrations; return the id of its run."""
    settings = [f"training.dataset={dataset}", "evaluation.at_end=false", "evaluation.every_updates=0", *overrides]
    run = cadenza(
        *("train", spec, *settings, "--max-updates", str(updates), "--seed", str(seed)),
        *("--runs-dir", str(root), "--quiet"),
    )
    return str(run["run"])


def settings_of(baseline: str, overrides: list[str]) -> list[str]:
    """Return the settings of a learner: those of the diffusion are left out for the baseline."""
    settings = [f"algorithm.baseline={baseline}", TOGETHER]
    alone = tuple(f"algorithm.{name}{end}" for name in DIFFUSION for end in ".=")
    return settings + [one for one in overrides if baseline == "none" or not one.startswith(alone)]


def fork(updates: int, overrides: list[str], seed: int, root: Path) -> dict[str, Any]:
    """Measure how often each learner arrives, and on which side of the obstacle."""
    demonstrations = root / "demonstrations"
    options = ("--episodes", str(MEASURED), "--seed", str(seed))
    cadenza("demonstrate", "toy/fork", "fork", *options, "--out", str(demonstrations))
    row: dict[str, Any] = {"seed": seed, "expert": ways(demonstrations)}
    for name, baseline in LEARNERS.items():
        settings = settings_of(baseline, overrides)
        run = learn("toy/fork:diffusion_policy", demonstrations, seed, updates, settings, root)
        out = root / name
        played = ("--episodes", str(MEASURED), "--seed", str(1000 + seed), "--out", str(out))
        cadenza("export", run, "--runs-dir", str(root), "--format", "dataset", *played)
        row[name] = ways(out)
    print(row, file=sys.stderr)
    return row


def episodes_of(dataset: Path, *paths: str) -> list[list[np.ndarray]]:
    """Return the arrays at these paths of a dataset, split into episodes."""
    pieces = list(open_dataset(str(dataset)).pieces())
    flags, *arrays = (np.concatenate([piece[path] for piece in pieces]) for path in ("flags", *paths))
    bounds = [*np.flatnonzero(flags & FIRST), len(flags)]
    return [[array[low:high] for array in arrays] for low, high in pairwise(bounds)]


def ways(dataset: Path) -> dict[str, Any]:
    """Return the share of a dataset's episodes that arrive, and the share of those that pass on the left."""
    episodes = episodes_of(dataset, "groups.agent.obs", "groups.agent.reward")
    arrived = [obs[:, 0, 0] for obs, reward in episodes if reward.sum() > 0]
    # the side it passes on is where it is farthest from the middle
    left = [across[np.abs(across).argmax()] < 0 for across in arrived]
    return {"arrived": len(arrived) / len(episodes), "left": float(np.mean(left)) if left else None}


def distil(expert: str, updates: int, overrides: list[str], seed: int, root: Path) -> dict[str, Any]:
    """Measure the returns of an expert, and of policies trained on a hundred of its episodes."""
    place = ("--runs-dir", str(root))
    spec, *settings = expert.split()
    trained = cadenza("train", spec, *settings, TOGETHER, "--seed", str(seed), *place, "--quiet")["run"]
    demonstrations = root / "demonstrations"
    cadenza("export", trained, *place, "--format", "dataset", "--episodes", str(PLAYED), "--out", str(demonstrations))
    env = spec.partition(":")[0]
    row: dict[str, Any] = {"seed": seed, "random": chance(env)}
    runs = {"expert": trained}
    for name, baseline in LEARNERS.items():
        settings = settings_of(baseline, overrides)
        runs[name] = learn(f"{env}:diffusion_policy", demonstrations, seed, updates, settings, root)
    for name, run in runs.items():
        row[name] = cadenza("evaluate", run, *place, "--episodes", str(PLAYED), "--seed", "12345")["return_mean"]
    for name in LEARNERS:
        row[f"{name}_share"] = (row[name] - row["random"]) / (row["expert"] - row["random"])
    print(row, file=sys.stderr)
    return row


def pusht(dataset: Path | None, updates: int, overrides: list[str], seed: int, root: Path) -> dict[str, Any]:
    """Measure how well the expert, and the policies trained on it, put the block in its place."""
    spec, demonstrations = "gym_pusht/PushT-v0", dataset or root / "demonstrations"
    if dataset is None:
        options = ("--episodes", str(PUSHED), "--seed", str(seed), "--out", str(demonstrations))
        cadenza("demonstrate", spec, "pusht", *options)
    row: dict[str, Any] = {"seed": seed, "expert": covered(demonstrations)}
    for name, baseline in LEARNERS.items():
        settings = settings_of(baseline, overrides)
        run = learn(f"{spec}:diffusion_policy", demonstrations, seed, updates, settings, root)
        played = ("--episodes", str(PLAYED), "--seed", str(1000 + seed), "--out", str(root / name))
        cadenza("export", run, "--runs-dir", str(root), "--format", "dataset", *played)
        row[name] = covered(root / name)
        row[f"{name}_share"] = row[name]["coverage"] / row["expert"]["coverage"]
        print(row, file=sys.stderr)
    return row


def covered(dataset: Path) -> dict[str, Any]:
    """Return the mean best coverage of a dataset's episodes, the share that is solved, and their mean length."""
    rewards = [reward.ravel() for (reward,) in episodes_of(dataset, "groups.agent.reward")]
    most = np.array([reward.max() for reward in rewards])
    steps = np.mean([len(reward) - 1 for reward in rewards])  # the row of an end holds no step
    return {"coverage": float(most.mean()), "solved": float((most >= 1).mean()), "steps": round(float(steps), 1)}


def chance(id: str) -> float:
    """Return the mean return of random actions."""
    env, returns = gymnasium.make(id), []
    env.action_space.seed(0)
    for episode in range(PLAYED):
        env.reset(seed=episode)
        over, total = False, 0.0
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            over, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("proof", choices=("fork", "distil", "pusht"))
    parser.add_argument("overrides", nargs="*", help="settings of the learners")
    parser.add_argument("--expert", default="Pendulum-v1:sac", metavar="'SPEC key=value …'", help="who is distilled")
    parser.add_argument(
        "--demonstrations", type=Path, metavar="DIR", help="pusht: a dataset, not one made for each seed"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_intermixed_args()
    if options.proof == "fork":
        proof = partial(fork, options.updates, options.overrides)
        about = {"measure": f"{MEASURED} episodes each: share that arrives; of those, share that passes on the left"}
    elif options.proof == "pusht":
        proof = partial(pusht, options.demonstrations, options.updates, options.overrides)
        most = f"the most that is covered in an episode, {SOLVED:.0%} of the place counting as all of it"
        about = {"measure": f"mean of {PLAYED} episodes (all of the expert's) of {most}; share: of the expert's"}
    else:
        proof = partial(distil, options.expert, options.updates, options.overrides)
        share = "share: of the expert's lead over random actions"
        about = {"expert": options.expert, "measure": f"mean return of {PLAYED} episodes, the same for all; {share}"}
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(options.jobs) as pool:
        places = [Path(root, str(seed)) for seed in range(options.seeds)]
        for place in places:
            place.mkdir()
        rows = list(pool.map(proof, range(options.seeds), places))
    result = {
        "proof": options.proof,
        **about,
        "updates": options.updates,
        "overrides": options.overrides,
        "seeds": rows,
    }
    used = versions("cadenza", "torch", "gymnasium", "numpy")
    keep({**result, "machine": machine(), "versions": used}, options.out)


if __name__ == "__main__":
    main()
