"""Hands the rows of a run to Weights & Biases as they are written: `python -m cadenza.watch.wandb_process RUN`.

It lives until its standard input is closed, by the end of the run or the death of its process, and some minutes at most
after that. W&B's step is the number of the row, so that a run that goes on repeats nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.records.folder import RunFolder, evaluation_video, read_object
from cadenza.records.metric_rows import Row, Rows
from cadenza.watch.wandb_sink import UNSENT

LOOK_SECONDS = 1.0
INIT_SECONDS = 30.0
LAST_SECONDS = 300.0  # after the run's end


class Follower:
    """Reads metrics.jsonl as it grows."""

    def __init__(self, path: SafePath) -> None:
        self._path, self._offset, self.rows = path, 0, 0

    def new(self) -> Iterator[tuple[int, Row]]:
        """Yield the complete rows that were not there before, each with its number."""
        with contextlib.suppress(FileNotFoundError), Rows(self._path) as rows:
            for end, row in rows.since(self._offset):
                self._offset = end
                self.rows += 1
                yield self.rows - 1, row


def follow(folder: RunFolder, over: threading.Event) -> int:
    import wandb

    (folder.path / "wandb").mkdir(exist_ok=True)
    memory = folder.files / "logs" / "wandb.json"
    older = folder.files / "wandb" / "told.json"  # where it was once
    known = next((read_object(place) for place in (memory, older) if place.is_file()), {})
    run, reached = begin(wandb, folder, known.get("id"))
    run.define_metric("*", step_metric=folder.read_decisions().get("training.unit", "env_steps"))
    told, follower = known.get("rows", 0), Follower(folder.metrics)
    while True:
        last = over.wait(LOOK_SECONDS)
        for number, row in follower.new():
            if number >= told:
                numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
                film = evaluation_video(folder, row["env_steps"])
                shown = {} if film is None else {"eval/video": wandb.Video(str(film), format=film.suffix[1:])}
                run.log(numbers | shown, step=number)
        if follower.rows > told:
            told = follower.rows
            atomic.write_json(memory, {"id": run.id, "rows": told})
        if last:
            break
    for film in folder.videos.glob("step-*.gif"):  # of the end: no row comes after it
        run.save(str(film), base_path=str(folder.path), policy="now")
    run.finish(exit_code=0 if folder.read_status().get("status") in ("finished", "interrupted") else 1)
    return 0 if reached else UNSENT


def begin(wandb: Any, folder: RunFolder, known: str | None) -> tuple[Any, bool]:
    """W&B's run, and whether it is where it was asked for: what cannot be reached is written for `wandb sync`."""
    settings, manifest = folder.settings(), folder.read_manifest()
    logging = settings["logging"]
    options: dict[str, Any] = {
        "id": known or os.environ.get("WANDB_RUN_ID") or folder.id,
        "resume": "allow",
        "project": logging.get("wandb_project") or os.environ.get("WANDB_PROJECT") or "cadenza",
        "entity": logging.get("wandb_entity"),
        "name": settings.get("name") or folder.id,
        "tags": settings.get("tags"),
        "group": manifest.get("spec"),
        "config": settings,
        "dir": str(folder.path),
        "settings": wandb.Settings(
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS)),
            console="off",
            x_disable_stats=True,
            disable_code=True,
            disable_git=True,
        ),
    }
    if logging["wandb"] == "offline":
        return wandb.init(mode="offline", **options), True
    try:
        return wandb.init(**options), True
    except Exception as problem:  # no account, no network, no server
        sys.stderr.write(f"offline from here on: {type(problem).__name__}: {problem}\n")
        wandb.teardown()  # or it would hold the run's id
        return wandb.init(mode="offline", **options | {"resume": None}), False


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(10)  # the run comes first
    over = threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        over.set()
        threading.Event().wait(LAST_SECONDS)
        os.killpg(0, signal.SIGKILL)  # W&B's own processes, too

    threading.Thread(target=watch, daemon=True).start()
    sys.exit(follow(RunFolder(Path(sys.argv[1])), over))


if __name__ == "__main__":
    main()
