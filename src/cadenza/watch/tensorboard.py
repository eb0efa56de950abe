"""Rows of metrics as TensorBoard events in `<run>/tensorboard`, by TensorBoard's writer (torch's imports more).

A resumed run writes all rows of metrics.jsonl into a new file and deletes the old one, so that no step is there twice
and nothing remains from after the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from cadenza.base.files import SafePath
from cadenza.engine.events import Ended, Event, Row, Started
from cadenza.errors import MissingExtraError, install
from cadenza.records import metrics
from cadenza.records.folder import EVENT_FILES, RunFolder, evaluation_video
from cadenza.records.validity import is_number

try:
    from tensorboard.compat.proto.event_pb2 import Event as Record
    from tensorboard.compat.proto.event_pb2 import SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError as problem:
    raise MissingExtraError(f"logging.tensorboard=true needs an extra: {install('tensorboard')}") from problem


def ours(run: RunFolder) -> list[SafePath]:
    """Return the event files that cadenza wrote; none if the folder is a link."""
    folder = run.files / "tensorboard"
    try:
        names = set((folder / EVENT_FILES).read_text(errors="replace").split("\n"))
    except OSError:
        return []
    return [path for path in folder.glob("events.out.tfevents.*") if path.name in names and path.is_file()]


class TensorBoard:
    """A listener that writes events. A disk error ends the events, not the run."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        try:
            if isinstance(event, Started):
                self._open(event)
            elif isinstance(event, Row) and self._writer is not None:
                self._write(event.row)
                self._writer.flush()
            elif isinstance(event, Ended) and self._writer is not None:
                self._writer.close()
        except OSError as problem:
            self._writer = None
            self._warn(f"no more TensorBoard events until the run is resumed: {problem.strerror or problem}")

    def _open(self, started: Started) -> None:
        self._folder = started.folder
        folder = started.folder.path / "tensorboard"
        folder.mkdir(exist_ok=True)
        before = ours(started.folder)
        self._unit, self._created = started.unit, 0.0
        with suppress(ValueError):  # somebody else may have written anything there
            self._created = datetime.fromisoformat(started.folder.read_manifest()["created"]).timestamp()
        name = f"events.out.tfevents.{time.time_ns():020d}"
        with suppress(OSError):  # the folder or the list may be a link: then nothing in it is ever deleted
            (started.folder.files / "tensorboard" / EVENT_FILES).append(f"{name}\n".encode())
        file = open(folder / name, "xb")  # noqa: SIM115
        self._writer = RecordWriter(file)
        self._record(Record(file_version="brain.Event:2"))
        # makes a TensorBoard that is already open forget what it has read from earlier files
        self._record(Record(session_log=SessionLog(status=SessionLog.START)))
        for row in metrics.read(started.folder.metrics):
            self._write(row)
        self._writer.flush()
        for path in before:
            path.unlink()

    def _write(self, row: Mapping[str, Any]) -> None:
        numbers = {key: value for key, value in row.items() if is_plotted(value) and key != self._unit}
        values = [Summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        video = evaluation_video(self._folder, row["env_steps"])
        if video is not None and video.suffix == ".gif":  # TensorBoard plays no other format
            content = video.read_bytes()
            width, height = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
            image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=content)
            values.append(Summary.Value(tag="eval/video", image=image))
        seconds = row.get("time/seconds") or 0.0
        self._record(Record(step=row.get(self._unit, 0), summary=Summary(value=values)), seconds)

    def _record(self, record: Any, seconds: float = 0.0) -> None:
        record.wall_time = self._created + seconds  # training time, so that pauses before a resume do not show
        self._writer.write(record.SerializeToString())


def is_plotted(value: Any) -> bool:
    """Return whether an event can hold a value: any float, and no integer of more than 64 bits."""
    return isinstance(value, float | bool) or is_number(value)
