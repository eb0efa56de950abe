"""Fused kernels of world models for CUDA, in Triton: norm and activation, categorical samples, the update of a GRU.

Each replaces four to twelve kernels of torch's. They compute in float32, read and write float32 or bfloat16, and their
grids depend on shapes alone, so that results repeat bit for bit. Letters in shapes: R rows, N numbers of a row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # numbers that a program holds at once
PROGRAMS = 1056  # of a backward pass over many rows: eight for each multiprocessor of an H200


@triton.jit
def _norm_silu(
    x, scale, add, more, weight, before, after, rows, x_stride, add_stride, more_stride,
    EPS: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr, SCALED: tl.constexpr, ADDS: tl.constexpr,
    STORES: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    batch, col = row // GROUPS, (row % GROUPS)[:, None] * N + tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (tl.arange(0, BLOCK) < N)[None, :]
    value = tl.load(x + batch[:, None] * x_stride + col, mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        value *= tl.load(scale + batch, mask=row < rows, other=0.0)[:, None]
    if ADDS > 0:
        value += tl.load(add + batch[:, None] * add_stride + col, mask=mask, other=0.0).to(tl.float32)
    if ADDS > 1:
        value += tl.load(more + batch[:, None] * more_stride + col, mask=mask, other=0.0).to(tl.float32)
    place = batch[:, None] * (GROUPS * N) + col
    if STORES:
        tl.store(before + place, value, mask=mask)
    inner = value * tl.rsqrt(tl.sum(value * value, 1) / N + EPS)[:, None]
    inner *= tl.load(weight + col, mask=mask, other=0.0).to(tl.float32)
    tl.store(after + place, inner * tl.sigmoid(inner), mask=mask)


@triton.jit
def _norm_silu_backward(
    grad, before, weight, out, weight_grad, rows,
    EPS: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr, PASSES: tl.constexpr, R: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([R, BLOCK], tl.float32)
    for number in range(PASSES):
        row = (tl.program_id(0).to(tl.int64) * PASSES + number) * R + tl.arange(0, R)
        batch, col = row // GROUPS, (row % GROUPS)[:, None] * N + tl.arange(0, BLOCK)[None, :]
        mask = (row < rows)[:, None] & (tl.arange(0, BLOCK) < N)[None, :]
        place = batch[:, None] * (GROUPS * N) + col
        value = tl.load(before + place, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(weight + col, mask=mask, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(value * value, 1) / N + EPS)[:, None]
        normed = value * inverse
        inner = normed * scale
        gate = tl.sigmoid(inner)
        slope = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32) * gate * (1 + inner * (1 - gate))
        total += slope * normed
        slope *= scale
        tl.store(out + place, inverse * (slope - normed * (tl.sum(slope * normed, 1) / N)[:, None]), mask=mask)
    col = tl.arange(0, BLOCK)
    tl.store(weight_grad + tl.program_id(0).to(tl.int64) * N + col, tl.sum(total, 0), mask=col < N)


@triton.jit
def _sample(
    x, bias, noise, logits, sample, rows,
    UNIFORM: tl.constexpr, S: tl.constexpr, C: tl.constexpr, BIASED: tl.constexpr, STORES: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (col < C)
    place = row[:, None] * C + col
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    if BIASED:
        value += tl.load(bias + (row % S)[:, None] * C + col, mask=mask, other=0.0).to(tl.float32)
    if STORES:
        tl.store(logits + place, value, mask=mask)
    value = tl.where(col < C, value, -float("inf"))
    share = tl.exp(value - tl.max(value, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    share = tl.where(col < C, (1 - UNIFORM) * share + UNIFORM / C, 0.0)
    cumulative = tl.cumsum(share, 1)
    threshold = tl.load(noise + row, mask=row < rows, other=0.0) * tl.max(cumulative, 1)
    index = tl.sum(((cumulative <= threshold[:, None]) & (col < C)).to(tl.int32), 1)
    index = tl.minimum(index, C - 1)  # noise just below 1 may round up to it
    tl.store(sample + place, (col == index[:, None]).to(tl.float32), mask=mask)


@triton.jit
def _sample_backward(
    logits, grad, later, keep, direct, out, rows,
    UNIFORM: tl.constexpr, S: tl.constexpr, C: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (col < C)
    place = row[:, None] * C + col
    value = tl.load(logits + place, mask=mask, other=-float("inf")).to(tl.float32)
    value = tl.where(col < C, value, -float("inf"))
    share = tl.exp(value - tl.max(value, 1)[:, None])
    share = tl.where(mask, share / tl.sum(share, 1)[:, None], 0.0)
    slope = tl.load(later + place, mask=mask, other=0.0).to(tl.float32)
    slope *= tl.load(keep + row // S, mask=row < rows, other=0.0)[:, None]
    slope += tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
    slope *= 1 - UNIFORM
    slope = share * (slope - tl.sum(share * slope, 1)[:, None])
    slope += tl.load(direct + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, slope, mask=mask)


@triton.jit
def _gru(
    gates, bias, deter, keep, out, code, count,
    D: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask, row, unit = place < count, place // D, place % D
    column = unit // SIZE * 3 * SIZE + unit % SIZE
    first = gates + row * 3 * D + column
    reset = tl.load(first, mask=mask, other=0.0).to(tl.float32) + tl.load(bias + column, mask=mask, other=0.0)
    inner = tl.load(first + SIZE, mask=mask, other=0.0).to(tl.float32)
    inner += tl.load(bias + column + SIZE, mask=mask, other=0.0)
    update = tl.load(first + 2 * SIZE, mask=mask, other=0.0).to(tl.float32)
    update += tl.load(bias + column + 2 * SIZE, mask=mask, other=0.0)
    before = tl.load(deter + place, mask=mask, other=0.0)
    if MASKED:
        before *= tl.load(keep + row, mask=mask, other=0.0)
    candidate = 2 * tl.sigmoid(2 * tl.sigmoid(reset) * inner) - 1
    after = before + tl.sigmoid(update - 1) * (candidate - before)
    tl.store(out + place, after, mask=mask)
    tl.store(code + place, after, mask=mask)


@triton.jit
def _gru_backward(
    gates, bias, deter, keep, grad, product, direct, later, keep_later, gates_grad, count,
    D: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask, row, unit = place < count, place // D, place % D
    column = unit // SIZE * 3 * SIZE + unit % SIZE
    first = gates + row * 3 * D + column
    reset = tl.load(first, mask=mask, other=0.0).to(tl.float32) + tl.load(bias + column, mask=mask, other=0.0)
    inner = tl.load(first + SIZE, mask=mask, other=0.0).to(tl.float32)
    inner += tl.load(bias + column + SIZE, mask=mask, other=0.0)
    update = tl.load(first + 2 * SIZE, mask=mask, other=0.0).to(tl.float32)
    update += tl.load(bias + column + 2 * SIZE, mask=mask, other=0.0)
    before = tl.load(deter + place, mask=mask, other=0.0) * tl.load(keep + row, mask=mask, other=0.0)
    slope = tl.load(direct + place, mask=mask, other=0.0) + tl.load(later + place, mask=mask, other=0.0).to(tl.float32)
    slope *= tl.load(keep_later + row, mask=mask, other=0.0)
    slope += tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
    slope += tl.load(product + place, mask=mask, other=0.0).to(tl.float32)
    reset, update = tl.sigmoid(reset), tl.sigmoid(update - 1)
    candidate = 2 * tl.sigmoid(2 * reset * inner) - 1
    tl.store(direct + place, slope * (1 - update), mask=mask)
    outer = slope * update * (1 - candidate * candidate)
    first = gates_grad + row * 3 * D + column
    tl.store(first, outer * inner * reset * (1 - reset), mask=mask)
    tl.store(first + SIZE, outer * reset, mask=mask)
    tl.store(first + 2 * SIZE, slope * (candidate - before) * update * (1 - update), mask=mask)


def _tile(rows: int, size: int, programs: int = 0) -> dict[str, Any]:
    """Return the shape of a program's tile for rows of a size, and the number of warps that compute it."""
    block = triton.next_power_of_2(size)
    height = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    while height > 1 and rows // height < programs:  # rather more programs than taller ones
        height //= 2
    return {"R": height, "BLOCK": block, "num_warps": max(1, min(8, block * height // 256))}


def norm_silu_forward(
    x: Tensor,
    weight: Tensor,
    eps: float,
    add: Tensor | None = None,
    more: Tensor | None = None,
    scale: Tensor | None = None,
    groups: int = 1,
    before: Tensor | None = None,
    after: Tensor | None = None,
) -> Tensor:
    """Return silu(rms_norm(x * scale + add + more) * weight) for rows x [R, groups * N], normed by group.

    `scale` [R] is a factor of each row, `weight` [groups * N]. `add` and `more` are matrices [R, …], `add` perhaps a
    vector. `before` receives the sum, `after` the result.
    """
    batch, width = x.shape
    rows, size = batch * groups, width // groups
    after = torch.empty_like(x, memory_format=torch.contiguous_format) if after is None else after
    tile = _tile(rows, size, 264)
    _norm_silu[(triton.cdiv(rows, tile["R"]),)](
        x, scale, add, more, weight, before, after, rows,
        x.stride(0), 0 if add is None or add.dim() == 1 else add.stride(0), 0 if more is None else more.stride(0),
        EPS=eps, GROUPS=groups, N=size, SCALED=scale is not None, ADDS=(add is not None) + (more is not None),
        STORES=before is not None, **tile,
    )  # fmt: skip
    return after


def norm_silu_backward(
    grad: Tensor, before: Tensor, weight: Tensor, eps: float, out: Tensor, weight_grad: Tensor | None = None,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Write the gradient of the sum `before` [R, groups * N] to `out`; return shares of the gradient of `weight`.

    All are contiguous. The shares [P, N] are to be summed; with `weight_grad` [R, groups * N] they are those of rows.
    """
    batch, width = before.shape
    rows, size = batch * groups, width // groups
    tile, passes = _tile(rows, size), 1
    if weight_grad is None:
        passes = max(1, triton.cdiv(rows, tile["R"] * PROGRAMS))
        weight_grad = before.new_empty(triton.cdiv(rows, tile["R"] * passes), size, dtype=torch.float32)
    else:
        tile |= {"R": 1, "num_warps": max(1, min(8, tile["BLOCK"] // 256))}
    _norm_silu_backward[(triton.cdiv(rows, tile["R"] * passes),)](
        grad, before, weight, out, weight_grad, rows, EPS=eps, GROUPS=groups, N=size, PASSES=passes, **tile
    )
    return weight_grad


def sample_forward(
    x: Tensor, noise: Tensor, uniform: float, classes: int, bias: Tensor | None = None,
    logits: Tensor | None = None, sample: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return one-hot samples [R, S * C] of S variables with the logits `x + bias`, by uniform noise [R, S].

    `logits` receives the sum. The distributions are mixed with a uniform one.
    """
    rows, tile = noise.numel(), _tile(noise.numel(), classes, 132)
    sample = torch.empty_like(x) if sample is None else sample
    _sample[(triton.cdiv(rows, tile["R"]),)](
        x, bias, noise, logits, sample, rows,
        UNIFORM=uniform, S=noise.shape[-1], C=classes, BIASED=bias is not None, STORES=logits is not None, **tile,
    )  # fmt: skip
    return sample


def sample_backward(
    logits: Tensor, grad: Tensor, later: Tensor, keep: Tensor, direct: Tensor, uniform: float, classes: int, out: Tensor
) -> Tensor:
    """Write `direct` plus the gradient of the logits [R, S * C] to `out`: samples pass it straight to probabilities.

    The gradient of the samples is `grad + later * keep`, `keep` [R] a factor of each row.
    """
    variables = logits.shape[-1] // classes
    rows, tile = logits.numel() // classes, _tile(logits.numel() // classes, classes, 132)
    _sample_backward[(triton.cdiv(rows, tile["R"]),)](
        logits, grad, later, keep, direct, out, rows, UNIFORM=uniform, S=variables, C=classes, **tile
    )
    return out


def gru_forward(
    gates: Tensor, bias: Tensor, deter: Tensor, blocks: int, keep: Tensor | None, out: Tensor, code: Tensor
) -> None:
    """Write the next `deter` [R, D] of a block-diagonal GRU to `out`, and rounded to `code`.

    `gates` [R, blocks * 3 * D / blocks] are the products before their `bias`; `keep` [R] is a factor of each `deter`.
    """
    block = 1024 if deter.numel() > 2**18 else 256
    _gru[(triton.cdiv(deter.numel(), block),)](
        gates, bias, deter, keep, out, code, deter.numel(),
        D=deter.shape[-1], SIZE=deter.shape[-1] // blocks, MASKED=keep is not None, BLOCK=block,
    )  # fmt: skip


def gru_backward(
    gates: Tensor, bias: Tensor, deter: Tensor, blocks: int, keep: Tensor, grad: Tensor, product: Tensor,
    direct: Tensor, later: Tensor, keep_later: Tensor, gates_grad: Tensor,
) -> None:  # fmt: skip
    """Write the gradients of the gates to `gates_grad`, and that of the masked `deter` past the gates to `direct`.

    The gradient of the result is `grad + product + (direct + later) * keep_later`, with `direct` of the step after.
    """
    _gru_backward[(triton.cdiv(deter.numel(), 256),)](
        gates, bias, deter, keep, grad, product, direct, later, keep_later, gates_grad, deter.numel(),
        D=deter.shape[-1], SIZE=deter.shape[-1] // blocks, BLOCK=256,
    )  # fmt: skip


class NormSilu(torch.autograd.Function):
    """`norm_silu_forward` of one matrix, differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return norm_silu_forward(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        out = torch.empty_like(x)
        shares = norm_silu_backward(grad.contiguous(), x, weight, ctx.eps, out)
        return out, shares.sum(0), None


def norm_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return silu(rms_norm(x) * weight) of x [*, N]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    result: Tensor = NormSilu.apply(rows, weight, eps)
    return result.view(x.shape)
