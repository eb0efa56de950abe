from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.config.networks import HeadConfig
from cadenza.nets.heads import action_head


def test_categorical_head_agrees_with_torch_distributions() -> None:
    head = action_head(spaces.Discrete(4, start=2), HeadConfig())
    output = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Categorical(logits=output)
    action = head.sample(output, None, torch.Generator().manual_seed(1))
    log_prob, entropy = head.evaluate(output, None, action)
    torch.testing.assert_close(log_prob, reference.log_prob(action - 2))
    torch.testing.assert_close(entropy, reference.entropy())
    assert torch.equal(head.mode(output, None), output.argmax(-1) + 2)


def test_categorical_samples_follow_the_probabilities() -> None:
    head = action_head(spaces.Discrete(3), HeadConfig())
    probabilities = torch.tensor([0.1, 0.3, 0.6])
    actions = head.sample(probabilities.log().expand(20_000, 3), None, torch.Generator().manual_seed(0))
    frequencies = torch.bincount(actions, minlength=3) / 20_000
    # five standard errors
    assert ((frequencies - probabilities).abs() < 5 * (probabilities * (1 - probabilities) / 20_000).sqrt()).all()


def test_masked_actions_are_never_sampled_and_do_not_count() -> None:
    head = action_head(spaces.Discrete(3), HeadConfig())
    mask = torch.tensor([True, False, True]).expand(1000, 3)
    output = torch.tensor([0.0, 5.0, 0.0]).expand(1000, 3)
    actions = head.sample(output, mask, torch.Generator().manual_seed(0))
    assert 1 not in actions
    log_prob, entropy = head.evaluate(output, mask, actions)
    torch.testing.assert_close(log_prob, torch.full((1000,), 0.5).log())
    assert float(entropy[0]) == pytest.approx(np.log(2))


def test_gaussian_head_agrees_with_torch_distributions() -> None:
    head = action_head(spaces.Box(-1, 1, (2, 3)), HeadConfig(log_std_init=-0.5))
    output = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Normal(output, torch.tensor(-0.5).exp())
    action = head.sample(output, None, torch.Generator().manual_seed(1))
    assert action.shape == (5, 2, 3)
    log_prob, entropy = head.evaluate(output, None, action)
    torch.testing.assert_close(log_prob, reference.log_prob(action.flatten(1)).sum(-1))
    torch.testing.assert_close(entropy, reference.entropy().sum(-1))


def test_multi_categorical_equals_independent_categoricals() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [0, 0]]))
    head = action_head(space, HeadConfig())
    output = torch.randn(50, 11, generator=torch.Generator().manual_seed(0))
    action = head.sample(output, None, torch.Generator().manual_seed(1))
    assert action.shape == (50, 2, 2)
    assert all(space.contains(one) for one in action.numpy())
    plain = (action - torch.tensor([[0, 1], [0, 0]])).flatten(1)
    parts = [torch.distributions.Categorical(logits=part) for part in output.split([2, 3, 4, 2], -1)]
    log_prob, entropy = head.evaluate(output, None, action)
    torch.testing.assert_close(log_prob, sum(part.log_prob(plain[:, i]) for i, part in enumerate(parts)))
    torch.testing.assert_close(entropy, sum(part.entropy() for part in parts))
    best = torch.stack([part.logits.argmax(-1) for part in parts], -1).reshape(50, 2, 2)
    assert torch.equal(head.mode(output, None), best + torch.tensor([[0, 1], [0, 0]]))


def test_multi_categorical_masks_are_concatenated() -> None:
    head = action_head(spaces.MultiDiscrete([2, 3]), HeadConfig())
    mask = torch.tensor([True, False, False, False, True]).expand(200, 5)
    output = torch.randn(200, 5)
    action = head.sample(output, mask, torch.Generator().manual_seed(0))
    assert (action == torch.tensor([0, 2])).all()
    torch.testing.assert_close(head.evaluate(output, mask, action)[0], torch.zeros(200))


