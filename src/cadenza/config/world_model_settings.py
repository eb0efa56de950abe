"""Settings of world models and of planning in them. The modules are in `nets/`.

The keys in `needs` are those below `algorithm`, where a world model is `model`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cadenza.config.checks import ends
from cadenza.config.networks import Activation
from cadenza.config.setting import setting
from cadenza.errors import ConfigError

FEW = 16  # plans in a run that need not learn anything


@dataclass(frozen=True)
class WorldModelConfig:
    """A recurrent state-space model with encoder, decoder and heads. `size=…` sets the keys that determine its size."""

    deter: int = setting(512, "units of the deterministic state, the state of the recurrent cell", least=1)
    hidden: int = setting(64, "units of the layers inside the recurrent model", least=1)
    stoch: int = setting(32, "variables of the stochastic state", least=1)
    classes: int = setting(4, "classes of each variable of a categorical latent")
    units: int = setting(64, "units of the layers of encoder, decoder and heads, policy and critic included", least=1)
    depth: int = setting(4, "base number of channels of the convolutions; they grow in multiples of it", least=1)
    latent: Literal["categorical", "gaussian"] = setting("categorical", "distribution of the stochastic state")
    unimix: float = setting(
        0.01, "share of uniform probability mixed into the classes", least=0, below=1, needs="model.latent=categorical"
    )
    std: Literal["softplus", "sigmoid2"] = setting(
        "softplus", "function from an output to a standard deviation", needs="model.latent=gaussian"
    )
    min_std: float = setting(0.1, "smallest standard deviation", least=0, needs="model.latent=gaussian")
    cell: Literal["gru", "norm_gru", "block"] = setting(
        "block", "recurrent cell: a GRU (PlaNet, v1), with a layer norm (v2), block-diagonal (v3)"
    )
    blocks: int = setting(8, "number of blocks; they divide deter", least=1, needs="model.cell=block")
    prior_layers: int = setting(2, "hidden layers from the deterministic state to the prior", least=0)
    norm: Literal["none", "layer", "rms"] = setting("rms", "norm between a linear layer and its nonlinearity")
    activation: Activation = setting("silu", "nonlinearity")
    image_activation: Activation = setting("silu", "nonlinearity of the convolutions")
    symlog: bool = setting(True, "encode and predict vectors as their symmetric logarithms")
    encoder_layers: int = setting(3, "hidden layers of the encoder of vectors", least=0)
    decoder_layers: int = setting(3, "hidden layers of the decoder of vectors", least=0)
    reward: Literal["two_hot", "normal"] = setting("two_hot", "distribution of predicted rewards (and values)")
    reward_layers: int = setting(1, "hidden layers of the reward head", least=0)
    continues: bool = setting(True, "predict whether an episode continues; false: assume that it does")
    continue_layers: int = setting(1, "hidden layers of that head", least=0, needs="model.continues")

    def __post_init__(self) -> None:
        if self.latent == "categorical" and not 2 <= self.classes <= 255:
            raise ConfigError(f"algorithm.model.classes={self.classes}: must be in [2, 255]")
        if self.cell == "block" and self.deter % self.blocks:
            raise ConfigError(f"algorithm.model.deter={self.deter}: must be a multiple of blocks={self.blocks}")

    @property
    def stoch_size(self) -> int:
        """The length of the stochastic state as a vector."""
        return self.stoch * (self.classes if self.latent == "categorical" else 1)

    @property
    def feature_size(self) -> int:
        """The length of the heads' input."""
        return self.deter + self.stoch_size


@dataclass(frozen=True)
class PlanningConfig:
    """The cross-entropy method: sample plans, and fit the next sampling distribution to the best of them."""

    candidates: int = setting(1000, "plans sampled in each iteration", least=1)
    elites: int = setting(100, "best plans, which the next distribution is fitted to", least=1)
    iterations: int = setting(10, "iterations for each action", least=1)

    def __post_init__(self) -> None:
        if self.elites > self.candidates:
            raise ConfigError(f"algorithm.planning.elites={self.elites}: only {self.candidates} candidates are drawn")

    def shrunk(self) -> PlanningConfig:
        """Return settings of short searches among few plans."""
        return replace(self, candidates=min(self.candidates, FEW), elites=min(self.elites, FEW), iterations=1)


