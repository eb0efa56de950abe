"""Messages over streams, in place of sockets that workers would inherit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cadenza.envs.pipes import Pipes, PolledPipes

Ends = tuple[PolledPipes, Pipes]


@pytest.fixture
def ends() -> Iterator[Ends]:
    (up_out, up_in), (down_out, down_in) = os.pipe(), os.pipe()
    child = Pipes(os.fdopen(down_out, "rb"), os.fdopen(up_in, "wb"))
    parent = PolledPipes(os.fdopen(up_out, "rb"), os.fdopen(down_in, "wb"))
    yield parent, child
    child.close()
    parent.close()


def test_messages_arrive_in_order_and_whole(ends: Ends) -> None:
    parent, child = ends
    parent.send({"rows": [1, 2]})
    parent.send_bytes(b"step")
    assert child.recv() == {"rows": [1, 2]}
    assert child.recv_bytes() == b"step"
    child.send_bytes(b"+")
    child.send("x" * 100_000)
    assert parent.poll(10)
    assert parent.poll(0)  # the same message
    assert parent.recv_bytes() == b"+"
    assert parent.recv() == "x" * 100_000


def test_poll_returns_false_when_nothing_comes_in_time(ends: Ends) -> None:
    assert not ends[0].poll(0.001)


def test_a_dead_child_is_an_end_for_every_later_call(ends: Ends) -> None:
    parent, child = ends
    child.send_bytes(b"last")
    child.close()
    assert parent.poll(10)
    assert parent.recv_bytes() == b"last"
    for _ in range(2):
        assert parent.poll(10)
        with pytest.raises(EOFError):
            parent.recv_bytes()
    with pytest.raises(ConnectionError):
        parent.send_bytes(b"step")
