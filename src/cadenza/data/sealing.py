"""The rows of a ring in a checkpoint: those in segments by the names of these, the rest as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from cadenza.base.failpoints import failpoint
from cadenza.base.files import SafePath
from cadenza.data.ring import Ring
from cadenza.data.segments import Segment, pieces, read_segments, write_segment
from cadenza.trees import take, write


class SealedRows:
    """The segments that hold rows of a ring, all in its folder."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._segments: list[Segment] = []

    def forget(self) -> None:
        """Write all rows again at the next `seal`: the ring has another folder now."""
        self._segments = []
        self._ring.sealed = np.zeros(self._ring.num_envs, np.int64)

    def seal(self, folder: SafePath, row_bytes: int) -> list[Segment]:
        """Write the rows that are in no segment; return all segments with rows that are still in the ring."""
        ring, new = self._ring, []
        reached = self._unsealed_from()
        total = int(reached.sum())
        env, slots = ring.complete(reached)
        for piece in pieces(np.arange(len(env)), row_bytes):
            if len(piece):
                name = f"{total:012d}-{total + len(piece):012d}.safetensors"
                sha256 = write_segment(folder, name, slots[piece], ring.take(slots[piece]))
                counts = np.bincount(env[piece], minlength=ring.num_envs)
                reached = reached + counts
                new.append(Segment(name, sha256, np.where(counts > 0, reached, 0)))
                total += len(piece)
        failpoint("replay:sealed")
        ring.sealed = ring.head.copy()
        needed = [one for one in self._segments if (one.ends > ring.head - ring.rows + 1).any()]
        self._segments = needed + new
        return self._segments

    def _unsealed_from(self) -> np.ndarray:
        """Return the positions [N] at which the rows begin that are in the ring and in no segment."""
        return np.asarray(np.maximum(self._ring.sealed, self._ring.head - self._ring.rows + 1))

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the segments and the rows since then, the open ones at least."""
        ring, start = self._ring, self._unsealed_from()
        tail = {}
        if ring.arrays:
            slots = np.append(ring.complete(start)[1], ring.open_slots)
            tail = {"slots": slots, "rows": take(ring.arrays, slots)}
        return {
            "shape": [ring.num_envs, ring.rows],
            "head": ring.head.copy(),
            "open": ring.is_open,
            "sealed": start,
            "segments": [one.reference for one in self._segments],
            "ends": np.array([one.ends for one in self._segments], np.int64).reshape(-1, ring.num_envs),
            "tail": tail,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        ring = self._ring
        if state["shape"] != [ring.num_envs, ring.rows]:
            raise ValueError(f"a replay of {state['shape']} rows, not {[ring.num_envs, ring.rows]}")
        ring.move_to(np.array(state["head"], np.int64), state["open"])
        ring.sealed = np.array(state["sealed"], np.int64)
        ends = np.array(state["ends"], np.int64)
        self._segments = [
            Segment(one["name"], one["sha256"], end) for one, end in zip(state["segments"], ends, strict=True)
        ]
        tail = state["tail"]
        if not tail:  # nothing was ever added
            ring.clear()
            return
        if not ring.arrays:
            ring.allocate(tail["rows"])
        read_segments(ring.folder, self._segments, ring.put)
        write(ring.arrays, tail["slots"], tail["rows"])