@dataclass(frozen=True)
class LatentModelConfig:
    """A latent state and predictions from it. `size=1|5` sets the keys that determine its size."""

    latent: int = setting(512, "length of the latent state", least=1)
    simplex: int = setting(8, "length of the groups of the latent state that a softmax normalises; 0: none", least=0)
    style: Literal["elu", "mish"] = setting(
        "mish",
        "elu: ELUs, a norm in the critics alone, orthogonal weights (TD-MPC); mish: a norm and Mish after each layer",
    )
    units: int = setting(512, "units of the two hidden layers of dynamics, heads, critics and policy", least=1)
    encoder_units: int = setting(256, "units of each hidden layer of the encoder", least=1)
    encoder_layers: int = setting(1, "hidden layers of the encoder", least=0)
    depth: int = setting(16, "images: channels of the first convolution; each further one has twice as many", least=1)
    critics: int = setting(5, "number of critics; two drawn at random are used each time", least=2)
    dropout: float = setting(
        0.01, "dropout rate of the critics' first layer during updates", least=0, below=1, needs="critic=mlp"
    )
    numbers: Literal["two_hot", "plain"] = setting(
        "two_hot", "prediction of rewards and values: over bins of their symmetric logarithm, or directly"
    )
    bins: int = setting(101, "number of bins", least=2, needs="model.numbers=two_hot")
    reach: float = setting(
        10.0, "the bins cover minus to plus this symmetric logarithm", above=0, needs="model.numbers=two_hot"
    )
    ends: bool = setting(True, "predict whether an episode terminates; false: assume that it does not")

    def __post_init__(self) -> None:
        if self.simplex and self.latent % self.simplex:
            raise ConfigError(f"algorithm.model.latent={self.latent}: must be a multiple of simplex={self.simplex}")


@dataclass(frozen=True)
class PathIntegralConfig:
    """MPPI: sample plans, and fit the next sampling distribution to the best of them, weighted by their values."""

    scheduled: ClassVar[str] = "horizon min_std"
    horizon: int = setting(3, "actions of a plan", "steps", least=1)
    samples: int = setting(512, "plans evaluated in each iteration", least=1)
    policy_samples: int = setting(24, "plans among them that the policy makes", least=0)
    elites: int = setting(64, "best plans, which the next distribution is fitted to", least=1)
    iterations: int | Literal["auto"] = setting(
        "auto", "iterations for each action; auto: 6, or 8 for actions of 20 and more numbers", least=1
    )
    temperature: float = setting(0.5, "how strongly better elites weigh more", above=0)
    momentum: float = setting(0.0, "share of the previous mean in the next one", least=0, below=1)
    min_std: float = setting(0.05, "smallest standard deviation of actions in [-1, 1]", least=0)
    max_std: float = setting(2.0, "largest standard deviation, which is also the first")

    def __post_init__(self) -> None:
        if self.policy_samples >= self.samples:
            raise ConfigError(f"algorithm.planning.policy_samples={self.policy_samples}: must be below {self.samples}")
        if self.elites > self.samples:
            raise ConfigError(f"algorithm.planning.elites={self.elites}: only {self.samples} samples are drawn")
        if max(ends(self.min_std)) > self.max_std:
            raise ConfigError(f"algorithm.planning.min_std: must be at most max_std={self.max_std:g}")

    def shrunk(self) -> PathIntegralConfig:
        """Return settings of short searches among few plans."""
        samples, elites = min(self.samples, FEW), min(self.elites, FEW)
        policy_samples = min(self.policy_samples, samples - 1)
        return replace(self, samples=samples, policy_samples=policy_samples, elites=elites, iterations=1)

    @property
    def longest(self) -> int:
        """The number of actions of the longest plan in the run."""
        return int(max(ends(self.horizon)))

    def rounds(self, actions: int) -> int:
        """Return the number of iterations for actions of that many numbers."""
        if self.iterations == "auto":
            return 8 if actions >= 20 else 6
        return self.iterations
