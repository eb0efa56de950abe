"""Settings of the networks that tell noise from actions. The modules are in `nets/denoisers.py`."""

from __future__ import annotations

from dataclasses import dataclass

from cadenza.config.setting import setting
from cadenza.errors import ConfigError


@dataclass(frozen=True)
class UNetConfig:
    """Convolutions along the actions, on ever coarser scales and back."""

    widths: tuple[int, ...] = setting((64, 128, 256), "channels on each scale, the finest first")
    kernel: int = setting(5, "length of the convolutions, odd", "actions")
    groups: int = setting(8, "groups of channels that are normalised together; they divide every width")
    step_size: int = setting(64, "units that tell how noisy the actions are")

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1 or self.groups < 1:
            raise ConfigError("widths: at least one scale, and widths and groups of at least 1")
        if any(width % self.groups for width in self.widths):
            raise ConfigError(f"widths={list(self.widths)}: groups={self.groups} must divide each of them")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ConfigError(f"kernel={self.kernel}: must be odd")
        if self.step_size < 4 or self.step_size % 2:
            raise ConfigError(f"step_size={self.step_size}: must be even and at least 4")

    @property
    def shrinks(self) -> int:
        """What the number of actions is divided by on the coarsest scale."""
        return int(2 ** (len(self.widths) - 1))


@dataclass(frozen=True)
class DenoisingTransformerConfig:
    """Actions that attend to those before them and to what was seen."""

    size: int = setting(128, "units of each token")
    layers: int = setting(4, "layers on top of each other")
    heads: int = setting(4, "attention heads")

    def __post_init__(self) -> None:
        for key in ("size", "layers", "heads"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)}: must be at least 1")
        if self.size % self.heads or self.size % 2:
            raise ConfigError(f"size={self.size}: must be even and a multiple of heads={self.heads}")
