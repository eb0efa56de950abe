"""Messages over the standard streams of a process, where processes inherit no sockets (Windows).

They are pickled, as multiprocessing's are: both ends are processes that cadenza has started itself.
"""

from __future__ import annotations

import pickle
import queue
import threading
from typing import IO, Any

HEAD = 8  # bytes that tell the length of a message


class Pipes:
    """Two byte streams, with the methods of multiprocessing's Connection that workers and their parent use."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self._sink = source, sink

    def send(self, value: Any) -> None:
        self.send_bytes(pickle.dumps(value))

    def send_bytes(self, message: bytes) -> None:
        try:
            self._sink.write(len(message).to_bytes(HEAD, "little") + message)
            self._sink.flush()
        except OSError as problem:  # Windows reports a closed pipe as an invalid argument
            raise ConnectionError(str(problem)) from problem

    def recv(self) -> Any:
        return pickle.loads(self.recv_bytes())

    def recv_bytes(self) -> bytes:
        return self._read(int.from_bytes(self._read(HEAD), "little"))

    def _read(self, count: int) -> bytes:
        data = self._source.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def close(self) -> None:
        for stream in (self._source, self._sink):
            try:
                stream.close()
            except OSError:  # what was not sent yet has no reader any more
                continue


class PolledPipes(Pipes):
    """Pipes of which a thread reads, so that one can wait for a message for a limited time."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        super().__init__(source, sink)
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._next: bytes | None = None  # that `poll` has taken from the queue
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while True:
                self._messages.put(super().recv_bytes())
        except (EOFError, OSError):
            self._messages.put(None)

    def poll(self, seconds: float) -> bool:
        """Return whether a message, or the end of the stream, comes within that time."""
        try:
            self._next = self._next or self._messages.get(timeout=seconds)
        except queue.Empty:
            return False
        if self._next is None:
            self._messages.put(None)  # the end remains
        return True

    def recv_bytes(self) -> bytes:
        message, self._next = self._next or self._messages.get(), None
        if message is None:
            self._messages.put(None)
            raise EOFError
        return message

    def close(self) -> None:
        self._thread.join()  # its process has ended, and so has the stream
        super().close()
