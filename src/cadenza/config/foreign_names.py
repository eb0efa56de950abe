"""Names of settings in SB3, rl-zoo3, CleanRL, HARL and RLlib, and ours: the answer to an unknown key."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parents[1] / "conf" / "foreign_names.yaml"


def translate(name: str, keys: Collection[str]) -> str | None:
    """Return the key of a config that means what other libraries call `name`, or None."""
    candidates = our_names().get(name.lower().replace("-", "_"), [])
    return next((key for ours in candidates for key in (ours, f"algorithm.{ours}") if key in keys), None)


@cache
def our_names() -> dict[str, list[str]]:
    """Return by foreign name our settings, in the order in which they are tried."""
    import yaml

    table: dict[str, list[str]] = yaml.safe_load(TABLE.read_text())
    return {foreign: ours.split() for ours, names in table.items() for foreign in names}
