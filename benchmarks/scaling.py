"""Measure how cost grows: with environments, width, agents, rows of a replay, rows of metrics, and runs in a folder.

    python benchmarks/scaling.py --out benchmarks/results/scaling.json --picture docs/images/scaling.png
    python benchmarks/scaling.py --only replay,width

Costs are seconds: of one environment step or one gradient step in this process, of a command from its start to its
end. The exponent of a line is its slope between the two largest sizes, both axes logarithmic: 1 is proportional.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from outcome import keep, machine, result_file, versions
from pettingzoo import ParallelEnv

from cadenza.config.load import load
from cadenza.data.replay import ReplayStore
from cadenza.engine.runtime import use_threads
from cadenza.tools.bench.part_speeds import PartSpeeds, per_call
from cadenza.types import Acted

Lines = dict[str, dict[int, float]]  # by what was measured, seconds by size
COMMAND = [sys.executable, "-m", "cadenza"]
SECONDS = 0.5  # for each measurement of a part
ENVIRONMENTS = (1, 4, 16, 64, 256, 1024, 4096)
WIDTHS = (32, 64, 128, 256, 512, 1024)
AGENTS = (2, 4, 8, 16, 32, 64, 128, 200)
REPLAY_ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
METRIC_ROWS = (1_000, 10_000, 100_000, 1_000_000)
RUNS = (10, 100, 1_000, 10_000)
RARE = 10  # of so many rows of metrics one has an evaluation


@contextmanager
def parts(spec: str, *settings: str) -> Iterator[PartSpeeds]:
    with closing(PartSpeeds(load(spec, ["runtime.threads=1", *settings]), SECONDS)) as speeds:
        yield speeds


def of_environments(place: Path) -> Lines:
    """Measure PPO's costs of an environment step by the number of environments."""
    lines: Lines = {"collecting": {}, "updating": {}}
    for count in ENVIRONMENTS:
        steps = max(2, 4096 // count)
        sizes = (f"environment.num_envs={count}", f"algorithm.n_steps={steps}", "algorithm.batch_size=256")
        with parts("CartPole-v1:ppo", *sizes) as speeds:
            lines["collecting"][count], lines["updating"][count] = speeds.collecting(), speeds.updating()
    return lines


def of_width(place: Path) -> Lines:
    """Measure a gradient step by the width of two hidden layers."""
    lines: Lines = {"ppo, 256 rows": {}, "sac, 256 rows": {}}
    for width in WIDTHS:
        hidden = f"[{width},{width}]"
        layers = (f"algorithm.actor.hidden_sizes={hidden}", f"algorithm.critic.hidden_sizes={hidden}")
        rollout = (
            "environment.num_envs=8",
            "algorithm.n_steps=128",
            "algorithm.batch_size=256",
            "algorithm.n_epochs=1",
        )
        with parts("HalfCheetah-v5:ppo", *rollout, *layers) as speeds:
            lines["ppo, 256 rows"][width] = 256 * speeds.updating()
        with parts("HalfCheetah-v5:sac", "algorithm.batch_size=256", *layers) as speeds:
            lines["sac, 256 rows"][width] = speeds.updating()
    return lines


def of_agents(place: Path) -> Lines:
    """Measure MAPPO's costs of an environment step by the number of agents, which share a network."""
    lines: Lines = {"collecting": {}, "updating": {}}
    for count in AGENTS:
        sizes = (f"+environment.kwargs.count={count}", "environment.num_envs=4", "algorithm.n_steps=32")
        with parts("scaling:Crowd:mappo", *sizes) as speeds:
            lines["collecting"][count], lines["updating"][count] = speeds.collecting(), speeds.updating()
    return lines


class Crowd(ParallelEnv):  # type: ignore[misc]
    """Agents that earn 1 for repeating the number that they see: its own cost is small, whatever their number."""

    metadata: ClassVar[dict[str, Any]] = {"name": "crowd"}

    def __init__(self, count: int = 2) -> None:
        self.possible_agents = [f"agent_{index}" for index in range(count)]
        self._boxes, self._choices = spaces.Box(0, 1, (8,), np.float32), spaces.Discrete(8)
        self._numbers = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._boxes

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._choices

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self._numbers = np.random.default_rng(seed)
        self.agents, self._clock = list(self.possible_agents), 0
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        reward = {agent: float(self._shown[place] == actions[agent]) for place, agent in enumerate(self.agents)}
        self._clock += 1
        never, over = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, self._clock >= 32)
        look, info = self._look(), {agent: {} for agent in self.agents}
        if self._clock >= 32:
            self.agents = []
        return look, reward, never, over, info

    def _look(self) -> dict[str, np.ndarray]:
        self._shown = self._numbers.integers(8, size=len(self.agents))
        return dict(zip(self.agents, np.eye(8, dtype=np.float32)[self._shown], strict=True))


