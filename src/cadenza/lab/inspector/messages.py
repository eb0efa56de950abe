"""Messages between the inspector and the child that plays an episode: length, JSON head, and perhaps a picture."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal, get_args

from cadenza.base.json_text import dumps

NEAR = 60  # steps ahead to which it is faster to play on than to begin the episode again


@dataclass(frozen=True)
class State:
    """Changed entries of the state that a page shows of the whole episode."""

    changes: dict[str, Any]


@dataclass(frozen=True)
class TableRows:
    """The next rows of the table of steps, or of the policy's opinions about them."""

    table: Literal["steps", "opinions"]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Advantages:
    """The advantages [T][A] of a group."""

    group: str
    values: list[list[float]]


@dataclass(frozen=True)
class Picture:
    """A picture of a step: the rendered `frame`, the observed image (`seen`), or a `dream`."""

    what: str
    step: int
    content: bytes
    evenly: bool = False  # one of the pictures at equal distances, which are not dropped


@dataclass(frozen=True)
class Dream:
    """The predictions of a world model from a step on, beside what happened."""

    step: int
    begin: int
    end: int
    numbers: list[Any]
    rewards: list[Any]


@dataclass(frozen=True)
class Request:
    """A request for the pictures from `begin` to `end`, or for a dream at `begin`; the child returns it when done."""

    what: Literal["show", "imagine"]
    begin: int
    end: int = 0


Message = State | TableRows | Advantages | Picture | Dream | Request
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def send(stream: IO[bytes], message: Message) -> None:
    """Write a message and flush the stream."""
    content = message.content if isinstance(message, Picture) else b""
    head = {"kind": type(message).__name__, "bytes": len(content), **vars(message)}
    head.pop("content", None)
    try:
        text = json.dumps(head, allow_nan=False).encode()
    except (ValueError, TypeError):  # NaN or arrays in it: rare, and slow to search for
        text = dumps(head).encode()
    stream.write(len(text).to_bytes(4, "big") + text + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Iterator[Message]:
    """Yield messages until the stream ends; an unfinished one is dropped."""
    while len(length := stream.read(4)) == 4:
        text = stream.read(int.from_bytes(length, "big"))
        if len(text) < int.from_bytes(length, "big"):
            return
        head = json.loads(text)
        kind, count = KINDS[head.pop("kind")], head.pop("bytes")
        if kind is Picture:
            head["content"] = stream.read(count)
            if len(head["content"]) < count:
                return
        yield kind(**head)


class Requests:
    """The queue of the parent's requests, read by a thread, so that a new one can interrupt the work on an old one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._queue: deque[Request | None] = deque()  # None: the parent has closed the stream
        self._change = threading.Condition()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[bytes]) -> None:
        for message in receive(stream):
            if isinstance(message, Request):
                self._put(message)
        self._put(None)

    def _put(self, request: Request | None) -> None:
        with self._change:
            self._queue.append(request)
            self._change.notify()

    def next(self) -> Request | None:
        """Wait for a request and return it, or None once the parent is gone."""
        with self._change:
            self._change.wait_for(lambda: self._queue)
            return self._queue.popleft()

    def waiting(self) -> bool:
        with self._change:
            return bool(self._queue)

    def superseded(self, at: int, showing: bool = False) -> bool:
        """Return whether the newest request is for a step that playing on from `at` does not soon reach.

        While `showing` pictures from `at` on, every request of another kind supersedes that.
        """
        with self._change:
            if not self._queue:
                return False
            newest = self._queue[-1]
            return newest is None or (showing and newest.what != "show") or not at <= newest.begin <= at + NEAR