def test_bernoulli_head_agrees_with_torch_distributions() -> None:
    space = spaces.MultiBinary((2, 2))
    head = action_head(space, HeadConfig())
    output = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Bernoulli(logits=output)
    action = head.sample(output, None, torch.Generator().manual_seed(1))
    assert all(space.contains(one) for one in action.numpy())
    log_prob, entropy = head.evaluate(output, None, action)
    torch.testing.assert_close(log_prob, reference.log_prob(action.flatten(1).float()).sum(-1))
    torch.testing.assert_close(entropy, reference.entropy().sum(-1))
    many = head.sample(torch.full((20_000, 4), 1.0), None, torch.Generator().manual_seed(2))
    expected = float(torch.sigmoid(torch.tensor(1.0)))
    assert float(many.float().mean()) == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 80_000) ** 0.5)


def test_standard_deviation_may_be_an_output_of_the_network() -> None:
    head = action_head(spaces.Box(-1, 1, (3,)), HeadConfig(std="state", log_std_init=-1.0))
    output = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Normal(output[:, :3], (output[:, 3:] - 1).exp())
    action = head.sample(output, None, torch.Generator().manual_seed(1))
    log_prob, entropy = head.evaluate(output, None, action)
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(-1))
    torch.testing.assert_close(entropy, reference.entropy().sum(-1))


@pytest.mark.parametrize("std", ["parameter", "state"])
def test_squashed_actions_are_within_bounds_with_the_density_of_a_transformed_normal(std: str) -> None:
    space = spaces.Box(np.array([-2, 0], np.float32), np.array([1, 5], np.float32))
    head = action_head(space, HeadConfig(std=std, squash=True))  # type: ignore[arg-type]
    output = torch.randn(200, head.outputs, generator=torch.Generator().manual_seed(0))
    action = head.sample(output, None, torch.Generator().manual_seed(1))
    assert all(space.contains(one) for one in action.detach().numpy())
    scale = torch.ones(200, 2) if std == "parameter" else output[:, 2:].clamp(-20, 2).exp()
    transforms = [
        torch.distributions.TanhTransform(),
        torch.distributions.AffineTransform(torch.tensor([-0.5, 2.5]), torch.tensor([1.5, 2.5])),
    ]
    normal = torch.distributions.Normal(output[:, :2], scale)
    reference = torch.distributions.TransformedDistribution(normal, transforms)
    inside = (((action - torch.tensor([-0.5, 2.5])) / torch.tensor([1.5, 2.5])).abs() < 0.999).all(-1)
    assert inside.sum() > 100
    log_prob, _ = head.evaluate(output, None, action)
    torch.testing.assert_close(log_prob[inside], reference.log_prob(action).sum(-1)[inside], rtol=1e-3, atol=1e-3)
    assert torch.isfinite(head.evaluate(output, None, torch.tensor([[-2.0, 5.0]]).expand(200, 2))[0]).all()


def test_squashed_entropy_and_gradient_equal_monte_carlo_estimates() -> None:
    space = spaces.Box(np.array([-2, 0], np.float32), np.array([1, 5], np.float32))
    head = action_head(space, HeadConfig(std="state", squash=True))
    output = torch.tensor([[1.0, -0.3, 0.2, -1.0]], requires_grad=True)
    _, entropy = head.evaluate(output, None, torch.zeros(1, 2))
    (gradient,) = torch.autograd.grad(entropy.sum(), output)
    many = output.expand(200_000, 4)
    noise = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
    inner = many[:, :2] + many[:, 2:].exp() * noise  # reparameterised: gradients flow through the samples
    action = torch.tensor([-0.5, 2.5]) + torch.tensor([1.5, 2.5]) * torch.tanh(inner)
    log_prob = head.evaluate(many, None, action)[0]
    estimate = -log_prob.mean()
    (expected,) = torch.autograd.grad(estimate, output)
    torch.testing.assert_close(entropy[0], estimate, atol=0.02, rtol=0)
    torch.testing.assert_close(gradient, expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("squash", [False, True])
def test_scalar_box_is_supported(squash: bool) -> None:
    head = action_head(spaces.Box(-1, 1, (), np.float32), HeadConfig(squash=squash))
    action = head.sample(torch.randn(5, 1), None, torch.Generator().manual_seed(0))
    assert action.shape == (5,)
    assert head.evaluate(torch.randn(5, 1), None, action)[0].shape == (5,)
