"""Latent states of world models: sampling, divergences, and the divergence loss of each generation.

Shapes: a categorical latent is [*, S, C], S variables of C classes; a Gaussian one has mean and std [*, S]. Divergences
are [*]: summed over the variables. A distribution is the tuple of its parameters: (log probabilities,) or (mean, std).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Parameters = tuple[Tensor, ...]
Divergence = Callable[..., Tensor]  # a kl_… below: of the parameters of one, then those of the other
FEW = 16  # classes from which on torch's softmax over the last axis is quick on a CPU


def probabilities(logits: Tensor, share: float = 0.0) -> Tensor:
    """[*, C], with `share` of them spread evenly, so that no class is ever impossible."""
    x = _wide(logits)
    if x.is_cuda or x.shape[-1] >= FEW:
        probs = x.softmax(-1)
    else:  # one class after the other in memory: ten times as quick for eight of them
        probs = x.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1)
    return (1 - share) * probs + share / logits.shape[-1] if share else probs


def unimix(logits: Tensor, share: float = 0.01) -> Tensor:
    """Log probabilities with `share` of them spread evenly."""
    return probabilities(logits, share).log()


def sample_categorical(probs: Tensor, noise: Tensor) -> Tensor:
    """One-hot samples [*, C] for uniform noise [*] in [0, 1); their gradient is that of the probabilities [*, C]."""
    classes, reached = probs.shape[-1], probs.detach().cumsum(-1)
    drawn = (reached <= noise.unsqueeze(-1) * reached[..., -1:]).sum(-1, keepdim=True)
    drawn = drawn.clamp(max=classes - 1)  # noise just below 1 may round up to it
    one_hot = (torch.arange(classes, device=probs.device) == drawn).to(probs.dtype)
    return one_hot + (probs - probs.detach()) if probs.requires_grad else one_hot


def kl_categorical(p_logs: Tensor, q_logs: Tensor) -> Tensor:
    """Of log probabilities."""
    p, q = _wide(p_logs), _wide(q_logs)
    return (p.exp() * (p - q)).sum((-2, -1))


def kl_gaussian(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    ratio, distance = std_p / std_q, (mean_p - mean_q) / std_q
    return (0.5 * (ratio.square() + distance.square() - 1) - ratio.log()).sum(-1)


def planet_kl(divergence: Divergence, post: Parameters, prior: Parameters, free: float = 3.0) -> Tensor:
    """[*]: what each step has above the free nats (Hafner et al. 2019, arXiv:1811.04551, and the authors' code)."""
    return (divergence(*post, *prior) - free).clamp(min=0)


def v1_kl(divergence: Divergence, post: Parameters, prior: Parameters, free: float = 3.0) -> Tensor:
    """A scalar: the mean, where it is above the free nats (Hafner et al. 2020, arXiv:1912.01603)."""
    return divergence(*post, *prior).mean().clamp(min=free)


def v2_kl(
    divergence: Divergence,
    post: Parameters,
    prior: Parameters,
    balance: float = 0.8,
    free: float = 1.0,
    free_avg: bool = True,
) -> Tensor:
    """A scalar: `balance` of it teaches the prior, the rest the posterior (Hafner et al. 2021, arXiv:2010.02193).

    The free nats are of the mean, or of each step without `free_avg`.
    """
    towards_post, towards_prior = _both_ways(divergence, post, prior)
    if free_avg:
        towards_post, towards_prior = towards_post.mean(), towards_prior.mean()
    mixed = balance * towards_post.clamp(min=free) + (1 - balance) * towards_prior.clamp(min=free)
    return mixed.mean()


def v3_kl(divergence: Divergence, post: Parameters, prior: Parameters, free: float = 1.0) -> tuple[Tensor, Tensor]:
    """Dynamics and representation loss [*], weighed 1.0 and 0.1 (Hafner et al. 2023, arXiv:2301.04104).

    The free nats are of each state, all its variables together.
    """
    dynamics, representation = _both_ways(divergence, post, prior)
    return dynamics.clamp(min=free), representation.clamp(min=free)


def _both_ways(divergence: Divergence, post: Parameters, prior: Parameters) -> tuple[Tensor, Tensor]:
    """The divergence twice: as a lesson for the prior alone, then for the posterior alone."""
    fixed_post, fixed_prior = (tuple(x.detach() for x in parameters) for parameters in (post, prior))
    return divergence(*fixed_post, *prior), divergence(*post, *fixed_prior)


def _wide(x: Tensor) -> Tensor:
    """Logarithms of small probabilities need more digits than half precision has."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
