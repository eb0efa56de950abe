"""Extras of the rows of a ring that learning replaces by newer values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cadenza.base.files import SafePath
from cadenza.data.ring import Ring
from cadenza.data.segments import Segment, name_of, pieces, read_segments, write_segment
from cadenza.trees import leaves, take

Values = Callable[[], Mapping[str, np.ndarray]]  # called late: it may wait for a copy from a device
AHEAD = 2  # updates whose values may be pending while the next batch is drawn
FILES = "files"  # the key of a state whose values are in files; else its keys are groups


class Revisions:
    """One array [slots, A, …] for each of the extras that learning replaces.

    As the values change, they are in no segment of rows and in no dataset. A state holds all of them, or names files
    that do.
    """

    def __init__(self, ring: Ring) -> None:
        self.arrays: dict[str, dict[str, np.ndarray]] = {}  # by group and name
        self._ring = ring
        self._pending: list[tuple[np.ndarray, str, Values]] = []
        self._files: list[Segment] = []  # hold all values, if none has changed since they were written

    @property
    def row_bytes(self) -> int:
        return sum(array[:1].nbytes for _, array in leaves(self.arrays))

    def add(self, index: np.ndarray, group: str, values: Values) -> None:
        """Write newer values to slots `index` when they are next needed."""
        self._pending.append((index, group, values))

    def settle(self, count: int | None = None) -> None:
        """Write the values that are pending, or the first `count` of them."""
        count = len(self._pending) if count is None else count
        for index, group, values in self._pending[:count]:
            self.write(index, {group: values()})
        del self._pending[:count]

    def read(self, index: np.ndarray, group: str) -> dict[str, Any]:
        """Return the values of the slots `index`, [*index, A, …] by name.

        Pending values of other slots are not waited for, unless there are more than `AHEAD`.
        """
        needed = [n for n, (slots, *_) in enumerate(self._pending, 1) if np.isin(index, slots).any()]
        self.settle(max([len(self._pending) - AHEAD, *needed, 0]))
        return dict(take(self.arrays.get(group, {}), index))

    def write(self, slots: np.ndarray, values: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Write values [*slots, A, …] by group and name."""
        self._files = []
        for group, extras in values.items():
            arrays = self.arrays.setdefault(group, {})
            for name, value in extras.items():
                if name not in arrays:
                    like = value.reshape(-1, *value.shape[slots.ndim :])
                    content = self._ring.block(like[:1].nbytes).view(like.dtype)
                    arrays[name] = content.reshape(-1, *like.shape[1:])
                arrays[name][slots] = value

    def seal(self, folder: SafePath) -> list[Segment]:
        """Write all values to files, in pieces so that this needs little memory; return the files."""
        self.settle()
        if self._files or not self.arrays:
            return self._files
        arrays = dict(leaves(self.arrays))
        for slots in pieces(self._ring.complete_slots(), self.row_bytes):
            sha256 = write_segment(folder, None, slots, {path: array.take(slots, 0) for path, array in arrays.items()})
            self._files.append(Segment(name_of(sha256), sha256, self._ring.head))
        return self._files

    def forget_files(self) -> None:
        """Write all values again at the next `seal`."""
        self._files = []

    def state_dict(self) -> dict[str, Any]:
        self.settle()
        if self._files:
            return {FILES: [one.reference for one in self._files]}
        return dict(take(self.arrays, self._ring.complete_slots())) if self.arrays else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.arrays, self._pending, self._files = {}, [], []
        if isinstance(references := state.get(FILES), list):
            files = [Segment(one["name"], one["sha256"], self._ring.head) for one in references]
            read_segments(self._ring.folder, files, self._put)
            self._files = files
        elif state:
            self.write(self._ring.complete_slots(), state)

    def _put(self, slots: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        for path, array in rows.items():
            group, name = path.rsplit(".", 1)
            self.write(slots, {group: {name: array}})
