"""An optimizer, and a rule for its step size."""

from __future__ import annotations

from typing import Any

import torch


class Signs(torch.optim.Optimizer):
    """Steps along the sign of a momentum."""

    def __init__(self, params: Any, lr: float = 1e-3, decay: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    momentum.lerp_(p.grad, 1 - group["decay"])
                    p.sub_(group["lr"] * momentum.sign())


def halving(now: int, horizon: int, first: float = 1e-3) -> float:
    """Half of the first value at the end of the run."""
    return float(first * 0.5 ** (now / horizon))
