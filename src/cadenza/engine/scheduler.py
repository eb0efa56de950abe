"""The scheduler of a run's phases. Its position is part of the run's state; it does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from cadenza.config.schema import Hook, Phase


@dataclass(frozen=True)
class Task:
    """A hook to run: `amount` counts env_steps or episodes of a `collect`, calls of anything else."""

    phase: Phase
    hook: Hook
    amount: int

    @property
    def buffer(self) -> str:
        """The name of the store to use."""
        return self.hook.buffer or self.phase.buffer


class PhaseProgress(NamedTuple):
    """A run's progress in its phase, for displays; `total` is 0 for a phase that ends with the budget."""

    phase: str
    last: bool  # no other phase follows
    unit: str = ""
    amount: int = 0  # so far, in units
    total: int = 0


class PhaseScheduler:
    """The order of the hooks. One round of a phase's hooks is a cycle; the cycle that reaches its duration ends it."""

    def __init__(self, phases: tuple[Phase, ...]) -> None:
        self.phases = phases
        self.index = 0  # of the current phase
        self.hook = self.hook_progress = 0  # the index of the current hook, and how much of it is over
        self.task_steps = 0  # env_steps of the current task so far
        self.steps = self.updates = self.cycles = 0  # so far in this phase
        self.begun = False  # whether anything of the current cycle is done
        self.calls: list[int] = []  # by hook, in this phase
        self._enter_phase()
        self._skip_finished_hooks()

    def next(self) -> Task | None:
        """Return the current task, or None after the last phase."""
        if self.over:
            return None
        phase = self.phases[self.index]
        return Task(phase, phase.hooks[self.hook], self._remaining())

    def advance(self, amount: int, env_steps: int = 0, updates: int = 0) -> None:
        """Add an `amount` in the unit of the present task, and to the run's env_steps and updates."""
        self.begun |= bool(amount or env_steps or updates)
        self.hook_progress += amount
        self.calls[self.hook] += amount
        self.task_steps += env_steps
        self.steps += env_steps
        self.updates += updates
        self._skip_finished_hooks()

    def skip(self) -> None:
        """Go to the next phase, whatever remains of this one."""
        self.index += 1
        self._enter_phase()
        self._skip_finished_hooks()

    @property
    def over(self) -> bool:
        """Whether the last phase has ended."""
        return self.index == len(self.phases)

    @property
    def at_boundary(self) -> bool:
        """Whether a cycle has just ended (or nothing has begun)."""
        return not self.begun

    @property
    def progress(self) -> PhaseProgress:
        """How far the current phase is."""
        index = min(self.index, len(self.phases) - 1)
        phase, last = self.phases[index], index == len(self.phases) - 1
        for unit, total, count in self._limits(phase):
            if total is not None:
                return PhaseProgress(phase.name, last, unit, total if self.over else count, total)
        return PhaseProgress(phase.name, last)

    def _remaining(self) -> int:
        hook = self.phases[self.index].hooks[self.hook]
        if hook.name == "collect":
            return (hook.episodes or hook.steps or 1) - self.hook_progress
        ratio = self._ratios[self.hook]
        if ratio is None:
            return hook.times - self.hook_progress
        return ratio.numerator * self.steps // ratio.denominator - self.calls[self.hook]

    def _skip_finished_hooks(self) -> None:
        while not self.over and self._remaining() <= 0:
            self._next_hook()

    def _next_hook(self) -> None:
        self.hook += 1
        self.hook_progress = self.task_steps = 0
        phase = self.phases[self.index]
        if self.hook < len(phase.hooks):
            return
        self.hook = 0
        self.begun = False
        self.cycles += 1
        if any(limit is not None and reached >= limit for _, limit, reached in self._limits(phase)):
            self.index += 1
            self._enter_phase()

    def _limits(self, phase: Phase) -> tuple[tuple[str, int | None, int], ...]:
        """Return (unit, duration or None, count so far) for each unit in which a phase may be limited."""
        return (
            ("env_steps", phase.duration_steps, self.steps),
            ("updates", phase.duration_updates, self.updates),
            ("cycles", phase.duration_cycles, self.cycles),
        )

    def _enter_phase(self) -> None:
        self.hook = self.hook_progress = self.task_steps = self.steps = self.updates = self.cycles = 0
        self.begun = False
        hooks = () if self.over else self.phases[self.index].hooks
        self.calls = [0] * len(hooks)
        # exact in decimals: 0.1 per step is 1 after 10 steps, not after 11
        self._ratios = [None if hook.ratio is None else Fraction(repr(hook.ratio)) for hook in hooks]

    def state_dict(self) -> dict[str, Any]:
        names = ("index", "hook", "task_steps", "steps", "updates", "cycles", "begun")
        state = {name: getattr(self, name) for name in names}
        return {**state, "done": self.hook_progress, "calls": list(self.calls)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index = state["index"]
        self._enter_phase()
        state = {**state, "calls": list(state["calls"])}
        self.hook_progress = state.pop("done")
        for name, value in state.items():
            setattr(self, name, value)
