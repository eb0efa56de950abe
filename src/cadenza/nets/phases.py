"""The convolutions of Dreamer v3 beside a doubling or halving of images, computed at the smaller size, for CUDA.

A pixel of the smaller image stands for four of the larger one, the phases. A kernel of 5 over images that repeat each
pixel four times is, for each phase, a kernel of 3 over the pixels themselves: 36 products instead of 100, and the large
images are never written. For the same reason the first convolution of the encoder, whose three channels leave most of a
tensor core idle, takes the four phases of its input as channels. Results equal those of the plain layers up to
rounding. Letters in shapes: B images, C channels in and O out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.nets.dense import NormSilu
from cadenza.nets.kernels import has_kernels

MULTIPLE = 8  # of channels, for tensor cores


def applies(x: Tensor, between: Iterable[Any]) -> bool:
    """Return whether these functions compute images x through layers with these norms and activations after them."""
    return has_kernels(x) and all(isinstance(layer.then, NormSilu) for layer in between)


def encode(x: Tensor, convolutions: Iterable[Any], between: Iterable[Any]) -> Tensor:
    """Return images [B, C, H, W] after convolutions, each followed by pooling, norm and SiLU."""
    from cadenza.nets.fused import pool_norm_silu

    for number, (layer, (norm, _)) in enumerate(zip(convolutions, (each.then for each in between), strict=True)):
        y = layer(x) if number else halving_convolution(x, layer)
        x = pool_norm_silu(y.movedim(1, -1), norm.weight, norm.eps).movedim(-1, 1)
    return x


def decode(x: Tensor, convolutions: Iterable[Any], between: Iterable[Any]) -> Tensor:
    """Return images [B, C, H, W] after convolutions, each of a doubled image, with norm and SiLU between them."""
    from cadenza.nets.fused import norm_silu_doubled

    norms = [each.then[0] for each in between]
    for number, layer in enumerate(convolutions):
        y = doubling_convolution(x, layer).movedim(1, -1)
        if number < len(norms):
            x = norm_silu_doubled(y, norms[number].weight, norms[number].eps).movedim(-1, 1)
    batch, height, width, _ = y.shape
    images = y.view(batch, height, width, 2, 2, -1)[..., : layer.out_channels]
    return images.permute(0, 5, 1, 3, 2, 4).reshape(batch, -1, 2 * height, 2 * width)


def taps(weight: Tensor) -> Tensor:
    """Return 1 where tap k of a kernel of 5, seen from phase p, falls on phase r of pixel a (-1, 0, 1) [p, r, a, k]."""
    p, r, a, k = torch.meshgrid(*(torch.arange(n, device=weight.device) for n in (2, 2, 3, 5)), indexing="ij")
    return (k == 2 * (a - 1) + r - p + 2).to(weight.dtype)


def doubling_convolution(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Return a convolution of the doubled image [B, C, H, W], its four phases as channels [B, 4 * O, H, W]."""
    with torch.autocast(x.device.type, enabled=False):
        repeated = taps(layer.weight).sum(1)
        weight = torch.einsum("pak,qbl,ockl->pqocab", repeated, repeated, layer.weight)
    return convolve(x, weight.flatten(0, 1), layer.bias)


def halving_convolution(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Return a convolution of an image [B, C, 2 H, 2 W], its four phases as channels [B, 4 * O, H, W]."""
    batch, channels, height, width = x.shape
    phases = x.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1)
    with torch.autocast(x.device.type, enabled=False):
        by_phase = taps(layer.weight)
        weight = torch.einsum("pxak,qybl,ockl->pqoxycab", by_phase, by_phase, layer.weight)
    small = phases.reshape(batch, height // 2, width // 2, -1).movedim(-1, 1)
    return convolve(small, weight.flatten(0, 1).flatten(2, 4), layer.bias)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a convolution with kernels of 3 [4, O, C, 3, 3] and a bias [O] for all phases, [B, 4 * O, H, W].

    Channels are padded with zeros to multiples of `MULTIPLE`; those of the result stay.
    """
    outputs, inputs = -weight.shape[1] % (MULTIPLE // 4), -weight.shape[2] % MULTIPLE
    if inputs:
        x = functional.pad(x.movedim(1, -1), (0, inputs)).movedim(-1, 1)
    weight = functional.pad(weight, (0, 0, 0, 0, 0, inputs, 0, outputs)).flatten(0, 1)
    bias = None if bias is None else functional.pad(bias, (0, outputs)).repeat(4)
    return functional.conv2d(x, weight, bias, padding=1)
