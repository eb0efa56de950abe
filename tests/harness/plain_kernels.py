"""The functions of `nets/fused.py` in plain torch, on any device and in any precision: the reference of its kernels."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
from torch import Tensor


def norm_silu_forward(x, weight, eps, add=None, more=None, scale=None, groups=1, before=None, after=None):
    value = x if scale is None else x * scale[:, None]
    for addend in (add, more):
        value = value if addend is None else value + addend
    if before is not None:
        before.copy_(value)
    inner = normed(value, eps, groups)[0] * weight
    result = inner * torch.sigmoid(inner)
    return result if after is None else after.copy_(result)


def normed(value: Tensor, eps: float, groups: int) -> tuple[Tensor, Tensor]:
    grouped = value.unflatten(-1, (groups, -1))
    inverse = torch.rsqrt(grouped.square().mean(-1, keepdim=True) + eps)
    return (grouped * inverse).flatten(-2), inverse


def norm_silu_backward(grad, before, weight, eps, out, weight_grad=None, groups=1):
    norm, inverse = normed(before, eps, groups)
    inner = norm * weight
    gate = torch.sigmoid(inner)
    slope = grad * gate * (1 + inner * (1 - gate))
    shares = slope * norm
    slope = (slope * weight).unflatten(-1, (groups, -1))
    norm = norm.unflatten(-1, (groups, -1))
    out.copy_((inverse * (slope - norm * (slope * norm).mean(-1, keepdim=True))).flatten(-2))
    return shares if weight_grad is None else weight_grad.copy_(shares)


def sample_forward(x, noise, uniform, classes, bias=None, logits=None, sample=None):
    value = x if bias is None else x + bias
    if logits is not None:
        logits.copy_(value)
    share = (1 - uniform) * value.unflatten(-1, (-1, classes)).softmax(-1) + uniform / classes
    cumulative = share.cumsum(-1)
    index = (cumulative <= noise[..., None] * cumulative[..., -1:]).sum(-1).clamp(max=classes - 1)
    one_hot = torch.nn.functional.one_hot(index, classes).flatten(-2).to(x.dtype)
    return one_hot if sample is None else sample.copy_(one_hot)


def sample_backward(logits, grad, later, keep, direct, uniform, classes, out):
    share = logits.unflatten(-1, (-1, classes)).softmax(-1)
    slope = (1 - uniform) * (grad + later * keep[:, None]).unflatten(-1, (-1, classes))
    return out.copy_(direct + (share * (slope - (share * slope).sum(-1, keepdim=True))).flatten(-2))


def by_gate(gates: Tensor, bias: Tensor, blocks: int) -> tuple[Tensor, ...]:
    """Return the gates, each [R, D]."""
    return tuple(x.flatten(1) for x in (gates + bias.flatten()).unflatten(-1, (blocks, 3, -1)).unbind(2))


def gru_forward(gates, bias, deter, blocks, keep, out, code):
    reset, candidate, update = by_gate(gates, bias, blocks)
    before = deter if keep is None else deter * keep[:, None]
    candidate = torch.tanh(torch.sigmoid(reset) * candidate)
    out.copy_(torch.lerp(before, candidate, torch.sigmoid(update - 1)))
    code.copy_(out)


def gru_backward(gates, bias, deter, blocks, keep, grad, product, direct, later, keep_later, gates_grad):
    reset, inner, update = by_gate(gates, bias, blocks)
    before = deter * keep[:, None]
    slope = grad + product + (direct + later) * keep_later[:, None]
    reset, update = torch.sigmoid(reset), torch.sigmoid(update - 1)
    candidate = torch.tanh(reset * inner)
    direct.copy_(slope * (1 - update))
    outer = slope * update * (1 - candidate.square())
    parts = (outer * inner * reset * (1 - reset), outer * reset, slope * (candidate - before) * update * (1 - update))
    gates_grad.copy_(torch.stack([x.unflatten(1, (blocks, -1)) for x in parts], 2).flatten(1))
