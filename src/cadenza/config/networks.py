"""Settings of the networks and optimizers that several algorithms share. The modules are in `nets/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

from cadenza.config.plugins import KINDS, check_name, names
from cadenza.config.setting import setting
from cadenza.errors import ConfigError, UnusedError

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]


@dataclass(frozen=True)
class OwnPart:
    """A part of yours in place of a built-in one. Its name alone is short for it."""

    kind: ClassVar[str]  # of `plugins.KINDS`
    part_key: ClassVar[str] = "name"

    name: str = setting(doc="an import path `package.module:name`, or a registered name")
    kwargs: Mapping[str, Any] = setting(doc="its keyword arguments", factory=dict, sparse=True)

    def __post_init__(self) -> None:
        check_name(self.kind, self.name, "name")

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the settings that a name stands for, and others as they are, as those of built-in parts."""
        is_name = isinstance(value, str) and (":" in value or value in names(cls.kind))
        return {"name": value} if is_name else value


@dataclass(frozen=True)
class OwnNetwork(OwnPart):
    """A network of yours."""

    kind: ClassVar[str] = "network"
    plain: ClassVar[str] = "a network of yours (`package.module:Class`)"


@dataclass(frozen=True)
class OwnHead(OwnPart):
    """An action head of yours."""

    kind: ClassVar[str] = "head"
    plain: ClassVar[str] = "an action head of yours (`package.module:Class`)"


@dataclass(frozen=True)
class OwnDynamics(OwnPart):
    """A dynamics model of yours."""

    kind: ClassVar[str] = "dynamics"
    plain: ClassVar[str] = "a dynamics model of yours (`package.module:Class`)"


@dataclass(frozen=True)
class OwnDecoder(OwnPart):
    """A decoder of yours."""

    kind: ClassVar[str] = "decoder"
    plain: ClassVar[str] = "a decoder of yours (`package.module:Class`)"


@dataclass(frozen=True)
class OwnPlanner(OwnPart):
    """A search for actions of yours."""

    kind: ClassVar[str] = "planner"
    plain: ClassVar[str] = "a search of yours (`package.module:function`)"


ESTIMATORS = ("gae", "td_lambda", "n_step", "monte_carlo", "vtrace")


def takes_arguments(text: Any) -> bool:
    """Return whether a value names a part that is made with arguments: an estimator, or any part of the user's."""
    is_own = isinstance(text, str) and (":" in text or any(text in names(kind) for kind in KINDS))
    return is_own or text in ESTIMATORS


@dataclass(frozen=True)
class EstimatorConfig(OwnPart):
    """An estimator of advantages: one of those in `ops/returns.py` or yours."""

    kind: ClassVar[str] = "estimator"
    plain: ClassVar[str] = "gae, n_step, td_lambda, monte_carlo, vtrace, or one of yours (`package.module:function`)"

    name: str = setting(
        doc="estimator of advantages and value targets: gae, td_lambda (the same), n_step, monte_carlo, vtrace (anew "
        "before each of PPO's epochs), or one of yours, `package.module:function` or a registered name"
    )
    kwargs: Mapping[str, Any] = setting(
        doc="its keyword arguments: n of n_step, clip_rho and clip_c of vtrace, those of yours",
        factory=dict,
        sparse=True,
    )

    def __post_init__(self) -> None:
        if self.name not in ESTIMATORS:
            check_name(self.kind, self.name, "name", ESTIMATORS)

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the settings that a name stands for, and others as they are."""
        return {"name": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class MLPConfig:
    """Fully connected layers."""

    hidden_sizes: tuple[int, ...] = setting((64, 64), "units of each hidden layer", least=1)
    activation: Activation = setting("tanh", "nonlinearity after each hidden layer")


@dataclass(frozen=True)
class NetworkConfig(MLPConfig):
    """Fully connected layers, or a network of yours in their place."""

    part_key: ClassVar[str] = "network"

    network: str = setting(
        "mlp",
        "mlp, or a network of yours, `package.module:Class` or a registered name, made with its inputs and outputs",
        sparse=True,
    )
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for a network of yours", factory=dict, sparse=True)

    def __post_init__(self) -> None:
        if self.network == "mlp":
            if self.kwargs:
                raise ConfigError("kwargs need a network of yours, and network is mlp")
            return
        check_name("network", self.network, "network", ("mlp",))
        unused = [key for key in ("hidden_sizes", "activation") if getattr(self, key) != getattr(MLPConfig(), key)]
        if unused:
            keys = " and ".join(unused)
            raise UnusedError(f"{keys}: no effect with a network of yours; put what it takes into kwargs", unused)

    def defaults_for(self, values: Mapping[str, Any]) -> NetworkConfig:
        """Return the settings that stand for those that `values` leave out: a network of yours has none of an MLP's."""
        layers = MLPConfig()
        if values.get("network", self.network) == "mlp":
            return self
        return replace(self, hidden_sizes=layers.hidden_sizes, activation=layers.activation)


