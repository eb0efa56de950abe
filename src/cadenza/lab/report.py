"""The report of a run, as report.md and report.html: settings, results, learning curve, alerts, next steps."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.formatting import duration, number
from cadenza.base.json_text import dumps
from cadenza.base.text import shell
from cadenza.config.schedules import with_short_schedules
from cadenza.lab import svg_charts
from cadenza.lab.html import Block, Code, Details, Heading, Media, Paragraph, Table, fragment, html, markdown
from cadenza.records import alert_log, metrics, validity
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves

VIDEOS = (".gif", ".mp4", ".webm")  # in order of preference: a GIF plays inside a Markdown page
OTHER_VIDEOS = ("imagination", "episode-", "play-")  # not of the trained policy, or made by a user's command
PARTS = ("collect", "update", "evaluate", "video", "save")
REPORTED = (
    "collect/return_mean",
    *(f"eval/{name}" for name in ("return_mean", "return_std", "return_min", "return_max", "episodes")),
    *(f"time/{part}" for part in PARTS),
)
SECTIONS = ("algorithm.", "environment.", "training.")
NOT_LISTED = ("environment.id", "algorithm.name", "training.phases")  # shown elsewhere, or too long for a table
# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
LINKS = ("report.md", "metrics.csv", "config.yaml", "logs/run.log")  # in a notebook
BUDGETS = (("max_timesteps", "env_steps"), ("max_updates", "updates"))


def write_report(folder: RunFolder) -> SafePath:
    """Write report.md and the learning curve into the run folder; return the path."""
    atomic.write_text(folder.report, markdown(_blocks(folder, page=False), folder.path))
    return folder.report


def write_html(folder: RunFolder) -> SafePath:
    """Write the report as one self-contained HTML file; return the path."""
    path = folder.files / "report.html"
    atomic.write_text(path, html(_blocks(folder, page=True), folder.id))
    return path


def card(folder: RunFolder) -> str:
    """Return a part of an HTML page for notebooks: what the run is and measured, its curve, links to its files."""
    rows, settings, status = metrics.read(folder.metrics, REPORTED), folder.settings(), folder.read_status()
    spec = f"{(settings.get('environment') or {}).get('id')}:{(settings.get('algorithm') or {}).get('name')}"
    blocks: list[Block] = [Table((folder.id, spec), _summary(folder, rows, settings, status))]
    if chart := svg_charts.learning_curve(rows, spec, status.get("return_threshold")):
        blocks.append(Media(folder.curves, f"return over env_steps of {spec}", svg_charts.svg([chart], page=True)))
    places = [(name, folder.path / name) for name in LINKS if (folder.files / name).exists()]
    links = " · ".join(f'<a href="{quote(os.path.relpath(path))}">{name}</a>' for name, path in places)
    return f'<div style="--ink: currentColor; --faint: #8884; max-width: 48em">{fragment(blocks)}{links}</div>'


def _blocks(folder: RunFolder, page: bool) -> list[Block]:
    """Return the report; with `page`, for HTML, where plots take the page's colours and the config is included."""
    rows = metrics.read(folder.metrics, REPORTED)
    settings, manifest, status = folder.settings(), folder.read_manifest(), folder.read_status()
    decisions = folder.read_decisions()
    config = folder.config.read_text(errors="replace") if page else ""
    spec = manifest.get("spec", folder.id)
    blocks: list[Block] = [
        Heading(spec, level=1),
        Paragraph(f"Run {folder.id}"),
        Table(("", ""), _summary(folder, rows, settings, status)),
    ]
    title, threshold = f"{spec}, seed {settings.get('seed')}", status.get("return_threshold")
    if chart := svg_charts.learning_curve(rows, title, threshold):
        atomic.write_text(folder.curves, svg_charts.svg([chart]))
        curve = Media(folder.curves, f"return over env_steps of {spec}", svg_charts.svg([chart], page=True))
        blocks += [Heading("Learning curve"), curve]
    video = _video(folder, page)
    if video is not None:
        blocks += [Heading("Video"), Media(video, "an episode of the trained policy")]
    if page and (panels := svg_charts.update_panels(metrics.sample(folder.metrics))):
        image = svg_charts.svg(panels, svg_charts.COLUMNS, page=True)
        blocks += [Heading("Training"), Media(folder.curves, "metrics of the updates", image)]
    blocks += [Heading("Alerts"), *_alerts(folder)]
    if times := _times(rows, status.get("seconds") or 0.0):
        blocks += [Heading("Time"), Table(("part", "time", "share"), times)]
    blocks += [Heading("Settings"), Paragraph(_origin(settings)), Table(("key", "value"), highlights(settings))]
    if decisions:
        blocks += [Heading("Decided automatically"), Table(("what", "choice"), _pairs(decisions))]
    machine = manifest.get("machine") or {}
    blocks += [
        Heading("Made with"),
        Table(("", ""), _pairs({**(manifest.get("versions") or {}), **machine, "git": _git(manifest.get("git"))})),
        Heading("Next steps"),
        Code(_commands(folder)),
    ]
    if page:
        blocks.append(Details("The whole config", config))
    return blocks


