"""Layers that compute what torch's do, faster on a CPU: large products by oneDNN, and Mish."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cadenza.base.processors import vendor

# Multiply-adds from which oneDNN's longer call pays, as 64 rows by 256 x 256. MKL reaches half of its speed on
# processors of other vendors than Intel, on which it computes without AVX-512 (docs/performance.md).
LARGE = 1 << 22
DEEP = 256  # inner width from which a product takes longer than the copy that puts results of members together


class Linear(nn.Linear):
    """A linear layer whose large products of float32 are oneDNN's where MKL's are slow."""

    def forward(self, x: Tensor) -> Tensor:
        if not takes_onednn(x) or x.numel() * self.out_features < LARGE:
            return super().forward(x)
        rows = x.reshape(-1, self.in_features)
        y: Tensor = Product.apply(rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], self.out_features)


def batched(biases: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """Return `torch.baddbmm(biases, x, weights)`: biases [E, 1, O], x [E, B, I], weights [E, I, O]."""
    if not takes_onednn(x) or weights.shape[1] < DEEP or x[0].numel() * weights.shape[2] < LARGE:
        return torch.baddbmm(biases, x, weights)
    members = zip(x.unbind(), weights.unbind(), biases.unbind(), strict=True)
    apply: Any = Product.apply
    return torch.stack([apply(rows, weight.T, bias.view(-1)) for rows, weight, bias in members])


class Product(torch.autograd.Function):
    """x [B, I] by the weight [O, I] of a linear layer, plus its bias; all three products are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(slope, weight.T) if of_x else None,
            product(slope.T, x.T) if of_weight else None,
            slope.sum(0) if of_bias else None,
        )


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows [B, I] by the transpose of the weight [O, I], plus the bias."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], None)
    return result


@cache
def onednn_is_faster() -> bool:
    """Return whether torch has oneDNN's products, and MKL computes with slow kernels on this processor."""
    libraries: Any = torch.backends
    has_products = libraries.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return bool(has_products and libraries.mkl.is_available() and vendor() == "AuthenticAMD")


def takes_onednn(x: Tensor) -> bool:
    """Return whether products of this input are faster by oneDNN."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and not is_traced() and onednn_is_faster()


def is_traced() -> bool:
    """Return whether torch records the operations, for a compiler or for another format, which know only torch's."""
    jit: Any = torch.jit
    return torch.compiler.is_compiling() or bool(jit.is_tracing())


class Mish(nn.Mish):
    """x tanh(softplus(x)) with one exponential, where torch has three functions: a quarter of the time on a CPU.

    With q = sigmoid(-x), tanh(softplus(x)) is (1 - q²) / (1 + q²).
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or is_traced():
            return super().forward(x)
        y: Tensor = QuickMish.apply(x)  # type: ignore[no-untyped-call]
        return y


class QuickMish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        q = torch.sigmoid(-x)
        factor = torch.square(q).add_(1).reciprocal_().mul_(2).sub_(1)
        ctx.save_for_backward(x, q, factor)
        return x * factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        x, q, factor = ctx.saved_tensors
        derivative = ((factor + 1) * q).square_().mul_(x).mul_(1 - q).add_(factor)
        result: Tensor = derivative.mul_(slope)
        return result
