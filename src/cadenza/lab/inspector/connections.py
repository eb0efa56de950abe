"""Limits on the inspector's connections: their number, and the time and size of the head of a request."""

from __future__ import annotations

import io
import socket
import threading
import time
from contextlib import suppress
from typing import Any

MOST = 64  # at once; a browser opens six for a page
IDLE_SECONDS = 60.0  # before a request begins
HEAD_SECONDS = 10.0  # from the first byte of a request to the end of its head, however slowly it arrives
HEAD_BYTES = 128 * 1024  # of a request line and its headers
ROOM_SECONDS = 1.0  # for a closed connection's thread to end
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 33\r\n\r\n" + b'{"error": "too many connections"}'
)


class HeadTooLargeError(OSError):
    """The head of a request has more than HEAD_BYTES."""


class Connections:
    """The open connections, at most `most`. A new one takes the place of the one that has been idle longest."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._change = threading.Condition()
        self._open: dict[socket.socket, float | None] = {}  # since when it is idle; None: a request is being answered

    def admit(self, connection: socket.socket) -> bool:
        """Register a connection, closing an idle one where there is no room; return False if all are busy."""
        with self._change:
            if len(self._open) >= self.most:
                idle = {one: since for one, since in self._open.items() if since is not None}
                if not idle:
                    return False
                oldest = min(idle, key=idle.__getitem__)
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end and leaves
                if not self._change.wait_for(lambda: len(self._open) < self.most, ROOM_SECONDS):
                    return False
            self._open[connection] = time.monotonic()
            return True

    def mark_idle(self, connection: socket.socket) -> None:
        """Record that the connection waits for a request, so that it may be closed for another."""
        self._mark(connection, time.monotonic())

    def mark_busy(self, connection: socket.socket) -> None:
        """Record that a request of the connection is being answered."""
        self._mark(connection, None)

    def _mark(self, connection: socket.socket, since: float | None) -> None:
        with self._change:
            if connection in self._open:
                self._open[connection] = since

    def release(self, connection: socket.socket) -> None:
        """Remove a connection whose thread ends."""
        with self._change:
            self._open.pop(connection, None)
            self._change.notify_all()


def refuse(connection: socket.socket) -> None:
    """Answer 503 at once, without waiting for anything."""
    with suppress(OSError):
        connection.setblocking(False)
        connection.send(REFUSAL)


class HeadReader(io.RawIOBase):
    """A stream that reads a connection within the limits of a request's head; `begin` starts the next request."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.begin()

    def begin(self) -> None:
        self._deadline: float | None = None  # set by the first byte
        self._bytes_left = HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = IDLE_SECONDS if self._deadline is None else self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the head of the request takes too long")
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(buffer)
        if self._deadline is None:
            self._deadline = time.monotonic() + HEAD_SECONDS
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise HeadTooLargeError
        return count
