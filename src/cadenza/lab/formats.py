"""Runs for other programs and for papers: their metrics as CSV, JSON or Parquet, their scores as a LaTeX table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import chain
from typing import Any

from cadenza.base.json_text import dumps, plain, shown
from cadenza.base.text import cell, printable
from cadenza.errors import MissingExtraError, NotFoundError, install
from cadenza.lab.compare import Comparison, Estimate
from cadenza.records import metrics
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves

Row = dict[str, Any]
WHO = ("run", "environment", "algorithm", "seed")  # columns before the metrics
ESCAPES = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\dots{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def tables(folders: Sequence[RunFolder], wanted: Sequence[str] = ()) -> tuple[list[str], list[list[Row]]]:
    """Columns, and each run's rows of metrics with whose they are; `wanted` metrics alone, if any are named."""
    found = []
    for folder in folders:
        settings = folder.settings()
        values = (
            folder.id,
            (settings.get("environment") or {}).get("id"),
            (settings.get("algorithm") or {}).get("name"),
            settings.get("seed"),
        )
        who = dict(zip(WHO, values, strict=True))
        found.append([who | {key: row[key] for key in row if key != metrics.DIGEST} for row in _rows(folder)])
    names = [name for name in metrics.names(chain.from_iterable(found)) if name not in WHO]
    if wanted:
        first = [name for name in metrics.FIRST if name in names]
        names = [*first, *(metrics.resolve(name, names) for name in wanted)]
    return [*WHO, *dict.fromkeys(names)], found


def table(folders: Sequence[RunFolder], wanted: Sequence[str] = ()) -> tuple[list[str], list[Row]]:
    """The same with the rows of all runs one after another."""
    names, found = tables(folders, wanted)
    return names, list(chain.from_iterable(found))


def _rows(folder: RunFolder) -> list[Row]:
    rows = metrics.read(folder.metrics)
    if not rows:
        raise NotFoundError(f"run {folder.id} has no rows of metrics yet")
    return rows


def as_csv(folders: Sequence[RunFolder], wanted: Sequence[str]) -> str:
    names, rows = table(folders, wanted)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, names))
    writer.writerows([cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def as_json(folders: Sequence[RunFolder], wanted: Sequence[str]) -> str:
    """A list of runs, each with its manifest, status, settings and rows: all there is to know of it but its weights."""
    names, found = tables(folders, wanted)
    kept = set(names).difference(WHO)
    runs = [
        {
            "run": folder.id,
            "status": folder.read_status() | {"status": folder.state()},
            "manifest": folder.read_manifest(),
            "config": folder.settings(),
            "metrics": [{key: row[key] for key in row if key in kept} for row in rows],
        }
        for folder, rows in zip(folders, found, strict=True)
    ]
    return shown({"runs": runs}) + "\n"


def as_parquet(folders: Sequence[RunFolder], wanted: Sequence[str]) -> bytes:
    """The same table as CSV, typed; the config of each run is in the file's metadata under `cadenza.config.<run>`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as problem:
        raise MissingExtraError(f"--format parquet needs an extra: {install('parquet')}") from problem
    names, rows = table(folders, wanted)
    columns = {name: pyarrow.array(_column([plain(row.get(name)) for row in rows])) for name in names}
    settings = {f"cadenza.config.{folder.id}": dumps(dict(leaves(folder.settings()))) for folder in folders}
    written = io.BytesIO()
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(settings), written)
    return written.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Numbers as numbers of one kind; a column of several kinds as texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1 or kinds & {list, dict}:
        return [None if value is None else value if isinstance(value, str) else dumps(value) for value in values]
    return values


def as_latex(result: Comparison) -> str:
    """Scores with their intervals: a line for each series, a column for each metric, or for each environment."""
    many = len(result.environments) > 1
    columns = (
        [(env, result.metrics[0]) for env in result.environments]
        if many
        else [(result.environments[0], metric) for metric in result.metrics]
    )
    head = [env if many else metric for env, metric in columns]
    measured = result.metrics[:1] if many else result.metrics
    scores = [len(result.scores(one, metric)) for one in result.series for metric in measured]
    counts = sorted({count for count in scores if count}) or [0]
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = {"final": "Final", "best": "Best"}.get(result.score, f"At step {result.score}:")
    subject = result.metrics[0] if many else result.environments[0]
    caption = f"{what} scores, {subject}: interquartile mean over {seeds} seeds and its 95% bootstrap interval."
    best = {column: _highest(result, *column) for column in columns}
    lines = []
    for label in result.labels:
        cells = [_cell(_of(result, label, *column), best[column]) for column in columns]
        lines.append(f"    {escape(label)} & {' & '.join(cells)} \\\\")
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            "\\begin{table}",
            "  \\centering",
            f"  \\begin{{tabular}}{{l{'r' * len(columns)}}}",
            "    \\toprule",
            f"    & {' & '.join(map(escape, head))} \\\\",
            "    \\midrule",
            *lines,
            "    \\bottomrule",
            "  \\end{tabular}",
            f"  \\caption{{{escape(caption)}}}",
            "\\end{table}",
            "",
        ]
    )


def _of(result: Comparison, label: str, environment: str, metric: str) -> Estimate | None:
    for one in result.series:
        if (one.label, one.environment) == (label, environment):
            return result.estimate(one, metric)
    return None


def _highest(result: Comparison, environment: str, metric: str) -> float | None:
    """The score to print bold: of several, the highest return. Of a loss or an entropy none is the best."""
    if not metric.endswith(("return_mean", "win_rate")) or len(result.labels) < 2:
        return None
    found = [_of(result, label, environment, metric) for label in result.labels]
    return max((estimate.value for estimate in found if estimate is not None), default=None)


def _cell(estimate: Estimate | None, best: float | None) -> str:
    if estimate is None:
        return "--"
    value, low, high = (_digits(number) for number in (estimate.value, estimate.low, estimate.high))
    shown = f"\\mathbf{{{value}}}" if best is not None and estimate.value == best else value
    return f"${shown}$ {{\\scriptsize $[{low}, {high}]$}}"


def _digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def escape(text: str) -> str:
    """For LaTeX."""
    return "".join(ESCAPES.get(letter, letter) for letter in printable(text))
