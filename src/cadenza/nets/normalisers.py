"""Normalisers of observations, rewards and returns. Their statistics are state of the run, saved with the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cadenza.ops.returns import weighted_sum


class RunningNorm:
    """Standardises vectors by the mean and variance of all inputs so far (parallel update of Chan et al. 1979)."""

    def __init__(self, size: int, device: torch.device, clip: float = 10.0) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.var = torch.ones(size, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.clip = clip
        self._refresh()

    def _refresh(self) -> None:
        """Compute what `__call__` needs from the statistics."""
        self._mean, self._scale = self.mean.float(), torch.sqrt(self.var + 1e-8).float()

    def update(self, x: torch.Tensor) -> None:
        """Add a batch [B, size] to the statistics. Before the first one, `__call__` only clips."""
        if not len(x):
            return
        x = x.to(torch.float64)
        count, mean, var = x.shape[0], x.mean(0), x.var(0, correction=0)
        total = self.count + count
        delta = mean - self.mean
        # the initial variance of 1 has no weight: count is 0 then
        moments = self.var * self.count + var * count + delta.square() * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.var = moments / total
        self.count = total
        self._refresh()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [*, size], standardised and clipped."""
        return ((x - self._mean) / self._scale).clamp_(-self.clip, self.clip)

    def apply_array(self, x: np.ndarray) -> np.ndarray:
        """Return an array [*, size], standardised and clipped."""
        scaled: np.ndarray = (x - self._mean.numpy()) / self._scale.numpy()
        return scaled.clip(-self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.mean.device
        self.mean, self.var, self.count = (state[name].to(device) for name in ("mean", "var", "count"))
        self._refresh()


class BoundsNorm:
    """Scales each number from its bounds to [-1, 1]; numbers without finite bounds stay as they are."""

    def __init__(self, low: torch.Tensor, high: torch.Tensor, device: torch.device) -> None:
        bounded = torch.isfinite(low) & torch.isfinite(high) & (high > low) & (high - low < 1e30)
        self.middle = torch.where(bounded, (low + high) / 2, 0.0).to(device)
        self.reach = torch.where(bounded, (high - low) / 2, 1.0).to(device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [*, size], scaled."""
        return (x - self.middle) / self.reach

    def apply_array(self, x: np.ndarray) -> np.ndarray:
        """Return an array [*, size], scaled."""
        scaled: np.ndarray = (x - self.middle.numpy()) / self.reach.numpy()
        return scaled


class RangeNorm:
    """Scales each number from its range in the data to [-1, 1]; a number that is constant in the data becomes 0.

    Before any data, numbers stay as they are.
    """

    SMALLEST = 1e-4  # ranges below it count as constant

    def __init__(self, size: int, device: torch.device) -> None:
        self.low, self.high = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self.has_data = False
        self._refresh()

    def _refresh(self) -> None:
        self._middle, reach = (self.low + self.high) / 2, (self.high - self.low) / 2
        self._reach = torch.where(reach > self.SMALLEST / 2, reach, 1.0)

    def learn(self, x: torch.Tensor) -> None:
        """Extend the ranges by a batch [B, size]."""
        if not len(x):
            return
        low, high = x.amin(0), x.amax(0)
        self.low = torch.minimum(self.low, low) if self.has_data else low
        self.high = torch.maximum(self.high, high) if self.has_data else high
        self.has_data = True
        self._refresh()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [*, size], scaled."""
        return (x - self._middle) / self._reach

    def inverse(self, x: torch.Tensor) -> torch.Tensor:
        """Return scaled x [*, size] in the original units."""
        return self._middle + self._reach * x

    def state_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "known": self.has_data}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["low"].shape != self.low.shape:
            raise RuntimeError(f"ranges of {len(state['low'])} numbers, not of {len(self.low)}")
        self.low, self.high = (state[name].to(self.low.device) for name in ("low", "high"))
        self.has_data = state["known"]
        self._refresh()


class ValueScale:
    """Standardises returns for a critic: those so far have mean 0 and standard deviation 1 on its scale."""

    def __init__(self, device: torch.device) -> None:
        self.norm = RunningNorm(1, device)

    def deviation(self) -> torch.Tensor:
        """Return the standard deviation of returns, at least 0.1: nearly equal returns are not blown up."""
        return torch.sqrt(self.norm.var.clamp(min=1e-2)).float()

    def to_returns(self, value: torch.Tensor) -> torch.Tensor:
        """Convert a critic's output to returns."""
        return value * self.deviation() + self.norm.mean.float()

    def from_returns(self, returns: torch.Tensor) -> torch.Tensor:
        """Convert returns to the critic's scale."""
        return (returns - self.norm.mean.float()) / self.deviation()

    def learn(self, returns: torch.Tensor) -> None:
        """Add returns [B] to the statistics."""
        self.norm.update(returns.unsqueeze(-1))

    def state_dict(self) -> dict[str, Any]:
        return self.norm.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norm.load_state_dict(state)


class RewardScale:
    """Divides rewards by the standard deviation of discounted returns so far (Engstrom et al. 2020).

    The mean stays: shifting it would change which policy is best. The state includes the running return of each agent.
    """

    def __init__(self, num_envs: int, agents: int, gamma: float, device: torch.device, clip: float = 10.0) -> None:
        self.norm = RunningNorm(1, device)
        self.running = torch.zeros(num_envs, agents, dtype=torch.float64, device=device)
        self.gamma, self.clip = gamma, clip

    def __call__(
        self, reward: torch.Tensor, ended: torch.Tensor, active: torch.Tensor, first: torch.Tensor
    ) -> torch.Tensor:
        """Add the returns of a rollout to the statistics; return its rewards [T, N, A], scaled and clipped.

        `ended`, `active` and `first` are booleans [T, N, A]. A return ends where `ended`; steps that are not `active`
        are left out of the statistics. Of `first` row 0 alone is read: there it drops the return that the last rollout
        left running, for environments that have restarted in between.
        """
        rewards = reward.to(torch.float64, copy=True)
        rewards[0] += self.gamma * self.running.masked_fill(first[0], 0.0)
        decay = self.gamma * (~ended.roll(1, 0)).to(torch.float64)  # of the return up to the step before
        sums = weighted_sum(rewards.flip(0), decay.flip(0)).flip(0)
        self.running = sums[-1].masked_fill(ended[-1], 0.0)
        self.norm.update(sums[active].unsqueeze(-1))
        return (reward / torch.sqrt(self.norm.var + 1e-8).float()).clamp(-self.clip, self.clip)

    def deviation(self) -> float:
        """Return the divisor of rewards."""
        return float(torch.sqrt(self.norm.var + 1e-8))

    def state_dict(self) -> dict[str, Any]:
        return {"running": self.running, **self.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.running = state["running"].to(self.running.device)
        self.norm.load_state_dict(state)


class PercentileScale:
    """The range of returns without outliers: an exponential average of the distance of two percentiles.

    Unlike a standard deviation it ignores rare large rewards; a minimum of `floor` keeps small returns, perhaps noise,
    from being magnified (Hafner et al. 2023, arXiv:2301.04104). The average starts at 0, without bias correction.
    """

    def __init__(self, device: torch.device, rate: float = 0.01, floor: float = 1.0) -> None:
        self.levels = torch.tensor((5.0, 95.0), device=device) / 100
        self.ends = torch.zeros(2, device=device)
        self.rate, self.floor = rate, floor

    def learn(self, returns: torch.Tensor) -> None:
        """Update the percentiles from returns of any shape, in place: a CUDA graph may hold the memory of the state."""
        self.ends.lerp_(torch.quantile(returns.detach().flatten().float(), self.levels), self.rate)

    def spread(self) -> torch.Tensor:
        """Return the divisor of returns [], at least `floor`."""
        return (self.ends[1] - self.ends[0]).clamp(min=self.floor)

    def state_dict(self) -> dict[str, Any]:
        return {"ends": self.ends}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ends.copy_(state["ends"])
