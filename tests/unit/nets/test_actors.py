"""Imagination policies: densities, entropies, samples, encodings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.nets.actors import Actions, ActorHead, CategoricalActor, NormalActor
from cadenza.nets.dense import Style

GRID = torch.linspace(-6, 6, 120_001, dtype=torch.float64)


def output_of(kind: ActorHead) -> tuple[NormalActor, torch.Tensor]:
    torch.manual_seed(1)
    actor = NormalActor(3, 1, 8, 1, Style("none", "elu"), kind).double()
    output = actor(torch.randn(3, dtype=torch.float64)).detach()
    return actor, output if kind != "tanh_normal" else torch.tensor([0.3, 0.5], dtype=torch.float64)  # narrower


@pytest.mark.parametrize("kind", ["bounded_normal", "tanh_normal", "trunc_normal"])
def test_densities_integrate_to_one_and_entropies_match(kind: ActorHead) -> None:
    actor, output = output_of(kind)
    grid = GRID if kind == "bounded_normal" else GRID[GRID.abs() < 1 - 1e-5]
    log_prob = actor.log_prob(output.expand(len(grid), -1), grid[:, None])
    assert float(torch.trapezoid(log_prob.exp(), grid)) == pytest.approx(1.0, abs=1e-3)
    if kind != "tanh_normal":
        entropy = -torch.trapezoid(log_prob.exp() * log_prob, grid)
        assert float(actor.entropy(output)) == pytest.approx(float(entropy), rel=1e-3, abs=1e-4)


def test_truncated_samples_are_quantiles_of_the_noise() -> None:
    actor, output = output_of("trunc_normal")
    grid = GRID[GRID.abs() < 1]
    mass = torch.cumulative_trapezoid(actor.log_prob(output.expand(len(grid), -1), grid[:, None]).exp(), grid)
    for share in (0.05, 0.5, 0.93):
        drawn = float(actor.sample(output, torch.tensor([share], dtype=torch.float64)))
        assert float(mass[int((grid < drawn).sum()) - 1]) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("kind", ["bounded_normal", "tanh_normal", "trunc_normal"])
def test_gradients_flow_through_samples(kind: ActorHead) -> None:
    actor, output = output_of(kind)
    output = output.requires_grad_()
    actor.sample(output, torch.tensor([0.3], dtype=torch.float64)).sum().backward()
    assert output.grad is not None
    assert bool((output.grad != 0).all())


def test_discrete_actions_are_one_hot_and_have_positive_probability() -> None:
    actor = CategoricalActor(3, 4, 8, 1, Style(), mix=0.01)
    output = actor(torch.randn(5, 3) * 1000)
    assert float(output.exp().min()) >= 0.0025 - 1e-6
    torch.testing.assert_close(output.exp().sum(-1), torch.ones(5))
    action = actor.sample(output, torch.tensor([0.0, 0.2, 0.4, 0.6, 0.999]))
    assert torch.equal(action.sum(-1).detach(), torch.ones(5))
    torch.testing.assert_close(actor.log_prob(output, action), output.gather(-1, action.argmax(-1)[:, None])[:, 0])
    uniform = torch.full((4,), 0.25).log()
    assert float(actor.entropy(uniform)) == pytest.approx(float(torch.tensor(4.0).log()))
    assert actor.mode(torch.tensor([0.1, 0.2, 0.6, 0.1]).log()).tolist() == [0, 0, 1, 0]


def test_decoding_inverts_encoding() -> None:
    box = Actions(spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)), torch.device("cpu"))
    encoded = box.encode(torch.tensor([[-2.0, 10.0], [1.0, 5.0]]))
    assert encoded.tolist() == [[-1, 1], [0.5, 0]]
    assert box.decode(encoded).tolist() == [[-2, 10], [1, 5]]
    discrete = Actions(spaces.Discrete(3, start=2), torch.device("cpu"))
    assert discrete.encode(torch.tensor([2, 4])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert discrete.decode(discrete.encode(torch.tensor([3]))).tolist() == [3]


@pytest.mark.parametrize("std", [0.5, 5.0])
def test_tanh_normal_has_the_initial_standard_deviation_of_its_argument(std: float) -> None:
    actor = NormalActor(3, 2, 8, 1, Style("none", "elu"), "tanh_normal", std)
    for parameter in actor.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(actor(torch.zeros(1, 3))[0, 2:], torch.full((2,), std), atol=1e-3, rtol=0)


def test_encoding_accepts_zeros_of_inactive_agents_outside_of_the_space() -> None:
    actions = Actions(spaces.Discrete(3, start=1), torch.device("cpu"))
    assert actions.encode(torch.tensor([0, 1, 3])).argmax(-1).tolist() == [0, 0, 2]
    negative = Actions(spaces.Discrete(3, start=-5), torch.device("cpu"))
    assert negative.encode(torch.tensor([0, -5, -3])).argmax(-1).tolist() == [2, 0, 2]
