"""A population of controllers: who is tried where, how they fared, and the next generation by CMA-ES."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.ops.cma import Search, begin, draw, learn

NONE = -1  # no trial: acts as the mean of the distribution


class Evolution:
    """Each of P candidates has several trials, numbered round by round: trial t is one of candidate t % P."""

    def __init__(
        self,
        size: int,
        population: int,
        trials: int,
        sigma: float,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self.population, self.generator, self.device = population, generator, device
        self.search = begin(size, sigma)
        self.candidates: Tensor  # [P, D]
        self.returns = np.zeros(population * trials)
        self.done = np.zeros(population * trials, bool)
        self.turn = 0  # whose trial is next
        self._draw()

    @property
    def complete(self) -> bool:
        return bool(self.done.all())

    def assign(self, trial: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Trials [N] of the environments, of which some are `fresh` [N] at the start of an episode.

        Those take the next ones that nobody has done or is at, in turn, so that all are tried even while nobody notes
        how they fared; where none is left they wait, in no trial.
        """
        if not fresh.any():
            return trial
        open_ones = ~self.done
        busy = trial[~fresh]
        open_ones[busy[busy >= 0]] = False
        free = ((np.flatnonzero(np.roll(open_ones, -self.turn)) + self.turn) % len(open_ones))[: int(fresh.sum())]
        if len(free):
            self.turn = int(free[-1] + 1) % len(open_ones)
        assigned = trial.copy()
        assigned[np.flatnonzero(fresh)] = np.pad(free, (0, int(fresh.sum()) - len(free)), constant_values=NONE)
        return assigned

    def controllers(self, trial: np.ndarray) -> Tensor:
        """Parameters [N, D] of whoever is at these trials."""
        row = np.where(trial < 0, self.population, trial % self.population)
        return self._rows[torch.from_numpy(row).to(self.device)]

    def note(self, trial: np.ndarray, total: np.ndarray) -> None:
        self.returns[trial] = total
        self.done[trial] = True

    def next_generation(self) -> dict[str, float]:
        """Learn from all trials and draw anew; what is worth telling."""
        fitness = self.returns.reshape(-1, self.population).mean(0)
        self.search = learn(self.search, self.candidates, torch.from_numpy(fitness))
        self.done[:] = False
        self.returns[:] = 0
        self.turn = 0
        self._draw()
        return {
            "fitness_mean": float(fitness.mean()),
            "fitness_best": float(fitness.max()),
            "sigma": float(self.search.sigma),
            "generation": int(self.search.generation),
        }

    def begin_at(self, mean: Tensor) -> None:
        """Before anything is tried: around there instead of around nothing."""
        self.candidates = self.candidates + (mean - self.search.mean)
        self.search = self.search._replace(mean=mean.clone())
        self._prepare()

    def _draw(self) -> None:
        noise = torch.randn(self.population, len(self.search.mean), generator=self.generator, dtype=torch.float64)
        self.candidates = draw(self.search, noise)
        self._prepare()

    def _prepare(self) -> None:
        """As networks compute: the candidates, and after them the mean."""
        self._rows = torch.cat([self.candidates, self.search.mean[None]]).float().to(self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "search": dict(self.search._asdict()),
            "candidates": self.candidates,
            "returns": self.returns.copy(),
            "done": self.done.copy(),
            "turn": self.turn,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.search = Search(**state["search"])
        self.candidates = state["candidates"]
        self.returns, self.done = state["returns"].copy(), state["done"].copy()
        self.turn = state.get("turn", 0)  # older checkpoints begin at the first
        self._prepare()
