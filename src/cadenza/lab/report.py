"""report.md and report.html: what a run was, how it went, how to go on from it."""

from __future__ import annotations

from typing import Any

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.formatting import duration, number
from cadenza.base.json_text import dumps
from cadenza.base.text import shell
from cadenza.lab import curves
from cadenza.lab.html import Block, Code, Folded, Heading, Media, Paragraph, Table, html, markdown
from cadenza.records import alert_log, metrics
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves

FILMS = (".gif", ".mp4", ".webm")  # the first kind found is shown: a GIF plays inside a Markdown page
APART_FILMS = ("imagination", "episode-", "play-")  # none of the trained policy, or made for somebody's eyes
PARTS = ("collect", "update", "evaluate", "video", "save")
SECTIONS = ("algorithm.", "environment.", "training.")
APART = ("environment.id", "algorithm.name", "training.phases")  # said elsewhere, or too long for a table
FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # for 1 to 10 degrees of freedom
BUDGETS = (("max_timesteps", "env_steps"), ("max_updates", "updates"))


def write_report(folder: RunFolder) -> SafePath:
    """Write report.md and its curve into the run folder."""
    atomic.write_text(folder.report, markdown(_blocks(folder, page=False), folder.path))
    return folder.report


def write_html(folder: RunFolder) -> SafePath:
    """The same page as one self-contained HTML file."""
    path = folder.files / "report.html"
    atomic.write_text(path, html(_blocks(folder, page=True), folder.id))
    return path


def _blocks(folder: RunFolder, page: bool) -> list[Block]:
    """`page`: for HTML, where drawings take the page's colours."""
    rows = metrics.read(folder.metrics)
    settings, manifest, status = folder.settings(), folder.read_manifest(), folder.read_status()
    decisions = folder.read_decisions()
    spec = manifest.get("spec", folder.id)
    blocks: list[Block] = [
        Heading(spec, level=1),
        Paragraph(f"Run {folder.id}"),
        Table(("", ""), _summary(folder, rows, settings, status)),
    ]
    title, threshold = f"{spec}, seed {settings.get('seed')}", status.get("return_threshold")
    if curves.draw(rows, folder.curves, title, threshold):
        curve = Media(folder.curves, f"return over env_steps of {spec}", _drawing(page, rows, title, threshold))
        blocks += [Heading("Learning curve"), curve]
    film = _film(folder, page)
    if film is not None:
        blocks += [Heading("Video"), Media(film, "an episode of the trained policy")]
    if page and (measured := curves.training(rows)) is not None:
        blocks += [Heading("Training"), Media(folder.curves, "what updates measured", curves.as_svg(measured))]
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
        Heading("Go on from here"),
        Code(_commands(folder)),
    ]
    return blocks if not page else [*blocks, Folded("The whole config", folder.config.read_text(errors="replace"))]


def _drawing(page: bool, rows: list[dict[str, Any]], title: str, threshold: float | None) -> str | None:
    figure = curves.learning(rows, title, threshold) if page else None
    return None if figure is None else curves.as_svg(figure)


def _alerts(folder: RunFolder) -> list[Block]:
    """Each rule that found something, with how often and what it said first."""
    found: dict[str, list[alert_log.Alert]] = {}
    for alert in alert_log.read(folder.alerts):
        found.setdefault(str(alert.get("rule")), []).append(alert)
    if not found:
        return [Paragraph("None.")]
    rows = []
    for rule, told in found.items():
        first = told[0]
        said = (str(first.get("what")), str(first.get("hint") or ""))
        rows.append((rule, str(len(told)), str(first.get("env_steps")), *said))
    return [Table(("rule", "times", "first at", "what", "try"), rows)]


def _times(rows: list[dict[str, Any]], seconds: float) -> list[tuple[str, str, str]]:
    """Where the time went, by part of the loop."""
    spent = {name: sum(row.get(f"time/{name}") or 0.0 for row in rows) for name in PARTS}
    spent = {name: value for name, value in spent.items() if value > 0}
    if not spent or seconds <= 0:
        return []
    spent["the rest"] = max(0.0, seconds - sum(spent.values()))
    return [(name, duration(value), f"{100 * value / seconds:.0f} %") for name, value in spent.items()]


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
        best = max(evaluated, key=lambda row: row["eval/return_mean"])
        lines += [("final evaluation", _evaluation(evaluated[-1])), ("best evaluation", _evaluation(best))]
    return lines


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
        half = student_t(episodes - 1) * std / (episodes - 1) ** 0.5  # the standard deviation is that of these episodes
        low, high = row["eval/return_mean"] - half, row["eval/return_mean"] + half
        text += f", 95 % interval of the mean [{number(low)}, {number(high)}]"
    return f"{text}, at {row['env_steps']:,} env_steps"


def student_t(freedom: int) -> float:
    """How many standard errors around a mean 95 % of them lie within, by Student's distribution."""
    if freedom <= len(FEW):
        return FEW[freedom - 1]
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96  # of its expansion in 1 / freedom
    return z + first / freedom + second / freedom**2


def _film(folder: RunFolder, page: bool) -> SafePath | None:
    for kind in reversed(FILMS) if page else FILMS:  # a page plays anything
        found = [path for path in folder.videos.glob(f"*{kind}") if not path.name.startswith(APART_FILMS)]
        if found:
            return found[-1]
    return None


def _origin(settings: dict[str, Any]) -> str:
    experiment = settings.get("experiment")
    return f"From the tuned experiment {experiment}." if experiment else "Untuned: the algorithm's defaults."


def highlights(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """The algorithm's and the environment's own keys, and how long: what one would change first."""
    flat = {key: value for key, value in leaves(_in_words(settings)) if key.startswith(SECTIONS) and key not in APART}
    return _pairs(flat)


def _in_words(settings: Any) -> Any:
    """Schedules, which are several keys, as one text."""
    if not isinstance(settings, dict):
        return settings
    if "schedule" in settings:
        values = f"from {settings['start_value']} to {settings['end_value']}"
        return f"{settings['schedule']} {values} (start {settings['start']}, end {settings['end']})"
    return {key: _in_words(value) for key, value in settings.items()}


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
        (f"cadenza resume {folder.reference} --max-timesteps N", "train on, exactly where it stopped"),
        (f"cadenza verify {folder.reference}", "do it again and compare"),
        (f"cadenza train {shell(str(folder.config))}", "a new run with the same settings"),
    ]
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"{command:<{width}}  # {why}" for command, why in lines)
