"""Replay: the steps of every environment in a ring of rows, from which batches are drawn again and again.

A row is one moment of one environment: its observation, and once they exist, the action and its results.

    transition    transition    transition    last          transition    open
    observation   observation   observation   observation   observation   observation
    action …      action …      action …                    action …

The next observation of a transition is that of the next row: the true final observation of its episode in a *last*
row, where the episode ended with it. The *open* row waits for an action. So nothing is stored twice, and n steps or a
sequence are a walk from row to row (`ring_steps.py`).

A `ReplayStore` has a ring of rows with their priorities (`ring.py`, `priorities.py`), which functions write to
(`recording.py`) and draw batches from (`sampling.py`), segments on disk (`sealing.py`), and extras that learning
replaces (`revisions.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from cadenza.base.files import SafePath
from cadenza.data import recording, sampling
from cadenza.data.batches import Past, Sequences, Stretches, Transitions, Windows
from cadenza.data.priorities import Priorities
from cadenza.data.revisions import Revisions, Values
from cadenza.data.ring import Ring, bytes_for
from cadenza.data.ring_steps import FIRST
from cadenza.data.sealing import SealedRows
from cadenza.data.segments import rows_per_segment
from cadenza.errors import ConfigError
from cadenza.types import Acted, Step, Tree


class ReplayStore:
    """A replay of `capacity` rows, an equal share for each environment.

    Each transition takes one row, and each episode's end one more. With `alpha`, rows are sampled by priority to this
    power. `stack` is the number of frames in an observation, as `environment.frame_stack` makes it: only the newest is
    stored, and sampling stacks them again; where rows begin in the middle of an episode, their first frame is repeated.
    `on_disk` maps the rows from a nameless file instead of taking memory. `revisable` names extras that learning
    replaces by newer values.
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
        self.ring = Ring(num_envs, self.rows, stack, on_disk, alpha)
        self._sealed = SealedRows(self.ring)
        self._revisions = Revisions(self.ring)

    bytes_for = staticmethod(bytes_for)

    @property
    def priorities(self) -> Priorities | None:
        """The priorities of all slots, from the first row on."""
        return self.ring.priorities

    # collecting

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        """Add one transition of every environment; episodes end where `after` says so."""
        self._revisions.settle()
        slots = recording.add(self.ring, step, acted, after, self.revisable)
        if self.revisable:
            revisable = {g: {name: data[name] for name in self.revisable} for g, data in acted.extras.items()}
            self._revisions.write(slots, revisable)

    def cut(self) -> None:
        """End the episodes that are under way with their last transition, as if truncated: the environments restart."""
        recording.cut(self.ring)

    def ready(self) -> bool:
        return not self.ring.is_empty

    @property
    def room(self) -> int:
        """Rows of each stream that can be drawn before one is overwritten."""
        return self.ring.oldest

    def fill(self, like: Tree, env: np.ndarray, pieces: Iterable[dict[str, np.ndarray]]) -> None:
        """Fill an empty replay with whole stretches: row k is the next of stream `env[k]`, within its `room`.

        `pieces` are consecutive rows by path; `like` has their nesting, dtypes and shapes, [1, …].
        """
        recording.fill(self.ring, like, env, pieces)

    # learning

    def sample(
        self, batch: int, generator: np.random.Generator, n_step: int = 1, gamma: float = 1.0, beta: float = 1.0
    ) -> Transitions:
        """Draw transitions uniformly, or by priority with importance weights to the power `beta`.

        Rewards are summed over `n_step` steps, or fewer where the episode or its stored part ends before.
        """
        index, weight = self._draw(batch, generator, beta)
        return sampling.transitions(self.ring, index, n_step, gamma, weight)

    def stretches(self, batch: int, steps: int, generator: np.random.Generator, beta: float = 1.0) -> Stretches:
        """Draw stretches of `steps` steps that begin with transitions drawn as by `sample`."""
        index, weight = self._draw(batch, generator, beta)
        return sampling.stretches(self.ring, index, steps, weight)

    def windows(self, batch: int, generator: np.random.Generator, behind: int, on: int) -> Windows:
        """Draw transitions uniformly, each with the last `behind` observations and the next `on` actions.

        An episode's first observation is repeated before its start, its last action after its end.
        """
        return sampling.windows(self.ring, sampling.draw_transitions(self.ring, batch, generator), behind, on)

    def sequences(self, batch: int, length: int, generator: np.random.Generator, revisable: bool = True) -> Sequences:
        """Draw sequences of `length` rows uniformly. The reward for arriving at a row is in the row before it.

        Without `revisable`, leave out the extras that learning replaces: they are not waited for (`latest`).
        """
        drawn = sampling.sequences(self.ring, sampling.draw_starts(self.ring, batch, generator, length), length)
        if revisable:
            for group in drawn.groups:
                drawn.groups[group] |= self.latest(drawn.index, group)
        return drawn

    def latest(self, index: np.ndarray, group: str) -> dict[str, Tree]:
        """Return the present values of the revisable extras in the rows `index`, [*index, A, …] by name."""
        return self._revisions.read(index, group)

    def beginnings(self, batch: int, generator: np.random.Generator) -> dict[str, Tree]:
        """Draw the first observations of episodes, or of what is stored of them, uniformly: group -> [B, A, …]."""
        return sampling.first_observations(self.ring, batch, generator)

    def transitions(self, size: int, paths: Mapping[str, Iterable[str]]) -> Iterator[dict[str, dict[str, Tree]]]:
        """Yield every transition that may be drawn, `size` at a time: obs, action, active by group.

        Of a group's observations only the parts at its `paths`, keyed by these.
        """
        if not self.ready():
            raise ConfigError(EMPTY)
        yield from sampling.every_transition(self.ring, size, paths)

    def update_priorities(self, index: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities [B] of the sampled rows `index` [B], for example from their TD errors."""
        assert self.priorities is not None, "this replay has no priorities"
        self.priorities.update(index, priorities)

    def revise(self, index: np.ndarray, group: str, values: Values) -> None:
        """Replace revisable extras of the rows `index` [B, L] of a batch of sequences by newer values [B, L, A, …].

        `values` is called when next something is added, drawn or saved, so that a device has time to hand them over.
        """
        self._revisions.add(index, group, values)

    def _draw(self, batch: int, generator: np.random.Generator, beta: float) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the slots of transitions, and their importance weights where there are priorities."""
        if not self.ready():
            raise ConfigError(EMPTY)
        if self.priorities is None:
            return sampling.draw_transitions(self.ring, batch, generator), None
        return self.priorities.sample(batch, generator, beta)

    # reading all of it

    @property
    def lengths(self) -> np.ndarray:
        """[N] how many complete rows each stream has had."""
        return self.ring.head.copy()

    def since(self, start: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return environment and content (by path) of the complete rows after the first `start` [N] of each stream."""
        env, slots = self.ring.complete(start)
        return env, self.ring.take(slots)

    def past(self) -> Past:
        """Return all rows; episodes that are under way end here, as by `cut`."""
        if not self.ring.arrays:
            return Past((), np.zeros(0, np.int64), self.stack)
        running = self.ring.is_open & (self.ring.flags[self.ring.open_slots] & FIRST == 0)
        self.cut()
        return sampling.all_rows(self.ring, running, rows_per_segment(self._row_bytes))

    # state

    @property
    def bulk(self) -> int:
        """Bytes of all its rows."""
        return self.num_envs * self.rows * self.ring.row_bytes + self.revised_bulk

    @property
    def revised_bulk(self) -> int:
        """Bytes among them that learning replaces."""
        self._revisions.settle()
        return self.num_envs * self.rows * self._revisions.row_bytes

    def attach(self, folder: SafePath | None) -> None:
        """Keep segments in a folder from now on; with None, a state holds all rows."""
        if folder != self.ring.folder:
            self._sealed.forget()
            self._revisions.forget_files()
        self.ring.folder = folder

    def seal(self) -> dict[SafePath, str]:
        """Write the rows that are in no segment yet; return every file that the state relies on, with its sha256."""
        folder = self.ring.folder
        if folder is None:
            return {}
        segments = self._sealed.seal(folder, self._row_bytes) + self._revisions.seal(folder)
        return {folder / one.name: one.sha256 for one in segments}

    @property
    def _row_bytes(self) -> int:
        return self.bulk // (self.rows * self.num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the segments and the rows since then, the open ones at least."""
        return {
            **self._sealed.state_dict(),
            "revised": self._revisions.state_dict(),
            "priorities": {} if self.priorities is None else self.priorities.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sealed.load_state_dict(state)
        self._revisions.load_state_dict(state.get("revised", {}))
        if self.priorities is not None:
            self.priorities.load_state_dict(state["priorities"])


EMPTY = "the replay is empty: collect before sampling from it"


def whole(state: dict[str, Any], folder: SafePath) -> dict[str, Any]:
    """Return the state of a replay with all rows in it instead of in segments in `folder`."""
    num_envs, rows = state["shape"]
    store = ReplayStore(num_envs * rows, num_envs)
    store.attach(folder)
    store.load_state_dict(state)
    store.attach(None)
    return {**store.state_dict(), "priorities": state["priorities"]}
