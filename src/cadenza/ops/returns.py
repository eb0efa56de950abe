"""Return estimators on tensors shaped [T, …]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def gae(reward: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, gamma: float | Tensor, lam: float) -> Tensor:
    """Return generalised advantage estimates [T, …] (Schulman et al. 2016): TD(lambda) returns minus values.

    `next_value` [T, …] is the bootstrap: 0 after a termination, V(final observation) after a truncation. `ends`
    [T, …] ends the sum over later steps after either; it does not change the bootstrap. The other estimators have the
    same arguments. A discount may differ from step to step, as a tensor [T, …].
    """
    return weighted_sum(reward + gamma * next_value - value, gamma * lam * (~ends).to(reward.dtype))


def monte_carlo(
    reward: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, gamma: float | Tensor, lam: float
) -> Tensor:
    """Return the sums of all rewards up to the end of the episode or the rollout, minus values; `lam` has no effect."""
    return gae(reward, value, next_value, ends, gamma, 1.0)


def n_step(
    reward: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, gamma: float | Tensor, lam: float, n: int = 5
) -> Tensor:
    """Return n rewards and the value after them, minus values; fewer before an end. `lam` has no effect."""
    if n < 1:
        raise ValueError(f"n={n}: must be at least 1")
    returns = reward + gamma * next_value
    for _ in range(min(n, len(reward)) - 1):
        after = torch.cat([torch.where(ends[:-1], next_value[:-1], returns[1:]), next_value[-1:]])
        returns = reward + gamma * after
    return returns - value


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    ends: Tensor,
    gamma: float | Tensor,
    lam: float,
    ratio: Tensor | None = None,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the advantages and value targets of V-trace (Espeholt et al. 2018, arXiv:1802.01561).

    `ratio` [T, …] is the likelihood of each action by the policy that learns per that by the one that acted; None: 1.
    """
    ratio = torch.ones_like(reward) if ratio is None else ratio
    rho, goes_on = ratio.clamp(max=clip_rho), (~ends).to(reward.dtype)
    error = rho * (reward + gamma * next_value - value)
    change = weighted_sum(error, gamma * lam * ratio.clamp(max=clip_c) * goes_on)
    next_change = torch.cat([change[1:] * goes_on[:-1], torch.zeros_like(change[:1])])
    return rho * (reward + gamma * (next_value + next_change) - value), value + change


# By name. A TD(lambda) return minus the value is what GAE estimates.
ESTIMATORS: dict[str, Callable[..., Any]] = {
    "gae": gae,
    "td_lambda": gae,
    "n_step": n_step,
    "monte_carlo": monte_carlo,
    "vtrace": vtrace,
}


def discounted_sum(reward: Tensor, last: Tensor, gamma: float) -> Tensor:
    """Return discounted sums of rewards [T, …] from each step up to and including the next step that is `last`."""
    return weighted_sum(reward, gamma * (~last).to(reward.dtype))


def lambda_return(
    reward: Tensor, cont: Tensor, value: Tensor, bootstrap: Tensor, lam: float, last: Tensor | None = None
) -> Tensor:
    """Return differentiable TD(lambda) returns [T-1, …] of all states but the final one.

    `reward`, `cont` and `value` [T, …] belong to a state: the reward for arriving there, the discount on all later
    rewards (0 where an episode terminates), and its value. `bootstrap` […] is the value of the final state. So:

        R[t] = reward[t+1] + cont[t+1] * ((1 - lam) * value[t+1] + lam * R[t+1]),    R[T-1] = bootstrap

    The return of a state that is `last` [T, …] of its episode is its value: the rows after it do not count.
    """
    trace = lam * cont[1:]
    if last is not None:
        trace = trace * (~last[1:]).to(trace.dtype)
    steps = reward[1:] + (cont[1:] - trace) * value[1:]
    end = bootstrap.unsqueeze(0).to(steps.dtype)
    return weighted_sum(torch.cat([steps, end]), torch.cat([trace, torch.zeros_like(end)]))[:-1]


def weighted_sum(x: Tensor, keep: Tensor) -> Tensor:
    """Return y[t] = x[t] + keep[t] * y[t + 1] for x and keep [T, …], differentiable, in log T operations instead of T.

    Each iteration doubles the `span` of steps that y[t] sums over; `weight` is that of the steps after them.
    """
    y, weight = x.clone(), keep
    span = 1
    while span < len(x):
        y = torch.cat([y[:-span] + weight[:-span] * y[span:], y[-span:]])
        weight = torch.cat([weight[:-span] * weight[span:], weight[-span:]])
        span *= 2
    return y


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return 1 for values equal to their targets, 0 for values no better than a constant; only where `weight` > 0."""
    counted = weight > 0
    target = target[counted]
    residual = target - value[counted]
    return 1 - residual.var(correction=0) / target.var(correction=0).clamp(min=1e-8)