def _alerts(folder: RunFolder) -> list[Block]:
    """Return a row for each rule that matched: how often, and its first alert."""
    by_rule: dict[str, list[alert_log.Alert]] = {}
    for alert in alert_log.read(folder.alerts):
        by_rule.setdefault(str(alert.get("rule")), []).append(alert)
    if not by_rule:
        return [Paragraph("None.")]
    rows = []
    for rule, alerts in by_rule.items():
        first = alerts[0]
        message = (str(first.get("what")), str(first.get("hint") or ""))
        rows.append((rule, str(len(alerts)), str(first.get("env_steps")), *message))
    return [Table(("rule", "times", "first at", "what", "try"), rows)]


def _times(rows: list[dict[str, Any]], seconds: float) -> list[tuple[str, str, str]]:
    """Return the time spent in each part of the loop, with its share of `seconds`."""
    spent = {name: sum(row.get(f"time/{name}") or 0.0 for row in rows) for name in PARTS}
    spent = {name: value for name, value in spent.items() if value > 0}
    if not spent or seconds <= 0:
        return []
    spent["the rest"] = max(0.0, seconds - sum(spent.values()))
    return [
        (name, duration(value) if value >= 60 else f"{value:.2f} s", f"{100 * value / seconds:.0f} %")
        for name, value in spent.items()
    ]


def _summary(
    folder: RunFolder, rows: list[dict[str, Any]], settings: dict[str, Any], status: dict[str, Any]
) -> list[tuple[str, str]]:
    evaluated = [row for row in rows if row.get("eval/return_mean") is not None]
    training = settings.get("training") or {}
    budget = [f"{training[key]:,} {unit}" for key, unit in BUDGETS if training.get(key)]
    steps, seconds = status.get("env_steps") or 0, status.get("seconds") or 0.0
    lines = [
        ("seed", str(settings.get("seed"))),
        ("status", folder.state() + (f": {status['message']}" if status.get("message") else "")),
        ("budget", ", ".join(budget) or "-"),
        ("done", f"{steps:,} env_steps, {status.get('updates') or 0:,} updates"),
        ("time", duration(seconds) + (f" ({number(steps / seconds)} steps/s)" if seconds else "")),
    ]
    if evaluated:
        lines.append(("final evaluation", _evaluation(evaluated[-1])))
        lines.append(("best evaluation", _evaluation(_best(folder, evaluated))))
    return lines


def _best(folder: RunFolder, evaluated: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the best checkpoint (the newest where teams play each other), else of the best return."""
    name = validity.pointer(folder.checkpoints / "best") or ""
    rows = [row for row in evaluated if name.startswith(f"step-{row['env_steps']:012d}-")]
    return rows[-1] if rows else max(evaluated, key=lambda row: (row["eval/return_mean"], row["env_steps"]))


def _evaluation(row: dict[str, Any]) -> str:
    text = number(row["eval/return_mean"])
    if row.get("eval/return_std") is not None:
        text += f" ± {number(row['eval/return_std'])}"
    if row.get("eval/return_min") is not None and row.get("eval/return_max") is not None:
        text += f" (from {number(row['eval/return_min'])} to {number(row['eval/return_max'])})"
    episodes, std = row.get("eval/episodes"), row.get("eval/return_std")
    if episodes:
        text += f", {episodes} episodes"
    if episodes and episodes > 1 and std is not None:
        # `std` is the deviation of the sample, not corrected
        half = student_t(episodes - 1) * std / (episodes - 1) ** 0.5
        low, high = row["eval/return_mean"] - half, row["eval/return_mean"] + half
        text += f", 95 % interval of the mean [{number(low)}, {number(high)}]"
    return f"{text}, at {row['env_steps']:,} env_steps"


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t: half the width of a 95 % interval of a mean, in standard errors."""
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96  # of the expansion in 1 / freedom
    return z + first / freedom + second / freedom / freedom


def _video(folder: RunFolder, page: bool) -> SafePath | None:
    """Return the newest video of the trained policy, if there is one; an HTML page plays any kind."""
    for kind in reversed(VIDEOS) if page else VIDEOS:
        videos = [path for path in folder.videos.glob(f"*{kind}") if not path.name.startswith(OTHER_VIDEOS)]
        if videos:
            return videos[-1]
    return None


def _origin(settings: dict[str, Any]) -> str:
    experiment = settings.get("experiment")
    return f"From the tuned experiment {experiment}." if experiment else "Untuned: the algorithm's defaults."


def highlights(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of the algorithm, the environment and the training, as (key, value) texts."""
    flat = with_short_schedules(dict(leaves(settings)))
    return _pairs({key: flat[key] for key in flat if key.startswith(SECTIONS) and key not in NOT_LISTED})


def _pairs(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key, _text(value)) for key, value in values.items() if value is not None]


def _text(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"value", "reason"}:  # a decision
        return f"{value['value']} ({value['reason']})"
    return value if isinstance(value, str) else dumps(value)


def _git(state: dict[str, Any] | None) -> str | None:
    if not state:
        return None
    return f"{state.get('commit')}{' with local changes' if state.get('dirty') else ''}"


def _commands(folder: RunFolder) -> str:
    lines = [
        (f"cadenza evaluate {folder.reference} --episodes 100", "measure the policy"),
        (f"cadenza resume {folder.reference} --max-timesteps N", "continue training exactly where it stopped"),
        (f"cadenza verify {folder.reference}", "repeat the run and compare"),
        (f"cadenza train {shell(str(folder.config))}", "start a new run with the same settings"),
    ]
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"{command:<{width}}  # {why}" for command, why in lines)
