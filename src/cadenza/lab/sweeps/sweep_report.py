"""report.md of a sweep: the best trials, what mattered, pictures, and how to go on; the same facts as JSON."""

from __future__ import annotations

from typing import Any

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.formatting import number
from cadenza.base.json_text import dumps
from cadenza.base.text import command as command_line
from cadenza.base.text import shell
from cadenza.lab.html import Block, Code, Heading, Media, Paragraph, Table, html, markdown
from cadenza.lab.sweeps.drive import Sweep
from cadenza.lab.sweeps.importance import importance
from cadenza.lab.sweeps.journal import Trial
from cadenza.lab.sweeps.sweep_picture import draw_history, draw_parameters
from cadenza.records.folder import RunFolder, runs_root

SHOWN = 20  # trials in the table


def result(sweep: Sweep) -> dict[str, Any]:
    """What `sweep --json` prints."""
    plan, journal = sweep.plan, sweep.journal
    ranked = journal.ranked(plan.file.objective.sign)
    over = len(journal.over) >= plan.total
    return {
        "sweep": plan.id,
        "dir": str(sweep.folder.path.absolute()),
        "status": "finished" if over else "interrupted",
        "objective": plan.file.objective.metric,
        "best": ranked[0].summary() if ranked else None,
        "best_config": str(sweep.folder.best.path.absolute()) if ranked else None,
        "importance": shares(sweep),
        "trials": [trial.summary() for trial in journal.trials.values()],
    }


def measured(sweep: Sweep) -> list[Trial]:
    return [trial for trial in sweep.journal.over if trial.value is not None]


def shares(sweep: Sweep) -> dict[str, float]:
    found = measured(sweep)
    values = [trial.value for trial in found if trial.value is not None]
    return importance(sweep.plan.space.dimensions, [trial.params for trial in found], values)


def write_report(sweep: Sweep, command: list[str]) -> SafePath:
    """result.json, the pictures, report.md and report.html, in the sweep's folder."""
    folder = sweep.folder
    atomic.write_json(folder.files / "result.json", result(sweep))
    blocks = _blocks(sweep, command)
    atomic.write_text(folder.report, markdown(blocks, folder.path))
    atomic.write_text(folder.files / "report.html", html(blocks, sweep.plan.id))
    return folder.report


def _blocks(sweep: Sweep, command: list[str]) -> list[Block]:
    plan, journal, folder = sweep.plan, sweep.journal, sweep.folder
    file, objective = plan.file, plan.file.objective
    ranked, found = journal.ranked(objective.sign), measured(sweep)
    counts = {
        state: len([trial for trial in journal.over if trial.state == state])
        for state in ("finished", "pruned", "failed")
    }
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    blocks: list[Block] = [
        Heading(f"Sweep {file.name}", level=1),
        Paragraph(f"{plan.id}: {told or 'no trial over'}, of {plan.total}."),
        Table(("", ""), _summary(sweep)),
    ]
    if found:
        draw_history(found, folder.files / "history.png", objective.metric, objective.sign)
        blocks += [Heading("Trials in turn"), Media(folder.files / "history.png", f"{objective.metric} of each trial")]
    if ranked:
        blocks += [Heading("Best trials"), Table(*trial_table(ranked[:SHOWN], plan.seeds))]
    if found:
        draw_parameters(found, plan.space.dimensions, shares(sweep), folder.files / "parameters.png", objective.metric)
        blocks += [
            Heading("What matters"),
            Paragraph(_explanation(sweep)),
            Media(folder.files / "parameters.png", f"{objective.metric} against each setting"),
        ]
    failed = [trial for trial in journal.over if trial.state == "failed"]
    if failed:
        rows = [(str(trial.number), said(trial), trial.message) for trial in failed]
        blocks += [Heading("Failed"), Table(("trial", "settings", "why"), rows)]
    return [*blocks, Heading("Go on from here"), Code(_commands(sweep, ranked, command))]


def _summary(sweep: Sweep) -> list[tuple[str, str]]:
    plan, base = sweep.plan, sweep.plan.resolver.base
    objective = plan.file.objective
    what = f"{objective.direction} the {objective.value} {objective.metric}, {objective.seeds} of seeds"
    lines = [
        ("base", " ".join([plan.file.base, *plan.resolver.overrides])),
        ("method", plan.file.method),
        ("objective", what),
        ("seeds", ", ".join(map(str, plan.seeds))),
        ("budget of a run", f"{base.training.max_timesteps or 0:,} env_steps" if base.training.max_timesteps else "-"),
    ]
    if plan.space.fixed:
        lines.append(("set for all", ", ".join(f"{key}={dumps(value)}" for key, value in plan.space.fixed.items())))
    return lines


def _explanation(sweep: Sweep) -> str:
    if not shares(sweep):
        return (
            "Too few trials for the values they tried, or all came to the same: nothing can be said about what matters."
        )
    text = "In brackets: the share of the differences between trials that the setting accounts for on its own."
    pruned = any(trial.state == "pruned" for trial in sweep.journal.over)
    return text + (" Pruned trials count with what they had come to." if pruned else "")


def _commands(sweep: Sweep, ranked: list[Trial], command: list[str]) -> str:
    lines = [(command_line(command), "go on with the sweep; what is done is not repeated")]
    if ranked:
        first = RunFolder(sweep.root / next(iter(ranked[0].runs.values())))
        best = shell(str(sweep.folder.best))
        lines.append((f"cadenza train {best}", "the best settings, in a run of their own"))
        lines.append((f"cadenza show {first.reference}", "the best trial's first run"))
    usual = sweep.root.absolute() == runs_root().absolute()
    where = "" if usual else f" --runs-dir {shell(str(sweep.root))}"
    lines.append((f"cadenza list --filter tags=sweep:{sweep.plan.id}{where}", "every run of the sweep"))
    return "\n".join(f"# {why}\n{line}" for line, why in lines)


def trial_table(trials: list[Trial], seeds: tuple[int, ...]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: value, each seed's where there are several, then what was tried."""
    keys = list(trials[0].params) if trials else []
    several = [f"seed {seed}" for seed in seeds] if len(seeds) > 1 else []
    rows = []
    for trial in trials:
        each = [number(trial.values.get(seed)) for seed in seeds] if several else []
        rows.append([str(trial.number), number(trial.value), *each, *(shown(trial.params[key]) for key in keys)])
    return ["trial", "value", *several, *keys], rows


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else dumps(value)


def said(trial: Trial) -> str:
    return ", ".join(f"{key}={shown(value)}" for key, value in trial.params.items())
