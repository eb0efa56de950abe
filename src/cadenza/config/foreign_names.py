"""Names of settings in SB3, rl-zoo3, CleanRL, HARL, RLlib and others, and ours: the answer to an unknown key."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parents[1] / "conf" / "foreign_names.yaml"


def translate(key: str, keys: Collection[str]) -> str | None:
    """Return the one of `keys` that means what other libraries call a dotted key, by its last or last two words."""
    block, _, _ = key.rpartition(".")
    words = key.lower().replace("-", "_").split(".")
    candidates = [ours for name in (".".join(words[-2:]), words[-1]) for ours in our_names().get(name, [])]
    places = ("", "algorithm.", f"{block}.")
    return next((place + ours for ours in candidates for place in places if place + ours in keys), None)


@cache
def our_names() -> dict[str, list[str]]:
    """Return by foreign name our settings, in the order in which they are tried."""
    import yaml

    table: dict[str, list[str]] = yaml.safe_load(TABLE.read_text())
    return {foreign: ours.split() for ours, names in table.items() for foreign in names}
