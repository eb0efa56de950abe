"""`cadenza bench`: measure the speed of training beside other libraries, and of its parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cadenza.base import blas
from cadenza.cli.output import Json, Overrides, Spec, print_json, print_table, require_parent, say
from cadenza.cli.train import positive
from cadenza.errors import ConfigError

if TYPE_CHECKING:
    from cadenza.tools.bench.tasks import BenchTask

NUMBER = "{:,.0f}"
SMALL_NUMBER = "{:.3g}"
SECONDS = "{:,.2f}"
Tasks = Annotated[
    list[str] | None, typer.Argument(metavar="TASK …", help="Names of tasks, or JSON files. Default: all tasks.")
]
Timesteps = Annotated[
    int | None, typer.Option(parser=positive, metavar="N", help="Train N env_steps. Default: the task's.")
]
Seconds = Annotated[float, typer.Option(min=0.01, help="How long to measure each part, about.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Use so many threads. Default: the task's, one.")]


class WithDefault(TyperGroup):
    """The group of bench commands: `cadenza bench TASK` is short for `cadenza bench train TASK`."""

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        first = arguments[0] if arguments else ""
        if first not in self.commands and first not in ("-h", "--help"):
            arguments = ["train", *arguments]
        return super().parse_args(context, arguments)


app = typer.Typer(
    cls=WithDefault, help="Measure speed: training beside other libraries, or its parts.", rich_markup_mode=None
)


@app.command(epilog="Example: cadenza bench ppo-cartpole --python ~/sb3/bin/python --out result.json")
def train(
    tasks: Tasks = None,
    peers: Annotated[str, typer.Option(help="Compare with all, none, or these: sb3,sbx.")] = "all",
    python: Annotated[
        list[str] | None, typer.Option(help="Search this interpreter for peers, besides this one; repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measure each so many times, in turn.")] = 3,
    timesteps: Timesteps = None,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the result as this PNG file.")] = None,
    json: Json = False,
) -> None:
    """Train tasks with cadenza and with every installed peer.

    Each training has a fresh process; all take turns.
    """
    from cadenza.tools.bench.contestants import CADENZA, Installed, find_installed, select_peers
    from cadenza.tools.bench.rounds import Bench

    selected = select_tasks(tasks, timesteps, threads)
    for option, path in (("--out", out), ("--picture", picture)):
        require_parent(option, path)
        if path is not None and path.is_dir():
            raise ConfigError(f"{option} {path}: is a folder; name a file in it")
    here = sys.executable
    installed, missing = find_installed(select_peers(peers), [here, *(python or ())])
    for peer in missing:
        say(f"{peer.name} is not installed: pip install {peer.distributions[0]}", err=True)
    if blas.VARIABLE in os.environ and blas.remark():
        slower = f"{blas.VARIABLE}={os.environ[blas.VARIABLE]} keeps NumPy from the processor's faster kernels"
        say(f"{slower}: unset it to measure with them", err=True)
    bench = Bench(selected, [Installed(CADENZA, here), *installed], missing, rounds, out)
    try:
        bench.run(say_round)
    finally:  # also after Ctrl-C, for the rounds so far
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
    rounds: Annotated[int, typer.Option(min=1, help="Measure the parts and the whole so many times, in turn.")] = 3,
    seconds: Seconds = 1.0,
    timesteps: Timesteps = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure the parts of training alone, and the whole.

    It shows which fraction of the speed that the parts allow is reached by whole training.
    """
    from cadenza.tools.bench.part_speeds import beside_whole

    selected = select_tasks(tasks, timesteps, threads)
    results = {name: beside_whole(task, seconds, rounds) for name, task in selected.items()}
    if json:
        print_json(results)
        return
    head = ["us per env_step", *results]
    costs = [result["microseconds"] for result in results.values()]
    names = dict.fromkeys(name for cost in costs for name in cost)
    cells = [[name, *(f"{cost[name]:.1f}" if name in cost else "-" for cost in costs)] for name in names]
    for key, title, shape in (
        ("ideal_env_steps_per_s", "ideal, env_steps/s", NUMBER),
        ("collecting_and_updating_env_steps_per_s", "collecting and updating, env_steps/s", NUMBER),
        ("whole_env_steps_per_s", "whole training, env_steps/s", NUMBER),
        ("fraction_of_ideal", "fraction of the ideal", "{:.0%}"),
    ):
        cells.append([title, *(shape.format(result[key]) for result in results.values())])
    print_table(head, cells, right=head[1:])
    say("collecting: stepping, acting and storing together; ideal: stepping, acting and updating alone")
    if "sampling" in names:
        say("sampling: the part of updating that draws batches from the replay")


@app.command(epilog="Example: cadenza bench vector HalfCheetah-v5 --num-envs 1,8")
def vector(
    env: Annotated[str, typer.Argument(help="An environment id, as in `cadenza envs`.")],
    num_envs: Annotated[str, typer.Option(help="Step so many environments together.")] = "1,8,64",
    seconds: Seconds = 1.0,
    json: Json = False,
) -> None:
    """Measure every way of stepping environments together.

    The numbers are env_steps per second with random actions.
    """
    from cadenza.tools.bench.vectors import rates

    counts = [int(text) if text.strip().isdigit() else 0 for text in num_envs.split(",")]
    if min(counts) < 1:
        raise ConfigError(f"--num-envs {num_envs}: must be whole numbers of at least 1, with commas between them")
    speeds = rates(env, counts, seconds)
    if json:
        print_json({"environment": env, "env_steps_per_s": speeds})
        return
    head = ["env_steps/s", *(f"{count} env{'s' * (count > 1)}" for count in counts)]
    cells = [
        [method, *("-" if isinstance(rate, str) else NUMBER.format(rate) for rate in row.values())]
        for method, row in speeds.items()
    ]
    print_table(head, cells, right=head[1:])
    for reason in dict.fromkeys(rate for row in speeds.values() for rate in row.values() if isinstance(rate, str)):
        say(f"-: {reason}")