@dataclass(frozen=True)
class CriticConfig(NetworkConfig):
    """The layers of a critic, and its input."""

    sees: Literal["own", "state", "both"] = setting(
        "own",
        "input: the agent's observation, the environment's central state (all observations if it has none), or both",
    )


@dataclass(frozen=True)
class CNNConfig:
    """Convolutions over an image [C, H, W], then one linear layer."""

    layers: Literal["auto"] | tuple[tuple[int, int, int], ...] = setting(
        "auto", "[channels, kernel, stride] of each; auto: three that fit (Mnih et al. 2015 from 36 pixels)", least=1
    )
    features: int = setting(512, "units of the linear layer", least=1)
    activation: Activation = setting("relu", "nonlinearity after each layer")

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigError("layers=[]: must have at least one layer")


@dataclass(frozen=True)
class MemoryConfig:
    """The memory of a policy within an episode."""

    type: Literal["none", "gru", "lstm", "transformer"] | OwnNetwork = setting(
        "none", "kind of memory, or a layer of yours, made with inputs and size"
    )
    size: int = setting(128, "units of its state", least=1)
    layers: int = setting(1, "stacked layers", least=1)
    heads: int = setting(4, "transformer: attention heads", least=1)
    context: int = setting(32, "transformer: steps attended to, the current one included", "steps", least=1)
    sequence_length: int | None = setting(
        None, "length of training sequences; must divide the rollout; null: the whole rollout", "steps", least=1
    )
    burn_in: int = setting(0, "steps before each sequence that only initialise the memory", "steps", least=0)

    def __post_init__(self) -> None:
        if self.type == "none" and (self.sequence_length is not None or self.burn_in):
            raise ConfigError("sequence_length and burn_in need a memory, and type is none")
        if self.type == "transformer" and self.size % self.heads:
            raise ConfigError(f"size={self.size}: must be a multiple of heads={self.heads}")
        if self.burn_in and self.sequence_length is None:
            raise ConfigError(f"burn_in={self.burn_in}: needs a sequence_length")


@dataclass(frozen=True)
class TorsoConfig:
    """The network from an observation to the features that policy and value share."""

    part_key: ClassVar[str] = "encoder"

    encoder: str = setting(
        "auto",
        "auto: a CNN for images, everything else as one vector; or a module of yours, `package.module:Class` or a "
        "registered name",
    )
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for an encoder of yours", factory=dict)
    cnn: CNNConfig = setting(doc="for images", factory=CNNConfig)
    hidden_sizes: tuple[int, ...] = setting((), "units of the layers that policy and value share", least=1)
    activation: Activation = setting("tanh", "nonlinearity after each of those layers")
    memory: MemoryConfig = setting(doc="memory of the policy", factory=MemoryConfig)
    shared: bool = setting(True, "one torso for policy and value; false: one each")

    def __post_init__(self) -> None:
        if self.encoder != "auto":
            check_name("network", self.encoder, "encoder", ("auto",))
        elif self.kwargs:
            raise ConfigError("kwargs need an encoder of yours, and torso.encoder is auto")


