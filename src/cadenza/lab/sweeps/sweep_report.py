"""The report of a sweep: the best trials, importance of settings, plots, next steps; the results as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.formatting import number
from cadenza.base.json_text import canonical, dumps
from cadenza.base.text import command as command_line
from cadenza.base.text import shell
from cadenza.lab.html import Block, Code, Heading, Media, Paragraph, Table, html, markdown
from cadenza.lab.sweeps.journal import Trial
from cadenza.lab.sweeps.space import Dimension, Range
from cadenza.lab.sweeps.sweep_loop import Sweep
from cadenza.lab.sweeps.sweep_plots import draw_history, draw_parameters
from cadenza.records.folder import RunFolder, runs_root

ROWS = 20  # largest number of trials in the table
BINS = 4  # groups of equally many trials into which the values of a range are divided
FEWEST = 6  # with fewer trials, no importance is computed


def result(sweep: Sweep) -> dict[str, Any]:
    """Return what `cadenza sweep --json` prints."""
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


def with_value(sweep: Sweep) -> list[Trial]:
    """Return the trials that are over and have a value."""
    return [trial for trial in sweep.journal.over if trial.value is not None]


def shares(sweep: Sweep) -> dict[str, float]:
    """Return the importance of each setting, most important first."""
    trials = with_value(sweep)
    values = [trial.value for trial in trials if trial.value is not None]
    return importance(sweep.plan.space.dimensions, [trial.params for trial in trials], values)


def write_report(sweep: Sweep, command: list[str]) -> SafePath:
    """Write result.json, the plots, report.md and report.html into the sweep's folder; return the path of report.md."""
    folder = sweep.folder
    atomic.write_json(folder.files / "result.json", result(sweep))
    blocks = _blocks(sweep, command)
    atomic.write_text(folder.report, markdown(blocks, folder.path))
    atomic.write_text(folder.files / "report.html", html(blocks, sweep.plan.id))
    return folder.report


def _blocks(sweep: Sweep, command: list[str]) -> list[Block]:
    plan, journal, folder = sweep.plan, sweep.journal, sweep.folder
    file, objective = plan.file, plan.file.objective
    ranked, trials = journal.ranked(objective.sign), with_value(sweep)
    counts = Counter(trial.state for trial in journal.over)
    summary = ", ".join(f"{counts[state]} {state}" for state in ("finished", "pruned", "failed") if counts[state])
    blocks: list[Block] = [
        Heading(f"Sweep {file.name}", level=1),
        Paragraph(f"{plan.id}: {summary or 'no trial over'}, of {plan.total}."),
        Table(("", ""), _summary(sweep)),
    ]
    if trials:
        draw_history(trials, folder.files / "history.png", objective.metric, objective.sign)
        blocks += [Heading("Trials in order"), Media(folder.files / "history.png", f"{objective.metric} of each trial")]
    if ranked:
        blocks += [Heading("Best trials"), Table(*trial_table(ranked[:ROWS], plan.seeds))]
    if trials:
        draw_parameters(trials, plan.space.dimensions, shares(sweep), folder.files / "parameters.png", objective.metric)
        blocks += [
            Heading("Importance of settings"),
            Paragraph(_explanation(sweep)),
            Media(folder.files / "parameters.png", f"{objective.metric} against each setting"),
        ]
    failed = [trial for trial in journal.over if trial.state == "failed"]
    if failed:
        rows = [(str(trial.number), settings_text(trial), trial.message) for trial in failed]
        blocks += [Heading("Failed"), Table(("trial", "settings", "why"), rows)]
    return [*blocks, Heading("Next steps"), Code(_commands(sweep, ranked, command))]


