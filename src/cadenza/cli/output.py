"""What commands print to stdout: the result that was asked for, as a table or as one line of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

RunsDir = Annotated[Path | None, typer.Option("--runs-dir", help="Where runs live. Default: CADENZA_RUNS, or ./runs.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import code that a run made elsewhere names.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="An id, a unique prefix, a path, @last or @best[:SPEC].")]

PIPE_WIDTH = 10_000


def print_json(value: Any) -> None:
    """NaN and infinities become null."""
    from cadenza.records.json_text import dumps

    print(dumps(value))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Columns named in `right` hold numbers; a nameless head is left out. Into a pipe no line is broken."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    table = Table(
        box=box.SIMPLE_HEAD if any(head) else None, header_style="bold", show_header=any(head), pad_edge=False
    )
    for index, name in enumerate(head):
        number = name in right or index == 0
        table.add_column(name, justify="right" if name in right else "left", no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
