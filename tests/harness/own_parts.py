"""Parts of algorithms as a user would write them, each in the place of a built-in one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.nets.encoders import to_unit_range
from cadenza.nets.mdn import DynamicsState, Prediction
from cadenza.nets.rssm import ObservedStates, RSSMState
from cadenza.nets.vae import DiagonalGaussian
from cadenza.ops.planning import MPPIResult
from cadenza.ops.returns import vtrace


class Gated(nn.Module):
    """A network: one layer that gates another."""

    def __init__(self, inputs: int, outputs: int, units: int = 6) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, units), nn.Linear(inputs, units)
        self.last = nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.last(self.value(x) * self.gate(x).sigmoid())
        return last


class Deterministic(nn.Module):
    """Dynamics of Dreamer without a sample: `stoch` is a function of `deter` and, if there is one, the observation."""

    def __init__(self, actions: int, embedding: int, config: Any, reach: float = 3.0) -> None:
        super().__init__()
        self.sizes, self.reach = (config.deter, config.stoch_size), reach
        self.cell = nn.GRUCell(actions, config.deter)
        self.prior = nn.Linear(config.deter, config.stoch_size)
        self.posterior = nn.Linear(config.deter + embedding, config.stoch_size)

    def initial(self, *batch: int) -> RSSMState:
        return RSSMState(*(self.prior.weight.new_zeros(*batch, size) for size in self.sizes))

    def noise(self, *batch: int, generator: torch.Generator) -> Tensor:
        return torch.zeros(*batch, 1, device=generator.device)

    def observe_one(
        self, embedding: Tensor, action: Tensor, first: Tensor, state: RSSMState, noise: Tensor
    ) -> RSSMState:
        keep = (~first).float().unsqueeze(-1)
        deter = self.cell(action * keep, state.deter / self.reach * keep)
        return RSSMState(self.reach * deter, self.posterior(torch.cat([deter, embedding], -1)))

    def observe(
        self, embedding: Tensor, action: Tensor, first: Tensor, state: RSSMState, noise: Tensor
    ) -> ObservedStates:
        states = []
        for t in range(len(embedding)):
            state = self.observe_one(embedding[t], action[t], first[t], state, noise[t])
            states.append(state)
        stacked = RSSMState(*(torch.stack(parts) for parts in zip(*states, strict=True)))
        return ObservedStates(stacked, (stacked.stoch,), (self.prior(stacked.deter / self.reach),))

    def imagine_step(self, state: RSSMState, action: Tensor, noise: Tensor) -> RSSMState:
        deter = self.cell(action, state.deter / self.reach)
        return RSSMState(self.reach * deter, self.prior(deter))

    def divergence(self, posterior: Tensor, prior: Tensor) -> Tensor:
        return (posterior - prior).square().sum(-1)


class Leaky(nn.Module):
    """A memory of World Models: a leaky average, and one normal for each number."""

    def __init__(self, latent: int, actions: int, hidden: int, leak: float = 0.5) -> None:
        super().__init__()
        self.enter, self.out, self.leak = nn.Linear(latent + actions, hidden), nn.Linear(hidden, latent + 2), leak

    def initial(self, count: int) -> DynamicsState:
        zeros = self.out.weight.new_zeros(count, self.enter.out_features)
        return DynamicsState(zeros, zeros)

    def step(self, z: Tensor, action: Tensor, before: DynamicsState) -> DynamicsState:
        h = torch.lerp(before.h, torch.tanh(self.enter(torch.cat([z, action], -1))), self.leak)
        return DynamicsState(h, before.c)

    def predict(self, state: DynamicsState) -> Prediction:
        out = self.out(state.h)
        mean = out[..., :-2].unsqueeze(-1)
        return Prediction(torch.zeros_like(mean), mean, torch.full_like(mean, -1.0), out[..., -2], out[..., -1])


class Laplace(nn.Module):
    """An action head: independent actions with the distribution of Laplace."""

    def __init__(self, space: Any, scale: float = 1.0) -> None:
        super().__init__()
        self.shape, self.outputs = space.shape, math.prod(space.shape)
        self.log_scale = nn.Parameter(torch.full((self.outputs,), math.log(scale)))

    def _distribution(self, output: Tensor) -> torch.distributions.Laplace:
        return torch.distributions.Laplace(output, self.log_scale.exp().expand_as(output))

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        uniform = torch.empty_like(output).uniform_(0.01, 0.99, generator=generator)
        return self._distribution(output).icdf(uniform).reshape(*output.shape[:-1], *self.shape)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return output.reshape(*output.shape[:-1], *self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        distribution = self._distribution(output)
        return distribution.log_prob(action.reshape(output.shape)).sum(-1), distribution.entropy().sum(-1)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        return {"mean": output, "std": (math.sqrt(2) * self.log_scale.exp()).expand_as(output)}


class Squeezed(nn.Module):
    """A head of SAC: a logistic distribution within the bounds, whose widths are parameters."""

    def __init__(self, space: Any, width: float = 1.0) -> None:
        super().__init__()
        self.outputs = math.prod(space.shape)
        self.reach = torch.from_numpy(space.high)
        self.log_width = nn.Parameter(torch.full((self.outputs,), math.log(width)))

    def draw(self, output: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        uniform = torch.empty_like(output).uniform_(0.01, 0.99, generator=generator)
        unit = torch.tanh(output + self.log_width.exp() * torch.logit(uniform))
        density = torch.log(uniform * (1 - uniform)) - self.log_width - torch.log1p(1e-6 - unit.square())
        return unit, density.sum(-1)

    def to_unit(self, action: Tensor) -> Tensor:
        return action / self.reach

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        return self.reach * self.draw(output, generator)[0]

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return self.reach * torch.tanh(output)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        return {"mean": self.mode(output, mask), "std": self.log_width.exp().expand_as(output)}


class Tempered(nn.Module):
    """A head of SAC for discrete actions: a softmax with a temperature that is learned."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.outputs = int(space.n)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def log_probs(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return (output * self.log_scale.exp()).log_softmax(-1)

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        waiting = torch.empty_like(output).exponential_(generator=generator)
        return (self.log_probs(output, mask).exp() / waiting).argmax(-1)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return output.argmax(-1)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        return {"probs": self.log_probs(output, mask).exp()}


