"""What commands print to stdout: the result that was asked for, as a table or as one line of JSON."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.base.text import lines as printable_lines
from cadenza.base.text import printable

RunsDir = Annotated[Path | None, typer.Option("--runs-dir", help="Where runs live. Default: CADENZA_RUNS, or ./runs.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import code that a run made elsewhere names.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="An id, a unique prefix, a path, @last or @best[:SPEC].")]

SHORT = 12  # columns so narrow are never folded


def say(text: object = "", err: bool = False, several: bool = False, end: str = "\n") -> None:
    """Print a line for people, or `several`; whatever a terminal would obey in it is shown as an escape."""
    shown = printable_lines(str(text)) if several else printable(str(text))
    print(shown, end=end, file=sys.stderr if err else sys.stdout, flush=err)


def print_json(value: Any) -> None:
    """NaN and infinities become null; what stdout cannot spell, or a terminal would obey, is JSON's own escape."""
    from cadenza.base.json_text import shown

    print(shown(value, ascii=not spells_everything()))


def spells_everything() -> bool:
    """Whether stdout's encoding knows every letter, and lines as well."""
    return "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Columns named in `right` hold numbers; a nameless head is left out. Into a pipe no line is broken."""
    head, rows = [visible(name) for name in head], [[visible(cell) for cell in row] for row in rows]
    right = [visible(name) for name in right]
    widths = [max(map(width, column)) for column in zip(head, *rows, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) - 2 > shutil.get_terminal_size().columns:
        return print_folded(head, rows, right)
    pads = [str.rjust if name in right else str.ljust for name in head]

    def line(cells: Sequence[str]) -> str:
        padded = (pad(cell, to - width(cell) + len(cell)) for pad, cell, to in zip(pads, cells, widths, strict=True))
        return "  ".join(padded).rstrip()

    if any(head):
        title = line(head)
        print(f"\x1b[1m{title}\x1b[0m" if sys.stdout.isatty() else title)
        print(("─" if spells_everything() else "-") * (sum(widths) + 2 * len(widths) - 2))
    print("\n".join(line(row) for row in rows))
    print()


def visible(text: str) -> str:
    """Return a text for a cell: on one line, without anything that a terminal would obey."""
    return printable(" ".join(text.splitlines()))


def width(cell: str) -> int:
    """Columns of a terminal that a text takes."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len

    return cell_len(cell)


def print_folded(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    """For a terminal that is too narrow: the longest texts go on in the next line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD if any(head) else None, header_style="bold", show_header=any(head), pad_edge=False
    )
    for index, (name, cells) in enumerate(zip(head, zip(*rows, strict=True), strict=True)):
        whole = name in right or index == 0 or max(map(width, cells)) <= SHORT
        table.add_column(Text(name), justify="right" if name in right else "left", no_wrap=whole, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
