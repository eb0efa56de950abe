"""The state of a workflow, as named parts of a few kinds: networks, optimizers, normalisers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Parts:
    """Stateful parts by kind and name: `Parts(networks={"agent": net}, optimizers={"agent": adam})`.

    The mappings are not copied: a part that is replaced in them is saved and loaded from then on.
    """

    __slots__ = ("kinds",)  # so a search through a workflow's attributes (`watch/`) does not find its parts twice

    def __init__(self, **kinds: Mapping[str, Any]) -> None:
        self.kinds = kinds

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part, by kind and name."""
        return {kind: {name: part.state_dict() for name, part in parts.items()} for kind, parts in self.kinds.items()}

    def load_state_dict(self, state: Mapping[str, Any], skip: Collection[str] = ()) -> None:
        """Load every part except those in `skip`, which holds kinds and `kind.name`."""
        for kind, parts in self.kinds.items():
            for name, part in parts.items():
                if kind not in skip and f"{kind}.{name}" not in skip:
                    part.load_state_dict(state[kind][name])

    def load_weights(self, state: Mapping[str, Any], skip: Collection[str] = ()) -> None:
        """Load the parts from the state of another run, except optimizers and those in `skip`."""
        self.load_state_dict(state, ("optimizers", *skip))
