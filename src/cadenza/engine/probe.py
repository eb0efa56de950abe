"""A probe observes a run from inside, around each kind of work: what `--debug` attaches. Others pay nothing for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cadenza.types import Acted, Mode, PhaseInfo, Step, Store, Tree, Updated

Act = Callable[[Step, Tree, Mode], Acted]
Update = Callable[[Store, PhaseInfo], Updated]


class Probe:
    """Calls what it is given and observes nothing. A subclass overrides what it wants to look at."""

    def run(self, train: Callable[[], str | None]) -> str | None:
        """Around the whole loop; return the name of the signal that ended it, if one did."""
        return train()

    def task(self, name: str, work: Callable[[], Any]) -> Any:
        """Around a collection, an evaluation or a save, by name."""
        return work()

    def update(self, hook: str, update: Update, store: Store, phase: PhaseInfo) -> Updated:
        """Around a call of an update hook."""
        return update(store, phase)

    def act(self, act: Act, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Around each choice of actions, in training and evaluation."""
        return act(step, carry, mode)

    def step(self, step: Callable[[dict[str, Any]], Step], action: dict[str, Any]) -> Step:
        """Around each step of the training environments."""
        return step(action)
