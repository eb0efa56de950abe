"""Export formats: the metrics of runs as CSV, JSON or Parquet, the scores of a comparison as a LaTeX table."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import chain
from typing import Any

from cadenza.base.json_text import dumps, plain, terminal_line
from cadenza.base.text import printable
from cadenza.errors import MissingExtraError, NotFoundError, install
from cadenza.lab.compare import Comparison, Estimate
from cadenza.records import metrics
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves

Row = dict[str, Any]
IDENTITY = ("run", "environment", "algorithm", "seed")  # the columns before the metrics
ESCAPES = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\dots{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def tables(folders: Sequence[RunFolder], selection: Sequence[str] = ()) -> tuple[list[str], list[list[Row]]]:
    """Return the columns, and the rows of metrics of each run, which begin with its identity.

    With a `selection`, the columns are these metrics alone.
    """
    by_run = []
    for folder in folders:
        settings = folder.settings()
        environment, algorithm = (
            (settings.get("environment") or {}).get("id"),
            (settings.get("algorithm") or {}).get("name"),
        )
        identity = dict(zip(IDENTITY, (folder.id, environment, algorithm, settings.get("seed")), strict=True))
        by_run.append([identity | {key: row[key] for key in row if key != metrics.DIGEST} for row in _rows(folder)])
    names = [name for name in metrics.names(chain.from_iterable(by_run)) if name not in IDENTITY]
    if selection:
        first = [name for name in metrics.FIRST if name in names]
        names = [*first, *(metrics.resolve(name, names) for name in selection)]
    return [*IDENTITY, *dict.fromkeys(names)], by_run


def table(folders: Sequence[RunFolder], selection: Sequence[str] = ()) -> tuple[list[str], list[Row]]:
    """Return the columns, and the rows of all runs one after another."""
    names, by_run = tables(folders, selection)
    return names, list(chain.from_iterable(by_run))


def _rows(folder: RunFolder) -> list[Row]:
    rows = metrics.read(folder.metrics)
    if not rows:
        raise NotFoundError(f"run {folder.id} has no rows of metrics yet")
    return rows


def as_csv(folders: Sequence[RunFolder], selection: Sequence[str]) -> str:
    """Return the metrics of runs as CSV, with a header."""
    return metrics.as_csv(*table(folders, selection))


def as_json(folders: Sequence[RunFolder], selection: Sequence[str]) -> str:
    """Return a list of runs, each with its manifest, status, settings and rows: everything except weights."""
    names, by_run = tables(folders, selection)
    columns = set(names).difference(IDENTITY)
    runs = [
        {
            "run": folder.id,
            "status": folder.read_status() | {"status": folder.state()},
            "manifest": folder.read_manifest(),
            "config": folder.settings(),
            "metrics": [{key: row[key] for key in row if key in columns} for row in rows],
        }
        for folder, rows in zip(folders, by_run, strict=True)
    ]
    return terminal_line({"runs": runs}) + "\n"


def as_parquet(folders: Sequence[RunFolder], selection: Sequence[str]) -> bytes:
    """Return the table of CSV, typed, as Parquet; the file's metadata has each config as `cadenza.config.<run>`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as problem:
        raise MissingExtraError(f"--format parquet needs an extra: {install('parquet')}") from problem
    names, rows = table(folders, selection)
    columns = {name: pyarrow.array(_column([plain(row.get(name)) for row in rows])) for name in names}
    settings = {f"cadenza.config.{folder.id}": dumps(dict(leaves(folder.settings()))) for folder in folders}
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(settings), content)
    return content.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: floats for mixed numbers, texts for other mixtures, lists and mappings."""
    types = {type(value) for value in values if value is not None}
    if types == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(types) > 1 or types & {list, dict}:
        return [None if value is None else value if isinstance(value, str) else dumps(value) for value in values]
    return values


def as_latex(result: Comparison) -> str:
    """Return a table of scores with their intervals: a line for each label.

    It has a column for each environment if there are several, else for each metric.
    """
    if len(result.environments) > 1:
        head, subject = result.environments, result.metrics[0]
        columns = [(environment, subject) for environment in head]
    else:
        head, subject = list(result.metrics), result.environments[0]
        columns = [(subject, metric) for metric in head]
    cells = {column: _scores(result, *column) for column in columns}
    lines = [
        f"    {escape(label)} & {' & '.join(cells[column][label] for column in columns)} \\\\"
        for label in result.labels
    ]
    kind = {"final": "Final", "best": "Best"}.get(result.score, f"At step {result.score}:")
    seeds = _seeds(result, {metric for _, metric in columns})
    caption = f"{kind} scores, {subject}: interquartile mean over {seeds} seeds and its 95% bootstrap interval."
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


def _seeds(result: Comparison, names: set[str]) -> str:
    """Return how many seeds the scores of a series have, or from how many to how many."""
    counts = {len(result.scores(series, metric)) for series in result.series for metric in names} - {0}
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low}" if low == high else f"{low} to {high}"


def _scores(result: Comparison, environment: str, metric: str) -> dict[str, str]:
    """Return the cells of a column by label. The highest return is bold; of a loss or an entropy none is the best."""
    estimates = {s.label: result.estimate(s, metric) for s in result.series if s.environment == environment}
    best = None
    if metric.endswith(("return_mean", "win_rate")) and len(result.labels) > 1:
        best = max((estimate.value for estimate in estimates.values() if estimate is not None), default=None)
    return {label: _cell(estimates.get(label), best) for label in result.labels}


def _cell(estimate: Estimate | None, best: float | None) -> str:
    if estimate is None:
        return "--"
    value, low, high = (_digits(x) for x in (estimate.value, estimate.low, estimate.high))
    number = f"\\mathbf{{{value}}}" if estimate.value == best else value
    return f"${number}$ {{\\scriptsize $[{low}, {high}]$}}"


def _digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def escape(text: str) -> str:
    """Return the text escaped for LaTeX."""
    return "".join(ESCAPES.get(letter, letter) for letter in printable(text))
