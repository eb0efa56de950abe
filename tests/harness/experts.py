"""Experts that use images, and two that ignore them."""

from __future__ import annotations

import numpy as np

from cadenza.envs.toys.toy import Dot


def to_the_middle(obs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return for toy/dot the push that moves the square to the middle, or as close as possible."""
    top, left = np.argwhere(obs[0] > 128).min(0)
    place = np.array([left, top]) / (Dot.SIDE - Dot.SQUARE) - 0.5
    return np.clip(-place / Dot.REACH, -1, 1)


def bright_column(obs: np.ndarray, random: np.random.Generator) -> int:
    """Return for toy/image the number that the image shows."""
    return int(obs[0, 0].argmax()) // 2


def any_push(obs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.uniform(-1, 1, 2)


def any_number(obs: np.ndarray, random: np.random.Generator) -> int:
    return int(random.integers(4))
