"""`cadenza publish`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from cadenza.base.files import SafePath
from cadenza.cli.output import Json, Run, RunsDir, Trust, print_json, print_table, say


def publish(
    run: Run,
    to: Annotated[str | None, typer.Argument(metavar="USER/REPO", help="Where on the Hugging Face Hub.")] = None,
    repo: Annotated[str | None, typer.Option(metavar="USER/REPO", help="The same.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Only you can see the repository.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, last, or a number of env_steps  [default: best if there is one]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be published; publish nothing.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Leave the folder here, too (a new one).")] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Publish a run on the Hugging Face Hub: weights, config, curve, video and a model card. Again: what has changed.

    Example: cadenza publish @best me/cartpole-ppo --dry-run
    """
    from cadenza.lab.view.publish import prepare
    from cadenza.records.folder import find, runs_root
    from cadenza.records.hub import check_repo, upload
    from cadenza.records.validity import pointer

    if to is not None and repo is not None:
        raise typer.BadParameter("USER/REPO and --repo: one of them")
    place = to or repo
    if place is None and not dry_run:
        raise typer.BadParameter("say where: cadenza publish RUN USER/REPO (--dry-run needs none)")
    place = check_repo(place or "user/repo")
    folder = find(runs_root(runs_dir), run)
    with TemporaryDirectory(prefix="cadenza-publish-") as scratch:
        prepared, name = out or Path(scratch, "run"), checkpoint or folder.best_or_last
        for problem in prepare(folder, place, prepared, name, trust, keep_film=not dry_run):
            say(f"warning: {problem}", err=True)
        files = {
            path.relative_to(prepared).as_posix(): path.stat().st_size
            for path in sorted(prepared.rglob("*"))
            if path.is_file()
        }
        if dry_run:
            if json:
                print_json({"run": folder.id, "repo": place, "files": files, "folder": out and str(out.absolute())})
                return
            print_table(("file", "bytes"), [(name, f"{size:,}") for name, size in files.items()], ("bytes",))
            say((prepared / "README.md").read_text(), several=True)
            return
        found = upload(
            prepared, place, private, f"{folder.id} ({pointer(SafePath(prepared) / 'checkpoints' / 'last')})"
        )
    if json:
        print_json({"run": folder.id, "repo": place, "files": files, **found})
    else:
        say(f"{found['url']}: {'published' if found['changed'] else 'nothing has changed'}")
