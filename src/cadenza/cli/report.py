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
        typer.Argument(metavar="RUN …", help="A run; several (wildcards, specs) for a comparison; or a sweep's id."),
    ],
    html: Annotated[bool, typer.Option("--html", help="Also a self-contained HTML page.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where a comparison's report goes.")] = None,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Write report.md, with the learning curve, into a run's folder; or the report of a comparison into --out DIR.

    Example: cadenza report @last --html
    Example: cadenza report CartPole-v1:ppo CartPole-v1:dqn --out ppo-or-dqn
    """
    from cadenza.lab.report import write_html, write_report
    from cadenza.records.folder import find, runs_root

    root = runs_root(runs_dir)
    several = len(runs) > 1 or "*" in runs[0] or out is not None
    if several:
        if out is None:
            raise typer.BadParameter("several runs make a comparison: say where it goes with --out DIR")
        from cadenza.lab.compare import compare
        from cadenza.lab.comparison_report import write_comparison
        from cadenza.lab.series import chosen

        result = compare(chosen(root, runs, []))
        told(write_comparison(result, out), {"dir": out.absolute()}, json)
        return
    swept = SafePath(root / "sweeps" / runs[0])
    if "/" not in runs[0] and (swept / "report.md").is_file():
        pages = {"report": swept / "report.md", "html": swept / "report.html"}
        told({name: path for name, path in pages.items() if path.exists()}, {"sweep": runs[0]}, json)
        return
    folder = find(root, runs[0])
    if folder.published is not None:
        raise typer.BadParameter(f"{runs[0]} is a copy of somebody's run: say where its report goes with --out DIR")
    paths = {"report": write_report(folder)} | ({"html": write_html(folder)} if html else {})
    told(paths, {"run": folder.id, "dir": folder.path.absolute()}, json)


def told(paths: Mapping[str, object], about: dict[str, object], json: bool) -> None:
    if json:
        print_json({**about, **paths})
    else:
        for path in paths.values():
            say(path)
