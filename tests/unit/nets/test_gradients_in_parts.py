"""Gradients in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cadenza.nets.optimizers import in_parts


@pytest.mark.parametrize("parts", [2, 3, 7, 100])
def test_a_loss_that_no_sum_over_parts_can_give_has_the_same_gradient(parts: int) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    inputs = {
        "x": torch.randn(4, 7, 3, dtype=torch.float64),
        "weight": torch.rand(4, 7, 1, dtype=torch.float64),
        "no": None,
    }

    def gradients(parts: int) -> list[torch.Tensor]:
        output = in_parts(lambda part: {"y": net(part["x"]) * part["weight"]}, inputs, parts, dim=1)["y"]
        loss = (output / output.std()).square().mean() + output.mean().clamp(min=0.01)
        return list(torch.autograd.grad(loss, list(net.parameters())))

    for whole, summed in zip(gradients(1), gradients(parts), strict=True):
        torch.testing.assert_close(whole, summed, rtol=1e-12, atol=1e-14)


def test_each_part_is_computed_again_for_its_gradient_and_not_stored() -> None:
    weight, sizes = torch.ones(5, requires_grad=True), []

    def function(part: torch.Tensor) -> Any:
        sizes.append(len(part))
        return (part * weight).exp()

    output = in_parts(function, torch.ones(7, 5), 3)
    assert sizes == [3, 3, 1]
    output.sum().backward()
    assert sorted(sizes) == [1, 1, 3, 3, 3, 3]
    assert output.shape == (7, 5)


def test_a_network_with_dropout_drops_the_same_numbers_for_its_gradient() -> None:
    net, x = (
        torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1)),
        torch.ones(8, 3),
    )

    def gradients(output: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        return torch.autograd.grad(output().square().sum(), list(net.parameters()))

    whole = gradients(lambda: torch.cat([net(part) for part in x.split(4)]))
    torch.testing.assert_close(gradients(lambda: in_parts(net, x, 2)), whole)


def test_without_gradients_every_part_is_computed_once() -> None:
    calls = []
    with torch.no_grad():
        output = in_parts(lambda part: calls.append(len(part)) or part.T, torch.ones(4, 2), 2, out_dim=1)
    assert (calls, output.shape) == ([2, 2], (2, 4))
