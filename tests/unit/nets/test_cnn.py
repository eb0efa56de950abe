"""Convolutions on bytes and floats against torch's layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cadenza.config.networks import CNNConfig
from cadenza.nets.torso import CNN


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_features_and_gradients_equal_torchs_layers(dtype: torch.dtype) -> None:
    generator = torch.manual_seed(0)  # torch's own: the weights are drawn from it, too
    images = torch.randint(0, 256, (2, 3, 4, 36, 40), generator=generator).to(dtype)
    cnn = CNN((4, 36, 40), CNNConfig())
    made = cnn(images)
    x = images.flatten(0, 1).float() / (255 if dtype == torch.uint8 else 1)
    for layer in cnn:
        x = layer(x)  # the first takes numbers as they are
    torch.testing.assert_close(made, x.view(2, 3, -1), rtol=1e-4, atol=1e-4)
    away = torch.randn(made.shape, generator=generator)
    parameters = [p for layer in cnn if isinstance(layer, (nn.Conv2d, nn.Linear)) for p in layer.parameters()]
    assert len(parameters) == 8
    for ours, theirs in zip(
        torch.autograd.grad(made, parameters, away), torch.autograd.grad(x, parameters, away.flatten(0, 1)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_forward_hooks_of_every_layer_are_called() -> None:
    cnn, called = CNN((4, 36, 40), CNNConfig()), set()
    for name, layer in cnn.named_children():
        layer.register_forward_hook(lambda module, inputs, made, name=name: called.add(name))
    cnn(torch.zeros(1, 4, 36, 40, dtype=torch.uint8))
    assert called == {name for name, _ in cnn.named_children()}
