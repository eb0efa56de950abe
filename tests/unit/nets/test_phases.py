"""The convolutions of `nets/phases.py`: those of the large images, with four pixels next to each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.nets import phases


def by_phase(images: Tensor) -> Tensor:
    """Return images [B, C, 2 H, 2 W] with the four pixels as channels [B, 4 * C, H, W]."""
    batch, channels, height, width = images.shape
    parts = images.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(batch, 4 * channels, height // 2, width // 2)


@pytest.mark.parametrize("channels", [3, 8])
def test_convolutions_in_phases_equal_those_of_the_large_image(channels: int) -> None:
    layer, small = nn.Conv2d(channels, 6, 5, padding=2).double(), torch.randn(2, channels, 4, 6).double()
    large = torch.randn(2, channels, 8, 12).double()
    doubled = layer(functional.interpolate(small, scale_factor=2, mode="nearest"))
    torch.testing.assert_close(phases.doubling_convolution(small, layer), by_phase(doubled))
    torch.testing.assert_close(phases.halving_convolution(large, layer), by_phase(layer(large)))
