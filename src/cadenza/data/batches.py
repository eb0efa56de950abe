"""What is drawn from a replay: transitions of n steps, sequences, windows, stretches; and all that it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cadenza.types import Tree


@dataclass(frozen=True)
class Transitions:
    """A batch of n steps each; the arrays are its own."""

    groups: dict[str, dict[str, Tree]]  # obs, action, reward, next_obs, terminated, active, (next_)mask?, extras …
    discount: np.ndarray  # [B] float32, what the value of next_obs counts: gamma to the number of steps really walked
    index: np.ndarray  # [B] where they lie, for `update_priorities`
    weight: np.ndarray | None = None  # [B] float32 importance weights, where there are priorities
    state: np.ndarray | None = None  # [B, …] where the environment has a central state


@dataclass(frozen=True)
class Sequences:
    """A batch of stretches of streams, [B, L, …]; a new episode may begin within one, and `is_first` says so.

    In a row that is `last`, what was seen is the end of its episode (terminal if `terminated`); nothing was done there.
    """

    groups: dict[str, dict[str, Tree]]  # obs, action, reward (for that action), active, died, mask?, extras …
    is_first: np.ndarray  # [B, L] nothing before belongs to it
    terminated: np.ndarray  # [B, L] in an episode's last transition and in its last row
    truncated: np.ndarray  # [B, L] likewise
    last: np.ndarray  # [B, L]
    index: np.ndarray  # [B, L]
    state: np.ndarray | None = None  # [B, L, …]


@dataclass(frozen=True)
class Windows:
    """A batch of moments with what was seen up to them and what was done from them on, within their episodes."""

    groups: dict[str, dict[str, Tree]]  # obs [B, behind, A, …], action [B, on, A, …], active [B, on, A]


@dataclass(frozen=True)
class Stretches:
    """A batch of L steps each, within one episode; where it ends before, what was reached last is repeated."""

    groups: dict[str, dict[str, Tree]]  # obs [B, L + 1, …]; action, reward, active, … [B, L, …]
    taken: np.ndarray  # [B, L] whether there was such a step
    terminated: np.ndarray  # [B, L] it was the last, and nothing can follow
    index: np.ndarray  # [B] where they begin, for `update_priorities`
    weight: np.ndarray | None = None  # [B] float32 importance weights, where there are priorities


class Past(NamedTuple):
    """Rows in the order they happened, each stretch from its first row to its last: what a dataset is made of."""

    pieces: Iterable[dict[str, np.ndarray]]  # consecutive rows by path
    partial: np.ndarray  # numbers of rows in stretches of which there was more, before or after
    stack: int = 1
