"""Random actions, for warm-up phases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from cadenza.types import GroupSpec, Step


def random_actions(groups: Mapping[str, GroupSpec], step: Step, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw uniform actions [N, A, …] for every group (normal ones where an action has no bounds), respecting masks."""
    return {name: _random_group(group, step, name, random) for name, group in groups.items()}


def _random_group(group: GroupSpec, step: Step, name: str, random: np.random.Generator) -> np.ndarray:
    space, shape = group.action, step.active[name].shape  # [N, A]
    if isinstance(space, spaces.Discrete):
        scores = random.random((*shape, int(space.n)))
        if name in step.mask:
            scores = np.where(step.mask[name], scores, -1.0)
        return np.asarray(scores.argmax(-1) + space.start)
    if isinstance(space, spaces.Box):
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0)
        uniform = low + (high - low) * random.random((*shape, *space.shape))
        return np.where(bounded, uniform, random.standard_normal(uniform.shape)).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete) and name in step.mask:
        scores = np.where(step.mask[name], random.random((*shape, int(space.nvec.sum()))), -1.0)
        columns = np.split(scores, np.cumsum(space.nvec.ravel())[:-1], -1)
        choices = np.stack([column.argmax(-1) for column in columns], -1)
        return np.asarray(choices.reshape(*shape, *space.shape) + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(np.floor(random.random((*shape, *space.shape)) * space.nvec).astype(np.int64) + space.start)
    if isinstance(space, spaces.MultiBinary):
        return random.integers(0, 2, (*shape, *space.shape), dtype=np.int8)
    raise TypeError(f"no random actions for {space}")
