"""A replay."""

from __future__ import annotations

from typing import Any

from cadenza.data.batches import Transitions
from cadenza.data.replay import ReplayStore


class Clipped(ReplayStore):
    """A replay whose batches hold no large rewards."""

    def __init__(self, capacity: int, num_envs: int, *, limit: float = 1.0, **settings: Any) -> None:
        super().__init__(capacity, num_envs, **settings)
        self.limit = limit

    def sample(self, *arguments: Any, **settings: Any) -> Transitions:
        drawn = super().sample(*arguments, **settings)
        for data in drawn.groups.values():
            data["reward"] = data["reward"].clip(-self.limit, self.limit)
        return drawn
