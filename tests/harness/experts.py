"""Experts that look at pictures, and two who do not."""

from __future__ import annotations

import numpy as np

from cadenza.envs.toys.toy import Dot


def to_the_middle(obs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """For toy/dot: the push that brings the square there, or nearest to it."""
    top, left = np.argwhere(obs[0] > 128).min(0)
    place = np.array([left, top]) / (Dot.SIDE - Dot.SQUARE) - 0.5
    return np.clip(-place / Dot.REACH, -1, 1)


def bright_column(obs: np.ndarray, random: np.random.Generator) -> int:
    """For toy/image: the number that it shows."""
    return int(obs[0, 0].argmax()) // 2


def any_push(obs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.uniform(-1, 1, 2)


def any_number(obs: np.ndarray, random: np.random.Generator) -> int:
    return int(random.integers(4))
