"""What the inspector and the child that plays an episode send each other: a length, a JSON head, perhaps a picture."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal

from cadenza.base.json_text import dumps

NEAR = 60  # steps ahead that are reached sooner than by playing the episode from its beginning


@dataclass(frozen=True)
class State:
    """Changed entries of what a page shows about the whole episode."""

    changes: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """What follows the steps, or the opinions about them, that were sent before."""

    table: Literal["steps", "opinions"]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Advantages:
    """The advantages [T][A] of a group."""

    group: str
    values: list[list[float]]


@dataclass(frozen=True)
class Picture:
    """A picture of a step: the `frame`, what the agent has `seen`, or a `dream`."""

    what: str
    step: int
    content: bytes
    evenly: bool = False  # one of those that stay, evenly over the episode


@dataclass(frozen=True)
class Dream:
    """What a world model predicted from a step on, beside what happened."""

    step: int
    begin: int
    end: int
    numbers: list[Any]
    rewards: list[Any]


@dataclass(frozen=True)
class Request:
    """Pictures from `begin` to `end`, or what a model imagines at `begin`; the child sends it back when it is done."""

    what: Literal["show", "imagine"]
    begin: int
    end: int = 0


Message = State | Rows | Advantages | Picture | Dream | Request
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in (State, Rows, Advantages, Picture, Dream, Request)}


def send(stream: IO[bytes], message: Message) -> None:
    content = message.content if isinstance(message, Picture) else b""
    head = {"kind": type(message).__name__, "bytes": len(content), **vars(message)}
    head.pop("content", None)
    try:
        text = json.dumps(head, allow_nan=False).encode()
    except (ValueError, TypeError):  # NaN or arrays somewhere in it: rare, and slow to look for
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
    """Requests of the parent, read by a thread, so that work on an old one can stop when a new one comes."""

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
        """Wait for a request; None once the parent is gone."""
        with self._change:
            self._change.wait_for(lambda: self._queue)
            return self._queue.popleft()

    def waiting(self) -> bool:
        with self._change:
            return bool(self._queue)

    def superseded(self, at: int, showing: bool = False) -> bool:
        """Whether the newest request is about a step that is not on the way from `at` on.

        While `showing` pictures from `at` on, only a request for pictures can be.
        """
        with self._change:
            if not self._queue:
                return False
            newest = self._queue[-1]
            return newest is None or (showing and newest.what != "show") or not at <= newest.begin <= at + NEAR