def _summary(sweep: Sweep) -> list[tuple[str, str]]:
    plan, base = sweep.plan, sweep.plan.resolver.base
    objective = plan.file.objective
    goal = f"{objective.direction} the {objective.value} {objective.metric}, {objective.seeds} of seeds"
    lines = [
        ("base", " ".join([plan.file.base, *plan.resolver.overrides])),
        ("method", plan.file.method),
        ("objective", goal),
        ("seeds", ", ".join(map(str, plan.seeds))),
        ("budget of a run", f"{base.training.max_timesteps or 0:,} env_steps" if base.training.max_timesteps else "-"),
    ]
    if plan.space.fixed:
        lines.append(("set for all", ", ".join(f"{key}={dumps(value)}" for key, value in plan.space.fixed.items())))
    return lines


def _explanation(sweep: Sweep) -> str:
    if not shares(sweep):
        return (
            "No importance is computed: there are too few trials for the values they tried, or all results are equal."
        )
    text = "In brackets: the share of the differences between trials that the setting accounts for on its own."
    pruned = any(trial.state == "pruned" for trial in sweep.journal.over)
    return text + (" Pruned trials count with the value they had reached." if pruned else "")


def _commands(sweep: Sweep, ranked: list[Trial], command: list[str]) -> str:
    lines = [(command_line(command), "continue the sweep; nothing is repeated")]
    if ranked:
        first = RunFolder(sweep.root / next(iter(ranked[0].runs.values())))
        best = shell(str(sweep.folder.best))
        lines.append((f"cadenza train {best}", "train a new run with the best settings"))
        lines.append((f"cadenza show {first.reference}", "show the best trial's first run"))
    is_default = sweep.root.absolute() == runs_root().absolute()
    where = "" if is_default else f" --runs-dir {shell(str(sweep.root))}"
    lines.append((f"cadenza list --filter tags=sweep:{sweep.plan.id}{where}", "list every run of the sweep"))
    return "\n".join(f"# {why}\n{line}" for line, why in lines)


def trial_table(trials: list[Trial], seeds: tuple[int, ...]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows: the value, with several seeds that of each, then the settings of the trial."""
    keys = list(trials[0].params) if trials else []
    shown_seeds = seeds if len(seeds) > 1 else ()
    rows = []
    for trial in trials:
        values = [number(trial.values.get(seed)) for seed in shown_seeds]
        rows.append([str(trial.number), number(trial.value), *values, *(brief(trial.params[key]) for key in keys)])
    return ["trial", "value", *(f"seed {seed}" for seed in shown_seeds), *keys], rows


def brief(value: Any) -> str:
    """Return a value as text, numbers with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else dumps(value)


def settings_text(trial: Trial) -> str:
    """Return the settings of a trial as `key=value, key=value`."""
    return ", ".join(f"{key}={brief(value)}" for key, value in trial.params.items())


def importance(
    dimensions: Mapping[str, Dimension], params: Sequence[Mapping[str, Any]], values: Sequence[float]
) -> dict[str, float]:
    """Return the share of the variance between trials that each setting explains on its own, most important first.

    Settings about which the trials say nothing are left out; with few or equal values that may be all.
    """
    score = np.asarray(values, dtype=float)
    if len(score) < FEWEST or np.ptp(score) == 0:
        return {}
    shares = {}
    for key, dimension in dimensions.items():
        share = explained_variance(_groups(dimension, [trial[key] for trial in params]), score)
        if share is not None:
            shares[key] = share
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def explained_variance(groups: np.ndarray, score: np.ndarray) -> float | None:
    """Return epsilon squared: the share of the variance that the groups explain, corrected for chance.

    None if all scores are in one group, or each is in a different one.
    """
    names = np.unique(groups)
    freedom = len(score) - len(names)
    if len(names) < 2 or freedom < 1:
        return None
    total = float(((score - score.mean()) ** 2).sum())
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in (score[groups == name] for name in names))
    return max(0.0, 1 - (within / freedom) / (total / (len(score) - 1)))


def _groups(dimension: Dimension, values: Sequence[Any]) -> np.ndarray:
    """Return the number of the group of each value: one per value of a list, BINS for a range."""
    if not isinstance(dimension, Range):
        return np.unique([canonical(value) for value in values], return_inverse=True)[1]
    edges = np.quantile(np.asarray(values, dtype=float), np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, np.asarray(values, dtype=float), side="left")
