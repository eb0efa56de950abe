"""Settings of the networks and optimizers that several algorithms share. The modules are in `nets/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cadenza.config.setting import setting
from cadenza.errors import ConfigError

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]


@dataclass(frozen=True)
class MLPConfig:
    """Fully connected layers."""

    hidden_sizes: tuple[int, ...] = setting((64, 64), "units of each hidden layer")
    activation: Activation = setting("tanh", "nonlinearity after each hidden layer")

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden_sizes):
            raise ConfigError(f"hidden_sizes={list(self.hidden_sizes)}: every layer needs at least one unit")


@dataclass(frozen=True)
class CriticConfig(MLPConfig):
    """The layers of a critic, and what it looks at."""

    sees: Literal["own", "state", "both"] = setting(
        "own",
        "what its agent sees, the environment's central state (where there is none, what all agents see), or both",
    )


@dataclass(frozen=True)
class CNNConfig:
    """Convolutions over an image [C, H, W], then one linear layer."""

    layers: Literal["auto"] | tuple[tuple[int, int, int], ...] = setting(
        "auto", "[channels, kernel, stride] of each; auto: three that fit the image (Mnih et al. 2015 from 36 pixels)"
    )
    features: int = setting(512, "units of the linear layer")
    activation: Activation = setting("relu", "nonlinearity after each layer")

    def __post_init__(self) -> None:
        if self.layers != "auto" and (not self.layers or any(min(layer) < 1 for layer in self.layers)):
            raise ConfigError("layers: at least one layer, and channels, kernel and stride of at least 1")
        if self.features < 1:
            raise ConfigError(f"features={self.features}: must be at least 1")


@dataclass(frozen=True)
class MemoryConfig:
    """What a policy remembers of its episode so far."""

    type: Literal["none", "gru", "lstm", "transformer"] = setting("none", "kind of memory")
    size: int = setting(128, "units of its state")
    layers: int = setting(1, "layers on top of each other")
    heads: int = setting(4, "transformer: attention heads")
    context: int = setting(32, "transformer: steps it attends to, the present one included", "steps")
    sequence_length: int | None = setting(
        None, "steps of the sequences learned from, which divide a rollout; null: the whole of it", "steps"
    )
    burn_in: int = setting(0, "steps before each sequence that only warm its memory up", "steps")

    def __post_init__(self) -> None:
        for key in ("size", "layers", "heads", "context", "sequence_length"):
            if getattr(self, key) is not None and getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)}: must be at least 1")
        if self.type == "none" and (self.sequence_length is not None or self.burn_in):
            raise ConfigError("sequence_length and burn_in are about a memory, and type is none")
        if self.type == "transformer" and self.size % self.heads:
            raise ConfigError(f"size={self.size} must be a multiple of heads={self.heads}")
        if self.burn_in < 0:
            raise ConfigError(f"burn_in={self.burn_in}: cannot be negative")
        if self.burn_in and self.sequence_length is None:
            raise ConfigError(f"burn_in={self.burn_in}: needs a sequence_length")


@dataclass(frozen=True)
class TorsoConfig:
    """From an observation to the features that policy and value start from."""

    encoder: str = setting(
        "auto", "auto: images through the cnn, all else as one vector; or a module of one's own, `package.module:Class`"
    )
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for an encoder of one's own", factory=dict)
    cnn: CNNConfig = setting(doc="for images", factory=CNNConfig)
    hidden_sizes: tuple[int, ...] = setting((), "units of layers that policy and value share, before the memory")
    activation: Activation = setting("tanh", "nonlinearity after each of those")
    memory: MemoryConfig = setting(doc="what the policy remembers", factory=MemoryConfig)
    shared: bool = setting(True, "one torso for policy and value; false: one for each")

    def __post_init__(self) -> None:
        if self.encoder != "auto" and ":" not in self.encoder:
            raise ConfigError(f"encoder={self.encoder}: must be auto, or an import path `package.module:Class`")
        if self.encoder == "auto" and self.kwargs:
            raise ConfigError("kwargs belong to an encoder of one's own, and torso.encoder is auto")
        if any(size < 1 for size in self.hidden_sizes):
            raise ConfigError(f"hidden_sizes={list(self.hidden_sizes)}: every layer needs at least one unit")


@dataclass(frozen=True)
class HeadConfig:
    """How continuous actions are distributed."""

    std: Literal["parameter", "state"] = setting("parameter", "one standard deviation for all states, or an output")
    log_std_init: float = setting(0.0, "initial log standard deviation")
    squash: bool = setting(False, "actions through tanh into the bounds of the action space, instead of clipping")


@dataclass(frozen=True)
class OptimizerConfig:
    """What turns gradients into steps."""

    name: Literal["adam", "adamw", "sgd", "rmsprop", "laprop"] = setting("adam", "which one")
    eps: float = setting(1e-5, "keeps a division from blowing up (all but sgd)")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "adam, adamw, laprop: decay of the averages of gradients and squares"
    )
    weight_decay: float = setting(0.0, "pull of the weights towards zero; adamw's is not scaled by the gradients")
    momentum: float = setting(0.0, "sgd, rmsprop: share of the last step that is repeated")
    alpha: float = setting(0.99, "rmsprop: decay of the average of squares")
    agc: float = setting(0.0, "largest norm of each tensor's gradient, as a share of the tensor's own; 0: any")
    warmup: int = setting(0, "laprop: updates over which steps grow to their full size", "updates")

    def __post_init__(self) -> None:
        for key in ("eps", "weight_decay", "agc", "warmup"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{key}={getattr(self, key):g}: cannot be negative")
        for key, value in (("betas", max(self.betas)), ("momentum", self.momentum), ("alpha", self.alpha)):
            if not 0 <= value < 1 or min(self.betas) < 0:
                raise ConfigError(f"{key}={getattr(self, key)}: must lie in [0, 1)")
        unused = {"momentum": ("sgd", "rmsprop"), "warmup": ("laprop",)}
        for key, users in unused.items():
            if getattr(self, key) and self.name not in users:
                raise ConfigError(f"{key} belongs to {' and '.join(users)}, not to {self.name}")
