"""report.md and report.html: what a run was, how it went, how to go on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cadenza.monitor.sparkline import duration, number
from cadenza.records import atomic, curves, metrics
from cadenza.records.document import Block, Code, Heading, Media, Paragraph, Table, html, markdown
from cadenza.records.folder import RunFolder
from cadenza.records.json_text import dumps
from cadenza.trees import leaves

FILMS = (".gif", ".mp4", ".webm")  # the first kind found is shown: a GIF plays inside a Markdown page
SECTIONS = ("algorithm.", "environment.", "training.")
APART = ("environment.id", "algorithm.name", "training.phases")  # said elsewhere, or too long for a table
BUDGETS = (("max_timesteps", "env_steps"), ("max_updates", "updates"))


def write_report(folder: RunFolder) -> Path:
    """Write report.md and its curve into the run folder."""
    atomic.write_text(folder.report, markdown(_blocks(folder), folder.path))
    return folder.report


def write_html(folder: RunFolder) -> Path:
    """The same page as one self-contained HTML file."""
    path = folder.path / "report.html"
    atomic.write_text(path, html(_blocks(folder), folder.id))
    return path


def _blocks(folder: RunFolder) -> list[Block]:
    rows = metrics.read(folder.metrics)
    settings, manifest, status = folder.settings(), folder.read_manifest(), folder.read_status()
    decisions = folder.read_decisions()
    spec = manifest.get("spec", folder.id)
    blocks: list[Block] = [
        Heading(spec, level=1),
        Paragraph(f"Run {folder.id}"),
        Table(("", ""), _summary(folder, rows, settings, status)),
    ]
    if curves.draw(rows, folder.curves, f"{spec}, seed {settings.get('seed')}", status.get("return_threshold")):
        blocks += [Heading("Learning curve"), Media(folder.curves, f"return over env_steps of {spec}")]
    film = _film(folder)
    if film is not None:
        blocks += [Heading("Video"), Media(film, "an episode of the trained policy")]
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
    return blocks


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
    if row.get("eval/episodes"):
        text += f", {row['eval/episodes']} episodes"
    return f"{text}, at {row['env_steps']:,} env_steps"


def _film(folder: RunFolder) -> Path | None:
    for kind in FILMS:
        found = sorted(folder.videos.glob(f"*{kind}"))
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
    return f"{state['commit']}{' with local changes' if state.get('dirty') else ''}"


def _commands(folder: RunFolder) -> str:
    lines = [
        (f"cadenza evaluate {folder.id} --episodes 100", "measure the policy"),
        (f"cadenza resume {folder.id} --max-timesteps N", "train on, exactly where it stopped"),
        (f"cadenza verify {folder.id}", "do it again and compare"),
        (f"cadenza train {folder.path}/config.yaml", "a new run with the same settings"),
    ]
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"{command:<{width}}  # {why}" for command, why in lines)
