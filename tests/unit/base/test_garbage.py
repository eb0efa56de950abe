"""When garbage is collected."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cadenza.base import garbage
from cadenza.lab.playback import load_policy
from cadenza.records.folder import RunFolder


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_collections_are_rare_only_until_a_run_begins() -> None:
    usual = gc.get_threshold()
    garbage.collect_rarely()
    assert gc.get_threshold() == (garbage.IMPORTED, *usual[1:])
    garbage.collect_as_usual()
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() > 0  # what was imported is not searched again


def test_a_program_that_set_nothing_keeps_its_own_collections() -> None:
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    garbage.collect_as_usual()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual, frozen)


def test_a_command_that_plays_collects_as_usual(whole: RunFolder) -> None:
    usual = gc.get_threshold()
    garbage.collect_rarely()
    load_policy(whole)
    assert gc.get_threshold() == usual
