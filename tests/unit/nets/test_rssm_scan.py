"""The scan and the imagination of `nets/rssm_scan.py`: the states and gradients of the plain steps; its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.nets import rssm_scan
from cadenza.nets.rssm import RSSM, RSSMState
from harness import plain_kernels

T, B, S, C = 6, 3, 5, 4
SIZES: dict[str, Any] = {"deter": 24, "hidden": 10, "stoch": S, "classes": C, "units": 8, "blocks": 4}


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(prior_layers: int = 2) -> tuple[RSSM, RSSMState]:
    torch.manual_seed(0)
    model = RSSM(3, 7, WorldModelConfig(**SIZES, prior_layers=prior_layers))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    sample = torch.nn.functional.one_hot(torch.randint(C, (B, S)), C).flatten(1).double()
    return model, RSSMState(torch.randn(B, 24).tanh(), sample)


def observed(uses_scan: bool, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return states, logits and all gradients of a random weighted sum of them."""
    model, start = made()
    monkeypatch.setattr(RSSM, "has_kernels", lambda *_: uses_scan)
    monkeypatch.setattr(rssm_scan, "kernels", lambda: plain_kernels)
    embedding, action = torch.randn(T, B, 7, requires_grad=True), torch.randn(T, B, 3)
    first, noise = torch.rand(T, B) < 0.3, torch.rand(T, B, S)
    states = model.observe(embedding, action, first, start, noise)
    results = [*states.state, *states.post, *states.prior]
    torch.stack([(x * torch.randn_like(x)).sum() for x in results]).sum().backward()
    return [*results, embedding.grad, *(p.grad for p in model.parameters())]


def test_the_scan_computes_the_states_and_gradients_of_the_plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, scanned = (observed(uses_scan, monkeypatch) for uses_scan in (False, True))
    torch.testing.assert_close(scanned, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("prior_layers", [0, 1, 2])
def test_the_imagination_takes_the_plain_steps(prior_layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, state = made(prior_layers)
    monkeypatch.setattr(rssm_scan, "kernels", lambda: plain_kernels)
    with torch.no_grad():
        step = rssm_scan.ImaginedWalk(model)
        walk = step.begin(state)
        for _ in range(T):
            action, noise = torch.randn(B, 3), torch.rand(B, S)
            state, walk = model.imagine_step(state, action, noise), step(walk, action, noise)
            torch.testing.assert_close(walk.features(), state.features(), rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(walk.deter, state.deter, rtol=1e-10, atol=1e-12)
