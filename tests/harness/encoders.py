"""Encoders as a user might write them: one that works, and one with errors."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn


class SideBySide(nn.Module):
    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.space, self.features = space, int(spaces.flatdim(space))

    def forward(self, obs: Any) -> Tensor:
        return torch.cat(self._leaves(self.space, obs), -1)

    def _leaves(self, space: spaces.Space[Any], obs: Any) -> list[Tensor]:
        if isinstance(space, spaces.Dict):
            return [leaf for key, part in space.spaces.items() for leaf in self._leaves(part, obs[key])]
        return [obs["vector"] if isinstance(obs, dict) else obs]


class Odd(nn.Module):
    """A layer on a vector of three, with the error that `wrong` names."""

    features = 4

    def __init__(self, space: spaces.Space[Any], wrong: str) -> None:
        super().__init__()
        self.wrong, self.layer = wrong, nn.LazyLinear(4)
        self.further = {"dropout": nn.Dropout(0.5), "norm": nn.BatchNorm1d(4)}.get(wrong, nn.LayerNorm(4))

    def forward(self, obs: Any) -> Any:
        features = self.further(self.layer(obs["vector"]))
        wrong = {"raises": lambda: obs["pixels"], "nothing": lambda: None, "double": features.double}
        return wrong.get(self.wrong, lambda: features)()
