"""`cadenza report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from cadenza.base.files import SafePath
from cadenza.cli.output import Json, RunsDir, print_json, say


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN …", help="One run; several (wildcards, specs) to compare; or the id of a sweep."),
    ],
    html: Annotated[bool, typer.Option("--html", help="Write a self-contained HTML page, too.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the report of a comparison here.")] = None,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Write a report of a run, or of a comparison.

    The report.md of a run, with its learning curve, goes to its folder; that of a comparison to --out DIR.

    Example: cadenza report @last --html
    Example: cadenza report CartPole-v1:ppo CartPole-v1:dqn --out ppo-or-dqn
    """
    from cadenza.lab.report import write_html, write_report
    from cadenza.records.folder import find, runs_root

    root = runs_root(runs_dir)
    several = len(runs) > 1 or "*" in runs[0] or out is not None
    if several:
        if out is None:
            raise typer.BadParameter("several runs are compared: give --out DIR for the report")
        from cadenza.lab.compare import compare
        from cadenza.lab.comparison_report import write_comparison
        from cadenza.lab.series import select_runs

        result = compare(select_runs(root, runs, []))
        show_paths(write_comparison(result, out), {"dir": out.absolute()}, json)
        return
    sweep_folder = SafePath(root / "sweeps" / runs[0])
    if "/" not in runs[0] and (sweep_folder / "report.md").is_file():
        pages = {"report": sweep_folder / "report.md", "html": sweep_folder / "report.html"}
        show_paths({name: path for name, path in pages.items() if path.exists()}, {"sweep": runs[0]}, json)
        return
    folder = find(root, runs[0])
    if folder.published is not None:
        raise typer.BadParameter(f"{runs[0]} is a copy of a published run: give --out DIR for its report")
    page = {"html": write_html(folder)} if html else {}  # first: it reads more, and may refuse what it reads
    paths = {"report": write_report(folder)} | page
    show_paths(paths, {"run": folder.id, "dir": folder.path.absolute()}, json)


def show_paths(paths: Mapping[str, object], about: dict[str, object], json: bool) -> None:
    """Print the files that were written."""
    if json:
        print_json({**about, **paths})
    else:
        for path in paths.values():
            say(path)
