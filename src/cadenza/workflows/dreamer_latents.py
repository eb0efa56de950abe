"""Latent states as the replay keeps them, small, and back.

The deterministic state lies between -1 and 1, where a byte is about as exact as the bfloat16 the authors compute with;
of classes the number is kept (0: none yet).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.nets.rssm import RSSMState

DETER, STOCH = "deter", "stoch"
BYTE = 127


def packed(state: RSSMState, config: WorldModelConfig) -> dict[str, Tensor]:
    """[*, …] to [*, D] and [*, S]."""
    stoch = state.stoch.detach()
    if config.latent == "categorical":
        stoch = stoch.view(*stoch.shape[:-1], config.stoch, -1).argmax(-1).add(1).to(torch.uint8)
    else:
        stoch = stoch.half()
    return {DETER: (state.deter.detach() * BYTE).round().to(torch.int8), STOCH: stoch}


def unpacked(kept: Mapping[str, Tensor], config: WorldModelConfig) -> RSSMState:
    stoch = kept[STOCH]
    if config.latent == "categorical":
        stoch = functional.one_hot(stoch.long(), config.classes + 1)[..., 1:].flatten(-2)
    return RSSMState(kept[DETER].float() / BYTE, stoch.float())


def nothing(count: int, config: WorldModelConfig) -> dict[str, np.ndarray]:
    """So many states of no content, as they are kept."""
    kind = np.uint8 if config.latent == "categorical" else np.float16
    return {DETER: np.zeros((count, config.deter), np.int8), STOCH: np.zeros((count, config.stoch), kind)}
