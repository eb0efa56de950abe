"""Two runs side by side: what was set and used differently, and where what they did parts."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from cadenza.base.json_text import dumps
from cadenza.records import episodes, metrics
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves
from cadenza.types import Episode

Pairs = dict[str, tuple[Any, Any]]
USED = ("versions", "variables", "machine", "git")  # of the manifest: what the same settings may run differently on
UNTOLD = ("name", "tags")


def facts(a: RunFolder, b: RunFolder) -> dict[str, Pairs]:
    """Settings, automatic decisions, and what the runs were made with, by key, where the two differ."""
    ours, theirs = a.read_manifest(), b.read_manifest()
    used = [{part: found.get(part) for part in USED} for found in (ours, theirs)]
    settings = differing(a.settings(), b.settings())
    return {
        "settings": {key: pair for key, pair in settings.items() if key not in UNTOLD},
        "decisions": differing(a.read_decisions(), b.read_decisions()),
        "made with": differing(*used),
    }


def differing(a: dict[str, Any], b: dict[str, Any]) -> Pairs:
    """By dotted key the two values, where they are not the same; None where there is none."""
    ours, theirs = dict(leaves(a)), dict(leaves(b))
    keys = dict.fromkeys([*ours, *theirs])
    pairs = {key: (ours.get(key), theirs.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if dumps(pair[0]) != dumps(pair[1])}


def parting(a: RunFolder, b: RunFolder) -> dict[str, Any] | None:
    """The first row of metrics that differs, and the first episode that does: what was done before what came of it."""
    row = metrics.first_difference(metrics.read(a.metrics), metrics.read(b.metrics))
    episode = first_episode(a, b)
    if row is None and episode is None:
        return None
    found = row or {"env_steps": None, "quantity": "episodes", "a": None, "b": None}
    return found | ({"episode": episode} if episode is not None else {})


def without_episodes(*runs: RunFolder) -> list[str]:
    """Those of the runs that kept none: what they did can be compared by metrics alone."""
    return [run.id for run in runs if not episodes.count(run)]


def first_episode(a: RunFolder, b: RunFolder) -> dict[str, Any] | None:
    """The first finished episode in which two runs did or got something else; None where either kept no episodes."""
    if without_episodes(a, b):
        return None
    for index, (ours, theirs) in enumerate(zip_longest(episodes.load(a), episodes.load(b))):
        if ours is None or theirs is None:
            here = ours or theirs
            return _place(index, here, "existence", None)
        quantity, step = _unlike(ours, theirs)
        if quantity is not None:
            return _place(index, ours, quantity, step)
    return None


def _place(index: int, episode: Episode, quantity: str, step: int | None) -> dict[str, Any]:
    return {"index": index, "env": episode.env, "number": episode.number, "quantity": quantity, "step": step}


def _unlike(a: Episode, b: Episode) -> tuple[str | None, int | None]:
    """What differs first between two episodes, and at which of its steps, if it is an action."""
    import numpy as np

    if a.actions.keys() != b.actions.keys() or a.returns.keys() != b.returns.keys():
        return "groups", None
    if (a.env, a.number) != (b.env, b.number):
        return "order", None
    if a.seed != b.seed:
        return "seed", None
    shared = min(a.length, b.length)
    parted = []
    for group in a.actions:
        ours, theirs = a.actions[group][:shared], b.actions[group][:shared]
        if ours.shape != theirs.shape:
            return "actions", None
        unequal = (ours != theirs).reshape(shared, -1).any(1)
        if unequal.any():
            parted.append(int(np.argmax(unequal)))
    if parted:
        return "actions", min(parted)
    if a.length != b.length:
        return "length", None
    if any(not np.array_equal(a.returns[group], b.returns[group]) for group in a.returns):
        return "return", None
    return None, None
