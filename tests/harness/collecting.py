"""Collections of an assembled run without an orchestrator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cadenza.config.load import load
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.collector import Collector
from cadenza.engine.launch import check
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.types import Mode, PhaseInfo

PHASE = PhaseInfo("train", "online", 0, 1000)


def collected(assembly: Assembly, times: int = 1) -> Any:
    """Return what the store of the first phase contains after the last of `times` collections."""
    task = PhaseScheduler(assembly.phases).next()
    assert task is not None
    assert assembly.env is not None
    store: Any = assembly.stores[task.buffer]
    collector = Collector(assembly.env, assembly.workflow)
    mode = Mode(explore=True, phase=PHASE, streams=assembly.streams)
    for _ in range(times):
        collector.collect(task, store, mode, lambda: False)
        content = store.take()
    return content


def filled(assembly: Assembly, phase: PhaseInfo = PHASE) -> Any:
    """The store of the first phase after one collection."""
    task = PhaseScheduler(assembly.phases).next()
    assert task is not None
    assert assembly.env is not None
    store, mode = assembly.stores[task.buffer], Mode(explore=True, phase=phase, streams=assembly.streams)
    Collector(assembly.env, assembly.workflow).collect(task, store, mode, lambda: False)
    return store


@contextmanager
def warming(small: Sequence[str], phase: PhaseInfo = PHASE) -> Iterator[Callable[..., tuple[Any, Any]]]:
    """A function from a spec and overrides, after these, to the workflow and its replay after the warm-up."""
    made: list[Assembly] = []

    def warm(spec: str, *overrides: str) -> tuple[Any, Any]:
        config = load(spec, [*small, *overrides])
        made.append(assemble(config, check(config), {}))
        return made[-1].workflow, filled(made[-1], phase)

    yield warm
    for assembly in made:
        assembly.close()


class Holding:
    """A store that hands out one batch, again and again."""

    def __init__(self, batch: Any) -> None:
        self.take = lambda: batch
