"""Encoders and decoders of world models: sizes, slow references, several images at once."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.errors import ConfigError
from cadenza.nets.decoders import ObservationDecoder, StridedDecoder, UpsamplingDecoder, kernel_sizes
from cadenza.nets.dense import Style
from cadenza.nets.encoders import ObservationEncoder, PooledEncoder, StridedEncoder
from cadenza.nets.observe import VECTOR, ObservationTensors

V3 = WorldModelConfig(deter=16, hidden=8, stoch=4, classes=3, units=8, depth=2)
V1 = WorldModelConfig(
    deter=16, hidden=8, stoch=4, latent="gaussian", units=8, depth=2, cell="gru", norm="none", activation="elu",
    image_activation="relu", symlog=False,
)  # fmt: skip
MANY = spaces.Dict(
    {
        "front": spaces.Box(0, 255, (3, 64, 64), np.uint8),
        "joints": spaces.Box(-np.inf, np.inf, (5,), np.float32),
        "map": spaces.Box(0, 255, (1, 16, 16), np.uint8),
        "mode": spaces.Discrete(3),
        "side": spaces.Box(0, 255, (1, 64, 64), np.uint8),
    }
)


def observed(*batch: int) -> ObservationTensors:
    generator = torch.Generator().manual_seed(0)
    shapes = {"image.front": (3, 64, 64), "image.side": (1, 64, 64), "image.map": (1, 16, 16)}
    stacked = {
        key: torch.randint(0, 256, (*batch, *shape), generator=generator, dtype=torch.uint8)
        for key, shape in shapes.items()
    }
    return {**stacked, VECTOR: 10 * torch.randn(*batch, 8, generator=generator)}


@pytest.mark.parametrize("config", [V1, V3], ids=["v1", "v3"])
def test_images_and_vectors_are_processed_together_for_any_batch_shape(config: WorldModelConfig) -> None:
    torch.manual_seed(0)
    encoder, decoder = ObservationEncoder(MANY, config), ObservationDecoder(MANY, config)
    obs = observed(2, 3)
    encoded = encoder(obs)
    assert encoded.shape == (2, 3, encoder.features)
    features = torch.randn(2, 3, config.feature_size)
    made = decoder(features)
    assert {key: x.shape for key, x in made.items()} == {key: x.shape for key, x in obs.items()}
    losses = decoder.losses(made, obs)
    assert {key: x.shape for key, x in losses.items()} == {key: (2, 3) for key in obs}
    alone = {key: x[1, 2] for key, x in obs.items()}
    torch.testing.assert_close(encoder(alone), encoded[1, 2], rtol=1e-4, atol=1e-5)
    for key, x in decoder(features[1, 2]).items():
        torch.testing.assert_close(x, made[key][1, 2], rtol=1e-4, atol=1e-5)
    (encoded.square().sum() + sum(x.sum() for x in losses.values())).backward()
    silent = [name for net in (encoder, decoder) for name, p in net.named_parameters() if not p.grad.any()]
    assert silent == []


@pytest.mark.parametrize("config", [V1, V3], ids=["v1", "v3"])
def test_losses_and_observations_equal_loops_over_pixels(config: WorldModelConfig) -> None:
    torch.manual_seed(1)
    decoder, obs = ObservationDecoder(MANY, config), observed(2)
    with torch.no_grad():
        made = decoder(torch.randn(2, config.feature_size))
    share = 1.0 if config is V3 else 0.5
    losses, observations = decoder.losses(made, obs), decoder.to_observations(made)
    for row in range(2):
        pixels = zip(made["image.map"][row].flatten().tolist(), obs["image.map"][row].flatten().tolist(), strict=True)
        by_hand = share * math.fsum((x - byte / 255) ** 2 for x, byte in pixels)
        assert losses["image.map"][row].item() == pytest.approx(by_hand, rel=1e-4)
        numbers = [math.copysign(math.log1p(abs(x)), x) if config is V3 else x for x in obs[VECTOR][row].tolist()]
        by_hand = share * math.fsum((a - b) ** 2 for a, b in zip(made[VECTOR][row].tolist(), numbers, strict=True))
        assert losses[VECTOR][row].item() == pytest.approx(by_hand, rel=1e-4)
    assert observations["image.front"].dtype == torch.uint8
    exact = {key: x / 255 for key, x in obs.items() if key != VECTOR}
    exact[VECTOR] = torch.tensor(numbers).expand(2, 8)
    back = decoder.to_observations(exact)
    assert all(torch.equal(back[key], obs[key]) for key in obs if key != VECTOR)
    torch.testing.assert_close(back[VECTOR][1], obs[VECTOR][1], rtol=1e-4, atol=1e-4)


def test_networks_for_64_pixels_have_the_published_sizes() -> None:
    assert kernel_sizes(64) == [5, 5, 6, 6]
    torch.manual_seed(0)
    strided = StridedEncoder(3, (64, 64), 32, Style("none", "relu"))
    assert strided.features == 1024
    assert sum(p.numel() for p in strided.parameters()) == sum(
        16 * a * b + b for a, b in itertools.pairwise([3, 32, 64, 128, 256])
    )
    pooled = PooledEncoder(3, (64, 64), 16, Style("rms", "silu"))
    assert pooled.features == 4 * 4 * 64
    assert sum(p.numel() for p in pooled.parameters()) == sum(
        25 * a * b + 2 * b for a, b in itertools.pairwise([3, 32, 48, 64, 64])
    )
    for decoder in (StridedDecoder(3, (64, 64), V1), UpsamplingDecoder(3, (64, 64), V3)):
        features = torch.zeros(2, (V1 if isinstance(decoder, StridedDecoder) else V3).feature_size)
        assert decoder(features).shape == (2, 3, 64, 64)
        assert torch.equal(decoder(features), torch.full((2, 3, 64, 64), 0.5))  # gray, before anything is learned


@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 16), (32, 48), (64, 64), (96, 96)])
def test_decoders_return_the_size_of_the_encoded_image(height: int, width: int) -> None:
    for config in (V1, V3):
        space = spaces.Box(0, 255, (2, height, width), np.uint8)
        if config is V1 and len(kernel_sizes(height)) != len(kernel_sizes(width)):
            continue
        image = torch.zeros(1, 2, height, width, dtype=torch.uint8)
        assert ObservationEncoder(space, config)({"image.": image}).dim() == 2
        made = ObservationDecoder(space, config)(torch.zeros(1, config.feature_size))
        assert made["image."].shape == image.shape


def test_unsupported_image_sizes_are_refused() -> None:
    space = spaces.Box(0, 255, (3, 210, 160), np.uint8)
    with pytest.raises(ConfigError, match=r"environment\.resize: images of 210x160 pixels"):
        ObservationEncoder(space, V3)
    with pytest.raises(ConfigError, match=r"environment\.resize: images of 9x9 pixels cannot be halved"):
        ObservationEncoder(spaces.Box(0, 255, (3, 9, 9), np.uint8), V3)
    with pytest.raises(ConfigError, match=r"environment\.resize: 32x200 pixels"):
        ObservationDecoder(spaces.Box(0, 255, (3, 32, 200), np.uint8), V1)


def convolved(x: np.ndarray, layer: nn.Conv2d, stride: int, padding: int) -> np.ndarray:
    """Return the convolution [C, H, W], computed by loops."""
    weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
    size = weight.shape[-1]
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    rows, columns = ((side - size) // stride + 1 for side in x.shape[1:])
    out = np.empty((len(weight), rows, columns))
    for c, i, j in itertools.product(range(len(weight)), range(rows), range(columns)):
        window = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
        out[c, i, j] = (window * weight[c]).sum() + bias[c]
    return out


def test_strided_encoder_equals_loops() -> None:
    torch.manual_seed(3)
    encoder = ObservationEncoder(spaces.Box(0, 255, (2, 16, 16), np.uint8), V1)
    image = torch.randint(0, 256, (1, 2, 16, 16), dtype=torch.uint8)
    x = image[0].double().numpy() / 255 - 0.5
    for layer in [layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]:
        x = np.maximum(convolved(x, layer, 2, 0), 0)
    np.testing.assert_allclose(encoder({"image.": image})[0].detach(), x.ravel(), atol=1e-5)


def test_pooled_encoder_equals_loops() -> None:
    torch.manual_seed(3)
    encoder = ObservationEncoder(spaces.Box(0, 255, (2, 16, 16), np.uint8), V3)
    image = torch.randint(0, 256, (1, 2, 16, 16), dtype=torch.uint8)
    x = image[0].double().numpy() / 255 - 0.5
    layers = [layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]
    assert len(layers) == 2
    for layer in layers:
        wide = convolved(x, layer, 1, 2)
        channels, height, width = wide.shape
        x = np.empty((channels, height // 2, width // 2))
        for i, j in itertools.product(range(height // 2), range(width // 2)):
            pixel = wide[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2))
            pixel = pixel / np.sqrt((pixel**2).mean() + 1e-4)
            x[:, i, j] = pixel / (1 + np.exp(-pixel))
    np.testing.assert_allclose(encoder({"image.": image})[0].detach(), x.ravel(), atol=1e-4)


def test_each_block_of_deter_decodes_to_its_channels() -> None:
    torch.manual_seed(0)
    decoder = UpsamplingDecoder(1, (64, 64), V3)  # 16 units of memory in 8 blocks, 8 channels of 4 x 4
    before: list[torch.Tensor] = []
    decoder.begin.register_forward_hook(lambda module, inputs, result: before.append(inputs[0].detach()))
    features = torch.randn(1, V3.feature_size)
    for unit in (None, 0, 5):
        changed = features.clone()
        if unit is not None:
            changed[0, V3.stoch_size + unit] += 1
        decoder(changed)
    for drawn, block in zip(before[1:], (0, 2), strict=True):
        moved = (drawn - before[0]).abs().amax((0, 2, 3)) > 0
        assert moved.tolist() == [channel == block for channel in range(8)]
