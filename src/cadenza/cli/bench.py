"""`cadenza bench`: how fast training is beside other libraries, and what each of its parts costs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cadenza.cli.output import Json, print_json, print_table, say
from cadenza.errors import ConfigError

if TYPE_CHECKING:
    from cadenza.tools.bench.tasks import Task

NUMBER = "{:,.0f}"
FEW = "{:.3g}"  # where whole numbers would say too little
SECONDS = "{:,.2f}"
Tasks = Annotated[list[str] | None, typer.Argument(metavar="TASK …", help="names, or JSON files; without one: all")]
Timesteps = Annotated[int | None, typer.Option(min=1, help="env_steps, instead of the task's own")]
Seconds = Annotated[float, typer.Option(min=0.01, help="how long to measure each thing, about")]
Spec = Annotated[str, typer.Argument(help="ENV:VARIANT, the name of an experiment, or a YAML or JSON file")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="key=value …", help="settings to change")]
Threads = Annotated[int | None, typer.Option(min=1, help="threads of the numerical libraries, instead of one")]


class WithDefault(TyperGroup):
    """`cadenza bench TASK` is short for `cadenza bench train TASK`."""

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        first = arguments[0] if arguments else ""
        if first not in self.commands and first not in ("-h", "--help"):
            arguments = ["train", *arguments]
        return super().parse_args(context, arguments)


app = typer.Typer(
    cls=WithDefault,
    help="Measure speed: training beside other libraries (bench [train] TASK), or the parts of a step alone.",
    rich_markup_mode=None,
)


@app.command(epilog="Example: cadenza bench ppo-cartpole --python ~/sb3/bin/python --out result.json")
def train(
    tasks: Tasks = None,
    peers: Annotated[str, typer.Option(help="all, none, or names with commas: sb3,sbx")] = "all",
    python: Annotated[
        list[str] | None, typer.Option(help="an interpreter to look for peers in, besides this one; repeatable")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="how often everyone is measured, in turn")] = 3,
    timesteps: Timesteps = None,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="keep the result here (JSON)")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw it here (PNG)")] = None,
    json: Json = False,
) -> None:
    """Train the same tasks with cadenza and with every installed peer, in fresh processes, in turn."""
    from cadenza.tools.bench.contestants import CADENZA, Found, chosen, look_for
    from cadenza.tools.bench.rounds import Bench

    asked = given(tasks, timesteps, threads)
    for path in (out, picture):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise ConfigError(f"{path}: is a folder; name a file in it")
    here = sys.executable
    found, missing = look_for(chosen(peers), [here, *(python or ())])
    for peer in missing:
        say(f"{peer.name} is not installed: pip install {peer.distributions[0]}", err=True)
    bench = Bench(asked, [Found(CADENZA, here), *found], missing, rounds, out)
    try:
        bench.run(say_round)
    finally:  # also after Ctrl-C: the rounds so far are worth showing
        result = bench.result()
        if picture is not None and result["tasks"]:
            from cadenza.tools.bench.bench_picture import draw

            draw(result, picture)
        if json:
            print_json(result)
        else:
            show(result)
    failed = [row for task in result["tasks"].values() for row in task["measurements"] if "error" in row]
    if failed:
        raise typer.Exit(1)


@app.command(epilog="Example: cadenza bench parts ppo-halfcheetah")
def parts(
    tasks: Tasks = None,
    rounds: Annotated[int, typer.Option(min=1, help="how often the parts and the whole are measured, in turn")] = 3,
    seconds: Seconds = 1.0,
    timesteps: Timesteps = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure the parts of training alone, and how much of what they would allow whole training reaches."""
    from cadenza.tools.bench.part_speeds import beside_whole

    asked = given(tasks, timesteps, threads)
    found = {name: beside_whole(task, seconds, rounds) for name, task in asked.items()}
    if json:
        print_json(found)
        return
    head = ["us per env_step", *found]
    costs = [one["microseconds"] for one in found.values()]
    names = dict.fromkeys(name for cost in costs for name in cost)
    cells = [[name, *(f"{cost[name]:.1f}" if name in cost else "-" for cost in costs)] for name in names]
    for key, title, shape in (
        ("ideal_env_steps_per_s", "ideal, env_steps/s", NUMBER),
        ("collecting_and_updating_env_steps_per_s", "collecting and updating, env_steps/s", NUMBER),
        ("whole_env_steps_per_s", "whole training, env_steps/s", NUMBER),
        ("fraction_of_ideal", "fraction of the ideal", "{:.0%}"),
    ):
        cells.append([title, *(shape.format(one[key]) for one in found.values())])
    print_table(head, cells, right=head[1:])
    say("collecting: stepping, acting and storing together; ideal: stepping, acting and updating alone")
    if "sampling" in names:
        say("sampling: what of updating is drawing batches from the replay")


