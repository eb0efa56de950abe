"""Fused kernels for CUDA, in Triton: norms with activations, samples, the update of a GRU, a step of Adam.

Each replaces four to twelve kernels of torch's. They compute in float32, read and write float32 or bfloat16, and their
grids depend on shapes alone, so that results repeat bit for bit. Letters in shapes: R rows, N numbers of a row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # numbers that a program holds at once
PROGRAMS = 1056  # of a backward pass over many rows: eight for each multiprocessor of an H200


@triton.jit
def _phase(row, number, WIDTH: tl.constexpr, N: tl.constexpr):
    """Return where pixel `number` of the four at `row` is stored, in images twice as wide as `WIDTH`."""
    return row // WIDTH * (4 * WIDTH * N) + row % WIDTH * (2 * N) + number // 2 * (2 * WIDTH * N) + number % 2 * N


@triton.jit
def _norm_silu(
    x, scale, add, more, weight, before, after, rows, x_stride, add_stride, more_stride,
    EPS: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr, SCALED: tl.constexpr, ADDS: tl.constexpr,
    STORES: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    batch, col = row // GROUPS, (row % GROUPS)[:, None] * N + tl.arange(0, BLOCK)[None, :]
    factor = tl.arange(0, BLOCK)[None, :] if WIDTH else col
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
    inner *= tl.load(weight + factor, mask=mask, other=0.0).to(tl.float32)
    if WIDTH:
        place = _phase(batch, row % GROUPS, WIDTH, N)[:, None] + factor
    tl.store(after + place, inner * tl.sigmoid(inner), mask=mask)


@triton.jit
def _norm_silu_backward(
    grad, before, weight, out, weight_grad, rows,
    EPS: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr, PASSES: tl.constexpr,
    WIDTH: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([R, BLOCK], tl.float32)
    for number in range(PASSES):
        row = (tl.program_id(0).to(tl.int64) * PASSES + number) * R + tl.arange(0, R)
        batch, col = row // GROUPS, (row % GROUPS)[:, None] * N + tl.arange(0, BLOCK)[None, :]
        factor = tl.arange(0, BLOCK)[None, :] if WIDTH else col
        mask = (row < rows)[:, None] & (tl.arange(0, BLOCK) < N)[None, :]
        place = batch[:, None] * (GROUPS * N) + col
        source = _phase(batch, row % GROUPS, WIDTH, N)[:, None] + factor if WIDTH else place
        value = tl.load(before + place, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(weight + factor, mask=mask, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(value * value, 1) / N + EPS)[:, None]
        normed = value * inverse
        inner = normed * scale
        gate = tl.sigmoid(inner)
        slope = tl.load(grad + source, mask=mask, other=0.0).to(tl.float32) * gate * (1 + inner * (1 - gate))
        total += slope * normed
        slope *= scale
        tl.store(out + place, inverse * (slope - normed * (tl.sum(slope * normed, 1) / N)[:, None]), mask=mask)
    col = tl.arange(0, BLOCK)
    tl.store(weight_grad + tl.program_id(0).to(tl.int64) * N + col, tl.sum(total, 0), mask=col < N)


@triton.jit
def _pool_norm_silu(
    x, weight, before, index, after, rows,
    EPS: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)[None, :]
    mask, place = (row < rows)[:, None] & (col < N), row[:, None] * N + col
    value = tl.load(x + _phase(row, 0, WIDTH, N)[:, None] + col, mask=mask, other=0.0).to(tl.float32)
    largest = tl.zeros([R, BLOCK], tl.int8)
    for number in tl.static_range(1, 4):
        other = tl.load(x + _phase(row, number, WIDTH, N)[:, None] + col, mask=mask, other=0.0).to(tl.float32)
        largest = tl.where(other > value, number, largest).to(tl.int8)
        value = tl.maximum(value, other)
    tl.store(before + place, value, mask=mask)
    tl.store(index + place, largest, mask=mask)
    inner = value * tl.rsqrt(tl.sum(value * value, 1) / N + EPS)[:, None]
    inner *= tl.load(weight + col, mask=col < N, other=0.0).to(tl.float32)
    tl.store(after + place, inner * tl.sigmoid(inner), mask=mask)


@triton.jit
def _unpool(x, index, out, rows, N: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)[None, :]
    mask, place = (row < rows)[:, None] & (col < N), row[:, None] * N + col
    value, largest = tl.load(x + place, mask=mask, other=0.0), tl.load(index + place, mask=mask, other=0)
    for number in tl.static_range(4):
        target = out + _phase(row, number, WIDTH, N)[:, None] + col
        tl.store(target, tl.where(largest == number, value, 0.0), mask=mask)


@triton.jit
def _sample(
    x, bias, noise, logits, sample, rows,
    UNIFORM: tl.constexpr, S: tl.constexpr, C: tl.constexpr, BIASED: tl.constexpr, STORES: tl.constexpr,
    R: tl.constexpr, BLOCK: tl.constexpr,
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


@triton.jit
def _adam(
    values, grads, means, squares, steps, rate, count,
    LOG1: tl.constexpr, LOG2: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    DECAY: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask, number, size = place < count, tl.load(steps).to(tl.float64), tl.load(rate)
    value, grad = tl.load(values + place, mask=mask), tl.load(grads + place, mask=mask)
    if DECOUPLED:
        value *= 1 - size * DECAY
    else:
        grad += DECAY * value
    mean = BETA1 * tl.load(means + place, mask=mask) + (1 - BETA1) * grad
    square = BETA2 * tl.load(squares + place, mask=mask) + (1 - BETA2) * grad * grad
    first = (1 - tl.exp(number * LOG1)).to(tl.float32)
    second = (1 - tl.exp(number * LOG2)).to(tl.float32)
    value -= size / first * mean / (tl.sqrt(square) / tl.sqrt(second) + EPS)
    tl.store(values + place, value, mask=mask)
    tl.store(means + place, mean, mask=mask)
    tl.store(squares + place, square, mask=mask)


@triton.jit
def _squash(mean, log_std, noise, action, log_prob, rows, N: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)[None, :]
    mask, place = (row < rows)[:, None] & (col < N), row[:, None] * N + col
    draw, size = tl.load(noise + place, mask=mask, other=0.0), tl.load(log_std + place, mask=mask, other=0.0)
    inner = tl.load(mean + place, mask=mask, other=0.0) + tl.exp(size) * draw
    tl.store(action + place, 2 * tl.sigmoid(2 * inner) - 1, mask=mask)
    # log(2 pi) / 2, and the slope of tanh: 2 (log 2 - x - softplus(-2 x)), without overflow
    slope = 2 * (0.6931471805599453 - tl.abs(inner) - tl.log(1 + tl.exp(-2 * tl.abs(inner))))
    density = tl.where(mask, 0.5 * draw * draw + 0.9189385332046727 + size + slope, 0.0)
    tl.store(log_prob + row, -tl.sum(density, 1), mask=row < rows)


@triton.jit
def _squash_backward(
    action, log_std, noise, action_grad, log_prob_grad, mean_grad, log_std_grad, rows,
    N: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)[None, :]
    mask, place = (row < rows)[:, None] & (col < N), row[:, None] * N + col
    value, draw = tl.load(action + place, mask=mask, other=0.0), tl.load(noise + place, mask=mask, other=0.0)
    density = tl.load(log_prob_grad + row, mask=row < rows, other=0.0)[:, None]
    slope = tl.load(action_grad + place, mask=mask, other=0.0) * (1 - value * value) + density * 2 * value
    tl.store(mean_grad + place, slope, mask=mask)
    size = tl.exp(tl.load(log_std + place, mask=mask, other=0.0))
    tl.store(log_std_grad + place, slope * size * draw - density, mask=mask)


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
    width: int = 0,
) -> Tensor:
    """Return silu(rms_norm(x * scale + add + more) * weight) for rows x [R, groups * N], normed by group.

    `scale` [R] is a factor of each row, `weight` [groups * N]. `add` and `more` are matrices [R, …], `add` perhaps a
    vector. `before` receives the sum, `after` the result. With a `width`, rows are pixels of images that wide, groups
    the four pixels in their places in images twice as wide and high, [4 R, N], and `weight` [N] is that of all four.
    """
    rows, size = len(x) * groups, x.shape[1] // groups
    after = torch.empty_like(x, memory_format=torch.contiguous_format) if after is None else after
    tile = _tile(rows, size, 264)
    _norm_silu[(triton.cdiv(rows, tile["R"]),)](
        x, scale, add, more, weight, before, after, rows,
        x.stride(0), 0 if add is None or add.dim() == 1 else add.stride(0), 0 if more is None else more.stride(0),
        EPS=eps, GROUPS=groups, N=size, SCALED=scale is not None, ADDS=(add is not None) + (more is not None),
        STORES=before is not None, WIDTH=width, **tile,
    )  # fmt: skip
    return after


def norm_silu_backward(
    grad: Tensor, before: Tensor, weight: Tensor, eps: float, out: Tensor, weight_grad: Tensor | None = None,
    groups: int = 1, width: int = 0,
) -> Tensor:  # fmt: skip
    """Write the gradient of the sum `before` [R, groups * N] to `out`; return shares of the gradient of `weight`.

    All are contiguous. The shares [P, N] are to be summed; with `weight_grad` [R, groups * N] they are those of rows.
    """
    rows, size = len(before) * groups, before.shape[1] // groups
    tile, passes = _tile(rows, size), 1
    if weight_grad is None:
        passes = max(1, triton.cdiv(rows, tile["R"] * PROGRAMS))
        weight_grad = before.new_empty(triton.cdiv(rows, tile["R"] * passes), size, dtype=torch.float32)
    else:
        tile |= {"R": 1, "num_warps": max(1, min(8, tile["BLOCK"] // 256))}
    _norm_silu_backward[(triton.cdiv(rows, tile["R"] * passes),)](
        grad, before, weight, out, weight_grad, rows, EPS=eps, GROUPS=groups, N=size, PASSES=passes, WIDTH=width, **tile
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


class NormSiluFunction(torch.autograd.Function):
    """`norm_silu_forward` of one matrix, differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, width: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.width = eps, width
        return norm_silu_forward(x, weight, eps, groups=4 if width else 1, width=width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (x, weight), width, out = ctx.saved_tensors, ctx.width, torch.empty_like(ctx.saved_tensors[0])
        grad = grad.to(x.dtype).contiguous()
        shares = norm_silu_backward(grad, x, weight, ctx.eps, out, groups=4 if width else 1, width=width)
        return out, shares.sum(0), None, None


class PoolNormSiluFunction(torch.autograd.Function):
    """The largest of four pixels each, and `norm_silu_forward` of these."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, width: int) -> Tensor:
        size = len(weight)
        rows = x.numel() // (4 * size)
        before, after = x.new_empty(rows, size), x.new_empty(rows, size)
        index, tile = x.new_empty(rows, size, dtype=torch.int8), _tile(rows, size)
        grid = (triton.cdiv(rows, tile["R"]),)
        _pool_norm_silu[grid](x, weight, before, index, after, rows, EPS=eps, N=size, WIDTH=width, **tile)
        ctx.save_for_backward(before, index, weight)
        ctx.settings = eps, width, x.shape
        return after

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (before, index, weight), (eps, width, shape) = ctx.saved_tensors, ctx.settings
        small, out = torch.empty_like(before), before.new_empty(shape)
        shares = norm_silu_backward(grad.to(before.dtype).contiguous(), before, weight, eps, small)
        tile = _tile(*before.shape)
        grid = (triton.cdiv(len(before), tile["R"]),)
        _unpool[grid](small, index, out, len(before), N=len(weight), WIDTH=width, **tile)
        return out, shares.sum(0), None, None


def norm_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return silu(rms_norm(x) * weight) of x [*, N]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    result: Tensor = NormSiluFunction.apply(rows, weight, eps, 0)  # type: ignore[no-untyped-call]
    return result.view(x.shape)


def norm_silu_doubled(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return images [B, 2 H, 2 W, N] with norm and SiLU; x [B, H, W, 4 * N] has the four pixels next to each other."""
    batch, height, width, size = x.shape
    rows = x.reshape(-1, size).contiguous()
    result: Tensor = NormSiluFunction.apply(rows, weight, eps, width)  # type: ignore[no-untyped-call]
    return result.view(batch, 2 * height, 2 * width, size // 4)


def pool_norm_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the largest of four pixels each, with norm and SiLU, [B, H, W, N].

    x [B, 2 H, 2 W, N], or with the four next to each other [B, H, W, 4 * N].
    """
    batch, height, width, size = x.shape
    if is_large := size == len(weight):
        height, width = height // 2, width // 2
    settings = (weight, eps, width if is_large else 1)
    result: Tensor = PoolNormSiluFunction.apply(x.contiguous(), *settings)  # type: ignore[no-untyped-call]
    return result.view(batch, height, width, -1)


class Squash(torch.autograd.Function):
    """Samples of normals squashed by tanh, and their log-probabilities, differentiable."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        rows, size = mean.shape
        action, log_prob, tile = torch.empty_like(mean), mean.new_empty(rows), _tile(rows, size, 132)
        _squash[(triton.cdiv(rows, tile["R"]),)](mean, log_std, noise, action, log_prob, rows, N=size, **tile)
        ctx.save_for_backward(action, log_std, noise)
        return action, log_prob

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        action, log_std, noise = ctx.saved_tensors
        (rows, size), results = action.shape, (torch.empty_like(action), torch.empty_like(action))
        tile, grads = _tile(rows, size, 132), tuple(grad.contiguous() for grad in grads)
        _squash_backward[(triton.cdiv(rows, tile["R"]),)](
            action, log_std, noise, *grads, *results, rows, N=size, **tile
        )
        return *results, None


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(mean + exp(log_std) * noise) [*, N] and their log-probabilities [*], all in float32."""
    flat = (x.reshape(-1, x.shape[-1]).contiguous() for x in (mean, log_std, noise))
    action, log_prob = Squash.apply(*flat)  # type: ignore[no-untyped-call]
    return action.view(mean.shape), log_prob.view(mean.shape[:-1])


def adam(
    values: Tensor, grads: Tensor, means: Tensor, squares: Tensor, steps: Tensor, rate: Tensor,
    betas: Sequence[float], eps: float, decay: float, decoupled: bool,
) -> None:  # fmt: skip
    """Move a vector of parameters and its averages; `steps` counts this step already.

    Torch's kernel gives each block 65,536 numbers, which leaves most of the device idle for small networks.
    """
    _adam[(triton.cdiv(values.numel(), 1024),)](
        values, grads, means, squares, steps, rate, values.numel(),
        LOG1=math.log(betas[0]) if betas[0] else -1e9, LOG2=math.log(betas[1]) if betas[1] else -1e9,
        BETA1=betas[0], BETA2=betas[1], EPS=eps, DECAY=decay, DECOUPLED=decoupled, BLOCK=1024,
    )  # fmt: skip