@dataclass(frozen=True)
class HeadConfig:
    """The distribution of actions. A name alone stands for a head of yours."""

    kind: ClassVar[str] = "head"
    part_key: ClassVar[str] = "name"

    name: str = setting(
        "auto",
        "auto: by the space, continuous actions as set below; or a head of yours, `package.module:Class` or a "
        "registered name",
        sparse=True,
    )
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for a head of yours", factory=dict, sparse=True)
    std: Literal["parameter", "state"] = setting(
        "parameter", "standard deviation: a parameter for all states, or an output of the network"
    )
    log_std_init: float = setting(0.0, "initial log standard deviation")
    squash: bool = setting(False, "map actions through tanh into the bounds of the action space, instead of clipping")

    def __post_init__(self) -> None:
        if self.name == "auto":
            if self.kwargs:
                raise ConfigError("kwargs need a head of yours, and name is auto")
            return
        check_name("head", self.name, "name", ("auto",))
        if replace(self, name="auto", kwargs={}) != HeadConfig():
            keys = ("std", "log_std_init", "squash")
            raise UnusedError("std, log_std_init, squash: no effect with a head of yours; put them into kwargs", keys)

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the settings that a name stands for, and others as they are."""
        return {"name": value} if isinstance(value, str) else value


OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "laprop")


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, without its learning rate."""

    part_key: ClassVar[str] = "name"

    name: Literal["adam", "adamw", "sgd", "rmsprop", "laprop"] | str = setting(
        "adam",
        "the algorithm; or one with torch's interface, `package.module:Class` (torch.optim:RAdam) or a registered name",
    )
    eps: float = setting(1e-5, "added to the denominator (all but sgd)", least=0)
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "adam, adamw, laprop: decay of the averages of gradients and squares", least=0, below=1
    )
    weight_decay: float = setting(0.0, "pull of weights towards zero; adamw decouples it from the gradients", least=0)
    momentum: float = setting(0.0, "sgd, rmsprop: share of the previous step that is repeated", least=0, below=1)
    alpha: float = setting(0.99, "rmsprop: decay of the average of squares", least=0, below=1)
    agc: float = setting(0.0, "largest norm of a tensor's gradient per norm of the tensor; 0: any", least=0)
    warmup: int = setting(0, "laprop: updates over which the steps grow to their full size", "updates", least=0)
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for an optimizer of yours", factory=dict, sparse=True)

    def __post_init__(self) -> None:
        if not self.builtin:
            check_name("optimizer", self.name, "name", OPTIMIZERS)
            self._refuse_unused()
            return
        if self.kwargs:
            raise ConfigError(f"kwargs belong to an optimizer of yours, not to {self.name}")
        for key, users in {"momentum": ("sgd", "rmsprop"), "warmup": ("laprop",)}.items():
            if getattr(self, key) and self.name not in users:
                raise ConfigError(f"{key} belongs to {' and '.join(users)}, not to {self.name}")

    @property
    def builtin(self) -> bool:
        """Whether this is one of cadenza's own optimizers."""
        return self.name in OPTIMIZERS

    def defaults_for(self, values: Mapping[str, Any]) -> OptimizerConfig:
        """Return what stands for the settings that `values` leave out, where these are an algorithm's defaults.

        An optimizer of yours takes nothing from what the algorithm's usual one is tuned to.
        """
        return self if values.get("name", self.name) in OPTIMIZERS else OptimizerConfig()

    def _refuse_unused(self) -> None:
        if "lr" in self.kwargs:
            raise ConfigError("kwargs.lr: the step size is the algorithm's learning_rate")
        for field in fields(self):
            key = field.name
            if key not in ("name", "agc", "kwargs") and getattr(self, key) != field.default:
                advice = f"put what {self.name} takes into kwargs"
                raise UnusedError(f"{key} belongs to cadenza's own optimizers: {advice}", [key])


def own_names(settings: Any) -> list[str]:
    """Return the names of the user's modules in an algorithm's settings: all parts but estimators and optimizers."""
    modules: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, NetworkConfig | TorsoConfig | HeadConfig | OwnPart) and not isinstance(
            value, EstimatorConfig
        ):
            modules.append(getattr(value, value.part_key))
        modules += own_names(value) if is_dataclass(value) else []
    return [name for name in modules if name not in ("mlp", "auto")]
