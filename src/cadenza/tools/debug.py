"""The debug profile: puts checks, statistics, a profile and a copy of the latest good state around a run's parts.

The loop knows nothing of it: methods of a built run's own objects are wrapped, so a run without it pays nothing.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cadenza.base import owned_files
from cadenza.base.atomic import write_json
from cadenza.config.schema import DebugConfig
from cadenza.engine.checkpoint import Checkpoints
from cadenza.errors import DivergenceError, StorageError
from cadenza.tools.module_statistics import Statistics
from cadenza.tools.nan_checks import FiniteChecks, LossCheck, NotFiniteError
from cadenza.tools.profile import Profile
from cadenza.tools.workflow_contents import Owned
from cadenza.types import Acted, PhaseInfo, Step, Store, Updated

if TYPE_CHECKING:
    from cadenza.engine.orchestrator import Orchestrator

RECENT = 10  # values of each metric that a diagnosis shows
CHEAP = 0.5  # seconds that copying the state may take before it is done less often


class Debug:
    """Watches one run from its first task on."""

    def __init__(self, run: Orchestrator, settings: DebugConfig) -> None:
        self.run = run
        self.folder = run.folder.files / "debug"
        self.profile = Profile(self.folder, settings.profile_cycles)
        self.owned = Owned(run.workflow)
        self.checks = FiniteChecks(self.owned)
        self.statistics = Statistics(self.owned)
        self.recent: dict[str, deque[float]] = {}
        self._enter("")
        self._state: dict[str, Any] = {}
        self._copied_at, self._copy_seconds = 0.0, 0.0
        self._wrap()

    def _wrap(self) -> None:
        run, workflow = self.run, self.run.workflow
        around(run, "run", self._run)
        around(run, "save", partial(self._timed, "save"))
        around(run, "_evaluate", partial(self._task, "evaluate"))
        for hook in workflow.hooks:
            around(workflow, hook, partial(self._update, hook))
        for name, optimizer in self.owned.optimizers.items():
            around(optimizer, "step", partial(self._step_optimizer, name))
        around(workflow, "act", self._act)
        if run.collector is not None:
            around(run.collector, "collect", partial(self._task, "collect"))
            around(run.collector.env, "step", self._step_env)

    # around the parts: each is given the method it stands in for

    def _run(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        self._enter("")
        self._copy_state()
        try:
            result = method(*args, **kwargs)
        except (OSError, StorageError):
            raise
        except Exception as problem:
            found = problem if self.checks.on else self._repeat_checked(problem, partial(method, *args, **kwargs))
            told = self._diagnose(found)
            raise told from (found.__cause__ if told is found else found)
        finally:
            with contextlib.suppress(OSError):
                self.profile.write()
        self.run.console.note(f"debug: every number was finite; {self.folder / 'profile.txt'} says where the time went")
        return result

    def _repeat_checked(self, problem: Exception, go_on: Callable[[], Any]) -> Exception:
        """A cycle that is traced is not checked, or the trace would show the checks: go back and look."""
        self.profile.end_trace()
        self._enter("")
        self.run.load_state({**copy.deepcopy(self._state), "metrics": self.run.metrics.state_dict()})
        try:
            go_on()
        except Exception as found:
            return found
        return problem

    def _task(self, name: str, method: Any, *args: Any) -> Any:
        self._enter(name)
        self.profile.at_cycle(self.run.clock.cycles)
        self.checks.on = not self.profile.tracing
        with self.profile.span(name):
            result = method(*args)
        self.updating, self.vec_steps = False, 0  # from here on the clock counts the steps
        return result

    def _enter(self, name: str) -> None:
        self.during = name  # the hook being called, or the last one
        self.updating = name in self.run.workflow.hooks
        self.vec_steps = 0  # of the environments, in this hook
        self.steps = dict.fromkeys(self.owned.optimizers, 0)  # the same of optimizers

    def _timed(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        with self.profile.span(name):
            return method(*args, **kwargs)

    def _update(self, name: str, method: Any, store: Store, phase: PhaseInfo) -> Updated:
        if self.updating:  # one hook calls another
            return method(store, phase)  # type: ignore[no-any-return]
        self._copy_state()
        one = replace(phase, due=1)  # each is looked at
        result: Updated = self._task(name, partial(self._learn, method), store, one)
        self.checks.state(self.run.workflow.state_dict())
        self.checks.metrics(result.metrics)
        self.steps = dict.fromkeys(self.steps, 0)
        for key, value in result.metrics.items():
            self.recent.setdefault(key, deque(maxlen=RECENT)).append(float(value))
        return result._replace(metrics={**result.metrics, **self.statistics.take()})

    def _learn(self, method: Any, store: Store, phase: PhaseInfo) -> Any:
        if not self.checks.on:
            return method(store, phase)
        self.statistics.on = True
        try:
            with LossCheck():
                return method(store, phase)
        finally:
            self.statistics.on = False

    def _step_optimizer(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.checks.on:
            return method(*args, **kwargs)
        groups = self.owned.moved_by(name)
        self.checks.stepping(groups)
        self.statistics.before_step(groups)
        result = method(*args, **kwargs)
        self.statistics.after_step(groups)
        self.checks.stepped(name, groups)
        self.steps[name] += 1
        return result

    def _act(self, method: Any, *args: Any) -> Acted:
        with self.profile.span("act"):
            acted: Acted = method(*args)
        if self.checks.on:
            self.checks.acted(acted)
        return acted

    def _step_env(self, method: Any, action: Any) -> Step:
        with self.profile.span("env"):
            after: Step = method(action)
        self.vec_steps += 1
        if self.checks.on:
            self.checks.step(after)
        return after

    # when something is wrong

    def _copy_state(self) -> None:
        """Remember where the run stands; where that takes long, spend no more than half the time on it."""
        now = time.monotonic()
        if self._copy_seconds > CHEAP and now - self._copied_at < self._copy_seconds:
            return
        parts = {name: part for name, part in self.run.parts().items() if name != "metrics"}
        self._state = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        self._copied_at = time.monotonic()
        self._copy_seconds = self._copied_at - now

    def _diagnose(self, problem: Exception) -> Exception:
        """The problem in one line with the place, and everything about it on disk."""
        position = self._position()
        diagnosis = {
            "error": f"{type(problem).__name__}: {problem}",
            "site": getattr(problem, "site", None),
            "what": getattr(problem, "what", str(problem)),
            **position,
            **getattr(problem, "details", {}),
            "recent": {key: list(values) for key, values in self.recent.items()},
            "repeat": f"cadenza debug {self.run.folder.reference}",
        }
        with contextlib.suppress(OSError):  # a full disk must not hide the problem
            self.folder.mkdir()
            write_json(self.folder / "diagnosis.json", diagnosis)
            self._save_state()
        if not isinstance(problem, NotFiniteError):
            return problem
        doing = f" of `{position['during']}`" if position["during"] else ""
        place = f"step {position['env_steps']}, {position['when']} update {position['updates']}{doing}"
        tell = f"{self.folder / 'diagnosis.json'} has the values, `{diagnosis['repeat']}` repeats it"
        return DivergenceError(f"{problem} ({place}); {tell}")

    def _position(self) -> dict[str, Any]:
        clock, collector = self.run.clock, self.run.collector
        collected = self.vec_steps * collector.env.num_envs if collector is not None else 0
        return {
            "env_steps": clock.env_steps + collected,
            # an update is over when all its optimizers have stepped
            "updates": clock.updates + min(self.steps.values(), default=0) + self.updating,
            "when": "in" if self.updating else "after",
            "during": self.during,
            "phase": clock.phase,
            "cycle": clock.cycles,
        }

    def _save_state(self) -> None:
        """Like a checkpoint: hashed, and read without executing anything."""
        failure = self.folder / "failure"
        for older in failure.glob("step-*"):
            owned_files.discard(older)
        clock = self._state["clock"]
        checkpoints = Checkpoints(failure, self.run.checkpoints.config_hash, keep=1)
        checkpoints.save(self._state, clock["env_steps"], clock["updates"])


def around(target: object, name: str, wrapper: Any) -> None:
    """Wherever `target.name(…)` is called, `wrapper(method, …)` is called instead, on this one object."""
    setattr(target, name, partial(wrapper, getattr(target, name)))
