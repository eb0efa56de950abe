"""Delivery of alerts to a user's command and webhook, by a thread, so that a slow or failing one costs no time."""

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
SECONDS = 10.0  # that one delivery may take
PATIENCE_SECONDS = 5.0  # to wait for pending deliveries when the run has ended
QUEUE_LENGTH = 100  # pending alerts; further ones are dropped


class Messenger:
    """A queue of alerts for a command and a webhook.

    Neither is part of a run's config: a command is code, and a webhook's address usually contains a secret.
    """

    def __init__(self, command: str | None, webhook: str | None) -> None:
        self._command, self._webhook = command, webhook
        self._queue: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(QUEUE_LENGTH)
        self._failed, self._problem = 0, ""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @classmethod
    def from_environment(cls) -> Messenger | None:
        """Return a messenger if the environment variables name a command or a webhook."""
        command, webhook = os.environ.get(COMMAND), os.environ.get(WEBHOOK)
        return cls(command, webhook) if command or webhook else None

    def send(self, text: str, alert: dict[str, Any]) -> None:
        """Queue an alert, with its line of text; return at once."""
        try:
            self._queue.put_nowait((text, alert))
        except queue.Full:
            self._failed, self._problem = self._failed + 1, "too many are waiting"

    def close(self) -> str | None:
        """Wait a moment for pending deliveries; return what went wrong, or None."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            return "not every alert was delivered: no answer"
        return f"{self._failed} alerts were not delivered: {self._problem}" if self._failed else None

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            text, alert = item
            for deliver, target in ((run_command, self._command), (post, self._webhook)):
                try:
                    if target:
                        deliver(target, text, alert)
                except Exception as problem:  # anything a user's program or server may do
                    self._failed, self._problem = self._failed + 1, f"{type(problem).__name__}: {problem}"


def run_command(command: str, text: str, alert: dict[str, Any]) -> None:
    """Run the command in a shell, with the line in CADENZA_ALERT and the alert as JSON on standard input."""
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
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        raise TimeoutError(f"{COMMAND} took longer than {SECONDS:g} s") from None
    if process.returncode:
        raise OSError(f"{COMMAND} ended with {process.returncode}")


def post(url: str, text: str, alert: dict[str, Any]) -> None:
    """Post the alert as JSON; `text` is the key that chat services show."""
    from urllib.request import Request, urlopen

    body = dumps({"text": text, **alert}).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=SECONDS):
        pass
