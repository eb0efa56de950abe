"""The seam through which `--debug` observes a run from inside. Other runs pay nothing for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cadenza.types import Acted, Mode, PhaseInfo, Step, Store, Tree, Updated

Act = Callable[[Step, Tree, Mode], Acted]
Update = Callable[[Store, PhaseInfo], Updated]


class Probe:
    """A probe that observes nothing. Each method calls its argument; a subclass overrides the ones it needs."""

    def run(self, train: Callable[[], str | None]) -> str | None:
        """Run the whole loop; return the name of the signal that ended it, if one did."""
        return train()

    def task(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a `collect`, `evaluate` or `save`."""
        return work()

    def update(self, hook: str, update: Update, store: Store, phase: PhaseInfo) -> Updated:
        """Call an update hook."""
        return update(store, phase)

    def act(self, act: Act, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Choose actions, in training and evaluation."""
        return act(step, carry, mode)

    def step(self, step: Callable[[dict[str, Any]], Step], action: dict[str, Any]) -> Step:
        """Step the training environments."""
        return step(action)
