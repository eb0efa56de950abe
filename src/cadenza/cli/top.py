"""`cadenza top`."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.base.text import printable
from cadenza.cli.output import Json, RunsDir, folded_table, print_json, print_table, say

if TYPE_CHECKING:
    from cadenza.records.live_runs import Running

HEAD = ("run", "done", "speed", "left", "return", "best", "curve", "CPU %", "GB", "GPU %", "alerts")
RIGHT = ("done", "speed", "left", "return", "best", "CPU %", "GB", "GPU %", "alerts")
WIDE = 120  # columns of a terminal that has room for curves


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Refresh every so many seconds.")] = 2.0,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Show the runs in progress. Ctrl-C exits.

    The table has progress, speed, returns, memory and alerts.

    Example: cadenza top
    Example: cadenza top --once --json
    """
    from cadenza.records.folder import root_to_list
    from cadenza.records.live_runs import running

    root = root_to_list(runs_dir)
    if json:
        print_json({"runs": [vars(run) for run in running(root)]})
    elif once or not sys.stdout.isatty():
        current = running(root)
        if current:
            head, lines = _columns(current)
            print_table(head, lines, [name for name in RIGHT if name in head])
            for text in _alerts(current):
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

    from cadenza.base.garbage import collect_as_usual
    from cadenza.records.live_runs import running

    console = Console()

    def table(current: list[Running]) -> Any:
        head, rows = _columns(current)
        return folded_table(head, [[printable(cell) for cell in row] for row in rows], RIGHT, console.width)

    def picture() -> Any:
        current = running(root)
        line = f"{len(current)} running in {printable(str(root))}   {time.strftime('%H:%M:%S')}   Ctrl-C exits"
        alerts = [Text(printable(text), style="yellow") for text in _alerts(current)]
        return Group(Text(line, style="dim"), *([table(current)] if current else []), *alerts)

    collect_as_usual()
    with Live(picture(), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every)
                live.update(picture(), refresh=True)
        except KeyboardInterrupt:
            return


def _columns(current: list[Running]) -> tuple[list[str], list[list[str]]]:
    """Return head and lines, without empty columns."""
    lines = [_cells(run) for run in current]
    columns = [index for index in range(len(HEAD)) if index == 0 or any(cells[index] for cells in lines)]
    return [HEAD[index] for index in columns], [[cells[index] for index in columns] for cells in lines]


def _cells(run: Running) -> list[str]:
    from cadenza.base.eta import rate
    from cadenza.base.formatting import duration, number, sparkline

    def cell(value: float | None) -> str:
        return "" if value is None else number(value)

    steps = f"{run.done:,}" + (f" ({min(1.0, run.done / run.budget):.0%})" if run.budget else "")
    remaining = "" if run.left is None else f"{run.phase + ' ' if run.phase else ''}{duration(run.left)}"
    speed = rate(run.speed, run.speed_unit)
    machine = [f"{run.cpu_percent:.0f}" if run.cpu_percent is not None else "", cell(run.memory_gb)]
    gpu = f"{run.gpu_percent:.0f}" if run.gpu_percent is not None else ""
    is_narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE
    curve = "" if is_narrow else sparkline(run.curve, 20)
    returns = [cell(run.latest_return), cell(run.best_return), curve]
    return [run.run, steps, speed, remaining, *returns, *machine, gpu, str(run.alerts or "")]


def _alerts(current: list[Running]) -> list[str]:
    """Return the latest alert of each run."""
    from cadenza.records.alert_log import line

    return [f"{run.run}: {line(run.alert)}" for run in current if run.alert is not None]
