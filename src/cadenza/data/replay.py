"""Replay: a stream of rows for each environment, the oldest overwritten, from which batches are drawn again and again.

A row is a moment of one environment: what was seen, and once there is more, what was done and what came of it.

    transition   transition   transition   last   transition   open
    seen         seen         seen         seen   seen         seen
    done         done         done                done

What follows a transition is the next row: the true final observation of its episode in a *last* row, where the episode
ended with it. The *open* row waits to be acted on. So nothing is stored twice, and n steps or a sequence are a walk.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from cadenza.base.failpoints import failpoint
from cadenza.base.files import SafePath
from cadenza.data.batches import Past, Sequences, Stretches, Transitions, Windows
from cadenza.data.priorities import Priorities
from cadenza.data.ring_steps import (
    FIRST,
    LAST,
    TERMINATED,
    TRUNCATED,
    ahead,
    back,
    newest,
    onward,
    preceding,
    stacked,
    window,
)
from cadenza.data.segments import Segment, name_of, read_segment, write_segment
from cadenza.envs.layout import allocate_actions, allocate_space
from cadenza.errors import CheckpointError, ConfigError, StorageError
from cadenza.trees import leaves, map_tree, write
from cadenza.types import Acted, EnvSpec, Step, Tree

Fetched = Callable[[], Mapping[str, np.ndarray]]  # waits for what it gives
FILES = "files"  # in the place of groups, where what is revised lies in files
SEGMENT_BYTES = 64 << 20  # what a segment holds at most, so that writing one never needs much memory


class ReplayStore:
    """`capacity` rows in all, an equal share for each environment; each transition takes one, each episode's end one.

    `alpha`: sample by priority, to this power. `stack`: observations are stacks of so many frames, as
    `environment.frame_stack` makes them; only the newest is kept, and sampling puts the stack together again. A stretch
    that begins in the middle of an episode begins with its first frame repeated. `on_disk`: rows are mapped from a
    nameless file instead of taking memory. `revisable`: extras that learning replaces by newer ones; as they change,
    they are in no segment and no dataset, and a state holds all of them.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        *,
        alpha: float | None = None,
        stack: int = 1,
        on_disk: bool = False,
        revisable: Collection[str] = (),
    ) -> None:
        least = (stack + 2) * num_envs
        if capacity < least:
            raise ConfigError(f"a replay of {capacity} rows is too small for {num_envs} environments: give {least}")
        self.num_envs = num_envs
        self.rows = capacity // num_envs  # of each environment
        self.stack = stack
        self.on_disk = on_disk
        self.alpha = alpha
        self.revisable = frozenset(revisable)
        self._revised: dict[str, dict[str, np.ndarray]] = {}  # group -> name -> [slots, …]
        self._awaited: list[tuple[np.ndarray, str, Fetched]] = []  # revisions that are still on their way
        self._revisions: list[Segment] = []  # where all that is revised was put, if nothing was since then
        self.priorities: Priorities | None = None  # made with the first row
        self._oldest = self.rows - stack  # age of a row beyond which it is only looked back at
        self._base = np.arange(num_envs) * self.rows
        self._arrays: Tree = {}  # [slots, …], an environment's rows after those of the one before
        self._head = np.zeros(num_envs, np.int64)  # where in its stream each environment's open row is
        self._find_open()
        self._open = False  # whether the open rows hold what was seen last
        self._folder: SafePath | None = None
        self._segments: list[Segment] = []
        self._sealed = np.zeros(num_envs, np.int64)  # rows of each stream before this one are in segments

    @staticmethod
    def bytes_for(
        spec: EnvSpec,
        num_envs: int,
        capacity: int,
        prioritized: bool = False,
        masks: Mapping[str, int] | None = None,
        extras: int = 0,
        stack: int = 1,
    ) -> int:
        """What the arrays take, exactly: `masks` are widths by group, `extras` the bytes a policy adds to each row."""
        rows, size = capacity // num_envs * num_envs, 1 + extras
        parts = [allocate_actions(spec, (1,)), {} if spec.state is None else allocate_space(spec.state, (1,))]
        for name, group in spec.groups.items():
            agents = len(group.agents)
            parts.append(newest(allocate_space(group.observation, (1, agents)), stack))
            size += agents * (4 + 1 + 1 + (masks or {}).get(name, 0))  # reward, active, died, mask
        size += sum(int(array.nbytes) for part in parts for _, array in leaves(part))
        return rows * size + (Priorities.bytes_for(rows) if prioritized else 0)

    # what comes in

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        """One transition of every environment; episodes end where `after` says so.

        None where an episode has ended and the next has not begun, as in vectors that reset with the step after.
        """
        self._await()
        done = done_rows(acted, after, self.revisable)
        if not self._arrays:
            row = seen_rows(step, self.stack)
            groups = {group: {**data, **done["groups"][group]} for group, data in row["groups"].items()}
            self._allocate({**row, "groups": groups, "flags": np.zeros(self.num_envs, np.uint8)})
        if not (self._open and self._continues(step)):
            self._begin(step)
        slots = self._slots
        try:
            write(self._arrays, self._where, done)
        except KeyError as missing:
            what = f"the policy notes {missing} beside its actions, which the rows of training.dataset do not have"
            raise ConfigError(f"{what}: it can learn from them, but not collect more beside them") from None
        if self.revisable:
            self._keep(slots, {g: {name: data[name] for name in self.revisable} for g, data in acted.extras.items()})
        going: Any = slice(None)
        if np.count_nonzero(step.terminated) or np.count_nonzero(step.truncated):
            going = step.is_first | ~(step.terminated | step.truncated)
        self._advance(going)
        first, ended = after.is_first, after.terminated | after.truncated
        if np.count_nonzero(ended):
            self._end(slots, np.flatnonzero(ended), after)
            first = first | ended  # the rows of those that wait are written once more
        self._see(after, first * np.uint8(FIRST))
        if self.priorities is not None:
            self.priorities.put(slots[going])

    def cut(self) -> None:
        """The environments start afresh: what was added last is the end of its episodes, as if truncated."""
        if not self._open:
            return
        self._open = False
        flags = self._arrays["flags"]
        running = np.flatnonzero(flags[self._slots] & FIRST == 0)
        flags[preceding(self._slots[running], self.rows)] |= TRUNCATED
        self._sealed[running] = np.minimum(self._sealed[running], self._head[running] - 1)
        self._close(running, np.uint8(LAST | TRUNCATED))

    def ready(self) -> bool:
        return bool(self._head.any())

    @property
    def room(self) -> int:
        """Rows that can be drawn from each stream before one is overwritten."""
        return self._oldest

    def fill(self, like: Tree, env: np.ndarray, pieces: Iterable[dict[str, np.ndarray]]) -> None:
        """Whole stretches, before anything is collected: row k is the next of stream `env[k]`, within its `room`.

        `pieces` are consecutive rows by path; `like` has their nesting, dtypes and shapes, [1, …].
        """
        assert not self._arrays, "this replay holds something"
        counts = np.bincount(env, minlength=self.num_envs)
        assert counts.max() <= self.room, "more than the replay has room for"
        slots, order = np.empty(len(env), np.int64), np.argsort(env, kind="stable")
        slots[order] = self._base[env[order]] + np.arange(len(env)) - np.repeat(counts.cumsum() - counts, counts)
        self._allocate(like)
        done = 0
        for rows in pieces:
            where = slots[done : done + len(rows["flags"])]
            for path, array in leaves(self._arrays):
                array[where] = rows[path]
            done += len(where)
        self._head[:] = counts
        self._find_open()
        if self.priorities is not None:
            self.priorities.put(slots[self._arrays["flags"][slots] & LAST == 0])

    def _continues(self, step: Step) -> bool:
        """Whether the open rows hold what was acted on: not if the environments went on elsewhere meanwhile."""
        for group, obs in step.obs.items():
            stored = leaves(self._arrays["groups"][group]["obs"])
            for (_, array), (_, given) in zip(stored, leaves(newest(obs, self.stack)), strict=True):
                if array[self._where].tobytes() != given.tobytes():
                    return False
        return True

    def _begin(self, step: Step) -> None:
        """A stretch that has nothing to do with what came before, in the middle of an episode perhaps."""
        self.cut()
        self._see(step, np.uint8(FIRST))

    def _see(self, step: Step, flags: Any) -> None:
        write(self._arrays, self._where, seen_rows(step, self.stack))
        self._arrays["flags"][self._where] = flags
        self._open = True

    def _end(self, done: np.ndarray, envs: np.ndarray, after: Step) -> None:
        """Episodes end with the transitions `done`: put down what was seen last."""
        how = after.terminated[envs] * np.uint8(TERMINATED) + after.truncated[envs] * np.uint8(TRUNCATED)
        self._arrays["flags"][done[envs]] |= how
        final: Tree = {"groups": {group: {"obs": newest(obs, self.stack)} for group, obs in after.final_obs.items()}}
        if after.final_state is not None:
            final["state"] = after.final_state
        write(self._arrays, self._slots[envs], map_tree(lambda x: x[envs], final))
        self._close(envs, how + np.uint8(LAST))

    def _close(self, envs: np.ndarray, flags: Any) -> None:
        """The open rows become last ones: nobody acts there, and which actions would be allowed is unknown."""
        slots = self._slots[envs]
        for rows in self._arrays["groups"].values():
            for name, tree in rows.items():
                if name != "obs":
                    for _, array in leaves(tree):
                        array[slots] = name == "mask"
        self._arrays["flags"][slots] = flags
        self._advance(envs)

    def _advance(self, envs: Any) -> None:
        """To the next row of these environments; with it another is too old to be drawn."""
        self._head[envs] += 1
        self._find_open()
        if self.priorities is not None:
            self.priorities.drop(self._base[envs] + (self._head[envs] - self._oldest - 1) % self.rows)

    def _find_open(self) -> None:
        self._slots = self._base + self._head % self.rows
        # one row is found quicker by a slice
        self._where: Any = self._slots if self.num_envs > 1 else slice(int(self._slots[0]), int(self._slots[0]) + 1)

    def _allocate(self, like: Tree) -> None:
        """Arrays for rows such as these, side by side in one piece of memory."""
        fields = sorted(leaves(like), key=lambda field: -field[1].dtype.itemsize)  # so that each is aligned
        sizes = {path: leaf[:1].nbytes for path, leaf in fields}
        slots, row = self.num_envs * self.rows, np.dtype((np.void, sum(sizes.values())))
        content, offset, views = self._block(slots, row).view(np.uint8), 0, {}
        for path, leaf in fields:
            end = offset + slots * sizes[path]
            views[path] = content[offset:end].view(leaf.dtype).reshape(slots, *leaf.shape[1:])
            offset = end
        order = iter([path for path, _ in leaves(like)])
        self._arrays = map_tree(lambda _: views[next(order)], like)
        if self.alpha is not None:
            self.priorities = Priorities(slots, self.alpha)

    def _block(self, slots: int, row: np.dtype[Any]) -> np.ndarray:
        """Memory, or a nameless file, for so many of these."""
        if not self.on_disk:
            return np.zeros(slots, row)
        if self._folder is not None:
            self._folder.mkdir()
        try:
            with tempfile.TemporaryFile() if self._folder is None else self._folder.nameless() as file:
                take_room(file.fileno(), slots * row.itemsize)
                return np.asarray(np.memmap(file, row, "w+", shape=(slots,)))
        except OSError as problem:
            where, wanted = self._folder or tempfile.gettempdir(), f"a replay of {slots * row.itemsize:,} bytes"
            raise StorageError(f"{where}: no file for {wanted} ({problem.strerror or problem})") from problem

    # what learning replaces

    def revise(self, index: np.ndarray, group: str, values: Fetched) -> None:
        """`index` as in a batch of sequences [B, L], newer values of what is revisable there [B, L, A, …].

        They are called for when next something is added, drawn or kept, so that a device has time to hand them over.
        """
        self._awaited.append((index, group, values))

    def _await(self) -> None:
        for index, group, values in self._awaited:
            self._keep(index, {group: values()})
        self._awaited.clear()

    def _keep(self, slots: np.ndarray, values: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        self._revisions = []
        for group, named in values.items():
            kept = self._revised.setdefault(group, {})
            for name, value in named.items():
                if name not in kept:
                    like = value.reshape(-1, *value.shape[slots.ndim :])
                    row = np.dtype((np.void, like[:1].nbytes))
                    count = self.num_envs * self.rows
                    kept[name] = self._block(count, row).view(like.dtype).reshape(count, *like.shape[1:])
                kept[name][slots] = value

    # what comes out

    def sample(
        self, batch: int, generator: np.random.Generator, n_step: int = 1, gamma: float = 1.0, beta: float = 1.0
    ) -> Transitions:
        """Transitions drawn uniformly, or by priority with weights corrected to the power `beta`.

        Rewards are summed over `n_step` steps, or fewer where the episode or what is known of it ends before.
        """
        index, weight = self._drawn(batch, generator, beta)
        return self._transitions(index, n_step, gamma, weight)

    def _drawn(self, batch: int, generator: np.random.Generator, beta: float) -> tuple[np.ndarray, np.ndarray | None]:
        """Transitions, and their weights where there are priorities."""
        if not self.ready():
            raise ConfigError("the replay is empty: collect before sampling from it")
        if self.priorities is None:
            return self._draw_transitions(batch, generator), None
        return self.priorities.sample(batch, generator, beta)

    def _draw_transitions(self, batch: int, generator: np.random.Generator) -> np.ndarray:
        index = self._draw(batch, generator, 1)
        while len(redraw := np.flatnonzero(self._arrays["flags"][index] & LAST)):
            index[redraw] = self._draw(len(redraw), generator, 1)
        return index

    def windows(self, batch: int, generator: np.random.Generator, behind: int, on: int) -> Windows:
        """Around transitions drawn uniformly: what was seen up to them, `behind` times, and the next `on` actions.

        An episode's first observation is repeated before its start, its last action after its end.
        """
        index = self._draw_transitions(batch, generator)
        flags = self._arrays["flags"]
        past, future = window(flags, index, self._head, self.rows, self._oldest, behind, on)
        groups = {
            group: {
                "obs": self._seen(rows["obs"], past),
                "action": rows["action"].take(future, axis=0),
                "active": rows["active"].take(future, axis=0),
            }
            for group, rows in self._arrays["groups"].items()
        }
        return Windows(groups)

    def stretches(self, batch: int, steps: int, generator: np.random.Generator, beta: float = 1.0) -> Stretches:
        """Steps that follow each other, begun with transitions drawn as by `sample`."""
        index, weight = self._drawn(batch, generator, beta)
        flags = self._arrays["flags"]
        walk, taken = onward(flags, index, self._head, self.rows, steps)
        groups = {
            group: {
                name: self._seen(tree, walk)
                if name == "obs"
                else map_tree(lambda x: x.take(walk[:, :-1], axis=0), tree)
                for name, tree in rows.items()
            }
            for group, rows in self._arrays["groups"].items()
        }
        ended = taken & (flags[walk[:, 1:]] & (LAST | TERMINATED) == LAST | TERMINATED)
        return Stretches(groups, taken, ended, index, weight)

    def transitions(self, size: int, seen: Mapping[str, Iterable[str]]) -> Iterator[dict[str, dict[str, Tree]]]:
        """What was seen and done in every transition that may be drawn, `size` at a time: obs, action, active.

        Of a group's observations the parts at the paths `seen`, under these.
        """
        if not self.ready():
            raise ConfigError("the replay is empty: collect before sampling from it")
        env, position = self._complete(np.maximum(self._head - self._oldest, 0))
        slots = self._base[env] + position % self.rows
        slots = slots[self._arrays["flags"][slots] & LAST == 0]
        for start in range(0, len(slots), size):
            part = slots[start : start + size]
            yield {
                group: {
                    "obs": {path: self._seen(dict(leaves(rows["obs"]))[path], part) for path in seen[group]},
                    "action": rows["action"].take(part, axis=0),
                    "active": rows["active"].take(part, axis=0),
                }
                for group, rows in self._arrays["groups"].items()
            }

    def update_priorities(self, index: np.ndarray, priorities: np.ndarray) -> None:
        """`index` as in a batch, what learning from it found out ([B])."""
        assert self.priorities is not None, "this replay has no priorities"
        self.priorities.update(index, priorities)

    def sequences(self, batch: int, length: int, generator: np.random.Generator) -> Sequences:
        """Stretches of `length` rows, drawn uniformly. What was earned on arriving at a row is the reward before it."""
        self._await()
        first = self._draw(batch, generator, length)
        offset = first % self.rows
        index = (first - offset)[:, None] + (offset[:, None] + np.arange(length)) % self.rows
        arrays, flags = self._arrays, self._arrays["flags"][index]
        groups = {
            group: {
                name: self._seen(tree, index) if name == "obs" else map_tree(lambda x: x.take(index, axis=0), tree)
                for name, tree in rows.items()
            }
            for group, rows in arrays["groups"].items()
        }
        for group, kept in self._revised.items():
            groups[group] |= {name: array.take(index, axis=0) for name, array in kept.items()}
        return Sequences(
            groups=groups,
            is_first=flags & FIRST != 0,
            terminated=flags & TERMINATED != 0,
            truncated=flags & TRUNCATED != 0,
            last=flags & LAST != 0,
            index=index,
            state=arrays["state"].take(index, axis=0) if "state" in arrays else None,
        )

    def beginnings(self, batch: int, generator: np.random.Generator) -> dict[str, Tree]:
        """What was seen first in episodes drawn uniformly, or in what is known of them, group -> [B, A, …]."""
        held = self._held()
        first = held[self._arrays["flags"][held] & FIRST != 0] if self.ready() else held
        if not len(first):
            raise ConfigError("the replay holds no beginning of an episode: collect more, or give it more capacity")
        index = first[generator.integers(len(first), size=batch)]
        return {group: self._seen(rows["obs"], index) for group, rows in self._arrays["groups"].items()}

    @property
    def lengths(self) -> np.ndarray:
        """[N] how many complete rows each stream has had."""
        return self._head.copy()

    def since(self, start: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Environment and content of the complete rows that follow the first `start` [N] of each stream."""
        env, position = self._complete(start)
        slots = self._base[env] + position % self.rows
        return env, {path: array.take(slots, axis=0) for path, array in leaves(self._arrays)}

    def past(self) -> Past:
        """All it holds; episodes that are under way end here, as by `cut`."""
        if not self._arrays:
            return Past((), np.zeros(0, np.int64), self.stack)
        running = self._open & (self._arrays["flags"][self._slots] & FIRST == 0)
        self.cut()
        start = np.maximum(self._head - self.rows + 1, 0)
        flags = self._arrays["flags"]
        start += flags[self._base + start % self.rows] & (FIRST | LAST) == LAST  # the end of something forgotten
        env, position = self._complete(start)
        slots = self._base[env] + position % self.rows
        first = np.flatnonzero(np.diff(env, prepend=-1))
        torn = first[flags[slots[first]] & FIRST == 0]
        ends = np.append(first, len(env))[1:] - 1
        partial = np.concatenate([torn, ends[running[env[ends]]]])

        def pieces() -> Iterator[dict[str, np.ndarray]]:
            size = max(1, SEGMENT_BYTES * self.rows * self.num_envs // self.bulk)
            for low in range(0, len(slots), size):
                part = slots[low : low + size]
                rows = {path: array.take(part, axis=0) for path, array in leaves(self._arrays)}
                rows["flags"][torn[(torn >= low) & (torn < low + size)] - low] |= FIRST
                yield rows

        return Past(pieces(), partial, self.stack)

    def _draw(self, batch: int, generator: np.random.Generator, span: int) -> np.ndarray:
        """Slots of rows that are followed by `span` - 1 others before the open one, uniformly."""
        if self.num_envs == 1:  # the same with less to do
            head = int(self._head[0])
            chosen = self._choose(min(head, self._oldest) - (span - 1), batch, generator, span)
            return (head - span - chosen) % self.rows
        choices = np.maximum(np.minimum(self._head, self._oldest) - (span - 1), 0)
        ends = choices.cumsum()
        chosen = self._choose(int(ends[-1]), batch, generator, span)
        env = ends.searchsorted(chosen, side="right")
        age = span + chosen - (ends - choices)[env]
        return np.asarray(self._base[env] + (self._head[env] - age) % self.rows)

    def _choose(self, total: int, batch: int, generator: np.random.Generator, span: int) -> np.ndarray:
        if total <= 0:
            raise ConfigError(f"the replay holds no {span} rows in a row yet: collect more, or give it more capacity")
        return generator.integers(total, size=batch)

    def _transitions(self, index: np.ndarray, n_step: int, gamma: float, weight: np.ndarray | None) -> Transitions:
        arrays = self._arrays
        end, walked, reward, over = ahead(arrays, index, self._head, self.rows, n_step, gamma)
        groups = {}
        for group, rows in arrays["groups"].items():
            batch = {
                name: map_tree(lambda x: x.take(index, axis=0), tree)
                for name, tree in rows.items()
                if name not in ("obs", "reward", "died")
            }
            batch |= {"obs": self._seen(rows["obs"], index), "next_obs": self._seen(rows["obs"], end)}
            batch |= {"reward": reward[group], "terminated": over[group]}
            if "mask" in rows:
                batch["next_mask"] = rows["mask"].take(end, axis=0)
            groups[group] = batch
        state = arrays.get("state")
        return Transitions(
            groups=groups,
            discount=(gamma ** np.arange(n_step + 1)).astype(np.float32).take(walked),
            index=index,
            weight=weight,
            state=None if state is None else state.take(index, axis=0),
        )

    def _seen(self, obs: Tree, index: np.ndarray) -> Tree:
        """Observations [*index, A, …], each with those before it where they are stacked."""
        if self.stack == 1:
            return map_tree(lambda x: x.take(index, axis=0), obs)
        history = back(self._arrays["flags"], index, self.rows, self.stack)
        return stacked(obs, history)

    # state

    @property
    def bulk(self) -> int:
        """Bytes of all its rows."""
        self._await()
        return sum(int(array.nbytes) for tree in (self._arrays, self._revised) for _, array in leaves(tree))

    @property
    def revised_bulk(self) -> int:
        """Bytes among them that learning replaces."""
        self._await()
        return sum(int(array.nbytes) for _, array in leaves(self._revised))

    def attach(self, folder: SafePath | None) -> None:
        """Where segments are kept from now on; a state holds all rows where that is nowhere."""
        if folder != self._folder:
            self._segments, self._revisions = [], []
            self._sealed = np.zeros(self.num_envs, np.int64)
        self._folder = folder

    def seal(self) -> dict[SafePath, str]:
        """Put rows that are new since last time into segments; every file that the state relies on, with its hash."""
        if self._folder is None:
            return {}
        env, position = self._unsealed()
        written, total = [], int(self._tail_start().sum())
        parts = 1 + len(env) * self.bulk // (self.rows * self.num_envs * SEGMENT_BYTES)
        for part in np.array_split(np.arange(len(env)), parts):
            if len(part):
                name = f"{total:012d}-{total + len(part):012d}.safetensors"
                slots = self._base[env[part]] + position[part] % self.rows
                rows = {path: array.take(slots, axis=0) for path, array in leaves(self._arrays)}
                ends = np.zeros(self.num_envs, np.int64)
                np.maximum.at(ends, env[part], position[part] + 1)
                written.append(Segment(name, write_segment(self._folder, name, slots, rows), ends))
                total += len(part)
        failpoint("replay:sealed")
        self._sealed = self._head.copy()
        alive = [one for one in self._segments if (one.ends > self._head - self.rows + 1).any()]
        self._segments = alive + written
        self._revisions = self._seal_revised(self._folder)
        return {self._folder / one.name: one.sha256 for one in (*self._segments, *self._revisions)}

    def _seal_revised(self, folder: SafePath) -> list[Segment]:
        """All that is revised, in pieces, so that a checkpoint never needs as much memory again as they take."""
        self._await()
        held, arrays = self._held(), dict(leaves(self._revised))
        if self._revisions or not arrays:
            return self._revisions
        size = sum(array.nbytes for array in arrays.values()) // (self.rows * self.num_envs)
        parts = np.array_split(held, 1 + len(held) * size // SEGMENT_BYTES)
        taken = ((slots, {path: array.take(slots, axis=0) for path, array in arrays.items()}) for slots in parts)
        hashes = [write_segment(folder, None, slots, rows) for slots, rows in taken]
        return [Segment(name_of(sha256), sha256, self._head) for sha256 in hashes]

    def _tail_start(self) -> np.ndarray:
        """Where in each stream the rows begin that are in no segment."""
        return np.maximum(self._sealed, self._head - self.rows + 1)

    def _unsealed(self) -> tuple[np.ndarray, np.ndarray]:
        """Environment and position in its stream of each complete row that is in no segment."""
        return self._complete(self._tail_start())

    def _complete(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Environment and position in its stream of each complete row from `start` on."""
        counts = self._head - start
        env = np.repeat(np.arange(self.num_envs), counts)
        return env, np.arange(len(env)) - np.repeat(counts.cumsum() - counts - start, counts)

    def state_dict(self) -> dict[str, Any]:
        """What is in segments is named, the rows since then are held: the open ones at least."""
        tail: dict[str, Tree] = {}
        if self._arrays:
            env, position = self._unsealed()
            env, position = np.append(env, np.arange(self.num_envs)), np.append(position, self._head)
            slots = self._base[env] + position % self.rows
            tail = {"slots": slots, "rows": map_tree(lambda x: x.take(slots, axis=0), self._arrays)}
        return {
            "shape": [self.num_envs, self.rows],
            "head": self._head.copy(),
            "open": self._open,
            "sealed": self._tail_start(),
            "segments": [{"name": one.name, "sha256": one.sha256} for one in self._segments],
            "ends": np.array([one.ends for one in self._segments], np.int64).reshape(-1, self.num_envs),
            "tail": tail,
            "revised": self._revised_state(),
            "priorities": {} if self.priorities is None else self.priorities.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["shape"] != [self.num_envs, self.rows]:
            raise ValueError(f"a replay of {state['shape']} rows, not {[self.num_envs, self.rows]}")
        self._head, self._open = np.array(state["head"], np.int64), state["open"]
        self._find_open()
        self._sealed = np.array(state["sealed"], np.int64)
        ends = np.array(state["ends"], np.int64)
        self._segments = [
            Segment(one["name"], one["sha256"], end) for one, end in zip(state["segments"], ends, strict=True)
        ]
        if state["tail"]:
            if not self._arrays:
                self._allocate(state["tail"]["rows"])
            self._read(self._segments, self._put)
            write(self._arrays, state["tail"]["slots"], state["tail"]["rows"])
        else:  # nothing was ever added
            self._arrays, self.priorities = {}, None
        self._revised, self._awaited, self._revisions = {}, [], []
        revised = state.get("revised", {})
        if isinstance(files := revised.get(FILES), list):
            segments = [Segment(one["name"], one["sha256"], self._head) for one in files]
            self._read(segments, self._put_revised)
            self._revisions = segments
        elif revised:
            self._keep(self._held(), revised)
        if self.priorities is not None:
            self.priorities.load_state_dict(state["priorities"])

    def _revised_state(self) -> Tree:
        """All of it, or the names of the files it was put into."""
        self._await()
        if self._revisions:
            return {FILES: [{"name": one.name, "sha256": one.sha256} for one in self._revisions]}
        held = self._held() if self._revised else None
        return map_tree(lambda array: array.take(held, axis=0), self._revised)

    def _held(self) -> np.ndarray:
        """Slots of all complete rows."""
        env, position = self._complete(np.maximum(self._head - self.rows + 1, 0))
        return np.asarray(self._base[env] + position % self.rows)

    def _put(self, slots: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        for path, array in leaves(self._arrays):
            array[slots] = rows[path]

    def _put_revised(self, slots: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        for path, array in rows.items():
            group, name = path.rsplit(".", 1)
            self._keep(slots, {group: {name: array}})

    def _read(self, segments: list[Segment], put: Callable[[np.ndarray, dict[str, np.ndarray]], None]) -> None:
        """In the order they were written: what a later one holds too, it overwrites."""
        if segments and self._folder is None:
            raise CheckpointError("the state names segments of a replay, and the store is not told where they are")
        for segment in segments:
            assert self._folder is not None
            content = read_segment(self._folder, segment)
            try:
                put(*content)
            except (KeyError, IndexError, ValueError) as problem:
                raise CheckpointError(f"{self._folder / segment.name}: does not fit this run ({problem})") from problem


def whole(state: dict[str, Any], folder: SafePath) -> dict[str, Any]:
    """The state of a replay with all rows in it, however they are spread over segments."""
    num_envs, rows = state["shape"]
    store = ReplayStore(num_envs * rows, num_envs)
    store.attach(folder)
    store.load_state_dict(state)
    store.attach(None)
    return {**store.state_dict(), "priorities": state["priorities"]}


def take_room(file: int, size: int) -> None:
    """Have the disk's room now: a write into a hole that it cannot fill would kill the process."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # which this kind of disk cannot do
            raise


def seen_rows(step: Step, stack: int) -> dict[str, Tree]:
    """What is known of a row before anything is done, [N, …]."""
    groups = {group: {"obs": newest(obs, stack), "active": step.active[group]} for group, obs in step.obs.items()}
    for group, allowed in step.mask.items():
        groups[group]["mask"] = allowed
    return {"groups": groups} if step.state is None else {"groups": groups, "state": step.state}


def done_rows(acted: Acted, after: Step, without: Collection[str] = ()) -> dict[str, Tree]:
    """What completes a row to a transition, [N, …]; some extras go elsewhere."""
    groups = {}
    for group, action in acted.action.items():
        groups[group] = {"action": action, "reward": after.reward[group], "died": after.died[group]}
        groups[group] |= {name: extra for name, extra in acted.extras[group].items() if name not in ("carry", *without)}
    return {"groups": groups}
