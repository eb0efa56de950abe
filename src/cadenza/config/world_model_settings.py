"""Settings of world models and of planning in them. The modules are in `nets/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cadenza.config.checks import ends
from cadenza.config.networks import Activation
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.errors import ConfigError


@dataclass(frozen=True)
class WorldModelConfig:
    """A recurrent state-space model with encoder, decoder and heads. `size=…` sets what makes it small or large."""

    deter: int = setting(512, "units of the deterministic state, which a recurrent cell computes")
    hidden: int = setting(64, "units of the layers inside the recurrent model")
    stoch: int = setting(32, "variables of the stochastic state")
    classes: int = setting(4, "of each variable, where the latent is categorical")
    units: int = setting(64, "of the layers of encoder, decoder and all heads, policy and critic among them")
    depth: int = setting(4, "channels of the convolutions, in multiples of which they grow")
    latent: Literal["categorical", "gaussian"] = setting("categorical", "what the stochastic state is drawn from")
    unimix: float = setting(0.01, "categorical: share of the probability that is spread evenly over the classes")
    std: Literal["softplus", "sigmoid2"] = setting("softplus", "gaussian: what makes a deviation of an output")
    min_std: float = setting(0.1, "gaussian: what is added to it")
    cell: Literal["gru", "norm_gru", "block"] = setting(
        "block", "recurrent cell: a GRU (PlaNet, v1), with a layer norm (v2), block-diagonal (v3)"
    )
    blocks: int = setting(8, "cell=block: how many blocks; they divide deter")
    prior_layers: int = setting(2, "hidden layers from the deterministic state to the guess at the stochastic one")
    norm: Literal["none", "layer", "rms"] = setting("rms", "between a linear layer and its nonlinearity")
    activation: Activation = setting("silu", "nonlinearity")
    image_activation: Activation = setting("silu", "nonlinearity of the convolutions")
    symlog: bool = setting(True, "vectors are seen and predicted as their symmetric logarithms")
    encoder_layers: int = setting(3, "hidden layers of the encoder of vectors")
    decoder_layers: int = setting(3, "hidden layers of the decoder of vectors")
    reward: Literal["two_hot", "normal"] = setting("two_hot", "how rewards (and values) are predicted")
    reward_layers: int = setting(1, "hidden layers of the predictor of rewards")
    continues: bool = setting(True, "predict whether an episode goes on; false: it always does")
    continue_layers: int = setting(1, "hidden layers of that predictor")

    def __post_init__(self) -> None:
        for key in ("deter", "hidden", "stoch", "units", "depth", "blocks"):
            at_least(self, "model", key, 1)
        for key in ("prior_layers", "encoder_layers", "decoder_layers", "reward_layers", "continue_layers"):
            at_least(self, "model", key, 0)
        if not 0 <= self.unimix < 1:
            raise ConfigError(f"algorithm.model.unimix={self.unimix:g}: must lie in [0, 1)")
        if self.latent == "categorical" and not 2 <= self.classes <= 255:
            raise ConfigError(f"algorithm.model.classes={self.classes}: must lie between 2 and 255")
        if self.cell == "block" and self.deter % self.blocks:
            raise ConfigError(f"algorithm.model.deter={self.deter}: must be a multiple of blocks={self.blocks}")
        if self.min_std < 0:
            raise ConfigError(f"algorithm.model.min_std={self.min_std:g}: cannot be negative")

    @property
    def stoch_size(self) -> int:
        """How many numbers the stochastic state is."""
        return self.stoch * (self.classes if self.latent == "categorical" else 1)

    @property
    def feature_size(self) -> int:
        """How many numbers the heads see."""
        return self.deter + self.stoch_size


@dataclass(frozen=True)
class PlanningConfig:
    """The cross-entropy method: plans are drawn, the best are kept, and the next are drawn like those."""

    candidates: int = setting(1000, "plans drawn at a time")
    elites: int = setting(100, "of them, the best that the next are drawn like")
    iterations: int = setting(10, "times that is done for each action")

    def __post_init__(self) -> None:
        for key in ("candidates", "elites", "iterations"):
            at_least(self, "planning", key, 1)
        if self.elites > self.candidates:
            raise ConfigError(f"algorithm.planning.elites={self.elites}: only {self.candidates} candidates are drawn")


@dataclass(frozen=True)
class LatentModelConfig:
    """A latent state and what is predicted from it. `size=1|5` sets what makes it small or large."""

    latent: int = setting(512, "numbers of the latent state")
    simplex: int = setting(8, "numbers of the latent state that a softmax makes sum to one, group by group; 0: none")
    style: Literal["elu", "mish"] = setting(
        "mish",
        "elu: ELUs, a norm in the critics alone, orthogonal weights (TD-MPC); mish: a norm and Mish after each layer",
    )
    units: int = setting(512, "of each hidden layer of dynamics, rewards, ends, critics and policy; they have two")
    encoder_units: int = setting(256, "of each hidden layer of the encoder")
    encoder_layers: int = setting(1, "hidden layers of the encoder")
    depth: int = setting(16, "images: channels of the first convolution; each further one has twice as many")
    critics: int = setting(5, "how many; two drawn at random are asked each time")
    dropout: float = setting(0.01, "share of the units of the critics' first layer switched off while learning")
    numbers: Literal["two_hot", "plain"] = setting(
        "two_hot", "how rewards and values are predicted: over bins of their symmetric logarithm, or as they are"
    )
    bins: int = setting(101, "two_hot: how many")
    reach: float = setting(10.0, "two_hot: the bins lie between minus and plus this, as symmetric logarithms")
    ends: bool = setting(True, "predict whether an episode terminates; false: it never does")

    def __post_init__(self) -> None:
        for key in ("latent", "units", "encoder_units", "depth"):
            at_least(self, "model", key, 1)
        for key in ("bins", "critics"):
            at_least(self, "model", key, 2)
        for key in ("simplex", "encoder_layers"):
            at_least(self, "model", key, 0)
        if self.simplex and self.latent % self.simplex:
            raise ConfigError(f"algorithm.model.latent={self.latent}: must be a multiple of simplex={self.simplex}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"algorithm.model.dropout={self.dropout:g}: must lie in [0, 1)")
        if self.reach <= 0:
            raise ConfigError(f"algorithm.model.reach={self.reach:g}: must be above 0")


@dataclass(frozen=True)
class PathIntegralConfig:
    """MPPI: plans are drawn, and the next are drawn like the best, the more so the better those are."""

    horizon: int | Schedule = setting(3, "actions of a plan", "steps")
    samples: int = setting(512, "plans tried at a time")
    policy_samples: int = setting(24, "of them, those that the policy makes")
    elites: int = setting(64, "of them, the best that the next are drawn like")
    iterations: int | Literal["auto"] = setting(
        "auto", "times that is done for each action; auto: 6, and 8 where an action has 20 numbers and more"
    )
    temperature: float = setting(0.5, "how much more a better one of the best counts")
    momentum: float = setting(0.0, "share of the mean before in the next one")
    min_std: float | Schedule = setting(0.05, "deviation of what is drawn, at least, on a scale of -1 to 1")
    max_std: float = setting(2.0, "at most, and at first")

    def __post_init__(self) -> None:
        for key in ("samples", "elites", *(() if self.iterations == "auto" else ("iterations",))):
            at_least(self, "planning", key, 1)
        at_least(self, "planning", "policy_samples", 0)
        if min(ends(self.horizon)) < 1:
            raise ConfigError(f"algorithm.planning.horizon: must be at least 1, not {min(ends(self.horizon)):g}")
        if self.policy_samples >= self.samples:
            raise ConfigError(f"algorithm.planning.policy_samples={self.policy_samples}: must be below {self.samples}")
        if self.elites > self.samples:
            raise ConfigError(f"algorithm.planning.elites={self.elites}: only {self.samples} samples are drawn")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"algorithm.planning.momentum={self.momentum:g}: must lie in [0, 1)")
        if self.temperature <= 0:
            raise ConfigError(f"algorithm.planning.temperature={self.temperature:g}: must be above 0")
        if min(ends(self.min_std)) < 0 or max(ends(self.min_std)) > self.max_std:
            raise ConfigError(f"algorithm.planning.min_std: must lie between 0 and max_std={self.max_std:g}")

    @property
    def longest(self) -> int:
        """Actions of the longest plan that is ever made."""
        return int(max(ends(self.horizon)))

    def rounds(self, actions: int) -> int:
        """Iterations for actions of so many numbers."""
        if self.iterations == "auto":
            return 8 if actions >= 20 else 6
        return self.iterations


def at_least(config: Any, block: str, key: str, least: int) -> None:
    if getattr(config, key) < least:
        raise ConfigError(f"algorithm.{block}.{key}={getattr(config, key)}: must be at least {least}")
