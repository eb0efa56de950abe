"""`cadenza report`."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.output import Json, Run, RunsDir, print_json


def report(
    run: Run,
    html: Annotated[bool, typer.Option("--html", help="Also a self-contained HTML page.")] = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Write report.md, with the learning curve, into a run's folder.

    Example: cadenza report @last --html
    """
    from cadenza.records.folder import find, runs_root
    from cadenza.records.report import write_html, write_report

    folder = find(runs_root(runs_dir), run)
    paths = {"report": write_report(folder)}
    if html:
        paths["html"] = write_html(folder)
    if json:
        print_json({"run": folder.id, "dir": folder.path.absolute(), **paths})
    else:
        for path in paths.values():
            print(path)
