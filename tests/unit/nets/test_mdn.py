"""Mixtures against slow references, resets at episode starts, controllers by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.nets.actors import Actions
from cadenza.nets.controllers import LinearControllers
from cadenza.nets.mdn import DeterministicMLP, DreamNoise, DynamicsState, MixtureRNN, Prediction, unroll

CPU = torch.device("cpu")


def example_prediction(*lead: int, latent: int = 2, mixtures: int = 3) -> Prediction:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(*lead, latent, mixtures, generator=generator, dtype=torch.float64) for _ in range(3)]
    logits, mean, log_std = parts
    return Prediction(logits, mean, log_std, reward=torch.zeros(lead), end=torch.zeros(lead))


def test_log_densities_equal_a_slow_reference() -> None:
    guess, z = example_prediction(4), torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_densities = guess.log_prob(z)
    for i in range(4):
        for d in range(2):
            weights = [math.exp(x) for x in guess.logits[i, d].tolist()]
            density = 0.0
            for weight, mean, log_std in zip(
                weights, guess.mean[i, d].tolist(), guess.log_std[i, d].tolist(), strict=True
            ):
                std = math.exp(log_std)
                bell = math.exp(-((float(z[i, d]) - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))
                density += weight / sum(weights) * bell
            assert float(log_densities[i, d]) == pytest.approx(math.log(density))


def test_densities_integrate_to_one() -> None:
    guess, z = example_prediction(1, latent=1), torch.linspace(-60, 60, 20_001, dtype=torch.float64)[:, None]
    assert float(torch.trapezoid(guess.log_prob(z).exp()[:, 0], z[:, 0])) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_mixture_at_a_temperature(temperature: float) -> None:
    logits, mean = torch.tensor([[0.0, 1.0]]), torch.tensor([[-10.0, 10.0]])
    log_std = torch.tensor([[0.0, math.log(2.0)]])
    count = 40_000
    logits, mean, log_std = (x.expand(count, 1, 2) for x in (logits, mean, log_std))
    guess = Prediction(logits, mean, log_std, reward=NOTHING, end=NOTHING)
    drawn = guess.sample(DreamNoise.sample(count, 1, 2, torch.Generator().manual_seed(0)), temperature)[:, 0]
    right = drawn > 0
    assert float(right.float().mean()) == pytest.approx(1 / (1 + math.exp(-1 / temperature)), abs=0.01)
    assert float(drawn[right].std()) == pytest.approx(2 * math.sqrt(temperature), rel=0.03)
    assert float(guess.expectation()[0]) == pytest.approx(10 * math.tanh(0.5), rel=1e-5)


NOTHING = torch.zeros(())


def test_mixture_rnn_has_the_published_number_of_parameters() -> None:
    """The published number excludes torch's second LSTM bias and the outputs for reward and end."""
    net = MixtureRNN(32, 3, 256, 5)
    assert sum(p.numel() for p in net.parameters()) == 422_368 + 4 * 256 + 2 * 257


def test_standard_deviations_stay_above_their_minimum_with_nonzero_gradients() -> None:
    net = MixtureRNN(1, 1, 4, 2, min_std=0.1)
    with torch.no_grad():
        net.out.weight.zero_()
        net.out.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, -6.0, 1.0, 0.0, 0.0]))
    guess = net.predict(net.initial(1))
    low, high = guess.log_std[0, 0].exp().tolist()
    assert low == pytest.approx(0.1, abs=0.003)
    assert low > 0.1
    assert high == pytest.approx(math.e, rel=0.05)
    guess.log_std[0, 0, 0].backward()
    assert net.out.bias.grad is not None
    assert float(net.out.bias.grad[4]) > 0.01


@pytest.mark.parametrize("net", [MixtureRNN(3, 2, 8, 2), DeterministicMLP(3, 2, 8)], ids=["mdn_rnn", "mlp"])
def test_unroll_resets_the_state_at_episode_starts(net: MixtureRNN | DeterministicMLP) -> None:
    z, action = torch.randn(7, 2, 3), torch.randn(7, 2, 2)
    first = torch.zeros(7, 2, dtype=torch.bool)
    first[4, 1] = True
    every = unroll(net, z, action, first)
    for env, start, end in ((0, 0, 7), (1, 0, 4), (1, 4, 7)):
        memory = net.initial(1)
        for t in range(start, end):
            memory = net.step(z[t, env : env + 1], action[t, env : env + 1], memory)
            assert torch.allclose(every.h[t, env], memory.h[0], atol=1e-6)
            assert torch.allclose(every.c[t, env], memory.c[0], atol=1e-6)
    guess = net.predict(every)
    assert guess.mean.shape == (7, 2, 3, net.mixtures)
    assert guess.reward.shape == guess.end.shape == (7, 2)


def test_deterministic_model_predicts_the_change_of_the_latent() -> None:
    net = DeterministicMLP(3, 2, 8)
    with torch.no_grad():
        net.out.weight.zero_()
        net.out.bias.copy_(torch.tensor([1.0, 0.0, -1.0, 5.0, 6.0]))
    z = torch.randn(4, 3)
    guess = net.predict(net.step(z, torch.zeros(4, 2), DynamicsState(torch.ones(4, 8), torch.ones(4, 3))))
    assert torch.allclose(guess.expectation(), z + torch.tensor([1.0, 0.0, -1.0]))
    assert (guess.reward[0], guess.end[0]) == (5.0, 6.0)
    half_square = 0.5 * (z + 1 - guess.expectation()).square() + 0.5 * math.log(2 * math.pi)
    assert torch.allclose(-guess.log_prob(z + 1), half_square, atol=1e-6)


def test_each_row_is_computed_by_its_controller() -> None:
    actions = Actions(spaces.Box(np.array([-1, 0, 0], np.float32), np.ones(3, np.float32)), CPU)
    control, generator = LinearControllers(4, actions, clipped=[2]), torch.Generator().manual_seed(0)
    assert control.size == 15
    parameters, features = torch.randn(6, 15, generator=generator), torch.randn(6, 4, generator=generator)
    decoded = actions.decode(control(parameters, features))
    for row in range(6):
        matrix = parameters[row].reshape(3, 5).numpy()
        steer, gas, brake = np.tanh(matrix[:, :4] @ features[row].numpy() + matrix[:, 4])
        # as the authors have it in CarRacing
        assert decoded[row] == pytest.approx([steer, (gas + 1) / 2, np.clip(brake, 0, 1)], abs=1e-6)


def test_discrete_controller_takes_the_best_allowed_action() -> None:
    control = LinearControllers(1, Actions(spaces.Discrete(3), CPU))
    parameters = torch.tensor([[1.0, 0.0, 2.0, 0.0, 3.0, 0.0]]).expand(2, -1)
    allowed = torch.tensor([[True, True, True], [True, True, False]])
    assert control(parameters, torch.ones(2, 1), allowed).argmax(-1).tolist() == [2, 1]
    assert control(parameters, -torch.ones(2, 1)).argmax(-1).tolist() == [0, 0]
