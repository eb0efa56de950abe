from __future__ import annotations

import itertools
import math

import pytest
import torch

from cadenza.ops.scaling import symexp, symlog, two_hot, two_hot_bins, two_hot_loss, two_hot_losses, two_hot_mean

NUMBERS = [-4e8, -1e5, -3.3, -1.0, -1e-3, 0.0, 1e-6, 0.5, 1.0, 7.25, 123.4, 9e6, 3e8]


def test_symlog_equals_its_definition_and_symexp_inverts_it() -> None:
    for number in NUMBERS:
        size = math.log(1 + abs(number))
        got = float(symlog(torch.tensor(number, dtype=torch.float64)))
        assert got == pytest.approx(math.copysign(size, number), rel=1e-9)
        assert float(symexp(torch.tensor(got, dtype=torch.float64))) == pytest.approx(number, rel=1e-9)


def test_bins_are_symmetric_and_evenly_spaced_under_symlog() -> None:
    for count in (255, 6):
        bins = two_hot_bins(count)
        assert bins.dtype == torch.float32
        assert torch.equal(bins, -bins.flip(0))
        places = [math.copysign(math.log1p(abs(b)), b) for b in bins.tolist()]
        gaps = [b - a for a, b in itertools.pairwise(places)]
        assert gaps == pytest.approx([40 / (count - 1)] * (count - 1), rel=1e-4)
    assert float(two_hot_bins()[127]) == 0.0
    one_sided = two_hot_bins(5, 0.0, 4.0)
    assert one_sided.tolist() == pytest.approx([math.expm1(k) for k in range(5)])


def test_two_hot_puts_weight_on_two_adjacent_bins_and_keeps_the_mean() -> None:
    bins = two_hot_bins().double()
    for number in [*NUMBERS, *bins[::50].tolist()]:
        weights = two_hot(torch.tensor(number, dtype=torch.float64), bins)
        used = weights.nonzero().flatten().tolist()
        assert len(used) <= 2
        assert used[-1] - used[0] <= 1
        assert bool((weights >= 0).all())
        assert float(weights.sum()) == pytest.approx(1.0)
        assert math.fsum((weights * bins).tolist()) == pytest.approx(number, rel=1e-9, abs=1e-12)


def test_two_hot_clips_to_the_outermost_bins() -> None:
    bins = two_hot_bins(9, -2.0, 2.0)
    low, high = two_hot(torch.tensor([-1e9, 1e9]), bins)
    assert low.tolist() == [1.0] + [0.0] * 8
    assert high.tolist() == [0.0] * 8 + [1.0]


def test_mean_of_equal_logits_is_exactly_zero() -> None:
    for count in (255, 254, 41):
        bins = two_hot_bins(count)
        for logit in (0.0, 3.7):
            mean = two_hot_mean(torch.full((4, 3, count), logit), bins)
            assert mean.shape == (4, 3)
            assert not mean.any()


@pytest.mark.parametrize("count", [255, 12])
def test_mean_equals_a_slow_sum(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, bins = torch.randn(5, count, generator=generator, dtype=torch.float64), two_hot_bins(count).double()
    for row, got in zip(logits.tolist(), two_hot_mean(logits, bins).tolist(), strict=True):
        whole = math.fsum(math.exp(x) for x in row)
        assert got == pytest.approx(math.fsum(math.exp(x) / whole * b for x, b in zip(row, bins.tolist(), strict=True)))


def test_mean_inverts_two_hot() -> None:
    bins = two_hot_bins()
    x = torch.tensor([-20.0, -0.3, 0.0, 0.7, 5000.0])
    torch.testing.assert_close(two_hot_mean(two_hot(x, bins).log(), bins), x, rtol=1e-5, atol=1e-6)


def test_two_hot_loss_and_gradient_equal_a_slow_reference() -> None:
    bins = two_hot_bins(31, -5.0, 5.0).double()
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 31, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([-200.0, -1.5, 0.0, 0.2, 12.0, 1e6], dtype=torch.float64, requires_grad=True)
    loss = two_hot_loss(logits, target, bins)
    for k in range(6):  # the two neighbours by hand
        row, number = logits[k].tolist(), min(max(target[k].item(), bins[0].item()), bins[-1].item())
        below = max(i for i in range(30) if bins[i] <= number)
        share = (number - bins[below].item()) / (bins[below + 1] - bins[below]).item()
        normaliser = math.log(math.fsum(math.exp(x) for x in row))
        by_hand = (1 - share) * (normaliser - row[below]) + share * (normaliser - row[below + 1])
        assert loss[k].item() == pytest.approx(by_hand)
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, (logits.softmax(-1) - two_hot(target, bins)).detach())
    assert target.grad is None


def test_losses_of_several_targets_equal_the_loss_of_each() -> None:
    bins = two_hot_bins()
    logits, targets = torch.randn(4, 3, 255), 100 * torch.randn(4, 3, 2)
    got = two_hot_losses(logits.log_softmax(-1), targets, bins)
    assert torch.equal(got, torch.stack([two_hot_loss(logits, targets[..., k], bins) for k in range(2)], -1))
