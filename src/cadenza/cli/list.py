"""`cadenza list`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, RunsDir, print_json, print_table

NUMBERS = ("return", "env_steps", "time")
HEAD = ("run", "status", "return", "env_steps", "time", "name", "tags")


def list_runs(
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", "-f", metavar="KEY=VALUE", help="A column, config key or metric; * is a wildcard."),
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="METRIC", help="Highest first. Default: newest first.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most this many runs.")] = None,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """List runs.

    Example: cadenza list --filter environment=CartPole-v1 --filter algorithm.gamma=0.99 --sort return --limit 10
    """
    from cadenza.records.folder import runs_root
    from cadenza.records.index import rows

    root = runs_root(runs_dir)
    found = rows(root, filters or [], sort, limit)
    if json:
        print_json({"runs": found})
    elif found:
        head = [*HEAD, sort] if sort and sort not in HEAD and sort in found[0] else HEAD
        columns = [column for column in head if any(_cell(row, column) for row in found)]
        print_table(columns, [[_cell(row, column) for column in columns] for row in found], NUMBERS)
    else:
        typer.echo(f"no runs in {root}" + (" match" if filters else ""), err=True)


def _cell(row: dict[str, Any], column: str) -> str:
    from cadenza.monitor.sparkline import duration, number

    if column == "time":
        return duration(row["seconds"])
    value = row.get(column)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int | float):
        return number(value)
    return str(value) if value is not None else ("-" if column in NUMBERS else "")
