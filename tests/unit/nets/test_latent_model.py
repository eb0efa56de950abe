from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from cadenza.config.world_model_settings import LatentModelConfig
from cadenza.nets.latent_model import (
    CriticEnsemble,
    LatentEncoder,
    LatentModel,
    NoisyPolicy,
    NumberDecoder,
    SimNorm,
    SquashedPolicy,
)

SMALL = LatentModelConfig(latent=16, units=12, encoder_units=10, critics=4, simplex=8)
PLAIN = replace(SMALL, simplex=0, style="elu", numbers="plain", critics=2, dropout=0.0)


def test_simnorm_is_a_softmax_over_each_group() -> None:
    x = torch.randn(3, 2, 24, generator=torch.Generator().manual_seed(0))
    got = SimNorm(8)(x)
    for row in np.ndindex(3, 2):
        for group in range(3):
            part = [math.exp(float(v)) for v in x[row][8 * group : 8 * group + 8]]
            want = torch.tensor([v / sum(part) for v in part])
            torch.testing.assert_close(got[row][8 * group : 8 * group + 8], want)


@pytest.mark.parametrize("style", ["elu", "mish"])
def test_critics_equal_separate_networks(style: str) -> None:
    torch.manual_seed(1)
    critics = CriticEnsemble(3, 5, 6, 7, style, 0.0)  # type: ignore[arg-type]
    for parameter in critics.parameters():  # the last layers start at zero, norms at one
        parameter.data.normal_()
    x = torch.randn(11, 5)
    got = critics(x)
    for e in range(3):
        after = [nn.Tanh(), nn.ELU()] if style == "elu" else [nn.Mish(), nn.Mish()]
        hidden = x
        for layer in range(2):
            hidden = hidden @ critics.weights[layer][e] + critics.biases[layer][e]
            if layer == 0 or style == "mish":
                norm = nn.LayerNorm(6)
                norm.weight.data, norm.bias.data = critics.scales[layer][e, 0], critics.shifts[layer][e, 0]
                hidden = norm(hidden)
            hidden = after[layer](hidden)
        want = hidden @ critics.weights[2][e] + critics.biases[2][e]
        torch.testing.assert_close(got[e], want, atol=1e-4, rtol=1e-4)
    some = torch.tensor([2, 0])
    torch.testing.assert_close(critics(x, some), got[some])


def test_critics_differ_initially_predict_zero_and_drop_units_of_the_first_layer() -> None:
    critics = CriticEnsemble(2, 5, 64, 3, "mish", 0.5)
    x = torch.randn(4, 5)
    assert not critics(x).any()
    assert not torch.equal(critics.weights[0][0], critics.weights[0][1])
    critics.weights[-1].data.normal_()
    mask = torch.rand(2, 4, 64) < 0.5
    by_hand = critics(x)  # the units that are kept count twice, the others not at all
    for member, row in np.ndindex(2, 4):
        unit = 2 * mask[member, row] * (x[row] @ critics.weights[0][member] + critics.biases[0][member, 0])
        for layer in (1, 2):
            normed = nn.functional.layer_norm(unit, (64,)) * critics.scales[layer - 1][member, 0]
            unit = nn.functional.mish(normed + critics.shifts[layer - 1][member, 0])
            unit = unit @ critics.weights[layer][member] + critics.biases[layer][member, 0]
        by_hand[member, row] = unit
    torch.testing.assert_close(critics(x, None, mask.float()), by_hand)
    assert not torch.allclose(critics(x), by_hand)


