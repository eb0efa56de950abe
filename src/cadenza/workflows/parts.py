"""The state of a workflow that is made of named parts of a few kinds: networks, optimizers, normalisers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Parts = dict[str, Mapping[str, Any]]  # kind -> name -> something with a state


def parts_state(parts: Parts) -> dict[str, Any]:
    return {kind: {name: part.state_dict() for name, part in named.items()} for kind, named in parts.items()}


def load_parts(parts: Parts, state: dict[str, Any]) -> None:
    for kind, named in parts.items():
        for name, part in named.items():
            part.load_state_dict(state[kind][name])
