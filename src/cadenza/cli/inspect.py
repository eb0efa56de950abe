"""`cadenza inspect`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import Json, RunsDir, Trust, print_json, say

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN …", help="Open this run, or a comparison of several. Default: all runs."),
]


def inspect(
    runs: Runs = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen on this port; 0: any. Default: 8765, or any free one.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Show runs in a browser. Ctrl-C ends it.

    The page has curves, comparisons, settings, and every episode again, step by step.

    Example: cadenza inspect
    Example: cadenza inspect @last
    """
    from urllib.parse import quote, urlencode

    from cadenza.base.garbage import collect_as_usual
    from cadenza.errors import NotFoundError
    from cadenza.lab.inspector.run_catalog import Catalog
    from cadenza.lab.inspector.server import Inspector, serve
    from cadenza.lab.series import select_runs
    from cadenza.records.folder import runs_root

    root = runs_root(runs_dir)
    if runs_dir is not None and not root.is_dir():
        raise NotFoundError(f"--runs-dir {root}: there is no such folder")
    folders = select_runs(root, runs) if runs else []
    view = "#/"
    if len(folders) == 1:
        view = f"#/run/{quote(folders[0].id, safe='')}/curves"
    elif folders:
        view = f"#/compare?{urlencode([('run', folder.id) for folder in folders])}"
    inspector = Inspector(Catalog(root, folders), port, trust)
    address = inspector.address(view)
    if json:
        print_json({"url": address, "port": inspector.server_port})
        sys.stdout.flush()  # a reader waits for the line, not for the end of the process
    else:
        say(address, err=True)
        say("the inspector listens on this machine only; Ctrl-C ends it", err=True)
    collect_as_usual()
    with suppress(KeyboardInterrupt), opened_in_browser(address) if browser and not json else nullcontext():
        serve(inspector)


@contextmanager
def opened_in_browser(address: str) -> Iterator[None]:
    """Open `address` in a browser while the block runs, by a private page that redirects and is deleted afterwards.

    Without a screen, only run the block.
    """
    import webbrowser

    from cadenza.envs.display import has_display

    if not has_display():
        yield
        return
    page = redirect(address)
    try:
        webbrowser.open(page.as_uri())
        yield
    finally:
        page.unlink(missing_ok=True)


def redirect(address: str) -> Path:
    """Write a private page that leads to the address: every user can read the arguments a browser is started with."""
    import os
    import tempfile
    from html import escape

    target = escape(address)
    head = '<!doctype html><meta charset="utf-8"><title>cadenza</title>'
    descriptor, name = tempfile.mkstemp(prefix="cadenza-", suffix=".html")  # readable by its owner alone
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f'{head}<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">the inspector</a>\n')
    return Path(name)
