"""The report of a comparison, as report.md and report.html: every seed's curve, the scores, settings that differ."""

from __future__ import annotations

from pathlib import Path

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.formatting import duration
from cadenza.base.text import command
from cadenza.lab import charts, plots
from cadenza.lab.compare import Comparison
from cadenza.lab.comparison_tables import overall_table, score_table, settings_table
from cadenza.lab.html import Block, Code, Heading, Media, Paragraph, Table, html, markdown


def write_comparison(result: Comparison, out: Path) -> dict[str, Path]:
    """Write comparison.png, report.md and a self-contained report.html into a folder; return the reports' paths."""
    out.mkdir(parents=True, exist_ok=True)
    picture = SafePath(out) / "comparison.png"
    plots.draw(result, picture, "env_steps")
    title = "Comparison: " + ", ".join(result.environments)
    blocks = _blocks(result, title, picture)
    paths = {"report": out / "report.md", "html": out / "report.html"}
    atomic.write_text(paths["report"], markdown(blocks, out))
    atomic.write_text(paths["html"], html(blocks, title))
    return paths


def _blocks(result: Comparison, title: str, picture: SafePath) -> list[Block]:
    drawing = charts.as_svg(plots.build_figure(result, "env_steps"))
    blocks: list[Block] = [
        Heading(title, level=1),
        Media(picture, f"{', '.join(result.metrics)} of {', '.join(result.labels)}", drawing),
    ]
    for metric in result.metrics:
        blocks += [Heading(f"Scores: {metric}"), Table(*score_table(result, metric))]
    if result.has_overall:
        blocks += [Heading("All environments, scaled"), Table(*overall_table(result))]
    head, rows = settings_table(result)
    if rows:
        blocks += [Heading("Settings that differ"), Table(head, rows)]
    blocks += [Paragraph(note) for note in result.notes_along("env_steps")]
    ids = [member.folder.id for series in result.series for member in series.members]
    return [
        *blocks,
        Heading("Runs"),
        Table(("run", "runs with", "seed", "status", "env_steps", "time"), _runs(result)),
        Heading("Next steps"),
        Code(f"cadenza compare {command(ids)} --plot compare.html"),
    ]


def _runs(result: Comparison) -> list[list[str]]:
    rows = []
    for series in result.series:
        for member in series.members:
            status = member.folder.read_status()
            seconds = duration(status.get("seconds") or 0.0)
            steps = f"{status.get('env_steps') or 0:,}"
            rows.append([member.folder.id, series.label, str(member.seed), member.folder.state(), steps, seconds])
    return rows
