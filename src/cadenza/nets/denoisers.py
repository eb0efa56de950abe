"""Networks that predict the noise in a chunk of actions, given what was seen: a U-Net in one dimension, a transformer.

Both take actions [B, T, D], how often they were noised [B], and what was seen [B, H, F]; noise [B, T, D] comes out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cadenza.config.denoiser_settings import DenoisingTransformerConfig, UNetConfig


class StepEmbedding(nn.Module):
    """A number of steps [B] as waves of many lengths, [B, size]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.waves = size // 2

    def forward(self, step: Tensor) -> Tensor:
        rates = torch.arange(self.waves, device=step.device) * (-math.log(10_000) / max(1, self.waves - 1))
        angles = step.float()[:, None] * rates.exp()
        return torch.cat([angles.sin(), angles.cos()], -1)


class ConvBlock(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, config: UNetConfig) -> None:
        convolution = nn.Conv1d(inputs, outputs, config.kernel, padding=config.kernel // 2)
        super().__init__(convolution, nn.GroupNorm(config.groups, outputs), nn.Mish())


class FilmBlock(nn.Module):
    """Two convolutions past which the input is led; a condition scales and shifts each channel between them."""

    def __init__(self, inputs: int, outputs: int, condition: int, config: UNetConfig) -> None:
        super().__init__()
        self.enter, self.leave = ConvBlock(inputs, outputs, config), ConvBlock(outputs, outputs, config)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs))
        self.past = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition).unsqueeze(-1).chunk(2, 1)
        mixed: Tensor = self.leave(scale * self.enter(x) + shift) + self.past(x)
        return mixed


class UNet(nn.Module):
    """Janner et al. 2022 (arXiv:2205.09991) with the conditioning of Chi et al. 2023; T must be divisible."""

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

    def forward(self, x: Tensor, step: Tensor, seen: Tensor) -> Tensor:
        condition = torch.cat([self.step(step), seen.flatten(1)], -1)
        x = x.transpose(1, 2)
        kept: list[Tensor] = []
        for scale, blocks in enumerate(self.down):
            x = through(blocks, x, condition)
            kept.append(x)
            if scale < len(self.shrink):
                x = self.shrink[scale](x)
        x = through(self.middle, x, condition)
        for blocks, grow in zip(self.up, self.grow, strict=True):
            x = grow(through(blocks, torch.cat([x, kept.pop()], 1), condition))
        noise: Tensor = self.leave(x)
        return noise.transpose(1, 2)


def through(blocks: nn.Module, x: Tensor, condition: Tensor) -> Tensor:
    for block in blocks.children():
        x = block(x, condition)
    return x


class DenoisingTransformer(nn.Module):
    """Chi et al. 2023: each action attends to itself and those before it, and to step and observations."""

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

    def forward(self, x: Tensor, step: Tensor, seen: Tensor) -> Tensor:
        context = torch.cat([self.step(step)[:, None], self.see(seen)], 1) + self.seen_places
        context = self.context(context)
        x = self.take(x) + self.places
        for layer in self.layers:
            x = layer(x, context, tgt_mask=self.later)
        noise: Tensor = self.leave(x)
        return noise