@app.command(epilog="Example: cadenza bench collect CartPole-v1:ppo environment.num_envs=64")
def collect(spec: Spec, overrides: Overrides = None, seconds: Seconds = 2.0, json: Json = False) -> None:
    """Measure collecting alone: acting, stepping and storing."""
    measure_part(spec, overrides, "collecting", seconds, json)


@app.command(epilog="Example: cadenza bench store HalfCheetah-v5:ppo")
def store(
    spec: Spec = "CartPole-v1:ppo", overrides: Overrides = None, seconds: Seconds = 2.0, json: Json = False
) -> None:
    """Measure the store alone: the time to add an env_step."""
    measure_part(spec, overrides, "storing", seconds, json)


def measure_part(spec: str, overrides: Sequence[str] | None, part: str, seconds: float, json: bool) -> None:
    """Measure one part of a run and print it."""
    from cadenza.config.load import load
    from cadenza.records.trust import require_trust_of_file
    from cadenza.tools.bench.part_speeds import PartSpeeds

    require_trust_of_file(spec)
    with closing(PartSpeeds(load(spec, overrides or ()), seconds)) as parts:
        cost = getattr(parts, part)()
    if json:
        print_json({"spec": spec, "part": part, "env_steps_per_s": 1 / cost, "microseconds": cost * 1e6})
    else:
        say(f"{spec}: {part} {1 / cost:,.0f} env_steps/s, {cost * 1e6:.2f} us per env_step")


def select_tasks(names: Sequence[str] | None, timesteps: int | None, threads: int | None) -> dict[str, BenchTask]:
    """Return the named tasks, or all, with the options' changes."""
    from dataclasses import replace

    from cadenza.tools.bench.tasks import find, shipped

    options: dict[str, Any] = {"timesteps": timesteps, "threads": threads}
    changes = {key: value for key, value in options.items() if value is not None}
    tasks: dict[str, BenchTask] = {}
    for name in names or shipped():
        if (short := Path(name).stem) in tasks:
            raise ConfigError(f"two tasks are named {short}: run one at a time, or rename a file")
        tasks[short] = replace(find(name), **changes)
    return tasks


def say_round(task: str, number: int, name: str, row: Mapping[str, Any]) -> None:
    """Print one measurement to stderr."""
    what = row.get("error") or f"{rate(row['env_steps_per_s']).format(row['env_steps_per_s'])} env_steps/s"
    say(f"{task} round {number + 1}: {name} {what}", err=True)


def show(result: Mapping[str, Any]) -> None:
    """Print a table per task; a peer's figure is followed by cadenza's as a multiple of it."""
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
        for peer, notes in outcome["notes"].items():
            say(f"{peer} {', '.join(notes)}")
        for peer in outcome["left_out"]:
            say(f"{peer} does not do this task")
    machine = result["machine"]
    say("medians of the rounds, below them worst and best; (x): cadenza's divided by theirs")
    say(f"{machine['cpu']}, {machine['cores']} cores")


def describe(task: Mapping[str, Any]) -> str:
    """Return the work of a task in a line."""
    length = f"{task['timesteps']:,} env_steps"
    if task["warmup"]:
        length += f" of which the first {task['warmup']:,} take random actions and are not counted"
    return f"{task['algorithm'].upper()} on {task['env']}, {task['work']}, {length}, {task['threads']} thread(s)"


def rate(value: float) -> str:
    """Return the format of a rate."""
    return NUMBER if value >= 10 else SMALL_NUMBER


def rows(outcome: Mapping[str, Any], solving: bool) -> list[list[str]]:
    """Return a row for each contestant, and one below it for the spread of its figures."""
    from cadenza.tools.bench.bench_picture import label as labelled

    table = []
    for name in dict.fromkeys(row["contestant"] for row in outcome["measurements"]):
        attempts = [row for row in outcome["measurements"] if row["contestant"] == name]
        errors = [row["error"] for row in attempts if "error" in row]
        if name not in outcome["summary"]:
            table.append([name, "failed", *[""] * (4 + solving)])
            continue
        figures, ratios = outcome["summary"][name], outcome["ratios"].get(name, {})
        label = labelled(attempts, name) + (f"\n{len(errors)} of {len(attempts)} rounds failed" if errors else "")
        pace = rate(figures["env_steps_per_s"]["median"])
        columns = [("env_steps_per_s", pace), ("steady_env_steps_per_s", pace), ("start_s", SECONDS)]
        columns += [("peak_mb", NUMBER), ("cpu_s", SECONDS), *([("solved_s", SECONDS)] if solving else [])]
        cells = [label, *(cell(figures[key], ratios.get(key), shape) for key, shape in columns)]
        table += map(list, zip_longest(*(text.split("\n") for text in cells), fillvalue=""))
    return table


def cell(figure: Mapping[str, float | None] | None, ratio: float | None, shape: str) -> str:
    """Return `3,474 (2.1x)`, and below it the spread."""
    if figure is None or figure["median"] is None:
        return "-"
    text = shape.format(figure["median"]) + ("" if ratio is None else f" ({ratio:.2f}x)")
    low, high = ("never" if figure[key] is None else shape.format(figure[key]) for key in ("min", "max"))
    return text if low == high else f"{text}\n{low}-{high}"
