"""The process that sends the rows of a run to Weights & Biases: `python -m cadenza.watch.wandb_process RUN`.

It ends at most some minutes after its standard input is closed, by the end of the run or the death of its process.
W&B's step is the number of the row, so that a resumed run sends no row twice.
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
from cadenza.records.metric_rows import MetricRows, Row
from cadenza.watch.wandb_sink import UNSENT

POLL_SECONDS = 1.0
INIT_SECONDS = 30.0
LAST_SECONDS = 300.0  # after the run's end


class Follower:
    """A reader of metrics.jsonl while it grows."""

    def __init__(self, path: SafePath) -> None:
        self._path, self._offset, self.rows = path, 0, 0

    def new(self) -> Iterator[tuple[int, Row]]:
        """Yield the complete rows since the last call, each with its number."""
        with contextlib.suppress(FileNotFoundError), MetricRows(self._path) as rows:
            for end, row in rows.since(self._offset):
                self._offset = end
                self.rows += 1
                yield self.rows - 1, row


def follow(folder: RunFolder, ended: threading.Event) -> int:
    """Send rows until the run has ended; return the exit code."""
    import wandb

    (folder.path / "wandb").mkdir(exist_ok=True)
    progress_file = folder.files / "logs" / "wandb.json"
    older = folder.files / "wandb" / "told.json"  # its path in older runs
    progress = next((read_object(path) for path in (progress_file, older) if path.is_file()), {})
    run, reached = begin(wandb, folder, progress.get("id"))
    run.define_metric("*", step_metric=folder.read_decisions().get("training.unit", "env_steps"))
    sent, follower = progress.get("rows", 0), Follower(folder.metrics)
    while True:
        last = ended.wait(POLL_SECONDS)
        for number, row in follower.new():
            if number >= sent:
                numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
                video = evaluation_video(folder, row["env_steps"])
                media = {} if video is None else {"eval/video": wandb.Video(str(video), format=video.suffix[1:])}
                run.log(numbers | media, step=number)
        if follower.rows > sent:
            sent = follower.rows
            atomic.write_json(progress_file, {"id": run.id, "rows": sent})
        if last:
            break
    for video in folder.videos.glob("step-*.gif"):  # of the last evaluation: no row follows it
        run.save(str(video), base_path=str(folder.path), policy="now")
    run.finish(exit_code=0 if folder.read_status().get("status") in ("finished", "interrupted") else 1)
    return 0 if reached else UNSENT


def begin(wandb: Any, folder: RunFolder, run_id: str | None) -> tuple[Any, bool]:
    """Open W&B's run; without a connection, offline for `wandb sync`. Return it and whether it is as requested."""
    settings, manifest = folder.settings(), folder.read_manifest()
    logging = settings["logging"]
    options: dict[str, Any] = {
        "id": run_id or os.environ.get("WANDB_RUN_ID") or folder.id,
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
        sys.stderr.write(f"offline from now on: {type(problem).__name__}: {problem}\n")
        wandb.teardown()  # it holds the run's id otherwise
        return wandb.init(mode="offline", **options | {"resume": None}), False


def main() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)  # the training has priority
    ended = threading.Event()

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        ended.set()
        threading.Event().wait(LAST_SECONDS)
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)  # including the processes that W&B started
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()
    sys.exit(follow(RunFolder(Path(sys.argv[1])), ended))


if __name__ == "__main__":
    main()
