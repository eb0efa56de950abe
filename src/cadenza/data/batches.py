"""Batches drawn from a replay: transitions of n steps, sequences, windows, stretches; and all of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cadenza.types import Tree


@dataclass(frozen=True)
class Transitions:
    """A batch of transitions of up to n steps each; the arrays are copies."""

    groups: dict[str, dict[str, Tree]]  # obs, action, reward, next_obs, terminated, active, (next_)mask?, extras …
    discount: np.ndarray  # [B] float32, the factor of next_obs's value: gamma to the power of the steps really taken
    index: np.ndarray  # [B] their slots, for `update_priorities`
    weight: np.ndarray | None = None  # [B] float32 importance weights, where there are priorities
    state: np.ndarray | None = None  # [B, …] where the environment has a central state


@dataclass(frozen=True)
class Sequences:
    """A batch of consecutive rows, [B, L, …]; a new episode may begin within a sequence, where `is_first` is set.

    A row that is `last` holds the final observation of its episode (terminal if `terminated`), and no action.
    """

    groups: dict[str, dict[str, Tree]]  # obs, action, reward (for that action), active, died, mask?, extras …
    is_first: np.ndarray  # [B, L] the first row of an episode
    terminated: np.ndarray  # [B, L] in an episode's last transition and in its last row
    truncated: np.ndarray  # [B, L] likewise
    last: np.ndarray  # [B, L]
    index: np.ndarray  # [B, L]
    state: np.ndarray | None = None  # [B, L, …]


@dataclass(frozen=True)
class Windows:
    """A batch of transitions with the observations up to them and the actions from them on, within their episodes."""

    groups: dict[str, dict[str, Tree]]  # obs [B, behind, A, …], action [B, on, A, …], active [B, on, A]


@dataclass(frozen=True)
class Stretches:
    """A batch of L steps each, within one episode; where it ends earlier, its last row is repeated."""

    groups: dict[str, dict[str, Tree]]  # obs [B, L + 1, …]; action, reward, active, … [B, L, …]
    valid: np.ndarray  # [B, L] the step was taken in this episode
    terminated: np.ndarray  # [B, L] the step terminated the episode
    index: np.ndarray  # [B] the slots they begin in, for `update_priorities`
    weight: np.ndarray | None = None  # [B] float32 importance weights, where there are priorities


class Past(NamedTuple):
    """All rows in the order they were collected, each episode from its first row to its last, to write a dataset."""

    pieces: Iterable[dict[str, np.ndarray]]  # consecutive rows by path
    partial: np.ndarray  # numbers of rows in stretches that are parts of longer episodes
    stack: int = 1
