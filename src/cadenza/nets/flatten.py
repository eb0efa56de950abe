"""Observations of any space as one vector per agent."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from cadenza.types import Tree


def flat_size(space: spaces.Space[Any]) -> int:
    """Length of the vector `flatten` makes of an observation in `space`."""
    return int(spaces.flatdim(space))


def flatten(space: spaces.Space[Any], obs: Tree) -> Tensor:
    """[*, …] (or a dict of such) to [*, flat_size]: numbers as floats, categories one-hot, entries side by side."""
    if isinstance(space, spaces.Dict):
        return torch.cat([flatten(part, obs[key]) for key, part in space.spaces.items()], -1)
    if isinstance(space, spaces.Tuple):  # adapters key a tuple's entries "0", "1", …
        return torch.cat([flatten(part, obs[str(index)]) for index, part in enumerate(space.spaces)], -1)
    if isinstance(space, spaces.Discrete):
        return one_hot(obs - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        columns = enumerate(zip(space.nvec.ravel(), space.start.ravel(), strict=True))
        flat = obs.flatten(-len(space.nvec.shape))
        return torch.cat([one_hot(flat[..., i] - int(start), int(n)) for i, (n, start) in columns], -1)
    shape = space.shape or ()
    numbers: Tensor = obs.float() / 255 if obs.dtype == torch.uint8 else obs.float()  # bytes are pixels
    return numbers.flatten(-len(shape)) if shape else numbers.unsqueeze(-1)


def one_hot(index: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(index.long(), classes).float()
