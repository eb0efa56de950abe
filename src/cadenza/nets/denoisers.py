"""Networks that predict the noise in a chunk of actions from observations: a one-dimensional U-Net and a transformer.

Both map noisy actions [B, T, D], the number of noising steps [B] and features of observations [B, H, F] to noise
[B, T, D].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cadenza.config.denoiser_settings import DenoisingTransformerConfig, UNetConfig


class StepEmbedding(nn.Module):
    """Embeds numbers of steps [B] as sines and cosines of several frequencies [B, size]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.waves = size // 2

    def forward(self, step: Tensor) -> Tensor:
        rates = torch.arange(self.waves, device=step.device) * (-math.log(10_000) / max(1, self.waves - 1))
        angles = step.float()[:, None] * rates.exp()
        return torch.cat([angles.sin(), angles.cos()], -1)


class ConvBlock(nn.Sequential):
    """Convolution, group norm and Mish over [B, C, T]."""

    def __init__(self, inputs: int, outputs: int, config: UNetConfig) -> None:
        convolution = nn.Conv1d(inputs, outputs, config.kernel, padding=config.kernel // 2)
        super().__init__(convolution, nn.GroupNorm(config.groups, outputs), nn.Mish())


class FilmBlock(nn.Module):
    """A residual block of two convolutions [B, C, T]; a condition scales and shifts the channels between them."""

    def __init__(self, inputs: int, outputs: int, condition: int, config: UNetConfig) -> None:
        super().__init__()
        self.enter, self.leave = ConvBlock(inputs, outputs, config), ConvBlock(outputs, outputs, config)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs))
        self.past = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition).unsqueeze(-1).chunk(2, 1)
        output: Tensor = self.leave(scale * self.enter(x) + shift) + self.past(x)
        return output


class UNet(nn.Module):
    """The U-Net of Janner et al. 2022 (arXiv:2205.09991), conditioned as in Chi et al. 2023.

    T must be divisible by 2 once for each scale after the first.
    """

    def __init__(self, actions: int, history: int, features: int, config: UNetConfig) -> None:
        super().__init__()
        widths, size = list(config.widths), config.step_size
        self.step = nn.Sequential(StepEmbedding(size), nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size))
        condition = size + history * features

        def pair(inputs: int, outputs: int) -> nn.ModuleList:
            blocks = [FilmBlock(inputs, outputs, condition, config), FilmBlock(outputs, outputs, condition, config)]
            return nn.ModuleList(blocks)

        scales = list(zip([actions, *widths], widths, strict=False))
        self.down = nn.ModuleList([pair(inputs, outputs) for inputs, outputs in scales])
        self.shrink = nn.ModuleList([nn.Conv1d(width, width, 3, 2, 1) for width in widths[:-1]])
        self.middle = pair(widths[-1], widths[-1])
        self.up = nn.ModuleList([pair(2 * outputs, inputs) for inputs, outputs in reversed(scales[1:])])
        self.grow = nn.ModuleList([nn.ConvTranspose1d(width, width, 4, 2, 1) for width in reversed(widths[:-1])])
        self.leave = nn.Sequential(ConvBlock(widths[0], widths[0], config), nn.Conv1d(widths[0], actions, 1))

    def forward(self, x: Tensor, step: Tensor, observations: Tensor) -> Tensor:
        condition = torch.cat([self.step(step), observations.flatten(1)], -1)
        x = x.transpose(1, 2)
        skips: list[Tensor] = []
        for scale, blocks in enumerate(self.down):
            x = apply_blocks(blocks, x, condition)
            skips.append(x)
            if scale < len(self.shrink):
                x = self.shrink[scale](x)
        x = apply_blocks(self.middle, x, condition)
        for blocks, grow in zip(self.up, self.grow, strict=True):
            x = grow(apply_blocks(blocks, torch.cat([x, skips.pop()], 1), condition))
        noise: Tensor = self.leave(x)
        return noise.transpose(1, 2)


def apply_blocks(blocks: nn.Module, x: Tensor, condition: Tensor) -> Tensor:
    """Apply `FilmBlock`s one after the other."""
    for block in blocks.children():
        x = block(x, condition)
    return x


class DenoisingTransformer(nn.Module):
    """The transformer of Chi et al. 2023: an action attends to itself, earlier actions, step and observations."""

    def __init__(
        self, actions: int, horizon: int, history: int, features: int, config: DenoisingTransformerConfig
    ) -> None:
        super().__init__()
        size = config.size
        self.step = StepEmbedding(size)
        self.see, self.take = nn.Linear(features, size), nn.Linear(actions, size)
        self.seen_places = nn.Parameter(0.02 * torch.randn(1 + history, size))
        self.places = nn.Parameter(0.02 * torch.randn(horizon, size))
        self.context = nn.Sequential(nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size))
        self.layers = nn.ModuleList(
            [
                nn.TransformerDecoderLayer(
                    size, config.heads, 4 * size, 0.0, nn.functional.gelu, batch_first=True, norm_first=True
                )
                for _ in range(config.layers)
            ]
        )
        self.leave = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, actions))
        later = torch.ones(horizon, horizon, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x: Tensor, step: Tensor, observations: Tensor) -> Tensor:
        context = torch.cat([self.step(step)[:, None], self.see(observations)], 1) + self.seen_places
        context = self.context(context)
        x = self.take(x) + self.places
        for layer in self.layers:
            x = layer(x, context, tgt_mask=self.later)
        noise: Tensor = self.leave(x)
        return noise
