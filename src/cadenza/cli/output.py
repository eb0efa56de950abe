"""Print results to stdout, as a table or as one line of JSON; and the options that several commands share."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.base.text import lines as printable_lines
from cadenza.base.text import printable

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="ENV:VARIANT, the name of an experiment, or a YAML or JSON file.")
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="key=value …", help="Change these settings.")]
ConfigDir = Annotated[Path | None, typer.Option(help="Search this folder for config groups of your own, too.")]
RunsDir = Annotated[Path | None, typer.Option("--runs-dir", help="Keep runs here. Default: CADENZA_RUNS, or ./runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", envvar="CADENZA_QUIET", help="Print warnings only.")]
Trust = Annotated[bool, typer.Option("--trust", help="Trust a config from elsewhere, which may name code or publish.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="An id, a unique prefix, a path, @last or @best[:SPEC].")]
Checkpoint = Annotated[
    str | None, typer.Option(help="Load best, last, or a number of env_steps. Default: best, if there is one.")
]
Filters = Annotated[
    list[str] | None, typer.Option("--filter", "-f", metavar="KEY=VALUE", help="Select runs, as `list` does.")
]

SHORT, NAME = 12, 32  # columns so narrow are never folded; those of names without spaces


def say(text: object = "", err: bool = False, several: bool = False, end: str = "\n") -> None:
    """Print a line, or `several` lines, for people; escape whatever a terminal would obey."""
    escaped = printable_lines(str(text)) if several else printable(str(text))
    print(escaped, end=end, file=sys.stderr if err else sys.stdout, flush=err)


def progress(line: str) -> None:
    """Print on stderr what is done next."""
    say(line, err=True)


def require_parent(option: str, path: Path | None) -> None:
    """Refuse an output file whose folder does not exist."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"{option} {path}: there is no folder {path.parent}")


def print_json(value: Any) -> None:
    """Print JSON with null for NaN and infinities; escape what stdout cannot encode or a terminal would obey."""
    from cadenza.base.json_text import terminal_line

    print(terminal_line(value, ascii=not stdout_is_unicode()))


def stdout_is_unicode() -> bool:
    """Return whether stdout can encode every character, box-drawing lines included."""
    return "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; columns named in `right` are aligned right, a head without names is left out.

    A table that is too wide for the terminal is folded; into a pipe no line is broken.
    """
    head, rows = [visible(name) for name in head], [[visible(cell) for cell in row] for row in rows]
    right = [visible(name) for name in right]
    widths = [max(map(width, column)) for column in zip(head, *rows, strict=True)]
    room = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) - 2 > room:
        from rich.console import Console

        if room - _room_beside_ids(head, rows, right) < SHORT:
            for identity, *cells in rows:
                pairs = ", ".join(f"{name} {cell}".strip() for name, cell in zip(head[1:], cells, strict=True) if cell)
                print(identity, *textwrap.wrap(pairs, room, initial_indent="  ", subsequent_indent="  "), sep="\n")
        else:
            Console(width=room).print(folded_table(head, rows, right, room))
        return print()

    def line(cells: Sequence[str]) -> str:
        padding = [" " * (room - width(cell)) for room, cell in zip(widths, cells, strict=True)]
        padded = (
            blank + cell if name in right else cell + blank
            for name, cell, blank in zip(head, cells, padding, strict=True)
        )
        return "  ".join(padded).rstrip()

    if any(head):
        title = line(head)
        print(f"\x1b[1m{title}\x1b[0m" if sys.stdout.isatty() else title)
        print(("─" if stdout_is_unicode() else "-") * (sum(widths) + 2 * len(widths) - 2))
    print("\n".join(line(row) for row in rows))
    print()


def visible(text: str) -> str:
    """Return a text for a cell: on one line, without anything that a terminal would obey."""
    return printable(" ".join(text.splitlines()))


def cut(text: str, limit: int) -> str:
    """Return the text, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def width(cell: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len

    return cell_len(cell)


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> tuple[list[int], list[bool]]:
    """Return for each column its greatest width, and whether it must not be folded."""
    texts = list(zip(head, *rows, strict=True))
    longest = [max(map(width, cells)) for cells in texts]
    limits = [SHORT if any(" " in cell for cell in cells[1:]) else NAME for cells in texts]
    return longest, [
        cells[0] in right or widest <= limit for cells, widest, limit in zip(texts, longest, limits, strict=True)
    ]


def _room_beside_ids(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> int:
    """Return the width that all columns but the first need at least, with the blanks between columns."""
    columns = list(zip(*_columns(head, rows, right), strict=True))[1:]
    return sum(widest if is_whole else SHORT for widest, is_whole in columns) + 2 * len(columns)


def folded_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], room: int) -> Any:
    """Return a table of rich's for a terminal of `room` columns: the longest texts continue on the next line.

    Columns of numbers, names and short texts stay whole; the first, of ids, as far as there is room.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    longest, whole = _columns(head, rows, right)
    whole[0] = longest[0] + _room_beside_ids(head, rows, right) <= room
    style = box.SIMPLE_HEAD if any(head) else None
    table = Table(box=style, header_style="bold", show_header=any(head), show_edge=False, pad_edge=False)
    table.padding = (0, 1 if style else 2, 0, 0)  # with a box, a blank between two columns comes with it
    for name, widest, is_whole in zip(head, longest, whole, strict=True):
        table.add_column(
            Text(name),
            justify="right" if name in right else "left",
            min_width=widest if is_whole else None,
            no_wrap=is_whole,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
