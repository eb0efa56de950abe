"""`cadenza cleanup`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import Filters, Json, RunsDir, print_json, print_table, say

if TYPE_CHECKING:
    from cadenza.lab.cleanup import CleanupResult


def cleanup(
    keep_best: Annotated[
        int | None, typer.Option("--keep-best", metavar="N", min=0, help="Keep the best N runs of each spec.")
    ] = None,
    keep_recent: Annotated[
        float | None, typer.Option("--keep-recent", metavar="DAYS", min=0, help="Keep runs of the last DAYS days.")
    ] = None,
    keep_tags: Annotated[
        list[str] | None, typer.Option("--keep-tag", metavar="TAG", help="Keep runs with this tag; repeatable.")
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", metavar="METRIC", help="Call the runs best that are highest in METRIC.")
    ] = "return",
    filters: Filters = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be freed; delete nothing.")] = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Delete the large files of runs that no rule keeps.

    It deletes checkpoints, replay, episodes and videos. Configs, metrics, logs and reports always stay; a run that is
    in use is never touched.

    Example: cadenza cleanup --keep-best 3 --keep-recent 14 --keep-tag paper --dry-run
    """
    from cadenza.lab.cleanup import KeepRules, clean
    from cadenza.records.folder import root_to_list

    if keep_best is None and keep_recent is None and not keep_tags:
        raise typer.BadParameter("say what to keep: --keep-best N, --keep-recent DAYS or --keep-tag TAG")
    rules = KeepRules(keep_best, keep_recent, tuple(keep_tags or ()), metric)
    result = clean(root_to_list(runs_dir), rules, filters or [], dry_run)
    if json:
        print_json(result.plain())
    else:
        report(result)


def report(result: CleanupResult) -> None:
    """Print what was freed, what stays and why, and the disk use before and after."""
    from cadenza.base.formatting import size

    action = "would free" if result.dry_run else "freed"
    if result.runs:
        lines = [(run.id, run.outcome, size(run.bytes), size(run.freed) if run.freed else "") for run in result.runs]
        print_table(("run", "", "on disk", action), lines, ("on disk", action))
    touched = sum(run.freed > 0 for run in result.runs)
    before, after = size(result.before), size(result.after)
    say(f"{action} {size(result.freed)} of {touched} of {len(result.runs)} runs: {before} before, {after} after")
