"""Tables of metrics and runs, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cadenza.base.formatting import number
from cadenza.errors import MissingExtraError, NotFoundError, install
from cadenza.records.folder import RunFolder

if TYPE_CHECKING:
    from pandas import DataFrame


NOTEBOOK_ROWS = 5  # of the end of a table, shown in a notebook


class Rows(list[dict[str, Any]]):
    """Rows of a table, each a dict by column."""

    def _repr_html_(self) -> str:
        from cadenza.lab.html import Paragraph, Table, fragment

        columns = list(dict.fromkeys(key for row in self for key in row))
        cells = [[_cell(row.get(key, "")) for key in columns] for row in self[-NOTEBOOK_ROWS:]]
        title = Paragraph(f"{len(self)} rows, {len(columns)} columns; the last {len(cells)} rows:")
        return f'<div style="overflow-x: auto">{fragment([title, Table(columns, cells)])}</div>'

    def to_pandas(self) -> DataFrame:
        """Return the rows as a pandas data frame, with a column for every key of any row."""
        try:
            import pandas
        except ImportError as problem:
            raise MissingExtraError(f"to_pandas() needs an extra: {install('pandas')}") from problem
        return pandas.DataFrame(self)


def _cell(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def metric_rows(folders: Sequence[RunFolder]) -> Rows:
    """Return all metrics of runs; each row begins with `run`, `environment`, `algorithm` and `seed`."""
    from cadenza.lab.formats import table

    rows = Rows()
    for folder in folders:
        with suppress(NotFoundError):  # of a run that has no rows yet
            rows += table([folder])[1]
    return rows


def run_rows(folders: Sequence[RunFolder]) -> Rows:
    """Return a row for each run: the columns of `cadenza list`, its latest metrics, and settings that differ."""
    from cadenza.lab.series import differing_keys
    from cadenza.records.query import parsed
    from cadenza.records.run_summary import UNREADABLE, describe

    described = [
        (facts, parsed(text), measured) for facts, text, measured in (describe(folder.path) for folder in folders)
    ]
    differing = differing_keys([settings for _, settings, _ in described])
    return Rows(
        facts
        | ({} if facts["status"] == UNREADABLE else {"status": folder.state()})
        | {key: settings.get(key) for key in differing}
        | measured
        for folder, (facts, settings, measured) in zip(folders, described, strict=True)
    )
