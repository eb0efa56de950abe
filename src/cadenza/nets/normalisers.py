"""What puts observations and rewards on a common scale. Statistics are state of the run, loaded with the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cadenza.ops.returns import weighted_sum


class RunningNorm:
    """Standardises vectors with the mean and variance of all seen so far (parallel update of Chan et al. 1979)."""

    def __init__(self, size: int, device: torch.device, clip: float = 10.0) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.var = torch.ones(size, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.clip = clip
        self._settle()

    def _settle(self) -> None:
        """What `__call__` needs, once for all calls until the next update."""
        self._mean, self._scale = self.mean.float(), torch.sqrt(self.var + 1e-8).float()

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
        self._settle()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return ((x - self._mean) / self._scale).clamp_(-self.clip, self.clip)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """The same for an array."""
        scaled: np.ndarray = (x - self._mean.numpy()) / self._scale.numpy()
        return scaled.clip(-self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.mean.device
        self.mean, self.var, self.count = (state[name].to(device) for name in ("mean", "var", "count"))
        self._settle()


class BoundsNorm:
    """Maps each number from its declared bounds to [-1, 1]; numbers without finite bounds stay as they are."""

    def __init__(self, low: torch.Tensor, high: torch.Tensor, device: torch.device) -> None:
        bounded = torch.isfinite(low) & torch.isfinite(high) & (high > low) & (high - low < 1e30)
        self.middle = torch.where(bounded, (low + high) / 2, 0.0).to(device)
        self.reach = torch.where(bounded, (high - low) / 2, 1.0).to(device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.middle) / self.reach

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """The same for an array."""
        scaled: np.ndarray = (x - self.middle.numpy()) / self.reach.numpy()
        return scaled


class RangeNorm:
    """Maps each number from the range it has in the data to [-1, 1]; one that never changes there, to 0.

    Before any data it leaves numbers alone.
    """

    SMALLEST = 1e-4  # ranges below it are taken for none

    def __init__(self, size: int, device: torch.device) -> None:
        self.low, self.high = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self.known = False
        self._settle()

    def _settle(self) -> None:
        self._middle, reach = (self.low + self.high) / 2, (self.high - self.low) / 2
        self._reach = torch.where(reach > self.SMALLEST / 2, reach, 1.0)

    def learn(self, x: torch.Tensor) -> None:
        """Take in a batch [B, size]."""
        if not len(x):
            return
        low, high = x.amin(0), x.amax(0)
        self.low = torch.minimum(self.low, low) if self.known else low
        self.high = torch.maximum(self.high, high) if self.known else high
        self.known = True
        self._settle()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self._middle) / self._reach

    def inverse(self, x: torch.Tensor) -> torch.Tensor:
        return self._middle + self._reach * x

    def state_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "known": self.known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["low"].shape != self.low.shape:
            raise RuntimeError(f"ranges of {len(state['low'])} numbers, not of {len(self.low)}")
        self.low, self.high = (state[name].to(self.low.device) for name in ("low", "high"))
        self.known = state["known"]
        self._settle()


class ValueScale:
    """Lets a critic learn returns on a common scale: those so far have mean 0 and deviation 1 there."""

    def __init__(self, device: torch.device) -> None:
        self.norm = RunningNorm(1, device)

    def deviation(self) -> torch.Tensor:
        return torch.sqrt(self.norm.var.clamp(min=1e-2)).float()  # returns that are all alike are not blown up

    def to_returns(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.deviation() + self.norm.mean.float()

    def from_returns(self, returns: torch.Tensor) -> torch.Tensor:
        return (returns - self.norm.mean.float()) / self.deviation()

    def learn(self, returns: torch.Tensor) -> None:
        """Take in returns [B]."""
        self.norm.update(returns.unsqueeze(-1))

    def state_dict(self) -> dict[str, Any]:
        return self.norm.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norm.load_state_dict(state)


class RewardScale:
    """Divides rewards by the standard deviation of the discounted return so far (Engstrom et al. 2020).

    The mean is left alone: moving it would change what is best. Its state holds the running return of each agent.
    """

    def __init__(self, num_envs: int, agents: int, gamma: float, device: torch.device, clip: float = 10.0) -> None:
        self.norm = RunningNorm(1, device)
        self.running = torch.zeros(num_envs, agents, dtype=torch.float64, device=device)
        self.gamma, self.clip = gamma, clip

    def __call__(
        self, reward: torch.Tensor, done: torch.Tensor, active: torch.Tensor, first: torch.Tensor
    ) -> torch.Tensor:
        """Take in the rewards of a rollout [T, N, A], and scale them; `done` ends a sum, the inactive do not count.

        `first` begins one: environments that start afresh after a resume have left an episode without an end.
        """
        earned = reward.to(torch.float64, copy=True)
        earned[0] += self.gamma * self.running.masked_fill(first[0], 0.0)
        goes_on = self.gamma * (~done.roll(1, 0)).to(torch.float64)  # from the step before
        sums = weighted_sum(earned.flip(0), goes_on.flip(0)).flip(0)
        self.running = sums[-1].masked_fill(done[-1], 0.0)
        self.norm.update(sums[active].unsqueeze(-1))
        return (reward / torch.sqrt(self.norm.var + 1e-8).float()).clamp(-self.clip, self.clip)

    def deviation(self) -> float:
        """Return what rewards are divided by."""
        return float(torch.sqrt(self.norm.var + 1e-8))

    def state_dict(self) -> dict[str, Any]:
        return {"running": self.running, **self.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.running = state["running"].to(self.running.device)
        self.norm.load_state_dict(state)


class PercentileScale:
    """How far returns spread, outliers aside: the distance of two percentiles, slowly followed, at least `floor`.

    Unlike a deviation it is not blown up by rare rewards, and the floor keeps small returns, noise maybe, from being
    magnified (Hafner et al. 2023, arXiv:2301.04104). It starts at 0 and is not corrected for that.
    """

    def __init__(
        self,
        device: torch.device,
        rate: float = 0.01,
        floor: float = 1.0,
        percentiles: tuple[float, float] = (5.0, 95.0),
    ) -> None:
        self.levels = torch.tensor(percentiles, device=device) / 100
        self.ends = torch.zeros(2, device=device)
        self.rate, self.floor = rate, floor

    def learn(self, returns: torch.Tensor) -> None:
        """Take in returns of any shape. In place, so that a captured update can hold on to the state."""
        self.ends.lerp_(torch.quantile(returns.detach().flatten().float(), self.levels), self.rate)

    def spread(self) -> torch.Tensor:
        """What to divide by."""
        return (self.ends[1] - self.ends[0]).clamp(min=self.floor)

    def state_dict(self) -> dict[str, Any]:
        return {"ends": self.ends}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ends.copy_(state["ends"])
