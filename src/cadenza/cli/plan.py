"""`cadenza plan`."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import typer

from cadenza.cli.output import ConfigDir, Json, Overrides, RunsDir, Spec, Trust, print_json, print_table, say


def plan(
    spec: Spec,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure, about.")] = 3.0,
    config_dir: ConfigDir = None,
    runs_dir: RunsDir = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Estimate the memory, disk and time that a run needs.

    It measures a few cycles of the run, and leaves nothing behind.

    Example: cadenza plan CartPole-v1:ppo environment.num_envs=64
    """
    from cadenza.base.formatting import size
    from cadenza.config.load import load
    from cadenza.records.folder import runs_root
    from cadenza.records.trust import require_trust_of_file
    from cadenza.tools.plan import plan as make_plan

    require_trust_of_file(spec, trust)
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
    """Return the plan as a table of texts."""
    from cadenza.base.formatting import duration, number, size
    from cadenza.engine.launch import tuned

    def bytes_of(count: float | None) -> str:
        return "-" if count is None else size(count)

    run, envs, memory, disk, time = (needs[key] for key in ("run", "environments", "memory", "disk", "time"))
    cycle = f"{number(run['env_steps_per_cycle'])} env_steps and {number(run['updates_per_cycle'])} updates"
    if run["offline_updates"]:
        cycle += f" after {number(run['offline_updates'])} offline updates"
    stores = ", ".join(f"{name} {size(count)}" for name, count in memory["stores"].items()) or "none"
    total = (
        f"{bytes_of(memory['total_bytes'])} with full stores, {bytes_of(memory['process_bytes'])} of it besides them"
    )
    if memory["mapped_bytes"]:
        total += f", and {size(memory['mapped_bytes'])} of a mapped file while memory is free"
    most = disk["checkpoint_bytes_at_most"]
    files = {f"{disk['checkpoints_kept']} checkpoints": disk["checkpoints_bytes"]}
    files |= {name: disk[f"{name}_bytes"] for name in ("metrics", "episodes", "replay")}
    parts = ", ".join(f"{name} {size(count)}" for name, count in files.items() if count or name != "replay")
    phases = ", ".join(f"{name} ({', '.join(hooks)})" for name, hooks in run["hooks"].items())
    unit = "updates" if time["env_steps_per_second"] is None else "env_steps"
    cycles = time["measured_cycles"]
    over = f"over {cycles} cycle{'s' * (cycles > 1)}" if cycles else "while collecting, without updates"
    training, evaluating = duration(time["training_seconds"]), duration(time["evaluation_seconds"])
    longest = time["evaluation_seconds_at_most"]
    return [
        ("spec", f"{needs['spec']}, {tuned(needs['experiment'])}"),
        ("run", f"{number(run['env_steps'])} env_steps, {number(run['updates'])} updates"),
        *([("", run["end"])] if run["end"] else []),
        ("cycles", f"{number(run['cycles'])} of {cycle}; phases: {phases}"),
        ("evaluations", f"{number(run['evaluations'])}"),
        ("environments", f"{envs['count']} ({envs['vectorize']}), {envs['evaluation_count']} for evaluation"),
        ("device", needs["device"]),
        ("networks", f"{number(memory['parameters'])} parameters, {size(memory['networks_bytes'])}"),
        ("gradients", size(memory["gradients_bytes"])),
        ("learning", f"{size(memory['learning_bytes'])} of optimizer state, statistics and tables"),
        ("stores", stores),
        ("memory", f"{total}; {bytes_of(memory['available_bytes'])} are available"),
        ("checkpoint", size(disk["checkpoint_bytes"]) + (f", at most {size(most)}" if most is not None else "")),
        ("disk", f"{size(disk['total_bytes'])}: {parts}; {size(disk['free_bytes'])} are free"),
        ("speed", f"{number(time[f'{unit}_per_second'])} {unit}/s, measured {over}"),
        (
            "time",
            f"{training} of training, {evaluating} of evaluations"
            + (f" (at most {duration(longest)})" if longest is not None else ""),
        ),
    ]
