"""report.md and report.html of a comparison: every seed's curve, scores with intervals, what was set otherwise."""

from __future__ import annotations

from pathlib import Path

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.formatting import duration, number
from cadenza.base.json_text import dumps
from cadenza.base.text import command
from cadenza.lab import curves, plots
from cadenza.lab.compare import Comparison, Estimate
from cadenza.lab.html import Block, Code, Heading, Media, Paragraph, Table, html, markdown


def write_comparison(result: Comparison, out: Path) -> dict[str, Path]:
    """The report in a folder: for reading, and as one file to send around."""
    out.mkdir(parents=True, exist_ok=True)
    picture = SafePath(out) / "comparison.png"
    plots.draw(result, picture, "env_steps")
    blocks, title = _blocks(result, picture), _title(result)
    paths = {"report": out / "report.md", "html": out / "report.html"}
    atomic.write_text(paths["report"], markdown(blocks, out))
    atomic.write_text(paths["html"], html(blocks, title))
    return paths


def _title(result: Comparison) -> str:
    return "Comparison: " + ", ".join(result.environments)


def _blocks(result: Comparison, picture: SafePath) -> list[Block]:
    drawing = curves.as_svg(plots.plain_figure(result, "env_steps"))
    blocks: list[Block] = [
        Heading(_title(result), level=1),
        Media(picture, f"{', '.join(result.metrics)} of {', '.join(result.labels)}", drawing),
    ]
    for metric in result.metrics:
        blocks += [Heading(f"Scores: {metric}"), Table(*_scores(result, metric))]
    if len(result.environments) > 1 and result.whole:
        blocks += [Heading("All environments, scaled"), Table(*_overall(result))]
    differences = result.differences()
    if differences:
        titles = list(next(iter(differences.values())))
        rows = [(key, *(_value(values[title]) for title in titles)) for key, values in differences.items()]
        blocks += [Heading("Settings that differ"), Table(("setting", *titles), rows)]
    blocks += [Paragraph(note) for note in result.notes_along("env_steps")]
    ids = [member.folder.id for one in result.series for member in one.members]
    return [
        *blocks,
        Heading("Runs"),
        Table(("run", "runs with", "seed", "status", "env_steps", "time"), _runs(result)),
        Heading("Go on from here"),
        Code(f"cadenza compare {command(ids)} --plot compare.html"),
    ]


def _scores(result: Comparison, metric: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    first = result.labels[0]
    head = ("environment", "runs", "seeds", "IQM", "95 % interval", "min", "max", f"P(above {first})")
    rows: list[tuple[str, ...]] = []
    for one in result.series:
        estimate, values = result.estimate(one, metric), result.scores(one, metric)
        if estimate is None:
            rows.append((one.environment, one.label, "0", "-", "", "", "", ""))
            continue
        better = None if one.label == first else result.improvement(one.label, first, metric, one.environment)
        ends = (number(float(values.min())), number(float(values.max())))
        rows.append(
            (
                one.environment,
                one.label,
                str(len(values)),
                number(estimate.value),
                _span(estimate),
                *ends,
                _odds(better),
            )
        )
    return head, rows


def _overall(result: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    metric, first = result.metrics[0], result.labels[0]
    rows: list[tuple[str, ...]] = []
    for label in result.labels:
        estimate = result.overall(label, metric)
        better = None if label == first else result.improvement(label, first, metric)
        if estimate is not None:
            rows.append((label, number(estimate.value), _span(estimate), _odds(better)))
    return ("runs", "IQM", "95 % interval", f"P(above {first})"), rows


def _runs(result: Comparison) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in result.series:
        for member in one.members:
            status = member.folder.read_status()
            seconds = duration(status.get("seconds") or 0.0)
            steps = f"{status.get('env_steps') or 0:,}"
            rows.append((member.folder.id, one.label, str(member.seed), member.folder.state(), steps, seconds))
    return rows


def _span(estimate: Estimate) -> str:
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def _odds(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.2f} {_span(estimate)}"


def _value(value: object) -> str:
    return "-" if value is None else dumps(value).strip('"')
