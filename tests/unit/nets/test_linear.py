"""Layers that compute what torch's do: values and gradients, and torch's own where something records them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cadenza.base.processors import vendor
from cadenza.nets import linear
from cadenza.nets.linear import Linear, Mish, batched

SIDE = 256  # large enough for oneDNN
if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    pytest.skip("needs oneDNN's products", allow_module_level=True)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The inputs of oneDNN's products, on a processor on which MKL is slow."""
    inputs: list[Tensor] = []
    ours = linear.product
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "product", lambda rows, *others: (inputs.append(rows), ours(rows, *others))[1])
    return inputs


@pytest.mark.parametrize("rows", [(SIDE,), (4, SIDE // 4)], ids=["[B, I]", "[T, B, I]"])
def test_large_products_and_their_gradients_equal_torchs(rows: tuple[int, ...], calls: list[Tensor]) -> None:
    torch.manual_seed(0)
    layer, x = Linear(SIDE, SIDE), torch.randn(*rows, SIDE, requires_grad=True)
    inputs = [x, *layer.parameters()]
    y, expected = layer(x), nn.functional.linear(x, layer.weight, layer.bias)
    assert len(calls) == 1
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    slope = torch.randn_like(y)
    gradients = torch.autograd.grad(y, inputs, slope)
    assert len(calls) == 3
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs, slope), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(layer(x), y)  # the same bits again


def test_small_products_other_dtypes_and_recorded_ones_are_torchs(calls: list[Tensor]) -> None:
    layer, x = Linear(SIDE, SIDE), torch.randn(SIDE, SIDE)
    layer(x[:8])
    layer.double()(x.double())
    torch.jit.trace(layer.float(), x, check_trace=False)
    assert not calls


@pytest.mark.parametrize("inner", [SIDE, SIDE // 2])
def test_batched_products_equal_torchs(inner: int, calls: list[Tensor]) -> None:
    torch.manual_seed(0)
    biases, weights = torch.randn(2, 1, SIDE, requires_grad=True), torch.randn(2, inner, SIDE, requires_grad=True)
    x = torch.randn(SIDE, inner, requires_grad=True)
    y, expected = (f(biases, x.expand(2, SIDE, inner), weights) for f in (batched, torch.baddbmm))
    assert len(calls) == (2 if inner == SIDE else 0)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    ours, theirs = (torch.autograd.grad(z.square().mean(), [biases, x, weights]) for z in (y, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_mish_equals_torchs_in_value_and_slope() -> None:
    x = torch.cat([torch.linspace(-30, 30, 1201), torch.tensor([-1e4, -100.0, 100.0, 1e4])]).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, expected = Mish()(x), nn.functional.mish(exact)
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=2e-6)
    slope = torch.autograd.grad(y.sum(), x)[0]
    torch.testing.assert_close(slope.double(), torch.autograd.grad(expected.sum(), exact)[0], rtol=1e-6, atol=2e-6)


def test_vendor_is_the_first_processors(tmp_path: Path) -> None:
    information = tmp_path / "cpuinfo"
    information.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\n")
    assert vendor(information) == "AuthenticAMD"
    assert vendor(tmp_path / "missing") == ""
