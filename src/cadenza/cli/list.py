"""`cadenza list`."""

from __future__ import annotations

import re
import shutil
import sys
from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, RunsDir, cut, print_json, print_table, say

LONGEST, SHORTEST = 60, 8  # characters of a name
NUMBERS = ("return", "env_steps", "time")
HEAD = ("run", "status", "return", "env_steps", "time", "name", "tags")


def list_runs(
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            "-f",
            metavar="KEY=VALUE",
            help="Select by a column, config key or metric; also != > < >= <=; * is a wildcard.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="METRIC", help="Sort by METRIC, highest first. Default: newest first."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="List at most so many runs.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read every run folder again first.")] = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """List runs.

    With CADENZA_INDEX, the URL of a team's database, it lists the runs of everyone.

    Example: cadenza list --filter environment=CartPole-v1 --filter algorithm.gamma=0.99 --sort return --limit 10
    Example: cadenza list --filter tag=paper --filter 'return>400' --filter git=1f3a9c
    """
    from cadenza.records import index
    from cadenza.records.folder import root_to_list, shared_url

    root = root_to_list(runs_dir)
    if rebuild:
        index.rebuild(root)
    rows = index.rows(root, filters or [], sort, limit, shared_url())
    if json:
        print_json({"runs": rows})
    elif rows:
        head = [*HEAD, sort] if sort and sort not in HEAD and sort in rows[0] else HEAD
        columns = [column for column in head if any(_cell(row, column) for row in rows)]
        lines = [[_cell(row, column) for column in columns] for row in rows]
        print_table(*_fitting(columns, lines), NUMBERS)
        for row in rows:
            if row.get("unreadable"):
                say(f"{row['run']} cannot be read: {row['unreadable']}", err=True)
    else:
        say(f"no runs in {root}" + (" match" if filters else ""), err=True)


def _fitting(columns: list[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Shorten names, or leave them out, where the terminal is too narrow: the id matters more."""
    if "name" not in columns:
        return columns, lines
    place, limit = columns.index("name"), LONGEST
    if sys.stdout.isatty():
        widths = [max(map(len, cells)) for cells in zip(columns, *lines, strict=True)]
        limit = min(limit, shutil.get_terminal_size().columns - sum(widths) + widths[place] - 2 * len(columns))
    if limit < SHORTEST:
        return [*columns[:place], *columns[place + 1 :]], [[*line[:place], *line[place + 1 :]] for line in lines]
    return columns, [[*line[:place], cut(line[place], limit), *line[place + 1 :]] for line in lines]


def _cell(row: dict[str, Any], column: str) -> str:
    from cadenza.base.formatting import duration, number

    if column == "time":
        return duration(row["seconds"])
    value = row.get(column)
    if column == "name" and not value:
        return " ".join(re.sub(r"^[\w.]*\.", "", change) for change in row["changes"])
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int | float):
        return number(value)
    return str(value) if value is not None else ("-" if column in NUMBERS else "")
