"""Requests to stop a run by signals, listeners and timers, in any order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cadenza.engine import signals as module
from cadenza.engine.signals import STOP, Signals

TWICE = """
import os, signal
from cadenza.engine.signals import Signals

with Signals() as signals:
    signals.stop()
    os.kill(os.getpid(), signal.SIGINT)
    print(signals.requested, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("still here")
"""


def test_a_signal_replaces_a_stop_and_a_stop_replaces_no_signal() -> None:
    with Signals() as signals:
        assert signals.requested is None
        signals.stop()
        assert signals.requested == STOP
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.requested == "SIGTERM"
        signals.stop()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.requested == "SIGTERM"


def test_the_first_ctrl_c_after_a_stop_ends_at_the_next_boundary_and_the_second_at_once() -> None:
    process = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (130, "SIGINT\n")
    assert "SIGINT: saving at the next boundary" in process.stderr
    assert "left at once" in process.stderr


def test_ctrl_c_works_after_signal_handling_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same Ctrl-C ends the `tee` of `2>&1 | tee log`."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(module, "STDERR", writer)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.requested == "SIGINT"
    os.close(writer)
