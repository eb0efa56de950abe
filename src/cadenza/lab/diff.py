"""The differences between two runs: settings, decisions, software and machine; where metrics and episodes diverge."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from cadenza.base.json_text import dumps
from cadenza.records import episodes, metrics
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves
from cadenza.types import Episode

Pairs = dict[str, tuple[Any, Any]]
MADE_WITH = ("versions", "variables", "machine", "git")  # parts of the manifest that may change what a run computes
LABELS = ("name", "tags")  # settings that change nothing of what a run computes


def differences(a: RunFolder, b: RunFolder) -> dict[str, Pairs]:
    """Return the settings, the automatic decisions and the software and machine that differ, by dotted key."""
    settings = differing(a.settings(), b.settings())
    made_with = [
        {part: manifest.get(part) for part in MADE_WITH} for manifest in (a.read_manifest(), b.read_manifest())
    ]
    return {
        "settings": {key: pair for key, pair in settings.items() if key not in LABELS},
        "decisions": differing(a.read_decisions(), b.read_decisions()),
        "made with": differing(*made_with),
    }


def differing(a: dict[str, Any], b: dict[str, Any]) -> Pairs:
    """Return the two values of each dotted key under which they differ; None stands for a missing one."""
    ours, theirs = dict(leaves(a)), dict(leaves(b))
    keys = dict.fromkeys([*ours, *theirs])
    pairs = {key: (ours.get(key), theirs.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if dumps(pair[0]) != dumps(pair[1])}


def first_divergence(a: RunFolder, b: RunFolder) -> dict[str, Any] | None:
    """Return the first row of metrics that differs, and under `episode` the first episode; None if none does."""
    row = metrics.first_difference(metrics.read(a.metrics), metrics.read(b.metrics))
    episode = first_episode(a, b)
    if row is None and episode is None:
        return None
    divergence = row or {"env_steps": None, "quantity": "episodes", "a": None, "b": None}
    return divergence | ({"episode": episode} if episode is not None else {})


def without_episodes(*runs: RunFolder) -> list[str]:
    """Return the ids of the runs that recorded no episodes: only their metrics can be compared."""
    return [run.id for run in runs if not episodes.count(run)]


def first_episode(a: RunFolder, b: RunFolder) -> dict[str, Any] | None:
    """Return the first finished episode whose actions or results differ; None if none does or a run recorded none."""
    if without_episodes(a, b):
        return None
    for index, (ours, theirs) in enumerate(zip_longest(episodes.load(a), episodes.load(b))):
        if ours is None or theirs is None:
            return _location(index, ours or theirs, "existence", None)
        quantity, step = _first_mismatch(ours, theirs)
        if quantity is not None:
            return _location(index, ours, quantity, step)
    return None


def _location(index: int, episode: Episode, quantity: str, step: int | None) -> dict[str, Any]:
    return {"index": index, "env": episode.env, "number": episode.number, "quantity": quantity, "step": step}


def _first_mismatch(a: Episode, b: Episode) -> tuple[str | None, int | None]:
    """Return the first quantity that differs between two episodes, and for actions the step, else None for both."""
    import numpy as np

    if a.actions.keys() != b.actions.keys() or a.returns.keys() != b.returns.keys():
        return "groups", None
    if (a.env, a.number) != (b.env, b.number):
        return "order", None
    if a.seed != b.seed:
        return "seed", None
    shared = min(a.length, b.length)
    steps = []
    for group in a.actions:
        ours, theirs = a.actions[group][:shared], b.actions[group][:shared]
        if ours.shape != theirs.shape:
            return "actions", None
        unequal = (ours != theirs).reshape(shared, -1).any(1)
        if unequal.any():
            steps.append(int(np.argmax(unequal)))
    if steps:
        return "actions", min(steps)
    if a.length != b.length:
        return "length", None
    if any(not np.array_equal(a.returns[group], b.returns[group]) for group in a.returns):
        return "return", None
    return None, None
