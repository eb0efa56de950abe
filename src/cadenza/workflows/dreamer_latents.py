"""Compressed latent states, as the replay stores them.

The deterministic state lies in [-1, 1], where a byte is about as exact as the bfloat16 that the authors compute with.
Of a categorical variable the number of the class is stored, counted from 1; 0 stands for a state that is unknown.
Of a user's dynamics, whose states may be anything, both parts are stored in half precision (`plain`).
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


def compress(state: RSSMState, config: WorldModelConfig, plain: bool = False) -> dict[str, Tensor]:
    """Return a state [*, …] as small tensors: bytes [*, D], and classes or half-precision numbers [*, S]."""
    stoch = state.stoch.detach()
    if plain:
        return {DETER: state.deter.detach().half(), STOCH: stoch.half()}
    if config.latent == "categorical":
        stoch = stoch.view(*stoch.shape[:-1], config.stoch, -1).argmax(-1).add(1).to(torch.uint8)
    else:
        stoch = stoch.half()
    return {DETER: (state.deter.detach() * BYTE).round().to(torch.int8), STOCH: stoch}


def decompress(latents: Mapping[str, Tensor], config: WorldModelConfig, plain: bool = False) -> RSSMState:
    """Return the state [*, …] that `compress` made small, up to rounding; zeros for an unknown one."""
    stoch = latents[STOCH]
    if plain:
        return RSSMState(latents[DETER].float(), stoch.float())
    if config.latent == "categorical":
        stoch = functional.one_hot(stoch.long(), config.classes + 1)[..., 1:].flatten(-2)
    return RSSMState(latents[DETER].float() / BYTE, stoch.float())


def unknown(count: int, config: WorldModelConfig, plain: bool = False) -> dict[str, np.ndarray]:
    """Return `count` compressed states that stand for unknown ones."""
    if plain:
        return {
            DETER: np.zeros((count, config.deter), np.float16),
            STOCH: np.zeros((count, config.stoch_size), np.float16),
        }
    dtype = np.uint8 if config.latent == "categorical" else np.float16
    return {DETER: np.zeros((count, config.deter), np.int8), STOCH: np.zeros((count, config.stoch), dtype)}
