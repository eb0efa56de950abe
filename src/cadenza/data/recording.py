"""Write the steps of environments to the rows of a ring."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from cadenza.data.ring import Ring, newest
from cadenza.data.ring_steps import FIRST, LAST, TERMINATED, TRUNCATED, preceding
from cadenza.errors import ConfigError
from cadenza.trees import leaves, take, write
from cadenza.types import Acted, Step, Tree


def add(ring: Ring, step: Step, acted: Acted, after: Step, without: Collection[str]) -> np.ndarray:
    """Add one transition of every environment, but for the extras `without`; return their slots [N].

    Episodes end where `after` says so. An environment that only waits between two episodes, as in vectors that reset
    with the step after, adds none.
    """
    if not ring.arrays:
        row, completion = observed_rows(step, ring.stack), completing_rows(acted, after, without)
        groups = {group: {**data, **completion[group]} for group, data in row["groups"].items()}
        ring.allocate({**row, "groups": groups, "flags": np.zeros(ring.num_envs, np.uint8)})
    if not (ring.is_open and _continues(ring, step)):
        cut(ring)  # perhaps in the middle of an episode
        _observe(ring, step, np.uint8(FIRST))
    slots = ring.open_slots
    groups = ring.arrays["groups"]
    try:
        for group, completion in completing_rows(acted, after, without).items():
            write(groups[group], ring.open_rows, completion)
    except KeyError as missing:
        what = f"the policy stores {missing} beside its actions, which the rows of training.dataset do not have"
        raise ConfigError(f"{what}: it can learn from them, but not collect more beside them") from None
    acting: Any = slice(None)
    if np.count_nonzero(step.terminated) or np.count_nonzero(step.truncated):
        acting = step.is_first | ~(step.terminated | step.truncated)
    ring.advance(acting)
    first, ended = after.is_first, after.terminated | after.truncated
    if np.count_nonzero(ended):
        _end(ring, slots, np.flatnonzero(ended), after)
        first = first | ended  # the rows of those that wait are written once more
    _observe(ring, after, first * np.uint8(FIRST))
    if ring.priorities is not None:
        ring.priorities.put(slots[acting])
    return slots


def cut(ring: Ring) -> None:
    """End the episodes that are under way with their last transition, as if truncated: the environments restart."""
    if not ring.is_open:
        return
    ring.is_open = False
    running = np.flatnonzero(ring.flags[ring.open_slots] & FIRST == 0)
    ring.flags[preceding(ring.open_slots[running], ring.rows)] |= TRUNCATED
    ring.sealed[running] = np.minimum(ring.sealed[running], ring.head[running] - 1)  # that row was changed
    _close(ring, running, np.uint8(LAST | TRUNCATED))


def fill(ring: Ring, like: Tree, env: np.ndarray, pieces: Iterable[dict[str, np.ndarray]]) -> None:
    """Fill an empty ring with whole stretches: row k is the next of stream `env[k]`, each at most `oldest` rows long.

    `pieces` are consecutive rows by path; `like` has their nesting, dtypes and shapes, [1, …].
    """
    assert not ring.arrays, "this replay is not empty"
    counts = np.bincount(env, minlength=ring.num_envs)
    assert counts.max() <= ring.oldest, "more rows than the replay has room for"
    slots, order = np.empty(len(env), np.int64), np.argsort(env, kind="stable")
    slots[order] = ring.base[env[order]] + np.arange(len(env)) - np.repeat(counts.cumsum() - counts, counts)
    ring.allocate(like)
    start = 0
    for rows in pieces:
        end = start + len(rows["flags"])
        ring.put(slots[start:end], rows)
        start = end
    ring.move_to(counts, is_open=False)
    if ring.priorities is not None:
        ring.priorities.put(slots[ring.flags[slots] & LAST == 0])


def _continues(ring: Ring, step: Step) -> bool:
    """Return whether the open rows hold the observations of `step`; not so after the environments restarted."""
    for group, obs in step.obs.items():
        if not _equals(ring.arrays["groups"][group]["obs"], ring.open_rows, newest(obs, ring.stack)):
            return False
    return True


def _equals(stored: Tree, rows: Any, obs: Tree) -> bool:
    """Return whether some rows hold observations, bit for bit."""
    if isinstance(stored, dict):
        return all(_equals(array, rows, obs[key]) for key, array in stored.items())
    return stored[rows].tobytes() == obs.tobytes()  # type: ignore[no-any-return]


def _observe(ring: Ring, step: Step, flags: Any) -> None:
    """Write the observations of `step` to the open rows."""
    groups, rows = ring.arrays["groups"], ring.open_rows
    for group, obs in step.obs.items():
        data = groups[group]
        data["active"][rows] = step.active[group]
        write(data, rows, {"obs": newest(obs, ring.stack)})
    for group, allowed in step.mask.items():
        groups[group]["mask"][rows] = allowed
    if step.state is not None:
        ring.arrays["state"][rows] = step.state
    ring.flags[ring.open_rows] = flags
    ring.is_open = True


def _end(ring: Ring, slots: np.ndarray, envs: np.ndarray, after: Step) -> None:
    """End the episodes of `envs` with the transitions in `slots` [N]: add a last row with the final observation."""
    how = after.terminated[envs] * np.uint8(TERMINATED) + after.truncated[envs] * np.uint8(TRUNCATED)
    ring.flags[slots[envs]] |= how
    final: Tree = {"groups": {group: {"obs": newest(obs, ring.stack)} for group, obs in after.final_obs.items()}}
    if after.final_state is not None:
        final["state"] = after.final_state
    write(ring.arrays, ring.open_slots[envs], take(final, envs))
    _close(ring, envs, how + np.uint8(LAST))


def _close(ring: Ring, envs: np.ndarray, flags: Any) -> None:
    """Make the open rows last ones: no action follows, and which would be allowed is unknown."""
    slots = ring.open_slots[envs]
    for rows in ring.arrays["groups"].values():
        for name, tree in rows.items():
            if name != "obs":
                for _, array in leaves(tree):
                    array[slots] = name == "mask"
    ring.flags[slots] = flags
    ring.advance(envs)


def observed_rows(step: Step, stack: int) -> dict[str, Tree]:
    """Return the part of rows that is there before an action, [N, …]."""
    groups = {group: {"obs": newest(obs, stack), "active": step.active[group]} for group, obs in step.obs.items()}
    for group, allowed in step.mask.items():
        groups[group]["mask"] = allowed
    return {"groups": groups} if step.state is None else {"groups": groups, "state": step.state}


def completing_rows(acted: Acted, after: Step, without: Collection[str] = ()) -> dict[str, Tree]:
    """Return the part of each group that completes rows to transitions, [N, …], but for the extras `without`."""
    groups = {}
    for group, action in acted.action.items():
        rows = groups[group] = {"action": action, "reward": after.reward[group], "died": after.died[group]}
        if extras := acted.extras[group]:
            rows |= {name: extra for name, extra in extras.items() if name not in ("carry", *without)}
    return groups
