"""An encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Waves(nn.Module):
    """Sines of learned mixtures of an observation."""

    def __init__(self, space: Any, features: int = 16) -> None:
        super().__init__()
        self.mix = nn.Linear(space.shape[0], features)
        self.features = features

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.sin(self.mix(obs["vector"]))
