"""The probe of `--debug`: it checks every number, collects statistics, profiles, and keeps the latest good state."""

from __future__ import annotations

import contextlib
import copy
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from cadenza.base import owned_files
from cadenza.base.atomic import write_json
from cadenza.config.schema import DebugConfig
from cadenza.engine.events import Act, Probe, Update
from cadenza.errors import DivergenceError, StorageError
from cadenza.nets.optimizers import Optimizer
from cadenza.records.checkpoint import Checkpoints
from cadenza.types import Acted, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.watch.module_statistics import Statistics
from cadenza.watch.nan_checks import FiniteChecks, LossCheck, NotFiniteError
from cadenza.watch.profile import Profile
from cadenza.watch.workflow_contents import ModuleParameters, WorkflowContents

if TYPE_CHECKING:
    from cadenza.engine.orchestrator import Orchestrator

RECENT = 10  # values of each metric that a diagnosis shows
CHEAP_SECONDS = 0.5  # a copy of the state that takes longer is not made at every update


class Debug(Probe):
    """The probe of one run, with a copy of its latest good state to save or repeat when a check fails."""

    def __init__(self, run: Orchestrator, settings: DebugConfig) -> None:
        self.orchestrator = run
        self.folder = run.folder.files / "debug"
        self.profile = Profile(self.folder, settings.profile_cycles)
        self.contents = WorkflowContents(run.workflow)
        self.checks = FiniteChecks(self.contents)
        self.statistics = Statistics(self.contents)
        self.recent: dict[str, deque[float]] = {}
        self._enter("")
        self._state: dict[str, Any] = {}
        self._copied_at, self._copy_seconds = 0.0, 0.0
        for name, optimizer in self.contents.optimizers.items():
            observe_steps(optimizer, Steps(self, name))

    def run(self, train: Callable[[], str | None]) -> str | None:
        """Run the training; where it fails, write a diagnosis and raise the error with its place."""
        self._enter("")
        self._copy_state()
        try:
            result = train()
        except (OSError, StorageError):
            raise
        except Exception as problem:
            fault = problem if self.checks.on else self._repeat_checked(problem, train)
            error = self._diagnose(fault)
            raise error from (fault.__cause__ if error is fault else fault)
        finally:
            with contextlib.suppress(OSError):
                self.profile.write()
        where = f"{self.folder / 'profile.txt'} says where the time went"
        self.orchestrator.console.note(f"debug: every number was finite; {where}")
        return result

    def _repeat_checked(self, problem: Exception, train: Callable[[], str | None]) -> Exception:
        """Repeat a failed cycle that was traced, so without checks, with them; return the error they raise."""
        self.profile.end_trace()
        self._enter("")
        self.orchestrator.load_state({**copy.deepcopy(self._state), "metrics": self.orchestrator.metrics.state_dict()})
        try:
            train()
        except Exception as fault:
            return fault
        return problem

    def task(self, name: str, work: Callable[[], Any]) -> Any:
        """Carry out a task of the loop within a span of the profile."""
        if name == "save":
            with self.profile.span(name):
                return work()
        self._enter(name)
        self.profile.at_cycle(self.orchestrator.clock.cycles)
        self.checks.on = not self.profile.tracing
        with self.profile.span(name):
            result = work()
        self.updating, self.vec_steps = False, 0  # the clock includes them now
        return result

    def _enter(self, name: str) -> None:
        self.during = name  # the current hook, or the last one
        self.updating = name in self.orchestrator.workflow.hooks
        self.vec_steps = 0  # steps of the vector environment in this hook
        self.steps = dict.fromkeys(self.contents.optimizers, 0)  # steps of each optimizer in this hook

    def update(self, hook: str, update: Update, store: Store, phase: PhaseInfo) -> Updated:
        self._copy_state()
        single = replace(phase, due=1)  # one call at a time, so that each is checked
        result: Updated = self.task(hook, partial(self._learn, update, store, single))
        self.checks.state(self.orchestrator.workflow.state_dict())
        self.checks.metrics(result.metrics)
        self.steps = dict.fromkeys(self.steps, 0)
        for key, value in result.metrics.items():
            self.recent.setdefault(key, deque(maxlen=RECENT)).append(float(value))
        return result._replace(metrics={**result.metrics, **self.statistics.take()})

    def _learn(self, update: Update, store: Store, phase: PhaseInfo) -> Updated:
        if not self.checks.on:
            return update(store, phase)
        self.statistics.on = True
        try:
            with LossCheck():
                return update(store, phase)
        finally:
            self.statistics.on = False

    def act(self, act: Act, step: Step, carry: Tree, mode: Mode) -> Acted:
        with self.profile.span("act"):
            acted = act(step, carry, mode)
        if self.checks.on:
            self.checks.acted(acted)
        return acted

    def step(self, step: Callable[[dict[str, Any]], Step], action: dict[str, Any]) -> Step:
        with self.profile.span("env"):
            after = step(action)
        self.vec_steps += 1
        if self.checks.on:
            self.checks.step(after)
        return after

    # failures

    def _copy_state(self) -> None:
        """Copy the state of the run; where that is slow, seldom enough to take at most half of the time."""
        now = time.monotonic()
        if self._copy_seconds > CHEAP_SECONDS and now - self._copied_at < self._copy_seconds:
            return
        parts = {name: part for name, part in self.orchestrator.parts().items() if name != "metrics"}
        self._state = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        self._copied_at = time.monotonic()
        self._copy_seconds = self._copied_at - now

    def _diagnose(self, problem: Exception) -> Exception:
        """Write diagnosis.json and the latest good state; return the error in one line, with its place."""
        position = self._position()
        diagnosis = {
            "error": f"{type(problem).__name__}: {problem}",
            "site": getattr(problem, "site", None),
            "what": getattr(problem, "what", str(problem)),
            **position,
            **getattr(problem, "details", {}),
            "recent": {key: list(values) for key, values in self.recent.items()},
            "repeat": f"cadenza debug {self.orchestrator.folder.reference}",
        }
        with contextlib.suppress(OSError):  # a full disk must not hide the problem
            self.folder.mkdir()
            write_json(self.folder / "diagnosis.json", diagnosis)
            self._save_state()
        if not isinstance(problem, NotFiniteError):
            return problem
        hook = f" of `{position['during']}`" if position["during"] else ""
        place = f"step {position['env_steps']}, {position['when']} update {position['updates']}{hook}"
        next_step = f"{self.folder / 'diagnosis.json'} has the values, `{diagnosis['repeat']}` repeats it"
        return DivergenceError(f"{problem} ({place}); {next_step}")

    def _position(self) -> dict[str, Any]:
        clock, collector = self.orchestrator.clock, self.orchestrator.collector
        collected = self.vec_steps * collector.env.num_envs if collector is not None else 0
        return {
            "env_steps": clock.env_steps + collected,
            # an update is complete when all its optimizers have stepped
            "updates": clock.updates + min(self.steps.values(), default=0) + self.updating,
            "when": "in" if self.updating else "after",
            "during": self.during,
            "phase": clock.phase,
            "cycle": clock.cycles,
        }

    def _save_state(self) -> None:
        """Save the copied state as a checkpoint, which is hashed and can be read without executing anything."""
        failure = self.folder / "failure"
        for older in failure.glob("step-*"):
            owned_files.discard(older)
        clock = self._state["clock"]
        checkpoints = Checkpoints(failure, self.orchestrator.checkpoints.config_hash, keep=1)
        checkpoints.save(self._state, clock["env_steps"], clock["updates"])


class Steps:
    """An observer of one optimizer's steps (`nets.optimizers.StepObserver`)."""

    def __init__(self, debug: Debug, name: str) -> None:
        self._debug, self._name = debug, name
        self._groups: dict[str, ModuleParameters] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return self  # a copied optimizer must not copy the run

    def before_step(self, *_: Any) -> None:
        debug = self._debug
        self._groups = debug.contents.updated_by(self._name) if debug.checks.on else None
        if self._groups is not None:
            debug.checks.stepping(self._groups)
            debug.statistics.before_step(self._groups)

    def after_step(self, *_: Any) -> None:
        debug = self._debug
        if self._groups is not None:
            debug.statistics.after_step(self._groups)
            debug.checks.stepped(self._name, self._groups)
            debug.steps[self._name] += 1


def observe_steps(optimizer: Any, steps: Steps) -> None:
    """Let `steps` observe an optimizer of cadenza or torch; with another one, only the whole update is checked."""
    if isinstance(optimizer, Optimizer):
        optimizer.observer = steps
    elif isinstance(optimizer, torch.optim.Optimizer):
        optimizer.register_step_pre_hook(steps.before_step)
        optimizer.register_step_post_hook(steps.after_step)
