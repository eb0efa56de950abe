"""`cadenza cleanup`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import Json, RunsDir, print_json, print_table, say

if TYPE_CHECKING:
    from cadenza.lab.cleanup import Cleaning


def cleanup(
    keep_best: Annotated[
        int | None, typer.Option("--keep-best", metavar="N", min=0, help="The best N runs of each spec.")
    ] = None,
    keep_recent: Annotated[
        float | None, typer.Option("--keep-recent", metavar="DAYS", min=0, help="Runs that changed in these days.")
    ] = None,
    keep_tags: Annotated[list[str] | None, typer.Option("--keep-tag", metavar="TAG", help="Runs with the tag.")] = None,
    metric: Annotated[
        str, typer.Option("--metric", metavar="METRIC", help="What is best: the highest of this.")
    ] = "return",
    filters: Annotated[
        list[str] | None, typer.Option("--filter", "-f", metavar="KEY=VALUE", help="Look at these runs alone.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be freed.")] = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Free disk: delete checkpoints, replay, episodes and videos of runs that no rule keeps.

    Configs, metrics, logs and reports always stay; a run that is in use is never touched.

    Example: cadenza cleanup --keep-best 3 --keep-recent 14 --keep-tag paper --dry-run
    """
    from cadenza.lab.cleanup import Rules, clean
    from cadenza.records.folder import runs_root

    if keep_best is None and keep_recent is None and not keep_tags:
        raise typer.BadParameter("say what to keep: --keep-best N, --keep-recent DAYS or --keep-tag TAG")
    rules = Rules(keep_best, keep_recent, tuple(keep_tags or ()), metric)
    done = clean(runs_root(runs_dir), rules, filters or [], dry_run)
    if json:
        print_json(done.plain())
    else:
        report(done)


def report(done: Cleaning) -> None:
    """What was freed, what stays and why, and the disk before and after."""
    from cadenza.base.formatting import size

    said = "would free" if done.dry_run else "freed"
    if done.runs:
        lines = [(run.id, run.outcome, size(run.bytes), size(run.freed) if run.freed else "") for run in done.runs]
        print_table(("run", "", "on disk", said), lines, ("on disk", said))
    touched = sum(run.freed > 0 for run in done.runs)
    before, after = size(done.before), size(done.after)
    say(f"{said} {size(done.freed)} of {touched} of {len(done.runs)} runs: {before} before, {after} after")
