"""Where the time of a run goes: spans of every kind of work, and torch's own trace of a few cycles."""

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
TRACE = "the trace itself"


class Spans:
    """Seconds and calls by path: `collect/act` is the part of `collect` that is spent in `act`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def add(self, path: str, seconds: float) -> None:
        self.seconds[path] = self.seconds.get(path, 0.0) + seconds
        self.calls[path] = self.calls.get(path, 0) + 1

    def table(self, title: str) -> str:
        total = sum(seconds for path, seconds in self.seconds.items() if "/" not in path)
        lines = [f"{title:40}{'seconds':>10}{'share':>8}{'calls':>10}"]
        for path, seconds in sorted(self.seconds.items()):
            label = "  " * (path.count("/") + 1) + path.rpartition("/")[2]
            lines.append(f"{label:40}{seconds:10.3f}{seconds / total:8.1%}{self.calls[path]:10}")
        return "\n".join(lines) + "\n"


class Profile:
    """`trace.json` (for chrome://tracing or ui.perfetto.dev) and `profile.txt` in `folder`."""

    def __init__(self, folder: SafePath, cycles: int) -> None:
        self.folder = folder
        self.cycles = cycles  # how many the trace covers
        self._tracer: profile | None = None
        self._operations = ""
        self._doing: list[str] = []
        self._all, self._traced = Spans(), Spans()

    @property
    def tracing(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count what happens inside under this name."""
        self._doing.append(name)
        path = "/".join(self._doing)
        began = time.perf_counter()
        try:
            with record_function(path):
                yield
        finally:
            seconds = time.perf_counter() - began
            self._all.add(path, seconds)
            if self.tracing:
                self._traced.add(path, seconds)
            self._doing.pop()

    def at_cycle(self, number: int) -> None:
        """Begin or end the trace if this is the cycle for it; the first, number 0, is left to warm up."""
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
        """What there is so far, also of a run that failed; what another process has traced is kept."""
        self.end_trace()
        self.folder.mkdir()
        path = self.folder / "profile.txt"
        tables = [self._all.table("the whole run, checks included")]
        if self._operations:
            tables += [self._traced.table("the traced cycles, without checks"), self._operations]
        if self._operations or not path.exists():
            write_text(path, "\n".join(tables))