def of_replay(place: Path) -> Lines:
    """Measure drawing 256 transitions from a full replay in memory and on disk, by its rows."""
    lines: Lines = {}
    streams = 1000
    for on_disk in (False, True):
        line = lines.setdefault("on disk" if on_disk else "in memory", {})
        for rows in REPLAY_ROWS:
            with parts("HalfCheetah-v5:sac", "environment.num_envs=1") as speeds:
                step, acted = speeds.env.current, speeds._act()
                after = speeds.env.step(acted.action)
            store = ReplayStore(rows, streams, on_disk=on_disk)
            step, after = (repeated(one, streams) for one in (step, after))
            acted = Acted(*(repeat(part, streams) for part in acted))
            for _ in range(rows // streams):
                store.add(step, acted, after)
            numbers = np.random.default_rng(0)
            line[rows] = per_call(lambda store=store, numbers=numbers: store.sample(256, numbers), SECONDS)
    return lines


def repeat(tree: Any, count: int) -> Any:
    if isinstance(tree, dict):
        return {key: repeat(value, count) for key, value in tree.items()}
    return tree if tree is None else np.repeat(tree, count, 0)


def repeated(step: Any, count: int) -> Any:
    return replace(step, **{one.name: repeat(getattr(step, one.name), count) for one in fields(step)})


def of_metrics(place: Path) -> Lines:
    """Measure commands on a run by its rows of metrics."""
    made = trained(place / "metrics")
    rows = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    evaluation = {key: value for row in rows for key, value in row.items() if key.startswith("eval/")}
    row = next(row for row in reversed(rows) if "train/loss" in row)
    plain = {key: value for key, value in row.items() if not key.startswith("eval/")}
    lines: Lines = {"show": {}, "report": {}, "compare": {}}
    for count in METRIC_ROWS:
        with (made / "metrics.jsonl").open("w") as file:
            for number in range(count):
                changed = {"env_steps": 1000 * number, "updates": number, "collect/return_mean": number % 97.0}
                judged = {**evaluation, "eval/return_mean": number % 89.0} if number % RARE == 0 else {}
                file.write(json.dumps({**plain, **judged, **changed}) + "\n")
        for name, line in lines.items():
            line[count] = seconds_of(name, made.name, "--runs-dir", str(made.parent))
    return lines


def of_runs(place: Path) -> Lines:
    """Measure `list` by the runs of a folder: the first time, and with its index."""
    made = trained(place / "runs" / "one")
    files = {name: (made / name).read_bytes() for name in ("manifest.json", "status.json", "metrics.jsonl")}
    config = (made / "config.yaml").read_text()
    lines: Lines = {"list, first": {}, "list, then": {}}
    for count in RUNS:
        folder = place / "runs" / str(count)
        for number in range(count):
            run = folder / f"{made.name}-{number:05d}"
            run.mkdir(parents=True)
            for name, content in files.items():
                (run / name).write_bytes(content)
            rate = f"learning_rate: {0.0001 * (1 + number // 10):.4f}"
            text = config.replace("\nseed: 0\n", f"\nseed: {number % 10}\n").replace("learning_rate: 0.001", rate)
            (run / "config.yaml").write_text(text)
        for line in lines.values():
            line[count] = seconds_of("list", "-n", "3", "--runs-dir", str(folder))
        shutil.rmtree(folder)
    return lines


def trained(root: Path) -> Path:
    short = ("CartPole-v1:ppo", "--max-timesteps", "8192", "logging.every_steps=2000", "evaluation.episodes=2")
    subprocess.run([*COMMAND, "train", *short, "--quiet", "--runs-dir", str(root)], check=True)
    return root / (root / "@last").read_text().strip()


def seconds_of(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([*COMMAND, *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


KINDS: dict[str, tuple[Callable[[Path], Lines], str, str]] = {  # what is measured, and the labels of its axes
    "environments": (of_environments, "environments", "s per environment step"),
    "width": (of_width, "width of two layers", "s per gradient step"),
    "agents": (of_agents, "agents", "s per environment step"),
    "replay": (of_replay, "rows of the replay", "s per batch of 256"),
    "metrics": (of_metrics, "rows of metrics", "s per command"),
    "runs": (of_runs, "runs in the folder", "s per command"),
}


def exponent(line: dict[int, float]) -> float:
    """Return the slope between the two largest sizes."""
    (size, cost), (larger, more) = sorted(line.items())[-2:]
    return math.log(more / cost) / math.log(larger / size)


def draw(results: dict[str, Lines], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), dpi=130, layout="constrained")
    for place, (kind, lines) in enumerate(results.items(), 1):
        axes = figure.add_subplot(2, 3, place)
        for name, line in lines.items():
            axes.loglog(*zip(*sorted(line.items()), strict=True), marker="o", label=f"{name} ({exponent(line):.2f})")
        axes.set(xlabel=KINDS[kind][1], ylabel=KINDS[kind][2])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, frameon=False, title="exponent in brackets", title_fontsize=7)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--keep", type=Path, help="put the runs here instead of a temporary folder")
    parser.add_argument("--out", type=result_file)
    parser.add_argument("--picture", type=result_file)
    options = parser.parse_args()
    kinds = options.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"argument --only: {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    use_threads(1)
    results: dict[str, Lines] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind in kinds:
            results[kind] = KINDS[kind][0](options.keep or Path(temporary))
            for name, line in results[kind].items():
                costs = ", ".join(f"{size:,}: {cost:.3g}" for size, cost in line.items())
                print(f"{kind}, {name}: {costs}; exponent {exponent(line):.2f}", file=sys.stderr, flush=True)
    exponents = {
        kind: {name: round(exponent(line), 3) for name, line in lines.items()} for kind, lines in results.items()
    }
    if options.picture:
        draw(results, options.picture)
    report = {"seconds": results, "exponents": exponents, "versions": versions("torch", "numpy"), "machine": machine()}
    keep(report, options.out)


if __name__ == "__main__":
    main()
