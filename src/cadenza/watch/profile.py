"""The profile of a run: spans of every kind of work, and torch's trace of a few cycles."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from cadenza.base.atomic import write_bytes, write_text
from cadenza.base.files import SafePath

TOP = 30  # operations listed
TRACE = "tracing itself"


class Spans:
    """Seconds and calls by path: `collect/act` is the part of `collect` that is spent in `act`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def add(self, path: str, seconds: float) -> None:
        """Count one call."""
        self.seconds[path] = self.seconds.get(path, 0.0) + seconds
        self.calls[path] = self.calls.get(path, 0) + 1

    def table(self, title: str) -> str:
        """Return the spans as a table, with their shares of the time of all top-level spans."""
        total = sum(seconds for path, seconds in self.seconds.items() if "/" not in path)
        lines = [f"{title:40}{'seconds':>10}{'share':>8}{'calls':>10}"]
        for path, seconds in sorted(self.seconds.items()):
            label = "  " * (path.count("/") + 1) + path.rpartition("/")[2]
            lines.append(f"{label:40}{seconds:10.3f}{seconds / total:8.1%}{self.calls[path]:10}")
        return "\n".join(lines) + "\n"


class Profile:
    """Writes `trace.json` (for chrome://tracing or ui.perfetto.dev) and `profile.txt` to `folder`."""

    def __init__(self, folder: SafePath, cycles: int) -> None:
        self.folder = folder
        self.cycles = cycles  # the number of traced cycles
        self._tracer: profile | None = None
        self._operations = ""
        self._open_spans: list[str] = []
        self._all, self._traced = Spans(), Spans()

    @property
    def tracing(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Measure the body of the context under this name, inside the spans that are open."""
        self._open_spans.append(name)
        path = "/".join(self._open_spans)
        began = time.perf_counter()
        try:
            with record_function(path):
                yield
        finally:
            seconds = time.perf_counter() - began
            self._all.add(path, seconds)
            if self.tracing:
                self._traced.add(path, seconds)
            self._open_spans.pop()

    def at_cycle(self, number: int) -> None:
        """Begin the trace at cycle 1, after one cycle of warm-up, and end it after `cycles` cycles."""
        if self.tracing and number > self.cycles:
            self.end_trace()
        elif not self.tracing and not self._operations and 1 <= number <= self.cycles:
            began = time.perf_counter()
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write its starts and stops to the terminal
            kinds = supported_activities() & {ProfilerActivity.CPU, ProfilerActivity.CUDA}  # type: ignore[no-untyped-call]
            self._tracer = profile(activities=kinds)
            self._tracer.start()
            self._all.add(TRACE, time.perf_counter() - began)

    def end_trace(self) -> None:
        """Write the trace, if one is being recorded."""
        if self._tracer is None:
            return
        began = time.perf_counter()
        tracer, self._tracer = self._tracer, None
        tracer.stop()
        self.folder.mkdir()
        with TemporaryDirectory(prefix="cadenza-trace-") as scratch:
            trace = Path(scratch, "trace.json")
            tracer.export_chrome_trace(str(trace))
            write_bytes(self.folder / trace.name, trace.read_bytes())
        self._operations = tracer.key_averages().table(sort_by="self_cpu_time_total", row_limit=TOP)
        self._all.add(TRACE, time.perf_counter() - began)

    def write(self) -> None:
        """Write the tables so far; without a trace here, keep the file of an earlier process that has one."""
        self.end_trace()
        self.folder.mkdir()
        path = self.folder / "profile.txt"
        tables = [self._all.table("the whole run, checks included")]
        if self._operations:
            tables += [self._traced.table("the traced cycles, without checks"), self._operations]
        if self._operations or not path.exists():
            write_text(path, "\n".join(tables))
