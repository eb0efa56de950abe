"""Batches drawn from a ring of rows: transitions of n steps, sequences, windows, stretches, first observations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from cadenza.data.batches import Past, Sequences, Stretches, Transitions, Windows
from cadenza.data.ring import Ring
from cadenza.data.ring_steps import FIRST, LAST, TERMINATED, TRUNCATED, ahead, back, onward, stacked, window
from cadenza.errors import ConfigError
from cadenza.trees import leaves, take
from cadenza.types import Tree

# slots


def draw_starts(ring: Ring, batch: int, generator: np.random.Generator, span: int) -> np.ndarray:
    """Draw slots [B], uniformly among the rows that have `span` - 1 complete rows after them."""
    if ring.num_envs == 1:  # the same with less to do
        head = int(ring.head[0])
        number = _draw_numbers(min(head, ring.oldest) - (span - 1), batch, generator, span)
        return (head - span - number) % ring.rows
    counts = np.maximum(np.minimum(ring.head, ring.oldest) - (span - 1), 0)
    ends = counts.cumsum()
    number = _draw_numbers(int(ends[-1]), batch, generator, span)
    env = ends.searchsorted(number, side="right")
    age = span + number - (ends - counts)[env]
    return np.asarray(ring.base[env] + (ring.head[env] - age) % ring.rows)


def _draw_numbers(total: int, batch: int, generator: np.random.Generator, span: int) -> np.ndarray:
    if total <= 0:
        raise ConfigError(f"the replay holds no {span} rows in a row yet: collect more, or give it more capacity")
    return generator.integers(total, size=batch)


def draw_transitions(ring: Ring, batch: int, generator: np.random.Generator) -> np.ndarray:
    """Draw slots [B], uniformly among the rows in which an action was taken."""
    index = draw_starts(ring, batch, generator, 1)
    while len(redraw := np.flatnonzero(ring.flags[index] & LAST)):
        index[redraw] = draw_starts(ring, len(redraw), generator, 1)
    return index


# the rows in slots


def observations(ring: Ring, obs: Tree, index: np.ndarray) -> Tree:
    """Return observations [*index, A, …] of one group, stacked with the frames before them where `stack` says so."""
    if ring.stack == 1:
        return take(obs, index)
    return stacked(obs, back(ring, index))


def transitions(ring: Ring, index: np.ndarray, n_step: int, gamma: float, weight: np.ndarray | None) -> Transitions:
    """Return the transitions of up to `n_step` steps that start in slots `index` [B]."""
    arrays = ring.arrays
    end, steps, reward, over = ahead(ring, index, n_step, gamma)
    groups = {}
    for group, rows in arrays["groups"].items():
        batch = {name: take(tree, index) for name, tree in rows.items() if name not in ("obs", "reward", "died")}
        batch["obs"] = observations(ring, rows["obs"], index)
        batch["next_obs"] = observations(ring, rows["obs"], end)
        batch["reward"] = reward[group]
        batch["terminated"] = over[group]
        if "mask" in rows:
            batch["next_mask"] = rows["mask"].take(end, axis=0)
        groups[group] = batch
    return Transitions(
        groups=groups,
        discount=(gamma ** np.arange(n_step + 1)).astype(np.float32).take(steps),
        index=index,
        weight=weight,
        state=arrays["state"].take(index, axis=0) if "state" in arrays else None,
    )


def sequences(ring: Ring, start: np.ndarray, length: int) -> Sequences:
    """Return `length` consecutive rows from each slot of `start` [B]."""
    offset = start % ring.rows
    index = (start - offset)[:, None] + (offset[:, None] + np.arange(length)) % ring.rows
    arrays, flags = ring.arrays, ring.flags[index]
    return Sequences(
        groups=_rows_of_groups(ring, index, index),
        is_first=flags & FIRST != 0,
        terminated=flags & TERMINATED != 0,
        truncated=flags & TRUNCATED != 0,
        last=flags & LAST != 0,
        index=index,
        state=arrays["state"].take(index, axis=0) if "state" in arrays else None,
    )


def stretches(ring: Ring, index: np.ndarray, steps: int, weight: np.ndarray | None) -> Stretches:
    """Return the next `steps` steps from each slot of `index` [B], repeating the last row where the episode ends."""
    walk, valid = onward(ring, index, steps)
    ended = valid & (ring.flags[walk[:, 1:]] & (LAST | TERMINATED) == LAST | TERMINATED)
    return Stretches(_rows_of_groups(ring, walk, walk[:, :-1]), valid, ended, index, weight)


def _rows_of_groups(ring: Ring, index: np.ndarray, acted: np.ndarray) -> dict[str, dict[str, Tree]]:
    """Return observations of the slots `index` and everything else of the slots `acted`, by group and name."""
    return {
        group: {
            name: observations(ring, tree, index) if name == "obs" else take(tree, acted) for name, tree in rows.items()
        }
        for group, rows in ring.arrays["groups"].items()
    }


def windows(ring: Ring, index: np.ndarray, behind: int, on: int) -> Windows:
    """Return the last `behind` observations and the next `on` actions around the transitions in slots `index` [B]."""
    past, future = window(ring, index, behind, on)
    groups = {}
    for group, rows in ring.arrays["groups"].items():
        acted = {name: rows[name].take(future, axis=0) for name in ("action", "active")}
        groups[group] = {"obs": observations(ring, rows["obs"], past), **acted}
    return Windows(groups)


def first_observations(ring: Ring, batch: int, generator: np.random.Generator) -> dict[str, Tree]:
    """Draw the first observations of episodes, group -> [B, A, …]."""
    complete = ring.complete_slots()
    first = complete[ring.flags[complete] & FIRST != 0] if not ring.is_empty else complete
    if not len(first):
        raise ConfigError("the replay holds no beginning of an episode: collect more, or give it more capacity")
    index = first[generator.integers(len(first), size=batch)]
    return {group: observations(ring, rows["obs"], index) for group, rows in ring.arrays["groups"].items()}


def every_transition(ring: Ring, size: int, paths: Mapping[str, Iterable[str]]) -> Iterator[dict[str, dict[str, Tree]]]:
    """Yield all transitions that may be drawn, `size` at a time: action, active, and the parts of obs at `paths`."""
    slots = ring.complete(ring.first_position(ring.oldest))[1]
    slots = slots[ring.flags[slots] & LAST == 0]
    for start in range(0, len(slots), size):
        part = slots[start : start + size]
        yield {
            group: {
                "obs": {path: observations(ring, dict(leaves(rows["obs"]))[path], part) for path in paths[group]},
                "action": rows["action"].take(part, axis=0),
                "active": rows["active"].take(part, axis=0),
            }
            for group, rows in ring.arrays["groups"].items()
        }


def all_rows(ring: Ring, running: np.ndarray, piece: int) -> Past:
    """Return all complete rows, read `piece` at a time; `running` [N] says where the last episode did not end."""
    start, flags = ring.first_position(ring.rows - 1), ring.flags
    start += flags[ring.base + start % ring.rows] & (FIRST | LAST) == LAST  # the end of an overwritten episode
    env, slots = ring.complete(start)
    first = np.flatnonzero(np.diff(env, prepend=-1))
    torn = first[flags[slots[first]] & FIRST == 0]
    ends = np.append(first, len(env))[1:] - 1
    partial = np.concatenate([torn, ends[running[env[ends]]]])

    def pieces() -> Iterator[dict[str, np.ndarray]]:
        for low in range(0, len(slots), piece):
            rows = ring.take(slots[low : low + piece])
            rows["flags"][torn[(torn >= low) & (torn < low + piece)] - low] |= FIRST
            yield rows

    return Past(pieces(), partial, ring.stack)
