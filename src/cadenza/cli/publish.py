"""`cadenza publish`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from cadenza.base.files import SafePath
from cadenza.cli.output import Checkpoint, Json, Run, RunsDir, Trust, print_json, print_table, progress, say


def publish(
    run: Run,
    to: Annotated[str | None, typer.Argument(metavar="USER/REPO", help="Publish here on the Hugging Face Hub.")] = None,
    repo: Annotated[str | None, typer.Option(metavar="USER/REPO", help="The same as the argument.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a repository that only you can see.")] = False,
    checkpoint: Checkpoint = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be published; publish nothing.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep a copy in this new folder.")] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Publish a run on the Hugging Face Hub.

    It uploads weights, config, curve, video and a model card; called again, what has changed.

    Example: cadenza publish @best me/cartpole-ppo --dry-run
    """
    from cadenza.base.formatting import size
    from cadenza.lab.checkpoint_list import title
    from cadenza.records.folder import find, runs_root
    from cadenza.records.hub import check_repo, require_api, upload
    from cadenza.records.validity import pointer

    if to is not None and repo is not None:
        raise typer.BadParameter("USER/REPO and --repo exclude each other")
    place = to or repo
    if place is None and not dry_run:
        raise typer.BadParameter("missing USER/REPO: cadenza publish RUN USER/REPO (--dry-run needs none)")
    place = check_repo(place or "user/repo")
    folder = find(runs_root(runs_dir), run)
    if not dry_run:
        require_api()
    progress(f"preparing {folder.id} …")
    from cadenza.lab.view.publish import prepare  # takes seconds to import

    with TemporaryDirectory(prefix="cadenza-publish-") as scratch:
        prepared, name = out or Path(scratch, "run"), checkpoint or folder.best_or_last
        for problem in prepare(folder, place, prepared, name, trust, not dry_run, progress):
            say(f"warning: {problem}", err=True)
        published = pointer(SafePath(prepared) / "checkpoints" / "last") or ""
        files = {
            path.relative_to(prepared).as_posix(): path.stat().st_size
            for path in sorted(prepared.rglob("*"))
            if path.is_file()
        }
        facts = {"run": folder.id, "checkpoint": published, "repo": place, "files": files}
        if dry_run:
            if json:
                print_json({**facts, "folder": out and str(out.absolute())})
                return
            say(title(folder, published), err=True)
            print_table(("file", "bytes"), [(name, f"{count:,}") for name, count in files.items()], ("bytes",))
            say((prepared / "README.md").read_text(encoding="utf-8"), several=True)
            return
        progress(f"uploading {len(files)} files, {size(sum(files.values()))}, to {place} …")
        uploaded = upload(prepared, place, private, f"{folder.id} ({published})")
    if json:
        print_json({**facts, **uploaded})
    else:
        outcome = "published" if uploaded["changed"] else "nothing has changed"
        say(f"{uploaded['url']}: {outcome}, {title(folder, published)}")
