"""Running statistics. They are state of the run: saved, resumed and loaded with the policy."""

from __future__ import annotations

from typing import Any

import torch


class RunningNorm:
    """Standardises vectors with the mean and variance of all seen so far (parallel update of Chan et al. 1979)."""

    def __init__(self, size: int, device: torch.device, clip: float = 10.0) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.var = torch.ones(size, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.clip = clip

    def update(self, x: torch.Tensor) -> None:
        """Take in a batch [B, size]; before the first one, `__call__` leaves its input alone (but for the clip)."""
        if not len(x):
            return
        x = x.to(torch.float64)
        count, mean, var = x.shape[0], x.mean(0), x.var(0, correction=0)
        total = self.count + count
        delta = mean - self.mean
        # the initial variance of one carries no weight: count is zero then
        moments = self.var * self.count + var * count + delta.square() * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.var = moments / total
        self.count = total

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        scaled = (x - self.mean.float()) / torch.sqrt(self.var + 1e-8).float()
        return scaled.clamp(-self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.mean.device
        self.mean, self.var, self.count = (state[name].to(device) for name in ("mean", "var", "count"))
