"""cadenza itself: a real run with its folder, its rows and its checkpoints, as it is shipped but for evaluations."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.bench.process import Task, Watch

SHARED = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "entropy_coef", "value_coef", "max_grad_norm")


def ppo(task: Task, watch: Watch) -> dict[str, Any]:
    import cadenza
    from cadenza.orchestration.events import Event, Row, Saved

    episodes_by: list[tuple[float, int, int]] = []  # (when, env_steps, how many had ended): at every row

    def listen(event: Event) -> None:
        if isinstance(event, Saved):
            if not watch.marks:  # what was saved is the beginning, and the first step comes next
                watch.mark(0)
            watch.end()  # what is written after the last checkpoint is a report, not training
        elif isinstance(event, Row):
            watch.mark(event.row["env_steps"])
            episodes_by.append((time.time(), event.row["env_steps"], event.row["episodes"]))

    file = Path("task.json")
    file.write_text(json.dumps(config_of(task)))
    run = cadenza.train(str(file), runs_dir=Path("runs"), on_event=listen)
    if task["solved_at"] is not None:
        watch.episodes += stamped(run, episodes_by)
    status = run.result
    return watch.figures(env_steps=status["env_steps"], updates=status["updates"], parameters=parameters(run))


def config_of(task: Task) -> dict[str, Any]:
    """The task as a config file; settings it does not name have cadenza's defaults, which are those of a plain PPO."""
    settings = task["ppo"]

    def scheduled(value: float) -> Any:
        return f"lin_{value}" if settings["anneal"] else value

    network = {"hidden_sizes": settings["hidden_sizes"], "activation": settings["activation"]}
    return {
        "environment": {"id": task["env"], "num_envs": task["num_envs"]},
        "algorithm": {
            "name": "ppo",
            "learning_rate": scheduled(settings["learning_rate"]),
            "clip_range": scheduled(settings["clip_range"]),
            "optimizer": {"eps": settings["adam_eps"]},
            "actor": network,
            "critic": network,
            **{key: settings[key] for key in SHARED},
        },
        "training": {"max_timesteps": task["timesteps"]},
        "evaluation": {"every_steps": None, "at_end": False},
        "runtime": {"threads": task["threads"]},
        "device": "cpu",
        "seed": task["seed"],
    }


def stamped(run: Any, rows: list[tuple[float, int, int]]) -> list[tuple[float, int, float]]:
    """The episodes of a run as recorded, each at the time of the first row after its end, which is late if anything."""
    from cadenza.records.episodes import load

    found, returns = [], [episode.total for episode in load(run.folder)]
    before = 0
    for when, env_steps, count in rows:
        found += [(when, env_steps, total) for total in returns[before:count]]
        before = count
    return found


def parameters(run: Any) -> int:
    from cadenza.monitor.modules import Owned
    from cadenza.orchestration.playback import load_policy

    player, _ = load_policy(run.folder)
    return sum(parameter.numel() for parameter in Owned(player.workflow).parameters.values())
