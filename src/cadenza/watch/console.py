"""The console of a run: a live table on a terminal or in a notebook, else plain lines; when quiet, warnings alone."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from cadenza.base.eta import Count, ahead, rate, speed
from cadenza.base.files import SafePath
from cadenza.base.formatting import ASCII, BLOCKS, duration, number, sparkline
from cadenza.base.text import one_line, printable
from cadenza.engine.scheduler import PhaseProgress

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.live import Live

    from cadenza.watch.notebook import NotebookLive

LIVE_SECONDS = 0.25  # between two refreshes of the table
LINE_SECONDS = 5.0  # between two lines
HISTORY = 30  # values in a sparkline, fewer where a terminal is narrow
SHORTEST = 8
USUAL_WIDTH = 80  # columns
NUMBER_WIDTH = 10
TABLE_ROWS = 12
EVALUATION = "eval/return_mean"
# Listed first, in this order; the other metrics follow until the table is full.
IMPORTANT = (
    *(EVALUATION, "eval/return_std", "eval/win_rate", "collect/return_mean", "collect/length_mean", "collect/win_rate"),
    *("train/policy_loss", "train/value_loss", "train/entropy", "train/kl", "train/clip_fraction"),
    *("train/explained_variance", "train/grad_norm", "train/learning_rate"),
)
LINE_METRICS = (EVALUATION, "collect/return_mean", "train/policy_loss", "train/value_loss")


class Console:
    """The progress of one run. `update` is cheap enough for every step: between refreshes it only reads the clock."""

    def __init__(
        self,
        quiet: bool,
        total: int | None,
        stream: IO[str] | None = None,
        unit: str = "env_steps",
        log: SafePath | None = None,
    ) -> None:
        self._log = log  # receives headlines, notes and the summary, even when quiet
        self._unit = unit  # what `total` counts: env_steps, or updates in a run without an environment
        self._quiet = quiet
        self._total = total
        self._stream = stream if stream is not None else sys.stderr
        self._position, self._phase = 0, PhaseProgress("", last=False)
        self._phase_began, self._phase_base = time.monotonic(), (0, 0)  # time and counts when this process entered it
        self._next_refresh = 0.0
        self._last: dict[str, Any] = {}
        self._history: dict[str, deque[float]] = {}
        self._best: dict[str, float] = {}
        self._live: Live | NotebookLive | None = None
        self._rich: RichConsole | None = None
        self._levels = BLOCKS if "utf" in (getattr(self._stream, "encoding", None) or "utf-8").lower() else ASCII

    def start(self, headline: Sequence[str], position: int, phase: PhaseProgress) -> None:
        """Show the headline and start the table at `position`; the speed of a resumed run counts from there."""
        self._enter(position, phase)
        for line in headline:
            self._record(line)
        if self._quiet:
            return
        if self._terminal():
            with self._silence_on_failure():
                self._open_live(headline)
        else:
            self._next_refresh = self._phase_began + LINE_SECONDS
            for line in headline:
                self._line(line)

    def update(self, position: int, phase: PhaseProgress, row: dict[str, Any] | None = None) -> None:
        """Take the progress of the run and of its phase, and the row of metrics if one was just written."""
        if self._quiet:
            return
        if phase.phase == self._phase.phase:
            self._position, self._phase = position, phase
        else:
            self._enter(position, phase)
        if row is not None:
            self._add_row(row)
        now = time.monotonic()
        if self._live is not None:
            if now >= self._next_refresh:
                self._next_refresh = now + LIVE_SECONDS
                with self._silence_on_failure():
                    self._live.update(self._display(), refresh=True)
        elif now >= self._next_refresh or (row is not None and row.get(EVALUATION) is not None):
            self._next_refresh = now + LINE_SECONDS
            self._line(self._progress_line())

    def note(self, text: str, warning: bool = False) -> None:
        """Print a line above the table; when quiet, only if it is a warning."""
        text = ("warning: " if warning else "") + one_line(text)
        self._record(text)
        if self._quiet and not warning:
            return
        if self._live is not None:
            from rich.text import Text

            with self._silence_on_failure():
                self._live.console.print(Text(text, style="yellow" if warning else "dim"), soft_wrap=True)
        else:
            self._line(text)

    def finish(self, summary: str) -> None:
        """Show the final table and the summary, of one line or several."""
        if self._live is not None:
            with self._silence_on_failure():
                self._live.update(self._display(), refresh=True)
        self.close()
        for line in summary.split("\n"):
            self._record(line)
            if not self._quiet:
                self._line(line)

    def close(self) -> None:
        """Release the terminal. Must be called when a run fails, and may be called twice."""
        if self._live is not None:
            with self._silence_on_failure():
                self._live.stop()
            self._live = None

    def _enter(self, position: int, phase: PhaseProgress) -> None:
        self._position, self._phase = position, phase
        self._phase_began, self._phase_base = time.monotonic(), (position, phase.amount)

    def _ahead(self) -> tuple[Count, float | None]:
        """Return whichever ends first at the speed of this phase, the run or the phase, and in how many seconds."""
        phase, seconds = self._phase, time.monotonic() - self._phase_began
        run_base, phase_base = self._phase_base
        run_count = Count("", self._unit, self._position, self._total, speed(self._position - run_base, seconds))
        phase_speed = speed(phase.amount - phase_base, seconds)
        phase_count = Count(phase.phase, phase.unit, phase.amount, phase.total, phase_speed)
        return ahead(run_count, phase_count, phase.last)

    def _terminal(self) -> bool:
        """Return whether a table can be shown, and prepare it."""
        notebook = self._stream is sys.stderr and "IPython" in sys.modules and self._notebook()
        if not notebook and not (hasattr(self._stream, "isatty") and self._stream.isatty()):
            return False
        from rich.console import Console as RichConsole

        self._rich = RichConsole(force_jupyter=True) if notebook else RichConsole(file=self._stream)
        return notebook or not self._rich.is_dumb_terminal

    @staticmethod
    def _notebook() -> bool:
        from cadenza.watch.notebook import in_notebook

        return in_notebook()

    def _open_live(self, headline: Sequence[str]) -> None:
        from rich.live import Live
        from rich.text import Text

        assert self._rich is not None
        for index, line in enumerate(headline):
            self._rich.print(Text(printable(line), style="bold" if index == 0 else "dim"), soft_wrap=True)
        if self._rich.is_jupyter:
            from cadenza.watch.notebook import NotebookLive

            self._live = NotebookLive(self._display(), self._rich)
            return
        # No refresh thread: it would compete with training for the interpreter.
        self._live = Live(self._display(), console=self._rich, auto_refresh=False, transient=False)
        self._live.start(refresh=True)

    def _line(self, text: str) -> None:
        with self._silence_on_failure():
            if self._rich is not None and self._rich.is_jupyter:  # a notebook shows stderr like an error
                self._rich.print(text, markup=False, highlight=False, soft_wrap=True)
                return
            self._stream.write(printable(text) + "\n")
            self._stream.flush()

    @contextlib.contextmanager
    def _silence_on_failure(self) -> Iterator[None]:
        """Go quiet if the stream fails: a closed pipe or a full disk must not end a run, and `run.log` has it all."""
        try:
            yield
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._live, self._quiet = None, True

    def _record(self, text: str) -> None:
        if self._log is not None:
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {printable(text)}\n"
            with contextlib.suppress(OSError):  # a full disk must not end a run here
                self._log.append(line.encode(errors="backslashreplace"))

    def _add_row(self, row: dict[str, Any]) -> None:
        for key, value in row.items():
            if "/" not in key or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            self._last[key] = value
            self._history.setdefault(key, deque(maxlen=HISTORY)).append(value)
            if key.endswith("return_mean") and value >= self._best.get(key, value):
                self._best[key] = value

    def _progress_line(self) -> str:
        count, seconds = self._ahead()
        parts = [f"{self._unit} {self._position:,}"]
        if self._total:
            parts[0] += f" / {self._total:,} ({min(1.0, self._position / self._total):.0%})"
        if count.phase:
            parts.append(f"{count.phase} {count.progress:,} / {count.end:,} {count.unit}")
        parts += [f"{key} {number(self._last[key])}" for key in LINE_METRICS if key in self._last]
        return "  ".join(part for part in (*parts, rate(count.speed, count.unit), self._eta(count, seconds)) if part)

    def _eta(self, count: Count, seconds: float | None) -> str:
        phase = f"{count.phase} " if count.phase and not self._phase.last else ""  # the run ends with its last phase
        return f"{phase}ETA {duration(seconds)}" if self._total or self._phase.total else ""

    def _display(self) -> RenderableType:
        from rich.console import Group

        return Group(self._table(), self._bar()) if self._last else self._bar()

    def _bar(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        count, seconds = self._ahead()
        grid = Table.grid(padding=(0, 1))
        row: list[RenderableType] = []
        if count.end:
            bar = ProgressBar(total=count.end, completed=min(count.progress, count.end), width=30)
            share = f"[bold]{min(1.0, count.progress / count.end):4.0%}[/]"
            row += [bar, share, Text(f"{count.progress:,} / {count.end:,} {printable(count.unit)}")]
        if count.phase or not count.end:
            row.append(Text(f"{self._position:,} {printable(self._unit)}"))
        speed = rate(count.speed, count.unit) or "starting"
        grid.add_row(*row, Text(printable(speed), "cyan"), Text(printable(self._eta(count, seconds)), "bold"))
        return grid

    def _table(self) -> RenderableType:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        room = self._rich.width if self._rich is not None else USUAL_WIDTH
        keys = [printable(key) for key in self._table_keys()]
        numbers = 2 * NUMBER_WIDTH + 13  # with the padding of all columns and the table's edges
        history = max(SHORTEST, min(HISTORY, room - max(map(len, keys)) - numbers))
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), header_style="dim")
        table.add_column("metric")
        table.add_column("now", justify="right", min_width=NUMBER_WIDTH)
        table.add_column("best", justify="right", min_width=NUMBER_WIDTH)
        table.add_column(f"last {history}", min_width=history, style="cyan", no_wrap=True)
        for key in self._table_keys():
            value, best = self._last[key], self._best.get(key)
            style = "bold green" if best is not None and value >= best else ""
            highest = "" if best is None else number(best)
            trend = sparkline(list(self._history[key]), history, self._levels)
            table.add_row(Text(printable(key)), Text(number(value), style), Text(highest, "green"), trend)
        return table

    def _table_keys(self) -> list[str]:
        first = [key for key in IMPORTANT if key in self._last]
        rest = [key for key in self._last if key not in first and not key.startswith(("time/", "system/"))]
        return (first + rest)[:TABLE_ROWS]
