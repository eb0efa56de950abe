"""Latent states of world models: sampling, KL divergences, and the KL loss of PlaNet and each version of Dreamer.

Shapes: a categorical latent is [*, S, C], S variables of C classes; a Gaussian one has mean and std [*, S]. Divergences
[*] are sums over the variables. A distribution is the tuple of its parameters: (log probabilities,) or (mean, std).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Parameters = tuple[Tensor, ...]
Divergence = Callable[..., Tensor]  # a `kl_…` function below: takes the parameters of p, then those of q
FAST_SOFTMAX = 16  # number of classes from which torch's softmax over the last axis is fast on a CPU


def probabilities(logits: Tensor, uniform: float = 0.0) -> Tensor:
    """Return class probabilities [*, C], mixed with a uniform distribution of weight `uniform`."""
    x = _float32(logits)
    if x.is_cuda or x.shape[-1] >= FAST_SOFTMAX:
        probs = x.softmax(-1)
    else:  # one class after the other in memory: ten times as quick for eight of them
        probs = x.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1)
    return (1 - uniform) * probs + uniform / logits.shape[-1] if uniform else probs


def unimix(logits: Tensor, uniform: float = 0.01) -> Tensor:
    """Return log probabilities [*, C], mixed with a uniform distribution so that no class is impossible."""
    return probabilities(logits, uniform).log()


def sample_categorical(probs: Tensor, noise: Tensor) -> Tensor:
    """Sample one-hot vectors [*, C] with uniform noise [*] in [0, 1); gradients pass straight to `probs` [*, C]."""
    classes, cumulative = probs.shape[-1], probs.detach().cumsum(-1)
    index = (cumulative <= noise.unsqueeze(-1) * cumulative[..., -1:]).sum(-1, keepdim=True)
    index = index.clamp(max=classes - 1)  # noise just below 1 may round up to it
    one_hot = (torch.arange(classes, device=probs.device) == index).to(probs.dtype)
    return one_hot + (probs - probs.detach()) if probs.requires_grad else one_hot


def kl_categorical(p_logs: Tensor, q_logs: Tensor) -> Tensor:
    """Return KL(p || q) [*] for log probabilities [*, S, C]."""
    p, q = _float32(p_logs), _float32(q_logs)
    return (p.exp() * (p - q)).sum((-2, -1))


def kl_gaussian(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """Return KL(p || q) [*] for means and standard deviations [*, S]."""
    ratio, distance = std_p / std_q, (mean_p - mean_q) / std_q
    return (0.5 * (ratio.square() + distance.square() - 1) - ratio.log()).sum(-1)


def planet_kl(divergence: Divergence, post: Parameters, prior: Parameters, free: float = 3.0) -> Tensor:
    """Return the divergence [*] above the free nats, by step (Hafner et al. 2019, arXiv:1811.04551, and its code)."""
    return (divergence(*post, *prior) - free).clamp(min=0)


def v1_kl(divergence: Divergence, post: Parameters, prior: Parameters, free: float = 3.0) -> Tensor:
    """Return the mean divergence, at least the free nats: a scalar (Hafner et al. 2020, arXiv:1912.01603)."""
    return divergence(*post, *prior).mean().clamp(min=free)


def v2_kl(
    divergence: Divergence,
    post: Parameters,
    prior: Parameters,
    balance: float = 0.8,
    free: float = 1.0,
    free_avg: bool = True,
) -> Tensor:
    """Return a scalar loss; `balance` of it trains the prior, the rest the posterior (Hafner et al. 2021).

    The free nats apply to the mean, or to each step without `free_avg`. Paper: arXiv:2010.02193.
    """
    prior_loss, post_loss = _one_sided(divergence, post, prior)
    if free_avg:
        prior_loss, post_loss = prior_loss.mean(), post_loss.mean()
    mixed = balance * prior_loss.clamp(min=free) + (1 - balance) * post_loss.clamp(min=free)
    return mixed.mean()


def v3_kl(divergence: Divergence, post: Parameters, prior: Parameters, free: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return dynamics and representation loss [*] (Hafner et al. 2023, arXiv:2301.04104, weighs them 1.0 and 0.1).

    The free nats apply to each state, to the sum over its variables.
    """
    dynamics, representation = _one_sided(divergence, post, prior)
    return dynamics.clamp(min=free), representation.clamp(min=free)


def _one_sided(divergence: Divergence, post: Parameters, prior: Parameters) -> tuple[Tensor, Tensor]:
    """Return the divergence [*] twice: with gradients to the prior alone, and to the posterior alone."""
    fixed_post = tuple(x.detach() for x in post)
    fixed_prior = tuple(x.detach() for x in prior)
    return divergence(*fixed_post, *prior), divergence(*post, *fixed_prior)


def _float32(x: Tensor) -> Tensor:
    # logarithms of small probabilities need more digits than half precision has
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
