"""A population of controllers: their trials, the returns of these, and the next generation by CMA-ES."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.ops.cma import Search, begin, draw, learn

NONE = -1  # no trial: acts as the mean of the distribution


class Evolution:
    """P candidates with several trials each, numbered round by round: trial t is one of candidate t % P."""

    def __init__(
        self, size: int, population: int, trials: int, sigma: float, generator: torch.Generator, device: torch.device
    ) -> None:
        self.population, self.generator, self.device = population, generator, device
        self.search = begin(size, sigma)
        self.candidates: Tensor  # [P, D]
        self.returns = np.zeros(population * trials)
        self.has_return = np.zeros(population * trials, bool)
        self.turn = 0  # the next trial to assign
        self._draw()

    @property
    def complete(self) -> bool:
        """Return whether every trial of this generation has a return."""
        return bool(self.has_return.all())

    def assign(self, trial: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Return the trials [N] of the environments; those that are `fresh` [N] at an episode's start get new ones.

        These are trials that no environment has finished or runs, in turn, so that all are run even before returns are
        recorded. Environments for which no trial is open get `NONE`.
        """
        if not fresh.any():
            return trial
        is_open = ~self.has_return
        busy = trial[~fresh]
        is_open[busy[busy >= 0]] = False
        free = ((np.flatnonzero(np.roll(is_open, -self.turn)) + self.turn) % len(is_open))[: int(fresh.sum())]
        if len(free):
            self.turn = int(free[-1] + 1) % len(is_open)
        assigned = trial.copy()
        assigned[np.flatnonzero(fresh)] = np.pad(free, (0, int(fresh.sum()) - len(free)), constant_values=NONE)
        return assigned

    def controllers(self, trial: np.ndarray) -> Tensor:
        """Return the controllers' parameters [N, D] for trials [N]; for `NONE` the mean of the distribution."""
        row = np.where(trial < 0, self.population, trial % self.population)
        return self._rows[torch.from_numpy(row).to(self.device)]

    def record(self, trial: np.ndarray, total: np.ndarray) -> None:
        """Record the returns `total` [N] of trials [N]."""
        self.returns[trial] = total
        self.has_return[trial] = True

    def next_generation(self) -> dict[str, float]:
        """Update the distribution from all trials, draw new candidates, and return metrics."""
        fitness = self.returns.reshape(-1, self.population).mean(0)
        self.search = learn(self.search, self.candidates, torch.from_numpy(fitness))
        self.has_return[:] = False
        self.returns[:] = 0
        self.turn = 0
        self._draw()
        return {
            "fitness_mean": float(fitness.mean()),
            "fitness_best": float(fitness.max()),
            "sigma": float(self.search.sigma),
            "generation": int(self.search.generation),
        }

    def start_from(self, mean: Tensor) -> None:
        """Move the first candidates so that they lie around `mean` [D] instead of around zero."""
        self.candidates = self.candidates + (mean - self.search.mean)
        self.search = self.search._replace(mean=mean.clone())
        self._prepare()

    def _draw(self) -> None:
        noise = torch.randn(self.population, len(self.search.mean), generator=self.generator, dtype=torch.float64)
        self.candidates = draw(self.search, noise)
        self._prepare()

    def _prepare(self) -> None:
        """Store the candidates, and after them the mean, as float32 on the device."""
        self._rows = torch.cat([self.candidates, self.search.mean[None]]).float().to(self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "search": dict(self.search._asdict()),
            "candidates": self.candidates,
            "returns": self.returns.copy(),
            "done": self.has_return.copy(),
            "turn": self.turn,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.search = Search(**state["search"])
        self.candidates = state["candidates"]
        self.returns, self.has_return = state["returns"].copy(), state["done"].copy()
        self.turn = state.get("turn", 0)  # older checkpoints begin at the first
        self._prepare()
