"""The recurrent state-space model against slow references, and resets at episode starts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.nets.rssm import RSSM, RSSMState, clip_action

KINDS = {
    "planet": {"latent": "gaussian", "cell": "gru", "norm": "none", "activation": "relu", "prior_layers": 1},
    "v2": {"cell": "norm_gru", "norm": "none", "activation": "elu", "prior_layers": 1, "unimix": 0.0},
    "v3": {},
}


def made(kind: str, **more: Any) -> RSSM:
    torch.manual_seed(0)
    small = {"deter": 8, "hidden": 6, "stoch": 3, "classes": 4, "blocks": 2}
    return RSSM(2, 5, WorldModelConfig(**{**small, **KINDS[kind], **more}))


def inputs(rssm: RSSM, steps: int, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    embedding, action = torch.randn(steps, batch, 5, generator=generator), torch.randn(steps, batch, 2)
    first = torch.zeros(steps, batch, dtype=torch.bool)
    return embedding, action, first, rssm.noise(steps, batch, generator=generator)


def example_state(rssm: RSSM, batch: int) -> RSSMState:
    generator = torch.Generator().manual_seed(2)
    return RSSMState(*(torch.randn(x.shape, generator=generator) for x in rssm.initial(batch)))


@pytest.mark.parametrize("kind", KINDS)
def test_observing_a_sequence_equals_single_steps(kind: str) -> None:
    rssm = made(kind)
    embedding, action, first, noise = inputs(rssm, 4, 3)
    first[2, 1] = True
    state = example_state(rssm, 3)
    whole = rssm.observe(embedding, action, first, state, noise)
    for t in range(4):
        one = slice(t, t + 1)
        step = rssm.observe(embedding[one], action[one], first[one], state, noise[one])
        state = RSSMState(step.state.deter[0], step.state.stoch[0])
        torch.testing.assert_close(state, RSSMState(whole.state.deter[t], whole.state.stoch[t]))
        for part, all_parts in zip((*step.post, *step.prior), (*whole.post, *whole.prior), strict=True):
            torch.testing.assert_close(part[0], all_parts[t])


@pytest.mark.parametrize("kind", KINDS)
def test_state_and_action_are_reset_at_episode_starts(kind: str) -> None:
    """The state and the action must both be reset."""
    rssm = made(kind)
    embedding, action, first, noise = inputs(rssm, 1, 2)
    first[0, 0] = True
    a = rssm.observe(embedding, action, first, example_state(rssm, 2), noise).state
    blank = rssm.observe(embedding, torch.zeros_like(action), first, rssm.initial(2), noise).state
    torch.testing.assert_close(a.deter[0, 0], blank.deter[0, 0])
    assert not torch.allclose(a.deter[0, 1], blank.deter[0, 1])
    other_action = rssm.observe(embedding, action + 0.5, first, example_state(rssm, 2), noise).state
    assert torch.equal(a.deter[0, 0], other_action.deter[0, 0])
    assert not torch.equal(a.deter[0, 1], other_action.deter[0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_actions_outside_of_the_bounds_act_like_the_bounds(kind: str) -> None:
    rssm = made(kind)
    state, noise = example_state(rssm, 1), rssm.noise(1, generator=torch.Generator())
    far, edge = (rssm.imagine_step(state, torch.tensor([[a, -0.5]]), noise).deter for a in (7.0, 1.0))
    assert torch.equal(far, edge)
    action = torch.tensor([3.0, 0.25], requires_grad=True)
    clip_action(action).sum().backward()
    assert action.grad is not None
    assert action.grad.tolist() == pytest.approx([1 / 3, 1.0])  # the divisor has no gradient


def norm_silu(x: torch.Tensor, scale: torch.Tensor) -> list[float]:
    """Return RMS norm and SiLU of a vector, computed by loops."""
    numbers = x.tolist()
    root = math.sqrt(sum(n * n for n in numbers) / len(numbers) + 1e-4)
    scaled = [n / root * s for n, s in zip(numbers, scale.tolist(), strict=True)]
    return [n / (1 + math.exp(-n)) for n in scaled]


def test_block_cell_equals_the_published_formula() -> None:
    """Each block has one matrix for its part of `deter` and all three inputs, and gates from its part."""
    rssm = made("v3").double()
    cell: Any = rssm.cell
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.randn_like(parameter))
        deter, stoch, action = (torch.randn(1, n, dtype=torch.float64) for n in (8, 12, 2))
        got = cell(deter, stoch, cell.prepare(action))[0]
        shared = torch.tensor(
            [
                number
                for net, x in ((cell.from_deter, deter), (cell.from_stoch, stoch), (cell.from_action, action))
                for number in norm_silu(net[0](x)[0], net[1][0].weight)
            ],
            dtype=torch.float64,
        )
        inner = []
        for block in range(2):
            rows = slice(4 * block, 4 * block + 4)
            from_inputs = torch.cat([mix.weight[rows] for mix in (cell.mix_deter, cell.mix_stoch, cell.mix_action)], 1)
            matrix = torch.cat([cell.mix_memory[block].T, from_inputs], 1)  # [4, 4 + 18]
            inputs = torch.cat([deter[0, rows], shared])
            inner.append(matrix @ inputs + cell.mix_action.bias[rows])
        hidden = torch.tensor(norm_silu(torch.cat(inner), cell.mix_between[0].weight), dtype=torch.float64)
        for block in range(2):
            gates = hidden[4 * block : 4 * block + 4] @ cell.gates[block] + cell.gate_bias[block, 0]
            for i in range(4):
                reset, candidate, update = (float(gates[4 * gate + i]) for gate in range(3))
                candidate = math.tanh(candidate / (1 + math.exp(-reset)))
                update = 1 / (1 + math.exp(1 - update))
                expected = update * candidate + (1 - update) * float(deter[0, 4 * block + i])
                assert float(got[4 * block + i]) == pytest.approx(expected, rel=1e-9)


def test_initial_weights_have_the_published_scale() -> None:
    rssm = made("v3", deter=256, hidden=64, blocks=4)
    cell: Any = rssm.cell
    mixing = 1 / math.sqrt(4 * (64 + 3 * 64))  # a block's own 64 and the three inputs, counted for all four blocks
    mixes = [(part, mixing) for part in (cell.mix_memory, cell.mix_stoch.weight, cell.mix_deter.weight)]
    for parameter, expected in (*mixes, (cell.gates, 1 / math.sqrt(256))):
        weight = parameter.detach()
        assert float(weight.std()) == pytest.approx(expected, rel=0.05)
        assert float(weight.abs().max()) <= 2 * 1.1368 * expected + 1e-6
    assert not cell.gate_bias.any()


def test_samples_follow_their_distributions_and_are_differentiable() -> None:
    rssm = made("planet")
    output, noise = torch.randn(2, 6, requires_grad=True), torch.randn(2, 3)
    mean, std = rssm.parameters_of(output)
    sample = rssm.sample(output, noise)
    torch.testing.assert_close(sample, mean + std * noise)
    (gradient,) = torch.autograd.grad(sample.sum(), output)
    assert torch.equal(gradient[:, :3], torch.ones(2, 3))
    torch.testing.assert_close(gradient[:, 3:], noise * torch.sigmoid(output[:, 3:]))  # of a softplus
    std = rssm.parameters_of(rssm.prior(torch.full((1, 8), -50.0)))[1].detach()
    assert float(std.min()) >= 0.1
    one_hot = made("v3").sample(torch.zeros(2, 12), torch.tensor([[0.1, 0.3, 0.9]] * 2))
    assert one_hot[0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]
