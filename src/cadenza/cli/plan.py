"""`cadenza plan`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, RunsDir, Trust, print_json, print_table, say


def plan(
    spec: Annotated[str, typer.Argument(help="ENV:VARIANT, the name of an experiment, or a YAML or JSON file")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="key=value …", help="settings to change")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="how long to measure, about")] = 3.0,
    config_dir: Annotated[Path | None, typer.Option(help="folder with config groups of your own")] = None,
    runs_dir: RunsDir = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Say what a run will need in memory, disk and time, from a few cycles of it. Nothing is kept.

    Example: cadenza plan CartPole-v1:ppo environment.num_envs=64
    """
    from cadenza.base.formatting import size
    from cadenza.config.load import load
    from cadenza.records.folder import runs_root
    from cadenza.records.trust import require_trust_of_file
    from cadenza.tools.plan import plan as make_plan

    if not trust:
        require_trust_of_file(spec)
    needs = make_plan(load(spec, overrides or (), config_dir), seconds)
    place = runs_root(runs_dir).absolute()
    while not place.exists():
        place = place.parent
    total, free = needs["disk"]["total_bytes"], shutil.disk_usage(place).free
    needs["disk"]["free_bytes"] = free
    if total > free:
        needs["warnings"].append(f"the run needs about {size(total)} of disk, {size(free)} are free in {place}")
    if json:
        print_json(needs)
    else:
        print_table(("", ""), rows(needs))
    for warning in needs["warnings"]:
        say(f"warning: {warning}", err=True)


def rows(needs: dict[str, Any]) -> list[tuple[str, str]]:
    """The plan in words."""
    from cadenza.base.formatting import duration, number, size
    from cadenza.engine.launch import tuned

    def optional(count: float | None) -> str:
        return "-" if count is None else size(count)

    available = optional(needs["memory"]["available_bytes"])
    run, envs, memory, disk, time = (needs[key] for key in ("run", "environments", "memory", "disk", "time"))
    cycle = f"{number(run['env_steps_per_cycle'])} env_steps and {number(run['updates_per_cycle'])} updates"
    if run["offline_updates"]:
        cycle += f" after {number(run['offline_updates'])} updates offline"
    stores = ", ".join(f"{name} {size(held)}" for name, held in memory["stores"].items()) or "none"
    most = disk["checkpoint_bytes_at_most"]
    speed, unit = time["env_steps_per_second"], "env_steps"
    if speed is None:
        speed, unit = time["updates_per_second"], "updates"
    cycles = time["measured_cycles"]
    over = f"over {cycles} cycle{'s' * (cycles > 1)}" if cycles else "while collecting, without updates"
    longest = time["evaluation_seconds_at_most"]
    return [
        ("spec", f"{needs['spec']}, {tuned(needs['experiment'])}"),
        ("run", f"{number(run['env_steps'])} env_steps, {number(run['updates'])} updates"),
        ("cycles", f"{number(run['cycles'])} of {cycle} at last; phases: {', '.join(run['phases'])}"),
        ("evaluations", f"{number(run['evaluations'])}"),
        ("environments", f"{envs['count']} ({envs['vectorize']}), {envs['evaluation_count']} to evaluate in"),
        ("device", needs["device"]),
        ("networks", f"{number(memory['parameters'])} parameters, {size(memory['networks_bytes'])}"),
        ("gradients", size(memory["gradients_bytes"])),
        ("learning", f"{size(memory['learning_bytes'])} of optimizer state, statistics and tables"),
        ("stores", stores),
        ("memory", f"{optional(memory['total_bytes'])} with full stores, {_of(memory)}; {available} are available"),
        ("checkpoint", size(disk["checkpoint_bytes"]) + (f", at most {size(most)}" if most is not None else "")),
        ("disk", f"{size(disk['total_bytes'])}: {_files(disk)}; {size(disk['free_bytes'])} are free"),
        ("speed", f"{number(speed)} {unit}/s, measured {over}"),
        (
            "time",
            f"{duration(time['training_seconds'])} of training, {duration(time['evaluation_seconds'])} of evaluations"
            + (f" (at most {duration(longest)})" if longest is not None else ""),
        ),
    ]


def _of(memory: dict[str, Any]) -> str:
    from cadenza.base.formatting import size

    process, mapped = memory["process_bytes"], memory["mapped_bytes"]
    beside = f"{'-' if process is None else size(process)} of it beside them"
    return beside + (f", and {size(mapped)} of a file, as much as there is room for" if mapped else "")


def _files(disk: dict[str, Any]) -> str:
    from cadenza.base.formatting import size

    checkpoints = f"{disk['checkpoints_kept']} checkpoints {size(disk['checkpoints_bytes'])}"
    files = f"{checkpoints}, metrics {size(disk['metrics_bytes'])}, episodes {size(disk['episodes_bytes'])}"
    return files + (f", replay {size(disk['replay_bytes'])}" if disk["replay_bytes"] else "")
