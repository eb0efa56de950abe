"""The world the other way round."""

from __future__ import annotations

from typing import Any

import gymnasium


class Mirrored(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations with the opposite sign."""

    def observation(self, observation: Any) -> Any:
        return -observation
