from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from cadenza.engine.scheduler import PhaseProgress
from cadenza.watch import console as module
from cadenza.watch.console import HISTORY, Console
from harness.command import cadenza

TRAIN = PhaseProgress("train", last=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock whose time changes only when a test sets `clock.now`."""
    clock = SimpleNamespace(now=100.0, looks=0)

    def monotonic() -> float:
        clock.looks += 1
        return clock.now

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    return clock


class Terminal:
    """A pseudo terminal and everything that was written to it."""

    def __init__(self) -> None:
        pty = pytest.importorskip("pty")  # not on Windows
        self._master, slave = pty.openpty()
        self.stream: IO[str] = os.fdopen(slave, "w", encoding="utf-8")
        self._output = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # Linux says EIO when the other end is closed
                return
            if not data:
                return
            self._output += data

    def text(self) -> str:
        if not self.stream.closed:
            self.stream.close()
            self._reader.join()
            os.close(self._master)
        return self._output.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    opened = Terminal()
    yield opened
    opened.text()


def row(step: int, value: float) -> dict[str, float]:
    return {
        "env_steps": step,
        "updates": step,
        "collect/return_mean": value,
        "train/policy_loss": -0.5,
        "time/seconds": 3,
    }


def test_without_a_terminal_lines_are_printed_at_intervals_and_at_evaluations(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    console = Console(False, 1000, stream)
    console.start(["CartPole-v1:ppo", "seed 0"], 0, TRAIN)
    clock.now += 1
    console.update(100, TRAIN, row(100, 20.0))
    assert stream.getvalue() == "CartPole-v1:ppo\nseed 0\n"
    console.update(200, TRAIN, row(200, 25.0) | {"eval/return_mean": 30.0})
    line = stream.getvalue().splitlines()[-1]
    assert line == (
        "env_steps 200 / 1,000 (20%)  eval/return_mean 30  collect/return_mean 25  "
        "train/policy_loss -0.5  200 steps/s  ETA 0:00:04"
    )
    clock.now += 4.9
    console.update(300, TRAIN)
    assert stream.getvalue().splitlines()[-1] == line
    clock.now += 0.2
    console.update(400, TRAIN)
    assert stream.getvalue().splitlines()[-1].startswith("env_steps 400 / 1,000 (40%)")
    console.note("slow", warning=True)
    console.finish("finished")
    assert stream.getvalue().splitlines()[-2:] == ["warning: slow", "finished"]
    assert "\x1b" not in stream.getvalue()


def test_quiet_prints_only_warnings(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    console = Console(True, 1000, stream)
    console.start(["CartPole-v1:ppo"], 0, TRAIN)
    clock.now += 60
    console.update(200, TRAIN, row(200, 1.0) | {"eval/return_mean": 30.0})
    console.note("for your information")
    console.note("disk full", warning=True)
    console.finish("finished")
    assert stream.getvalue() == "warning: disk full\n"


class ClosedPipe(io.StringIO):
    """A stream that fails after the first line."""

    def write(self, text: str) -> int:
        if self.getvalue():
            raise BrokenPipeError
        return super().write(text)


def test_a_closed_pipe_silences_the_console_without_an_error(clock: SimpleNamespace) -> None:
    stream = ClosedPipe()
    console = Console(False, 1000, stream)
    console.start(["CartPole-v1:ppo"], 0, TRAIN)
    clock.now += 60
    console.update(200, TRAIN, row(200, 1.0))
    console.note("disk full", warning=True)
    console.finish("finished")
    console.close()
    assert stream.getvalue() == "CartPole-v1:ppo\n"


def test_speed_and_eta_of_a_resumed_run_count_only_this_process(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    console = Console(False, 100_000, stream)
    console.start([], 90_000, TRAIN)
    clock.now += 10
    console.update(90_000, TRAIN)
    console.update(91_000, TRAIN, {"eval/return_mean": 1.0})
    assert stream.getvalue().splitlines() == [
        "env_steps 90,000 / 100,000 (90%)  ETA -",
        "env_steps 91,000 / 100,000 (91%)  eval/return_mean 1  100 steps/s  ETA 0:01:30",
    ]


def test_budgets_in_updates_and_missing_budgets_are_shown(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    console = Console(False, 50, stream, unit="updates")
    console.start([], 0, TRAIN)
    clock.now += 10
    console.update(20, TRAIN)
    assert stream.getvalue() == "updates 20 / 50 (40%)  2 updates/s  ETA 0:00:15\n"
    stream = io.StringIO()
    console = Console(False, None, stream)
    console.start([], 0, TRAIN)
    clock.now += 10
    console.update(20, TRAIN)
    assert stream.getvalue() == "env_steps 20  2 steps/s\n"


def test_a_phase_without_env_steps_shows_its_progress_in_updates(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    console = Console(False, 7500, stream)
    console.start([], 0, PhaseProgress("warmup", last=False, unit="cycles", total=1))
    clock.now += 5
    console.update(2500, PhaseProgress("warmup", last=False, unit="cycles", total=1))
    console.update(5000, PhaseProgress("pretrain", last=False, unit="updates", total=5000))
    clock.now += 100
    console.update(5000, PhaseProgress("pretrain", last=False, unit="updates", amount=200, total=5000))
    clock.now += 2400
    console.update(5000, PhaseProgress("train", last=True))
    clock.now += 100
    console.update(5100, PhaseProgress("train", last=True))
    assert stream.getvalue().splitlines() == [
        "env_steps 2,500 / 7,500 (33%)  500 steps/s  ETA -",
        "env_steps 5,000 / 7,500 (67%)  pretrain 200 / 5,000 updates  2 updates/s  pretrain ETA 0:40:00",
        "env_steps 5,000 / 7,500 (67%)  ETA -",
        "env_steps 5,100 / 7,500 (68%)  1 steps/s  ETA 0:40:00",
    ]


def test_the_eta_is_that_of_the_run_or_phase_that_ends_first(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    console = Console(False, 2048, stream)

    def train(updates: int, total: int) -> PhaseProgress:
        return PhaseProgress("train", last=True, unit="cycles", amount=updates, total=total)

    console.start([], 0, train(0, 100_000))
    clock.now += 60
    console.update(1024, train(8, 100_000))
    clock.now += 60
    console.update(1536, train(12, 14))
    assert stream.getvalue().splitlines() == [
        "env_steps 1,024 / 2,048 (50%)  17.07 steps/s  ETA 0:01:00",
        "env_steps 1,536 / 2,048 (75%)  train 12 / 14 cycles  0.1 cycles/s  ETA 0:00:20",
    ]


def test_the_speed_of_a_resumed_phase_counts_only_this_process(clock: SimpleNamespace, terminal: Terminal) -> None:
    console = Console(False, 7500, terminal.stream)
    console.start([], 5000, PhaseProgress("pretrain", last=False, unit="updates", amount=4000, total=5000))
    clock.now += 10
    console.update(5000, PhaseProgress("pretrain", last=False, unit="updates", amount=4100, total=5000))
    console.close()
    text = terminal.text()
    assert "82%" in text
    assert "4,100 / 5,000 updates" in text
    assert "5,000 env_steps" in text
    assert "pretrain ETA 0:01:30" in text


def test_updates_between_refreshes_only_read_the_clock(
    clock: SimpleNamespace, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(False, 10**6, terminal.stream)
    displays = []
    real = console._display
    monkeypatch.setattr(console, "_display", lambda: displays.append(1) or real())
    console.start(["run"], 0, TRAIN)
    clock.now += 1
    console.update(1, TRAIN)
    drawn, looks = len(displays), clock.looks
    for step in range(2, 1002):
        console.update(step, TRAIN)
    assert (len(displays), clock.looks) == (drawn, looks + 1000)
    clock.now += 0.26
    console.update(1002, TRAIN)
    assert len(displays) == drawn + 1
    console.close()


def test_a_terminal_shows_a_bar_a_table_and_notes(clock: SimpleNamespace, terminal: Terminal) -> None:
    console = Console(False, 1000, terminal.stream)
    console.start(["CartPole-v1:ppo", "seed 0"], 0, TRAIN)
    for step, value in ((250, 10.0), (500, 80.0), (750, 40.0)):
        clock.now += 1
        console.update(step, TRAIN, row(step, value) | {"eval/return_mean": value, "train/odd": 7.0})
    console.note("half way", warning=True)
    console.finish("finished: 40")
    text = terminal.text()
    for part in (
        "CartPole-v1:ppo",
        "eval/return_mean",
        "collect/return_mean",
        "train/odd",
        "▁█▄",
        "━",
        "75%",
        "750 / 1,000",
    ):
        assert part in text
    assert "250 steps/s" in text
    assert "0:00:01" in text, "a quarter of the budget at 250 steps a second"
    assert "half way" in text
    assert "time/seconds" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden once and given back"
    assert text.rstrip().endswith("finished: 40")


def test_a_new_best_return_is_highlighted(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = Console(False, 1000, io.StringIO())
    for step, value in ((1, 10.0), (2, 80.0), (3, 40.0)):
        console.update(step, TRAIN, {"eval/return_mean": value, "train/value_loss": value})
    plain, coloured = drawn(console)
    lines = {line.split()[0]: line.split() for line in plain.splitlines() if "/" in line}
    assert lines["eval/return_mean"] == ["eval/return_mean", "40", "80", "▁█▄"]
    assert lines["train/value_loss"] == ["train/value_loss", "40", "▁█▄"]
    assert not re.search(BOLD_GREEN + "40", coloured)
    console.update(4, TRAIN, {"eval/return_mean": 90.0})
    assert re.search(BOLD_GREEN + "90", drawn(console)[1])


BOLD_GREEN = r"\x1b\[1;32m *"


def drawn(console: Console) -> tuple[str, str]:
    """Return the table as plain text and with terminal codes."""
    from rich.console import Console as Rich

    screen = io.StringIO()
    paper = Rich(file=screen, record=True, width=100, force_terminal=True, color_system="standard")
    paper.print(console._table())
    return paper.export_text(), screen.getvalue()


def test_closing_twice_restores_the_cursor_once(clock: SimpleNamespace, terminal: Terminal) -> None:
    console = Console(False, 1000, terminal.stream)
    console.start(["run"], 0, TRAIN)
    console.close()
    console.close()
    assert terminal.text().count("\x1b[?25h") == 1


def test_a_dumb_terminal_gets_plain_lines(
    clock: SimpleNamespace, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(False, 1000, terminal.stream)
    console.start(["run"], 0, TRAIN)
    clock.now += 6
    console.update(10, TRAIN)
    console.finish("done")
    text = terminal.text()
    assert "\x1b" not in text
    assert "env_steps 10 / 1,000" in text


def test_a_run_prints_the_progress_of_each_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", 0.0)
    phases = (
        "{name: warmup, actions: random, duration_steps: 64, hooks: [{name: collect, steps: 16}]}",
        "{name: pretrain, type: offline, duration_updates: 4, hooks: [update]}",
        "{name: train, hooks: [{name: collect, steps: 16}, update]}",
    )
    settings = ["evaluation.every_steps=null", "evaluation.at_end=false", "logging.every_steps=1000"]
    spec = ["toy/identity:dqn", f"training.phases=[{','.join(phases)}]", *settings, "--max-timesteps", 128]
    err = cadenza("train", *spec, "--runs-dir", tmp_path).succeeded().err
    lines = [line for line in err.splitlines() if line.startswith("env_steps")]
    assert [re.sub(r"\d:\d\d:\d\d", "soon", re.sub(r"[\d.,]+ (\w+/s)", r"N \1", line)) for line in lines[:-1]] == [
        *(
            f"env_steps {steps} / 128 ({share}%)  warmup {steps} / 64 env_steps  N steps/s  warmup ETA soon"
            for steps, share in ((16, 12), (32, 25), (48, 38))
        ),
        "env_steps 64 / 128 (50%)  ETA -",
        *(
            f"env_steps 64 / 128 (50%)  pretrain {steps} / 4 updates  N updates/s  pretrain ETA soon"
            for steps in (1, 2, 3)
        ),
        "env_steps 64 / 128 (50%)  ETA -",
        *(
            f"env_steps {steps} / 128 ({share}%)  N steps/s  ETA soon"
            for steps, share in ((80, 62), (96, 75), (112, 88), (128, 100))
        ),
    ]


def test_a_notebook_shows_the_table_in_place_and_no_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    pages: list[str] = []
    handle = SimpleNamespace(update=lambda page: pages.append(page))

    def show(page: object, **settings: object) -> SimpleNamespace:
        pages.append(str(page))
        return handle

    display = SimpleNamespace(display=show, HTML=str)
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    console = Console(quiet=False, total=1000)
    console.start(["headline"], 0, TRAIN)
    clock.now += 1
    console.update(500, TRAIN, {"env_steps": 500, "eval/return_mean": 3.5})
    console.note("hint")
    console.finish("finished")
    text = "".join(pages)
    assert "50%" in text
    assert "eval/return_mean" in text
    assert capsys.readouterr().err == ""


def test_a_table_in_a_terminal_of_80_columns_cuts_no_name(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    console = Console(False, 10**6, terminal.stream)
    console.start(["run"], 0, TRAIN)
    console.update(1, TRAIN, {"train/explained_variance": 0.5, "eval/return_mean": 1.0})
    console.finish("")
    text = terminal.text()
    assert "train/explained_variance" in text
    assert "…" not in text
    assert f"last {HISTORY}" not in text
