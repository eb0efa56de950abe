"""Settings of the networks that several algorithms share. The modules are in `nets/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cadenza.config.setting import setting
from cadenza.errors import ConfigError


@dataclass(frozen=True)
class MLPConfig:
    """Fully connected layers."""

    hidden_sizes: tuple[int, ...] = setting((64, 64), "units of each hidden layer")
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = setting("tanh", "nonlinearity after each hidden layer")

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden_sizes):
            raise ConfigError(f"hidden_sizes={list(self.hidden_sizes)}: every layer needs at least one unit")
