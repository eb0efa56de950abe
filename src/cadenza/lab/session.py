"""Training with everything that is attached to a run: console, alerts, sinks, videos, `--debug`, final report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cadenza.config.schema import RunConfig
from cadenza.engine import launch
from cadenza.engine.events import Listener
from cadenza.engine.launch import Result
from cadenza.errors import explanation
from cadenza.records.folder import RunFolder, shared_url
from cadenza.records.metrics import export_csv, read
from cadenza.watch.alerts import Alerts
from cadenza.watch.console import Console

if TYPE_CHECKING:
    from cadenza.engine.build import Assembly
    from cadenza.engine.orchestrator import Orchestrator
    from cadenza.engine.signals import Signals

Sink = Callable[[Callable[[str], None]], Listener]  # takes a function that warns, returns a listener


def train(
    config: RunConfig,
    root: Path,
    command: list[str],
    quiet: bool = False,
    on_event: Iterable[Listener] = (),
    notes: Iterable[str] = (),
    run_id: str | None = None,
) -> Result:
    """Train a new run to its end; see `engine.launch.train`."""
    return launch.train(config, root, command, RunAttachments(quiet, on_event), notes, run_id)


def resume(
    folder: RunFolder,
    max_timesteps: int | None = None,
    max_updates: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    trust: bool = False,
    on_event: Iterable[Listener] = (),
    accept_changes: bool = False,
) -> Result:
    """Continue a run to its end; see `engine.launch.resume`."""
    attachments = RunAttachments(quiet, on_event)
    return launch.resume(folder, attachments, max_timesteps, max_updates, device, trust, accept_changes)


def build_quietly(assembly: Assembly, folder: RunFolder, signals: Signals) -> Orchestrator:
    """Build a run that shows warnings only and has no listeners, for tools that drive its loop themselves."""
    from cadenza.engine.build import build

    run = build(assembly, folder, Console(quiet=True, total=None), signals)
    attach_debug(run)
    return run


def attach_debug(run: Orchestrator) -> None:
    """Attach the checks of `--debug`, if the config asks for them."""
    if run.config.debug.enabled:
        from cadenza.watch.debug import Debug

        run.attach(Debug(run, run.config.debug))


class RunAttachments:
    """The attachments of runs that `cadenza train` and `cadenza.train` start (`engine.events.Attachments`)."""

    def __init__(self, quiet: bool, on_event: Iterable[Listener]) -> None:
        self._quiet, self._on_event = quiet, on_event
        self._sinks: list[Sink] = []
        self._run_log = True

    def check(self, config: RunConfig) -> None:
        """Refuse a sink that is not installed or cannot be built, before anything is written."""
        self._sinks = sinks_of(config)
        self._run_log = config.logging.run_log

    def display(self, folder: RunFolder, unit: str, total: int | None) -> Console:
        """Return the console of a run, which also writes its log."""
        return Console(self._quiet, total, unit=unit, log=folder.log if self._run_log else None)

    def attach(self, run: Orchestrator) -> None:
        """Attach the checks of `--debug`, if the config asks for them."""
        attach_debug(run)

    def listen(self, run: Orchestrator) -> None:
        """Add the listeners: alerts, videos of evaluations, sinks, and those of the caller."""

        def warn(line: str) -> None:
            run.console.note(line, warning=True)

        run.listeners += [Alerts(run.console.note)] if run.config.logging.alerts.enabled else []
        if run.config.evaluation.video_every:
            from cadenza.lab.view.evaluation_video import EvaluationVideos

            # before the sinks, which read its files
            run.listeners.append(EvaluationVideos(run.config, run.workflow, run.folder, run.usage, warn))
        run.listeners += [*(sink(warn) for sink in self._sinks), *self._on_event]

    def finish(self, run: Orchestrator) -> None:
        """Write metrics.csv and the report; before them a video, if `evaluation.video` is set and the run is finished.

        The run itself is stored already: a failed video, and a table or report without room on the disk, are warnings.
        """
        from cadenza.lab.report import write_report

        try:
            if run.config.evaluation.video and run.finished:
                from cadenza.lab.view.imagination import record_imagination
                from cadenza.lab.view.play import record_video

                record_imagination(run.workflow, run.stores, run.folder.videos)
                record_video(run.folder, run.folder.best_or_last, trust=True)
        except Exception as problem:  # a renderer of another package may raise anything
            run.console.note(f"no video: {explanation(problem)}", warning=True)
        try:
            export_csv(read(run.folder.metrics), run.folder.files / "metrics.csv")
            write_report(run.folder)
        except OSError as problem:
            run.console.note(f"no report: {problem.strerror or problem}", warning=True)


def sinks_of(config: RunConfig) -> list[Sink]:
    """Return the sinks that get rows besides metrics.jsonl; refuse one that is not installed or cannot be built."""
    sinks: list[Sink] = []
    if config.logging.tensorboard:
        from cadenza.watch.tensorboard import TensorBoard

        sinks.append(TensorBoard)
    if config.logging.wandb:
        from cadenza.watch.wandb_sink import Wandb

        sinks.append(Wandb)
    if config.logging.sinks:
        from cadenza.watch.package_sink import PackageSink

        sinks += map(PackageSink, config.logging.sinks)
    if (url := shared_url()) is not None:
        from cadenza.records.shared_index import SharedIndex
        from cadenza.watch.heartbeat import Heartbeat

        sinks.append(partial(Heartbeat, SharedIndex(url)))  # refuses an invalid URL
    return sinks