@app.command(epilog="Example: cadenza bench vector HalfCheetah-v5 --num-envs 1,8")
def vector(
    env: Annotated[str, typer.Argument(help="an environment id, as in `cadenza envs`")],
    num_envs: Annotated[str, typer.Option(help="how many environments, with commas")] = "1,8,64",
    seconds: Seconds = 1.0,
    json: Json = False,
) -> None:
    """Measure every way of stepping environments together: env_steps per second with random actions."""
    from cadenza.tools.bench.vectors import rates

    counts = [int(text) if text.strip().isdigit() else 0 for text in num_envs.split(",")]
    if min(counts) < 1:
        raise ConfigError(f"--num-envs {num_envs}: must be whole numbers of at least 1, with commas between them")
    found = rates(env, counts, seconds)
    if json:
        print_json({"environment": env, "env_steps_per_s": found})
        return
    head = ["env_steps/s", *(f"{count} env{'s' * (count > 1)}" for count in counts)]
    cells = [
        [way, *("-" if isinstance(rate, str) else NUMBER.format(rate) for rate in row.values())]
        for way, row in found.items()
    ]
    print_table(head, cells, right=head[1:])
    for reason in dict.fromkeys(rate for row in found.values() for rate in row.values() if isinstance(rate, str)):
        say(f"-: {reason}")


@app.command(epilog="Example: cadenza bench collect CartPole-v1:ppo environment.num_envs=64")
def collect(spec: Spec, overrides: Overrides = None, seconds: Seconds = 2.0, json: Json = False) -> None:
    """Measure collecting alone: acting, stepping and storing, without updates."""
    measured_part(spec, overrides, "collecting", seconds, json)


@app.command(epilog="Example: cadenza bench store HalfCheetah-v5:ppo")
def store(
    spec: Spec = "CartPole-v1:ppo", overrides: Overrides = None, seconds: Seconds = 2.0, json: Json = False
) -> None:
    """Measure the store alone: how long it takes to write an env_step into it."""
    measured_part(spec, overrides, "storing", seconds, json)


def measured_part(spec: str, overrides: Sequence[str] | None, part: str, seconds: float, json: bool) -> None:
    from cadenza.config.load import load
    from cadenza.records.trust import require_trust_of_file
    from cadenza.tools.bench.part_speeds import Parts

    require_trust_of_file(spec)
    parts = Parts(load(spec, overrides or ()), seconds)
    try:
        cost = getattr(parts, part)()
    finally:
        parts.close()
    if json:
        print_json({"spec": spec, "part": part, "env_steps_per_s": 1 / cost, "microseconds": cost * 1e6})
    else:
        say(f"{spec}: {part} {1 / cost:,.0f} env_steps/s, {cost * 1e6:.2f} us per env_step")