class Numbers(nn.Module):
    """A decoder of vectors."""

    def __init__(self, space: Any, config: Any, units: int = 6) -> None:
        super().__init__()
        self.net = Gated(config.feature_size, space.shape[0], units)

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        return {"vector": self.net(features)}

    def losses(self, predictions: dict[str, Tensor], obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"vector": (predictions["vector"] - obs["vector"]).abs().sum(-1)}

    def to_observations(self, predictions: dict[str, Tensor]) -> dict[str, Tensor]:
        return predictions


class Fading:
    """An estimator with a state: it trusts the critic more with every call."""

    def __init__(self, rate: float = 0.5) -> None:
        self.rate, self.trust = rate, torch.zeros(())

    def __call__(
        self, reward: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, gamma: Any, lam: float
    ) -> Tensor:
        self.trust = self.trust + self.rate * (1 - self.trust)
        return reward + gamma * self.trust * next_value - value

    def state_dict(self) -> dict[str, Any]:
        return {"trust": self.trust}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trust = state["trust"]


class Corrected(nn.Module):
    """An estimator as a module, which corrects for the policy that acted."""

    def forward(
        self,
        reward: Tensor,
        value: Tensor,
        next_value: Tensor,
        ends: Tensor,
        gamma: Any,
        lam: float,
        ratio: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return vtrace(reward, value, next_value, ends, gamma, lam, ratio)


def shooting(score: Any, mean: Tensor, std: Tensor, noise: Tensor, elites: int, spread: float = 1.0) -> Any:
    """Search for the best of random plans: the arguments of `cem`."""
    plans = (mean.unsqueeze(1) + spread * std.unsqueeze(1) * noise[0]).clamp(-1, 1)
    best = score(plans).argmax(1)
    return plans[torch.arange(len(plans)), best], std


def best_sample(
    score: Any, mean: Tensor, std: Tensor, noise: Tensor, policy_plans: Tensor, waiting: Tensor, **settings: Any
) -> MPPIResult:
    """Search for the best of random and of the policy's plans: the arguments of `mppi`."""
    samples = (mean.unsqueeze(1) + std.unsqueeze(1) * noise[0]).clamp(-1, 1)
    plans = torch.cat([policy_plans, samples], 1)
    best = plans[torch.arange(len(plans)), score(plans, 0).argmax(1)]
    return MPPIResult(best[:, 0], best, 0.1 * std)


class Memoryless(nn.Module):
    """A memory without its methods."""

    def __init__(self, latent: int, actions: int, hidden: int) -> None:
        super().__init__()


class TooShort(Deterministic):
    """Dynamics whose states do not have the size of the settings."""

    def __init__(self, actions: int, embedding: int, config: Any) -> None:
        super().__init__(actions, embedding, config)
        self.posterior = nn.Linear(config.deter + embedding, 1)


class Encoder(nn.Module):
    """An encoder of vectors."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.features = 4
        self.layer = nn.Linear(space.shape[0], self.features)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layer(obs["vector"])
        return features


class Average(nn.Module):
    """A layer of a memory: a running average."""

    def __init__(self, inputs: int, size: int, leak: float = 0.5) -> None:
        super().__init__()
        self.enter, self.leak, self.size = nn.Linear(inputs, size), leak, size

    def initial(self, *batch: int) -> dict[str, Tensor]:
        return {"mean": torch.zeros(*batch, self.size)}

    def forward(self, x: Tensor, carry: Any, first: Tensor, carries: bool = True) -> tuple[Tensor, Any]:
        mean, means = carry["mean"], []
        for now, start in zip(self.enter(x), first, strict=True):
            mean = torch.lerp(mean.masked_fill(start.unsqueeze(-1), 0.0), now, self.leak)
            means.append(mean)
        features = torch.stack(means)
        return features, {"mean": features} if carries else {}


class Pixels(nn.Module):
    """A vision of World Models: linear, without noise."""

    def __init__(self, shape: tuple[int, int, int], latent: int, depth: int) -> None:
        super().__init__()
        self.shape = shape
        self.code, self.picture = nn.Linear(math.prod(shape), latent), nn.Linear(latent, math.prod(shape))

    def encode(self, image: Tensor) -> DiagonalGaussian:
        mean = self.code(to_unit_range(image).flatten(-3))
        return DiagonalGaussian(mean, torch.zeros_like(mean))

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.picture(z)).unflatten(-1, self.shape)

    def losses(self, image: Tensor, noise: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        error = (self.decode(self.encode(image).mean) - to_unit_range(image)).square().sum((-3, -2, -1))
        return error.mean(), torch.zeros(())


class Reflex(nn.Module):
    """A policy of TD-MPC: a mean, and a standard deviation that is a parameter."""

    def __init__(self, latent: int, actions: int, std: float = 0.3) -> None:
        super().__init__()
        self.mean = nn.Linear(latent, actions)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(std)))

    def forward(self, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        action = torch.tanh(self.mean(latent) + self.log_std.exp() * noise)
        density = -0.5 * noise.square() - self.log_std - torch.log1p(1e-6 - action.square())
        return action, density.sum(-1)


class Unbound(Reflex):
    """A policy that forgets its log-densities."""

    def forward(self, latent: Tensor, noise: Tensor) -> Any:
        action, density = super().forward(latent, noise)
        return action, density.unsqueeze(-1)


class Empty(nn.Module):
    """A network without parameters."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(-1, keepdim=True).expand(*x.shape[:-1], self.outputs)


class Flat(nn.Module):
    """A denoiser: one hidden layer over all actions of the chunk and all observations at once."""

    def __init__(self, actions: int, horizon: int, history: int, features: int, units: int = 8) -> None:
        super().__init__()
        self.net = Gated(horizon * actions + history * features + 1, horizon * actions, units)

    def forward(self, x: Tensor, step: Tensor, observations: Tensor) -> Tensor:
        inputs = torch.cat([x.flatten(1), observations.flatten(1), step[:, None] / 100], -1)
        noise: Tensor = self.net(inputs)
        return noise.view_as(x)


def by_halves(now: int, horizon: int) -> float:
    """A schedule: a value for each half of a run, and one for its end."""
    return (0.9, 0.8, 0.7)[2 * now // horizon]
