"""A world model: encoder, recurrent state-space model, and predictors of observations, rewards and terminations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.networks import OwnDecoder, OwnDynamics, OwnNetwork
from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.nets.decoders import ObservationDecoder
from cadenza.nets.dense import DenseHead, Style
from cadenza.nets.encoders import ObservationEncoder
from cadenza.nets.own_parts import own_dynamics, own_part
from cadenza.nets.rssm import RSSM
from cadenza.nets.torso import own_encoder
from cadenza.ops.scaling import two_hot_bins, two_hot_losses, two_hot_mean
from cadenza.types import Decoder

BINS = 255
CHUNK_ROWS = 1024


class NumberHead(nn.Module):
    """Predicts a number, as a distribution over two-hot bins (v3; initial mean 0), or as the mean of a normal."""

    bins: Tensor

    def __init__(self, kind: Literal["two_hot", "normal"], inputs: int, units: int, layers: int, style: Style) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("bins", two_hot_bins(BINS), persistent=False)
        two_hot = kind == "two_hot"
        self.net = DenseHead(inputs, BINS if two_hot else 1, units, layers, style, scale=0.0 if two_hot else 1.0)

    def forward(self, features: Tensor) -> Tensor:
        """Return log probabilities of the bins [*, K], or the number itself [*, 1]."""
        output: Tensor = self.net(features)
        return output.to(self.bins.dtype).log_softmax(-1) if self.kind == "two_hot" else output

    def mean(self, output: Tensor) -> Tensor:
        """Return the mean [*] of an output [*, K] or [*, 1]."""
        return two_hot_mean(output, self.bins) if self.kind == "two_hot" else output.squeeze(-1)

    @torch.no_grad()
    def value(self, features: Tensor) -> Tensor:
        """Return the predicted mean [T, …] for features [T, …], without gradients."""
        return map_chunks(lambda part: self.mean(self.net(part)), features)  # logits serve as well as log probabilities

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood [*] of targets [*]; for a normal up to a constant."""
        return self.losses(output, target.unsqueeze(-1)).squeeze(-1)

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihoods [*, M] of several targets [*, M]."""
        if self.kind == "two_hot":
            return two_hot_losses(output, targets, self.bins)
        return 0.5 * (output - targets.detach()).square()


def chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Split [T, N, …] along time into chunks of about `CHUNK_ROWS` rows on a CPU; return all in one on other devices.

    The wide activations that networks compute from a chunk then stay in the caches.
    """
    return torch.split(x, max(1, CHUNK_ROWS // x[0, ..., 0].numel())) if x.device.type == "cpu" else (x,)


def map_chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `function` of x [T, N, …], applied chunk by chunk along time."""
    return torch.cat([function(part) for part in chunks(x)])


class WorldModel(nn.Module):
    """All networks of a world model. Features are those of `RSSMState.features` [*, F]."""

    def __init__(
        self,
        space: spaces.Space[Any],
        actions: int,
        config: WorldModelConfig,
        gamma: float,
        encoder: str | OwnNetwork = "auto",
        dynamics: str | OwnDynamics = "rssm",
        decoder: str | OwnDecoder = "auto",
    ) -> None:
        super().__init__()
        self.config = config
        self.gamma: float | Tensor = gamma
        style, features = Style(config.norm, config.activation), config.feature_size
        self.encode: Any
        if isinstance(encoder, str):
            self.encode = ObservationEncoder(space, config)
        else:
            self.encode = own_encoder(space, encoder, "algorithm.encoder")
        inputs = (actions, self.encode.features, config)
        self.rssm = RSSM(*inputs) if isinstance(dynamics, str) else own_dynamics(dynamics, *inputs)
        if isinstance(decoder, str):
            self.decode = ObservationDecoder(space, config)
        else:
            self.decode = own_part(decoder, Decoder, space, config)
        self.reward = NumberHead(config.reward, features, config.units, config.reward_layers, style)
        self.goes_on = DenseHead(features, 1, config.units, config.continue_layers, style) if config.continues else None

    def continue_loss(self, features: Tensor, terminal: Tensor) -> Tensor:
        """Return the loss [*] of the predicted discount on later rewards, which is 0 at a termination, else gamma."""
        assert self.goes_on is not None
        logit = self.goes_on(features).squeeze(-1)
        target = self.gamma * (~terminal).to(logit.dtype)
        return functional.binary_cross_entropy_with_logits(logit, target, reduction="none")

    def discount(self, features: Tensor) -> Tensor:
        """Return the discount [*] on later rewards: predicted, or gamma if the model does not predict it."""
        if self.goes_on is None:
            return torch.ones_like(features[..., 0], dtype=self.reward.bins.dtype) * self.gamma
        return torch.sigmoid(self.goes_on(features).squeeze(-1))
