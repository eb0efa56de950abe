"""Memories against slow loops, and one call against single steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.config.networks import MemoryConfig
from cadenza.nets.memory import Attention, Memory
from cadenza.trees import leaves, map_tree

STEPS, BATCH = 14, (3, 2)
KINDS = ("gru", "lstm", "transformer")


def made(kind: Any, layers: int = 2, context: int = 4) -> Memory:
    torch.manual_seed(0)
    memory = Memory(5, MemoryConfig(type=kind, size=8, layers=layers, heads=2, context=context))
    for parameter in memory.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return memory


def episode_data(resets: bool = True) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, *BATCH, 5, generator=generator)
    first = torch.rand(STEPS, 3, 1, generator=generator).expand(STEPS, *BATCH) < (0.2 if resets else 0)
    assert not resets or first[1:].any()
    return x, first


def carried(memory: Memory) -> Any:
    """Return a carry from the middle of an episode."""
    x = torch.randn(3, *BATCH, 5, generator=torch.Generator().manual_seed(2))
    _, after = memory(x, memory.initial(*BATCH), torch.zeros(3, *BATCH, dtype=torch.bool))
    return map_tree(lambda h: h[-1], after)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_in_one_call_equal_steps_one_by_one(kind: str) -> None:
    memory = made(kind)
    x, first = episode_data()
    carry = carried(memory)
    out, carries = memory(x, carry, first)
    fast, nothing = memory(x, carry, first, carries=False)
    torch.testing.assert_close(fast, out, atol=1e-5, rtol=1e-5)
    assert not list(leaves(nothing))
    for t in range(STEPS):
        one, after = memory(x[t : t + 1], carry, first[t : t + 1])
        carry = map_tree(lambda h: h[0], after)
        torch.testing.assert_close(one[0], out[t], atol=1e-5, rtol=1e-5)
    # going on from what was told after any step is going on from there
    at = STEPS // 2
    middle = map_tree(lambda h: h[at], carries)
    rest, _ = memory(x[at + 1 :], middle, first[at + 1 :])
    torch.testing.assert_close(rest, out[at + 1 :], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_output_after_a_reset_is_independent_of_earlier_steps(kind: str) -> None:
    memory = made(kind)
    x, _ = episode_data()
    first = torch.zeros(STEPS, *BATCH, dtype=torch.bool)
    first[5] = True
    out, _ = memory(x, carried(memory), first)
    fresh, _ = memory(x[5:], memory.initial(*BATCH), first[5:])
    torch.testing.assert_close(out[5:], fresh, atol=1e-5, rtol=1e-5)
    other = x.clone()
    other[:5] += 1.0
    changed, _ = memory(other, carried(memory), first)
    assert not torch.allclose(changed[:5], out[:5])
    torch.testing.assert_close(changed[5:], out[5:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_one_call_equal_those_of_single_steps(kind: str) -> None:
    x, first = episode_data()
    gradients = []
    for carries in (True, False):
        memory = made(kind)
        with torch.no_grad():
            carry = carried(memory)
        (memory(x, carry, first, carries)[0] ** 2).mean().backward()
        gradients.append([p.grad for p in memory.parameters()])
    for slow, fast in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_recurrent_memories_equal_torchs_cells(kind: str) -> None:
    memory = made(kind, layers=1)
    x, first = episode_data(resets=False)
    cell: Any = (torch.nn.GRUCell if kind == "gru" else torch.nn.LSTMCell)(5, 8)
    own: Any = memory.layers[0]
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(cell, name).data = own.cell.get_parameter(f"{name}_l0").data
    carry = carried(memory)
    out, _ = memory(x, carry, first)
    h, c = carry["0"]["h"].flatten(0, 1), carry["0"].get("c", torch.zeros(6, 8)).flatten(0, -2)
    for t in range(STEPS):
        if kind == "gru":
            h = cell(x[t].flatten(0, 1), h)
        else:
            h, c = cell(x[t].flatten(0, 1), (h, c))
        torch.testing.assert_close(out[t].flatten(0, 1), h, atol=1e-5, rtol=1e-5)


def plain_attention(layer: Attention, window: Tensor) -> Tensor:
    """Return the layer's output for the last of the steps [k, size] of one episode, computed by loops."""
    entered = [layer.norms[0](layer.enter(step)) for step in window]
    query = layer.query(entered[-1]).view(layer.heads, -1)
    keys_values = [layer.key_value(step).chunk(2) for step in entered]
    mixed = []
    for head in range(layer.heads):
        keys = torch.stack([key.view(layer.heads, -1)[head] for key, _ in keys_values])
        values = torch.stack([value.view(layer.heads, -1)[head] for _, value in keys_values])
        ages = torch.arange(len(window) - 1, -1, -1)
        weights = torch.softmax(keys @ query[head] / query.shape[1] ** 0.5 + layer.by_age[head, ages], 0)
        mixed.append(weights @ values)
    x = layer.enter(window[-1]) + layer.leave(torch.cat(mixed))
    x = x + layer.narrow(torch.nn.functional.gelu(layer.widen(layer.norms[1](x))))
    return x


def test_attention_uses_exactly_its_context() -> None:
    memory = made("transformer", layers=1, context=4)
    layer: Any = memory.layers[0]
    x, first = episode_data()
    out, _ = memory(x, memory.initial(*BATCH), first)
    for n in range(3):
        begun = 0
        for t in range(STEPS):
            begun = t if first[t, n, 0] else begun
            window = x[max(begun, t - 3) : t + 1, n, 1]
            torch.testing.assert_close(out[t, n, 1], plain_attention(layer, window), atol=1e-5, rtol=1e-5)


def test_attention_with_a_context_of_one_step_has_no_memory() -> None:
    memory = made("transformer", layers=1, context=1)
    x, first = episode_data(resets=False)
    out, carries = memory(x, memory.initial(*BATCH), first)
    alone, _ = memory(x[-1:], memory.initial(*BATCH), first[-1:])
    torch.testing.assert_close(out[-1:], alone)
    assert carries["0"]["seen"].shape == (STEPS, *BATCH, 0, 8)
