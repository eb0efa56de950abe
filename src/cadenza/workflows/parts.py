"""The state of a workflow that consists of named parts of a few kinds: networks, optimizers, normalisers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Parts:
    """Named parts with a state each, by kind: `Parts(networks={"agent": net}, optimizers={"agent": adam})`.

    The mappings are kept, not copied: a part that is replaced in them is saved and loaded from then on.
    """

    __slots__ = ("kinds",)  # a second way to the parts, which a search through a workflow's attributes does not take

    def __init__(self, **kinds: Mapping[str, Any]) -> None:
        self.kinds = kinds

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part, by kind and name."""
        return {kind: {name: part.state_dict() for name, part in named.items()} for kind, named in self.kinds.items()}

    def load_state_dict(self, state: Mapping[str, Any], skip: Collection[str] = ()) -> None:
        """Load every part but those that `skip` names by their kind, or as `kind.name`."""
        for kind, named in self.kinds.items():
            for name, part in named.items():
                if kind not in skip and f"{kind}.{name}" not in skip:
                    part.load_state_dict(state[kind][name])

    def load_weights(self, state: Mapping[str, Any], skip: Collection[str] = ()) -> None:
        """Load the parts from the state of another run, all but its optimizers and those that `skip` names."""
        self.load_state_dict(state, ("optimizers", *skip))