def given(names: Sequence[str] | None, timesteps: int | None, threads: int | None) -> dict[str, Task]:
    from dataclasses import replace

    from cadenza.tools.bench.tasks import TASKS, find

    asked: dict[str, Any] = {"timesteps": timesteps, "threads": threads}
    changes = {key: value for key, value in asked.items() if value is not None}
    tasks: dict[str, Task] = {}
    for name in names or TASKS:
        if (short := Path(name).stem) in tasks:
            raise ConfigError(f"two tasks are named {short}: give them one by one, or other names")
        tasks[short] = replace(find(name), **changes)
    return tasks


def say_round(task: str, number: int, who: str, row: Mapping[str, Any]) -> None:
    what = row.get("error") or f"{rate(row['env_steps_per_s']).format(row['env_steps_per_s'])} env_steps/s"
    say(f"{task} round {number + 1}: {who} {what}", err=True)


def show(result: Mapping[str, Any]) -> None:
    """A table per task; each peer's figure has cadenza's as a multiple of it behind it."""
    for name, outcome in result["tasks"].items():
        say(f"{name}: {describe(outcome['task'])}")
        solving = outcome["task"]["solved_at"] is not None
        head = ["", "env_steps/s", "steady", "start s", "peak MB", "CPU s", *(["solved s"] if solving else [])]
        print_table(head, rows(outcome, solving), right=head[1:])
        for row in outcome["measurements"]:
            if "error" in row:
                say(f"{row['contestant']} failed in round {row['round'] + 1}: {row['error']}")
        for difference in outcome["differences"]:
            say(f"not the same work: {difference}")
        for who, notes in outcome["notes"].items():
            say(f"{who} {', '.join(notes)}")
        for who in outcome["left_out"]:
            say(f"{who} does not do this task")
    machine = result["machine"]
    say("medians of the rounds, below them worst and best; (x): cadenza's divided by theirs")
    say(f"{machine['cpu']}, {machine['cores']} cores")


def describe(task: Mapping[str, Any]) -> str:
    length = f"{task['timesteps']:,} env_steps"
    if task["warmup"]:
        length += f" of which the first {task['warmup']:,} are at random and not counted"
    return f"{task['algorithm'].upper()} on {task['env']}, {task['work']}, {length}, {task['threads']} thread(s)"


def rate(value: float) -> str:
    """How to write it."""
    return NUMBER if value >= 10 else FEW


def rows(outcome: Mapping[str, Any], solving: bool) -> list[list[str]]:
    """One for each contestant, and one below it for the spread of its figures."""
    from cadenza.tools.bench.bench_picture import label as labelled

    found = []
    for name in dict.fromkeys(row["contestant"] for row in outcome["measurements"]):
        measured = [row for row in outcome["measurements"] if row["contestant"] == name]
        errors = [row["error"] for row in measured if "error" in row]
        if name not in outcome["summary"]:
            found.append([name, "failed", *[""] * (4 + solving)])
            continue
        figures, ratios = outcome["summary"][name], outcome["ratios"].get(name, {})
        label = labelled(measured, name) + (f"\n{len(errors)} of {len(measured)} rounds failed" if errors else "")
        pace = rate(figures["env_steps_per_s"]["median"])
        columns = [("env_steps_per_s", pace), ("steady_env_steps_per_s", pace), ("start_s", SECONDS)]
        columns += [("peak_mb", NUMBER), ("cpu_s", SECONDS), *([("solved_s", SECONDS)] if solving else [])]
        cells = [label, *(cell(figures[key], ratios.get(key), shape) for key, shape in columns)]
        found += map(list, zip_longest(*(text.split("\n") for text in cells), fillvalue=""))
    return found


def cell(figure: Mapping[str, float | None] | None, ratio: float | None, shape: str) -> str:
    """`3,474 (2.1x)`, and below it the spread."""
    if figure is None or figure["median"] is None:
        return "-"
    text = shape.format(figure["median"]) + ("" if ratio is None else f" ({ratio:.2f}x)")
    low, high = ("never" if figure[key] is None else shape.format(figure[key]) for key in ("min", "max"))
    return text if low == high else f"{text}\n{low}-{high}"
