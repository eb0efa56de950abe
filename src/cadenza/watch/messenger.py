"""Takes alerts to a user's command and webhook, from a thread of its own: one that hangs or fails costs nothing."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from typing import Any

from cadenza.base.json_text import dumps

COMMAND, WEBHOOK = "CADENZA_ALERT_COMMAND", "CADENZA_ALERT_WEBHOOK"
SECONDS = 10.0  # that one of them may take
PATIENCE_SECONDS = 5.0  # for what is still to be told when the run has ended
WAITING = 100  # alerts; further ones are not told outside


class Messenger:
    """Neither is part of a run's config: the one is code, the other usually holds a secret."""

    def __init__(self, command: str | None, webhook: str | None) -> None:
        self._command, self._webhook = command, webhook
        self._queue: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(WAITING)
        self._failed, self._problem = 0, ""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @classmethod
    def wanted(cls) -> Messenger | None:
        """One, if the environment names somebody to tell."""
        command, webhook = os.environ.get(COMMAND), os.environ.get(WEBHOOK)
        return cls(command, webhook) if command or webhook else None

    def send(self, text: str, alert: dict[str, Any]) -> None:
        """Comes back at once."""
        try:
            self._queue.put_nowait((text, alert))
        except queue.Full:
            self._failed, self._problem = self._failed + 1, "too many wait"

    def close(self) -> str | None:
        """Give it a moment to tell the rest; what went wrong, if anything did."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            return "alerts could not all be told outside: no answer"
        return f"alerts could not all be told outside ({self._failed}): {self._problem}" if self._failed else None

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            text, alert = item
            for tell, target in ((run_command, self._command), (post, self._webhook)):
                try:
                    if target:
                        tell(target, text, alert)
                except Exception as problem:  # whatever a stranger's program or server may do
                    self._failed, self._problem = self._failed + 1, f"{type(problem).__name__}: {problem}"


def run_command(command: str, text: str, alert: dict[str, Any]) -> None:
    """In a shell, with the line in CADENZA_ALERT and all of it as JSON on standard input."""
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"CADENZA_ALERT": text},
        start_new_session=True,
        text=True,
    )
    try:
        process.communicate(dumps(alert) + "\n", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise TimeoutError(f"{COMMAND} took longer than {SECONDS:g} s") from None
    if process.returncode:
        raise OSError(f"{COMMAND} ended with {process.returncode}")


def post(url: str, text: str, alert: dict[str, Any]) -> None:
    """As JSON: `text` is what chat services show."""
    from urllib.request import Request, urlopen

    body = dumps({"text": text, **alert}).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=SECONDS):
        pass
