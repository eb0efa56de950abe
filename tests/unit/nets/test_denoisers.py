"""Denoisers: shapes and dependencies of their outputs."""

from __future__ import annotations

import pytest
import torch

from cadenza.config.denoiser_settings import DenoisingTransformerConfig, UNetConfig
from cadenza.errors import ConfigError
from cadenza.nets.denoisers import DenoisingTransformer, UNet

ACTIONS, HORIZON, HISTORY, FEATURES = 3, 8, 2, 5


def unet(*widths: int) -> UNet:
    return UNet(ACTIONS, HISTORY, FEATURES, UNetConfig(widths))


def transformer() -> DenoisingTransformer:
    return DenoisingTransformer(ACTIONS, HORIZON, HISTORY, FEATURES, DenoisingTransformerConfig(16, 2, 2))


@pytest.mark.parametrize("net", [unet(8), unet(8, 16), unet(8, 16, 16), transformer()], ids=lambda net: repr(type(net)))
def test_every_action_depends_on_step_and_all_observations(net: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, HORIZON, ACTIONS, generator=generator)
    observations = torch.randn(4, HISTORY, FEATURES, generator=generator).requires_grad_()
    step = torch.tensor([0, 3, 50, 99])
    noise = net(x, step, observations)
    assert noise.shape == x.shape
    assert (noise - net(x, step.flip(0), observations)).abs().amin((1, 2)).max() > 0
    for place in range(HORIZON):
        (gradient,) = torch.autograd.grad(noise[:, place].square().sum(), observations, retain_graph=True)
        assert (gradient != 0).all()
    torch.testing.assert_close(net(x[1:2], step[1:2], observations[1:2]), noise[1:2])  # rows do not mix


def test_transformer_is_causal_and_unet_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, HORIZON, ACTIONS, generator=generator).requires_grad_()
    observations, step = torch.randn(1, HISTORY, FEATURES, generator=generator), torch.tensor([7])
    (gradient,) = torch.autograd.grad(transformer()(x, step, observations)[0, 4].square().sum(), x)
    assert (gradient[0, :5] != 0).all()
    assert not gradient[0, 5:].any()
    (gradient,) = torch.autograd.grad(unet(8, 16)(x, step, observations)[0, 4].square().sum(), x)
    assert (gradient != 0).all()


def test_invalid_settings_are_refused() -> None:
    for wrong in ({"widths": (12,)}, {"kernel": 4}, {"step_size": 5}, {"widths": ()}):
        with pytest.raises(ConfigError):
            UNetConfig(**wrong)
    with pytest.raises(ConfigError, match="multiple of heads"):
        DenoisingTransformerConfig(size=10, heads=4)
