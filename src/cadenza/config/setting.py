"""One config field: its default and, beside it, what it means."""

from __future__ import annotations

from dataclasses import MISSING, field
from typing import Any


def setting(default: Any = MISSING, doc: str = "", unit: str = "", factory: Any = MISSING, sparse: bool = False) -> Any:
    """A dataclass field that carries its documentation and unit for `config explain` and the reference page.

    A sparse one is left out of stored configs where it has its default.
    """
    metadata = {"doc": doc, "unit": unit, "sparse": sparse}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)
