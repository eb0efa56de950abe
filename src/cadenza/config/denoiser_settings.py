"""Settings of the networks that predict noise in actions. The modules are in `nets/denoisers.py`."""

from __future__ import annotations

from dataclasses import dataclass

from cadenza.config.setting import setting
from cadenza.errors import ConfigError


@dataclass(frozen=True)
class UNetConfig:
    """A U-Net of convolutions along the sequence of actions, on ever coarser scales and back."""

    widths: tuple[int, ...] = setting((64, 128, 256), "channels on each scale, the finest first", least=1)
    kernel: int = setting(5, "length of the convolutions, odd", "actions", least=1)
    groups: int = setting(8, "groups of the group norm; they divide every width", least=1)
    step_size: int = setting(64, "units of the embedding of the noise level, even", least=4)

    def __post_init__(self) -> None:
        if not self.widths:
            raise ConfigError("widths=[]: must have at least one scale")
        if any(width % self.groups for width in self.widths):
            raise ConfigError(f"widths={list(self.widths)}: groups={self.groups} must divide each of them")
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel={self.kernel}: must be odd")
        if self.step_size % 2:
            raise ConfigError(f"step_size={self.step_size}: must be even")

    @property
    def shrinks(self) -> int:
        """The factor by which the coarsest scale is shorter than the sequence of actions."""
        return int(2 ** (len(self.widths) - 1))


@dataclass(frozen=True)
class DenoisingTransformerConfig:
    """A transformer in which actions attend to earlier actions and to observations."""

    size: int = setting(128, "units of each token, even", least=1)
    layers: int = setting(4, "stacked layers", least=1)
    heads: int = setting(4, "attention heads", least=1)

    def __post_init__(self) -> None:
        if self.size % self.heads or self.size % 2:
            raise ConfigError(f"size={self.size}: must be even and a multiple of heads={self.heads}")
