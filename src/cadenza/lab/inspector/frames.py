"""Frames of one episode: kept while it goes on, and put in a row, so that a policy can look at many at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np

from cadenza.trees import map_tree
from cadenza.types import Frame, Step

FIELDS = attrgetter(*(field.name for field in fields(Frame)))


def own(frame: Frame) -> Frame:
    """With arrays of its own: an environment may write into those it gave."""
    return Frame(*(map_tree(lambda x: x.copy() if isinstance(x, np.ndarray) else x, part) for part in FIELDS(frame)))


def stack(*arrays: np.ndarray) -> np.ndarray:
    return np.stack(arrays)


def in_a_row(frames: list[Frame], is_first: bool) -> Step:
    """Frames that follow each other as what a vector of so many environments would show."""

    def column(of: Callable[[Frame], Any], otherwise: Callable[[np.ndarray], np.ndarray]) -> Any:
        """Where some have nothing, what stands for it; where none has, nothing."""
        parts = [of(frame) for frame in frames]
        given = next((part for part in parts if part is not None), None)
        if given is None:
            return None
        return map_tree(stack, *(map_tree(otherwise, given) if part is None else part for part in parts))

    reward = map_tree(stack, *(frame.reward for frame in frames))
    obs = map_tree(stack, *(frame.obs for frame in frames))
    return Step(
        obs=obs,
        final_obs=obs,
        reward=reward,
        terminated=np.array([frame.terminated for frame in frames]),
        truncated=np.array([frame.truncated for frame in frames]),
        is_first=np.array([is_first and n == 0 for n in range(len(frames))]),
        active=column(lambda frame: frame.active, np.ones_like) or map_tree(lambda x: np.ones(x.shape, bool), reward),
        died=column(lambda frame: frame.died, np.zeros_like) or map_tree(lambda x: np.zeros(x.shape, bool), reward),
        mask=column(lambda frame: frame.mask, np.ones_like) or {},
        state=column(lambda frame: frame.state, np.zeros_like),
    )
