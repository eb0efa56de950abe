"""`cadenza top`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.base.text import printable
from cadenza.cli.output import Json, RunsDir, print_json, print_table, say

if TYPE_CHECKING:
    from cadenza.records.live_runs import Running

HEAD = ("run", "done", "speed", "left", "return", "best", "curve", "CPU %", "GB", "GPU %", "alerts")
RIGHT = ("done", "speed", "left", "return", "best", "CPU %", "GB", "GPU %", "alerts")


def top(
    once: Annotated[bool, typer.Option("--once", help="Print a table and leave.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Show the runs that are running: how far, how fast, how good, what they take, what is wrong. Ctrl-C leaves.

    Example: cadenza top
    Example: cadenza top --once --json
    """
    from cadenza.records.folder import runs_root
    from cadenza.records.live_runs import running

    root = runs_root(runs_dir)
    if json:
        print_json({"runs": [vars(run) for run in running(root)]})
    elif once or not sys.stdout.isatty():
        found = running(root)
        if found:
            columns = _columns(found)
            print_table(*columns, [name for name in RIGHT if name in columns[0]])
            for text in _alerts(found):
                say(text)
        else:
            say(f"nothing is running in {root}", err=True)
    else:
        _live(root, every)


def _live(root: Any, every: float) -> None:
    import time

    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from cadenza.records.live_runs import running

    def picture() -> Any:
        found = running(root)
        title = Text(
            f"{len(found)} running in {printable(str(root))}   {time.strftime('%H:%M:%S')}   Ctrl-C leaves", style="dim"
        )
        latest = [Text(printable(text), style="yellow") for text in _alerts(found)]
        return Group(title, *([_table(found)] if found else []), *latest)

    with Live(picture(), console=Console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every)
                live.update(picture(), refresh=True)
        except KeyboardInterrupt:
            return


def _table(found: list[Running]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    head, lines = _columns(found)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in RIGHT else "left", no_wrap=True)
    for cells in lines:
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _columns(found: list[Running]) -> tuple[list[str], list[list[str]]]:
    """Head and lines, without the columns that are empty."""
    lines = [_cells(run) for run in found]
    kept = [index for index in range(len(HEAD)) if index == 0 or any(cells[index] for cells in lines)]
    return [HEAD[index] for index in kept], [[cells[index] for index in kept] for cells in lines]


def _cells(run: Running) -> list[str]:
    from cadenza.base.eta import rate
    from cadenza.base.formatting import duration, number, sparkline

    def shown(value: float | None) -> str:
        return "" if value is None else number(value)

    done = f"{run.done:,}" + (f" ({min(1.0, run.done / run.budget):.0%})" if run.budget else "")
    left = "" if run.left is None else f"{run.phase + ' ' if run.phase else ''}{duration(run.left)}"
    speed = rate(run.speed, run.speed_unit)
    machine = [f"{run.cpu_percent:.0f}" if run.cpu_percent is not None else "", shown(run.memory_gb)]
    gpu = f"{run.gpu_percent:.0f}" if run.gpu_percent is not None else ""
    told = str(run.alerts) if run.alerts else ""
    returns = [shown(run.latest_return), shown(run.best_return), sparkline(run.curve, 20)]
    return [run.run, done, speed, left, *returns, *machine, gpu, told]


def _alerts(found: list[Running]) -> list[str]:
    """The latest of each run."""
    from cadenza.records.alert_log import line

    return [f"{run.run}: {line(run.alert)}" for run in found if run.alert is not None]