def test_two_hot_numbers_round_trip_and_their_loss_is_a_cross_entropy() -> None:
    numbers = NumberDecoder(SMALL)
    values = torch.tensor([-120.0, -0.3, 0.0, 2.5, 900.0])
    logarithms = values.sign() * torch.log1p(values.abs())
    logits = torch.full((5, 101), -1e9)
    for row, value in enumerate(logarithms):
        place = (float(value) + 10) / 0.2
        low = math.floor(place)
        share = place - low
        logits[row, low] = math.log(max(1 - share, 1e-30))
        logits[row, low + 1] = math.log(max(share, 1e-30))
    torch.testing.assert_close(numbers.mean(logits), values, rtol=1e-3, atol=1e-3)
    output = torch.randn(5, 101, generator=torch.Generator().manual_seed(0))
    want = -(logits.exp() * output.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(numbers.loss(output, values), want, rtol=1e-3, atol=1e-3)
    plain = NumberDecoder(PLAIN)
    assert plain.loss(torch.tensor([[3.0]]), torch.tensor([1.0])).item() == 4.0


def test_squashed_policy_returns_the_log_density_of_its_actions() -> None:
    torch.manual_seed(0)
    policy = SquashedPolicy(16, 2, SMALL)
    latent, noise = torch.randn(6, 16), torch.randn(6, 2)
    action, log_prob = policy(latent, noise)
    mean, spread = policy.net(latent).chunk(2, -1)
    std = (-10 + 6 * (torch.tanh(spread) + 1)).exp()
    normal = torch.distributions.Normal(mean, std)
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform(cache_size=1))
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(-1), rtol=1e-3, atol=1e-3)


def test_noisy_policy_clips_noise_and_actions_without_affecting_gradients() -> None:
    torch.manual_seed(0)
    policy = NoisyPolicy(16, 2, PLAIN, std=5.0)
    latent = (3 * torch.randn(50, 16)).requires_grad_()
    still = torch.tanh(policy.net(latent))
    action, log_prob = policy(latent, torch.randn(50, 2))
    clipped = action.abs() > 0.99999
    assert 10 < clipped.sum() < 90
    assert action.abs().max() < 1
    assert (action - still).abs().max() <= 0.3 + 1e-5
    assert not log_prob.any()
    pull = torch.randn(50, 2)
    (got,), (want,) = (torch.autograd.grad((pull * out).sum(), latent) for out in (action, still))
    torch.testing.assert_close(got, want)


def test_predicted_states_are_points_of_simplices_if_encoded_ones_are() -> None:
    torch.manual_seed(0)
    space = spaces.Box(-1, 1, (3,), np.float32)
    model, plain = LatentModel(space, 2, SMALL, None), LatentModel(space, 2, PLAIN, 0.05)
    latent, action = model.encoder({"vector": torch.randn(5, 3)}), torch.randn(5, 2)
    for state in (latent, after := model.step(latent, action), model.step(after, action)):
        assert (state > 0).all()
        torch.testing.assert_close(state.view(5, 2, 8).sum(-1), torch.ones(5, 2))
    outputs = model.dynamics[0](torch.cat([latent, action], -1))
    normed = nn.functional.layer_norm(outputs, (16,))
    torch.testing.assert_close(after, normed.view(5, 2, 8).softmax(-1).view(5, 16))
    assert (plain.step(latent, action) < 0).any()


def test_images_and_vectors_are_encoded_together() -> None:
    space = spaces.Dict({"pixels": spaces.Box(0, 255, (3, 32, 32), np.uint8), "state": spaces.Box(-1, 1, (4,))})
    encoder = LatentEncoder(space, SMALL)
    obs = {"image.pixels": torch.randint(0, 255, (5, 2, 3, 32, 32)).byte(), "vector": torch.randn(5, 2, 4)}
    latent = encoder(obs)
    assert latent.shape == (5, 2, 16)
    torch.testing.assert_close(latent.view(5, 2, 2, 8).sum(-1), torch.ones(5, 2, 2))
    torch.testing.assert_close(encoder({key: value[3, 1] for key, value in obs.items()}), latent[3, 1])


def test_model_sizes_have_about_the_parameters_of_their_names() -> None:
    space = spaces.Box(-1, 1, (24,), np.float32)
    for config, millions in ((LatentModelConfig(), 5), (LatentModelConfig(latent=128, units=384, critics=2), 1)):
        count = sum(p.numel() for p in LatentModel(space, 6, replace(config, ends=False), None).parameters())
        assert abs(count / 1e6 - millions) < 0.3
