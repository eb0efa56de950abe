from __future__ import annotations

import random

import numpy as np
import torch

from cadenza.base.streams import Streams


def test_streams_are_independent_of_each_other_and_of_their_order_of_creation() -> None:
    a, b = Streams(7), Streams(7)
    first = a.torch("act").initial_seed()
    b.numpy("other").random(10)
    assert b.torch("act").initial_seed() == first
    assert a.torch("minibatches").initial_seed() != first
    assert Streams(8).torch("act").initial_seed() != first
    assert Streams(7, branch=(1,)).torch("act").initial_seed() != first


def test_a_restored_stream_continues_its_sequence() -> None:
    def draw(streams: Streams) -> list[float]:
        return [
            float(streams.numpy("n").random()),
            float(torch.rand((), generator=streams.torch("t"))),
            random.random(),
            float(np.random.rand()),
            float(torch.rand(())),
        ]

    streams = Streams(3)
    streams.seed_globals()
    draw(streams)
    state = streams.state_dict()
    expected = draw(streams)
    fresh = Streams(3)
    fresh.load_state_dict(state)
    assert draw(fresh) == expected


def test_seeding_the_globals_makes_networks_the_same() -> None:
    def weights() -> torch.Tensor:
        Streams(5).seed_globals()
        return torch.nn.Linear(3, 3).weight.detach()

    assert torch.equal(weights(), weights())
