from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.ops.latents import (
    FAST_SOFTMAX,
    kl_categorical,
    kl_gaussian,
    planet_kl,
    probabilities,
    sample_categorical,
    unimix,
    v1_kl,
    v2_kl,
    v3_kl,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def divergence_of_logits(p: Tensor, q: Tensor) -> Tensor:
    return kl_categorical(p.log_softmax(-1), q.log_softmax(-1))


@pytest.mark.parametrize("classes", [2, 5, FAST_SOFTMAX - 1, FAST_SOFTMAX, FAST_SOFTMAX + 3])
def test_probabilities_equal_a_softmax_for_any_number_of_classes(classes: int) -> None:
    logits, weight = normal(6, 3, classes).double().requires_grad_(), normal(6, 3, classes, seed=1).double()
    expected = 0.9 * logits.softmax(-1) + 0.1 / classes
    got = probabilities(logits, 0.1)
    torch.testing.assert_close(got, expected)
    slow = torch.autograd.grad((expected * weight).sum(), logits)
    torch.testing.assert_close(torch.autograd.grad((got * weight).sum(), logits), slow)
    extreme = torch.tensor([[1e4, -1e4], [-math.inf, 3.0]])
    assert probabilities(extreme).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_unimix_gives_each_class_at_least_its_uniform_share() -> None:
    logits = torch.tensor([[0.0, 50.0, -50.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    mixed = unimix(logits, 0.04).exp()
    for row, got in zip(logits.tolist(), mixed.tolist(), strict=True):
        whole = math.fsum(math.exp(x) for x in row)
        assert got == pytest.approx([0.96 * math.exp(x) / whole + 0.01 for x in row], rel=1e-5)
    assert float(mixed.min()) >= 0.00999
    torch.testing.assert_close(unimix(logits, 0.04).logsumexp(-1), torch.zeros(2), atol=1e-6, rtol=0)


def test_samples_are_one_hot_with_the_frequencies_of_their_probabilities() -> None:
    logits, count = torch.log(torch.tensor([0.1, 0.0, 0.55, 0.35])), 1000
    noise = (torch.arange(count) + 0.5) / count  # evenly spaced: each class must occur in proportion to its probability
    drawn = sample_categorical(probabilities(logits.expand(count, 4)), noise)
    assert drawn.sum(0).tolist() == pytest.approx([100, 0, 550, 350], abs=1)
    assert bool(((drawn == 0) | (drawn == 1)).all())
    assert bool((drawn.sum(-1) == 1).all())


def test_noise_at_the_ends_of_its_range_samples_a_possible_class() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.0, 0.0], [0.0, 0.3, 0.1, 7.0]])
    lowest = sample_categorical(probabilities(logits), torch.zeros(2))
    assert lowest.argmax(-1).tolist() == [1, 0]
    highest = sample_categorical(probabilities(logits), torch.full((2,), 1 - 2**-24))
    assert highest.argmax(-1).tolist() == [3, 3]


def test_gradient_of_a_sample_equals_that_of_its_probabilities() -> None:
    logits, weight, noise = normal(3, 2, 5).requires_grad_(), normal(3, 2, 5, seed=1), torch.rand(3, 2)
    drawn = sample_categorical(probabilities(logits), noise)
    (drawn * weight).sum().backward()
    p = logits.detach().softmax(-1)
    expected = torch.empty_like(p)
    for b, s, i in itertools.product(range(3), range(2), range(5)):  # d p_j / d x_i = p_j (1[i = j] - p_i)
        expected[b, s, i] = sum(weight[b, s, j] * p[b, s, j] * (float(i == j) - p[b, s, i]) for j in range(5))
    torch.testing.assert_close(logits.grad, expected)


def test_categorical_divergence_equals_that_of_the_joint_distribution() -> None:
    p_logits, q_logits = normal(4, 3, 4).double(), normal(4, 3, 4, seed=1).double()
    got = divergence_of_logits(p_logits, q_logits)
    assert got.shape == (4,)
    p, q = p_logits.softmax(-1).numpy(), q_logits.softmax(-1).numpy()
    for b in range(4):
        joint = 0.0
        for outcome in itertools.product(range(4), repeat=3):  # all states
            chance = math.prod(p[b, s, c] for s, c in enumerate(outcome))
            joint += chance * math.log(chance / math.prod(q[b, s, c] for s, c in enumerate(outcome)))
        assert float(got[b]) == pytest.approx(joint, rel=1e-5)
    assert not divergence_of_logits(p_logits, p_logits).any()


def test_gaussian_divergence_equals_its_integral() -> None:
    mean_p, mean_q = np.array([0.3, -1.0]), np.array([0.0, 0.5])
    std_p, std_q = np.array([0.4, 1.5]), np.array([1.0, 0.7])
    x = np.linspace(-20, 20, 400_001)[:, None]

    def log_density(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        return -0.5 * ((x - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))

    p, q = log_density(mean_p, std_p), log_density(mean_q, std_q)
    integral = (np.exp(p) * (p - q)).sum() * (x[1, 0] - x[0, 0])
    assert float(kl_gaussian(*map(torch.from_numpy, (mean_p, std_p, mean_q, std_q)))) == pytest.approx(integral)


def test_free_nats_clip_by_step_by_mean_or_by_state_as_in_each_paper() -> None:
    """Divergences are plain numbers here: those of two states are below the free nats, one is above."""

    def prior_is_ignored(post: Tensor, prior: Tensor) -> Tensor:
        return post + 0 * prior

    nats = (torch.tensor([0.5, 2.0, 9.5]),), (torch.zeros(3),)
    assert planet_kl(prior_is_ignored, *nats).tolist() == [0.0, 0.0, 6.5]
    assert float(v1_kl(prior_is_ignored, *nats)) == 4.0
    assert float(v1_kl(prior_is_ignored, (torch.tensor([0.5, 2.0]),), (torch.zeros(2),))) == 3.0
    assert float(v2_kl(prior_is_ignored, *nats, free=1.0)) == pytest.approx(4.0)
    assert float(v2_kl(prior_is_ignored, *nats, free=5.0)) == pytest.approx(5.0)
    assert float(v2_kl(prior_is_ignored, *nats, free=1.0, free_avg=False)) == pytest.approx((1.0 + 2.0 + 9.5) / 3)
    assert [loss.tolist() for loss in v3_kl(prior_is_ignored, *nats)] == [[1.0, 2.0, 9.5]] * 2


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_balancing_splits_the_gradient_between_prior_and_posterior(kind: str) -> None:
    divergence: Any
    post: Any
    prior: Any
    if kind == "categorical":
        divergence, post, prior = divergence_of_logits, (normal(6, 3, 4),), (normal(6, 3, 4, seed=1),)
    else:
        divergence = kl_gaussian
        post, prior = (normal(6, 3), normal(6, 3).exp()), (normal(6, 3, seed=1), normal(6, 3, seed=2).exp())
    post, prior = (tuple(x.double().requires_grad_() for x in side) for side in (post, prior))
    whole = torch.autograd.grad(divergence(*post, *prior).mean(), [*post, *prior])

    def gradients(loss: Tensor) -> list[Tensor]:
        grads = torch.autograd.grad(loss, [*post, *prior], allow_unused=True, retain_graph=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip([*post, *prior], grads, strict=True)]

    balanced = gradients(v2_kl(divergence, post, prior, balance=0.8, free=0.0))
    dynamics, representation = (loss.mean() for loss in v3_kl(divergence, post, prior, free=0.0))
    for k, gradient in enumerate(whole):
        is_post = k < len(post)
        torch.testing.assert_close(balanced[k], (0.2 if is_post else 0.8) * gradient)
        torch.testing.assert_close(gradients(dynamics)[k], (0.0 if is_post else 1.0) * gradient)
        torch.testing.assert_close(gradients(representation)[k], (1.0 if is_post else 0.0) * gradient)


def test_divergence_below_the_free_nats_has_no_gradient() -> None:
    near = torch.zeros(1, 8, 2)
    far = torch.tensor([4.0, -4.0]).expand(1, 8, 2)
    prior = torch.cat([near + torch.tensor([0.1, 0.0]), far]).clone().requires_grad_()
    post = torch.zeros(2, 8, 2)
    divergences = divergence_of_logits(post, prior).tolist()
    assert divergences[0] < 1 < divergences[1]
    dynamics, _ = v3_kl(divergence_of_logits, (post,), (prior,))
    (gradient,) = torch.autograd.grad(dynamics.sum(), prior)
    assert not gradient[0].any()
    assert gradient[1].all()
    (gradient,) = torch.autograd.grad(v2_kl(divergence_of_logits, (post,), (prior,)), prior)
    assert gradient.all()  # v2 compares the mean, which is above
    (gradient,) = torch.autograd.grad(v2_kl(divergence_of_logits, (post,), (prior,), free=50.0), prior)
    assert not gradient.any()


def test_free_nats_of_v3_apply_to_the_sum_over_variables() -> None:
    """Eight variables of less than 0.1 nats each are above 0.1 together, and would count 0.8 if clipped one by one."""
    half = math.log(2) * 0.5
    prior = torch.tensor([[half, -half]]).expand(1, 8, 2)
    each = float(divergence_of_logits(torch.zeros(1, 1, 2), prior[:, :1]))
    dynamics, representation = v3_kl(divergence_of_logits, (torch.zeros(1, 8, 2),), (prior,), free=0.1)
    assert 0 < each < 0.1
    assert float(dynamics) == float(representation) == pytest.approx(8 * each)
