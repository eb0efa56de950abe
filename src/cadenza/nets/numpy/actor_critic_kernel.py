"""Actor-critics of one group computed and differentiated with NumPy, which on a CPU costs a fraction of autograd.

The modules of `actor_critic.py` own the parameters. The reference is the loss in the workflow's file: before a run
begins, `engine/runtime.py` compares gradients and figures with autograd's on it. Arrays have the parameters' precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.nets.actor_critic import ActorCritic, ActorCriticOutput
from cadenza.nets.heads import LOG_2PI, CategoricalHead, GaussianHead
from cadenza.nets.mlp import MLP
from cadenza.nets.observe import VECTOR, ObservationTensors
from cadenza.nets.torso import Encoder, Torso
from cadenza.ops.surrogate import ClippedObjective, Experience, Terms, shares

Array = np.ndarray[Any, Any]
EXAMPLES = 64  # rows of a made-up batch
GATHERED = 4096  # samples gathered at once
TINY = np.finfo(np.float32).tiny


@lru_cache(32)  # a rollout may have any number of final observations
def zeros(shape: tuple[int, ...]) -> Array:
    """Return zeros, comparing with which is several times as fast as with a single zero."""
    return np.zeros(shape, np.float32)


@cache
def positions(count: int) -> Array:
    """Return the numbers from 0 to below `count`."""
    return np.arange(count)


@cache
def ones(count: int) -> Array:
    """Return a vector of ones."""
    return np.ones(count, np.float32)


# The function of a module, in place, and its derivative as a function of the result.
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Array], Any], Callable[[Array], Array]]] = {
    nn.Tanh: (lambda x: np.tanh(x, out=x), lambda y: 1 - y * y),
    nn.ReLU: (lambda x: np.maximum(x, zeros(x.shape), out=x), lambda y: y > 0),
}


class VectorSamples(Experience, Protocol):
    """Steps without a memory, tensors [1, S, A, …]."""

    @property
    def obs(self) -> ObservationTensors: ...
    @property
    def critic_obs(self) -> ObservationTensors | None: ...  # None: the same
    @property
    def action(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor | None: ...


class Minibatch(NamedTuple):
    """Samples as arrays [B, …], with the agents of each sample among the rows. See `Experience`."""

    obs: Array
    critic_obs: Array | None
    action: Array
    mask: Array | None
    share: Array  # of each row in a mean over those that count
    value_share: Array
    advantage: Array  # standardised, if the objective does so
    factor: Array | None
    target: Array
    old_value: Array
    old_log_prob: Array


def minibatches(samples: VectorSamples, parts: Sequence[Tensor], objective: ClippedObjective) -> Iterator[Minibatch]:
    """Yield the samples at the indices of each part.

    Parts of equal length are gathered together, about `GATHERED` samples at a time: many small gathers are slow.
    """
    for length, group in groupby(parts, len):
        equal, count = list(group), max(1, GATHERED // length)
        for start in range(0, len(equal), count):
            yield from _gathered(samples, torch.stack(equal[start : start + count]).numpy(), objective)


def _gathered(samples: VectorSamples, index: Array, objective: ClippedObjective) -> Iterator[Minibatch]:
    """Yield the minibatches of the samples at `index` [M, S]."""

    def pick(x: Tensor) -> Array:
        picked: Array = x.numpy()[0].take(index, 0)
        return picked.reshape(len(index), -1, *x.shape[3:])

    def pick_any(x: Tensor | None) -> Iterable[Any]:
        return repeat(None) if x is None else pick(x)

    weight = pick(samples.weight)
    share = shares(weight)
    every: tuple[Iterable[Any], ...] = (
        pick(samples.obs[VECTOR]),
        pick_any(None if samples.critic_obs is None else samples.critic_obs[VECTOR]),
        pick(samples.action),
        pick_any(samples.mask),
        share,
        share if samples.value_weight is samples.weight else shares(pick(samples.value_weight)),
        objective.advantages(pick(samples.advantage), weight, share),
        pick_any(samples.factor),
        *map(pick, (samples.target, samples.old_value, samples.old_log_prob)),
    )
    return map(Minibatch._make, zip(*every, strict=False))


class ActorCriticKernel:
    """Acts, and computes gradients of the clipped objective.

    It reads parameters and writes gradients in place, so it is made after the optimizer, which moves both.
    """

    def __init__(self, net: ActorCritic) -> None:
        assert isinstance(net.actor, MLP)
        assert isinstance(net.critic, MLP)
        shared = net.critic_torso is None
        self.trunk = Layers(net.torso.mix if shared else ())
        actor = [*net.actor] if net.critic_torso is None else [*net.torso.mix, *net.actor]
        critic = [*net.critic] if net.critic_torso is None else [*net.critic_torso.mix, *net.critic]
        depth = equal_layers(actor, critic) if shared else 0
        self.both = Layers(actor[:depth], critic[:depth])  # as arrays of both, which takes half as many calls
        self.actor_rest, self.critic_rest = Layers(actor[depth:]), Layers(critic[depth:])
        self.actor, self.critic = Layers(actor), Layers(critic)
        self.head = HEADS[type(net.head)](net.head)

    def act(self, vector: Array, mask: Array | None, generator: np.random.Generator | None) -> Array:
        """Sample actions [N, A, …] for observations [N, A, F]; return the most likely ones without a generator."""
        output = self.actor(self.trunk(vector.reshape(-1, vector.shape[-1])))
        mask = None if mask is None else mask.reshape(output.shape)
        action = self.head.mode(output, mask) if generator is None else self.head.sample(output, mask, generator)
        return action.reshape(*vector.shape[:-1], *action.shape[1:])

    @np.errstate(all="ignore")  # divergence is reported by the checks of the run
    def judge(self, obs: ObservationTensors, critic_obs: ObservationTensors | None) -> ActorCriticOutput:
        """Return what the network does for observations [*, F]."""
        features = [obs[VECTOR], (critic_obs or obs)[VECTOR]]
        output, value = (
            torch.cat([torch.from_numpy(layers(self.trunk(part.numpy()))) for part in torch.split(x, GATHERED)])
            for x, layers in zip((x.flatten(0, -2) for x in features), (self.actor, self.critic), strict=True)
        )
        return ActorCriticOutput(output.view(*features[0].shape[:-1], -1), value.view(features[1].shape[:-1]), {})

    @np.errstate(all="ignore")
    def gradients(self, batch: Minibatch, objective: ClippedObjective) -> Terms:
        """Set the parameters' gradients to those of the objective; return the terms of its figures."""
        features = self.trunk(batch.obs)
        shared, paired = bool(self.trunk.layers), bool(self.both.layers)
        inputs: Any = features, features if batch.critic_obs is None else batch.critic_obs
        by_inputs: Any = (None, None)
        if paired:
            inputs = self.both(features)
            by_inputs = np.empty_like(inputs)
        log_prob, entropy = self.head.evaluate(self.actor_rest(inputs[0]), batch.mask, batch.action)
        value = self.critic_rest(inputs[1])[:, 0]
        agents = len(log_prob) // len(value)  # that share a value
        slopes, terms = objective.slopes(log_prob, entropy, value if agents == 1 else value.repeat(agents), batch)
        by_output = self.head.backward(slopes.log_prob, slopes.entropy)
        by_value = slopes.value if agents == 1 else slopes.value.reshape(-1, agents).sum(1)
        by_features: Any = (
            self.actor_rest.backward(by_output, shared or paired, by_inputs[0]),
            self.critic_rest.backward(by_value[:, None], shared or paired, by_inputs[1]),
        )
        if paired:
            by_features = self.both.backward(by_inputs, shared)
        if shared:
            self.trunk.backward(by_features[0] + by_features[1], to_input=False)
        return terms


def equal_layers(actor: Sequence[nn.Module], critic: Sequence[nn.Module]) -> int:
    """Return with how many modules, but for the last, both begin alike: linear layers with their activations."""
    depth, most = 0, min(len(actor), len(critic)) - 1
    while depth + 2 <= most and all(map(are_equal, actor[depth : depth + 2], critic[depth : depth + 2])):
        depth += 2
    return depth


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules compute the same with different parameters, which are in one piece of memory."""
    if not isinstance(one, nn.Linear) or not isinstance(other, nn.Linear):
        return type(one) is type(other)
    pieces = {layer.weight.untyped_storage().data_ptr() for layer in (one, other)}
    return one.weight.shape == other.weight.shape and len(pieces) == 1


def torsos(net: ActorCritic) -> list[Torso]:
    """Return the one torso of a network, or its two."""
    return [net.torso] if net.critic_torso is None else [net.torso, net.critic_torso]


def actor_critic_kernel(net: ActorCritic) -> ActorCriticKernel | None:
    """Return the kernel of a network, or None where none supports it: images, memory, other layers or heads, CUDA."""
    if not has_example(net) or type(net.head) not in HEADS:
        return None
    if not isinstance(net.actor, MLP) or not isinstance(net.critic, MLP):
        return None
    if isinstance(net.head, GaussianHead) and net.head.config.std == "state":
        return None
    layers = [layer for part in (*(torso.mix for torso in torsos(net)), net.actor, net.critic) for layer in part]
    return ActorCriticKernel(net) if supports(layers, net) else None


def observes_vectors(torso: Torso) -> bool:
    """Return whether a torso receives vectors alone."""
    return isinstance(torso.encoder, Encoder) and not torso.encoder.images


def supports(layers: Iterable[nn.Module], *networks: nn.Module) -> bool:
    """Return whether kernels have these kinds of layers, and the networks' parameters are on the CPU."""
    parameters = [parameter for net in networks for parameter in net.parameters()]
    return all(type(layer) in (nn.Linear, *ACTIVATIONS) for layer in layers) and all(
        parameter.device.type == "cpu" and parameter.dtype in (torch.float32, torch.float64) for parameter in parameters
    )


class Layers:
    """Linear layers, each with its activation; stores what its last call computed, for the gradients.

    With `twins`, modules of the same kinds and shapes, all arrays are of both, [2, …].
    """

    def __init__(self, modules: Iterable[nn.Module] = (), twins: Sequence[nn.Module] = ()) -> None:
        self.layers: list[Dense] = []
        for module, *others in zip(modules, twins, strict=True) if twins else zip(modules):
            if isinstance(module, nn.Linear):
                self.layers.append(dense([module, *others]))
            else:
                self.layers[-1].activate, self.layers[-1].slope = ACTIVATIONS[type(module)]

    def __call__(self, x: Array) -> Array:
        """Return the output [B, O] for an input [B, F]."""
        for layer in self.layers:
            x = layer(x)
        return x

    def backward(self, gradient: Array, to_input: bool, out: Array | None = None) -> Array:
        """Set the parameters' gradients from that by the output [B, O]; with `to_input`, return that by the input.

        The latter is written to `out`, if there is one.
        """
        for index in reversed(range(len(self.layers))):
            is_first = index == 0
            gradient = self.layers[index].backward(gradient, to_input or not is_first, out if is_first else None)
        return gradient


def dense(linears: Sequence[Any]) -> Dense:
    """Return the layer of a linear module, or of two equal ones in one, with arrays [2, …]."""
    weight, weight_gradient = joint([linear.weight for linear in linears])
    bias, bias_gradient = joint([linear.bias for linear in linears])
    return Dense(weight.swapaxes(-1, -2), bias[..., None, :], weight_gradient.swapaxes(-1, -2), bias_gradient)


def joint(parameters: Sequence[nn.Parameter]) -> tuple[Array, Array]:
    """Return the values of a parameter and its gradient as arrays, or of two, in one piece of memory, as [2, …]."""

    def view(first: Tensor, *others: Tensor) -> Array:
        distances = [other.storage_offset() - first.storage_offset() for other in others]
        shape = (2,) * len(others) + first.shape
        array: Array = first.as_strided(shape, (*distances, *first.stride())).numpy()
        return array

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    assert len(gradients) == len(parameters)
    return view(*(parameter.detach() for parameter in parameters)), view(*gradients)


class Dense:
    """Weights [in, out] and biases of a linear module, and their gradients, in its own memory."""

    activate: Callable[[Array], Any] | None = None
    slope: Callable[[Array], Array] | None = None

    def __init__(self, weight: Array, bias: Array, weight_gradient: Array, bias_gradient: Array) -> None:
        self.weight, self.bias = weight, bias
        self.weight_gradient, self.bias_gradient = weight_gradient, bias_gradient

    def __call__(self, x: Array) -> Array:
        """Return the activations [B, out] for an input [B, in]."""
        y: Array = x @ self.weight
        y += self.bias
        if self.activate is not None:
            self.activate(y)
        self.x, self.y = x, y
        return y

    def backward(self, gradient: Array, to_input: bool, out: Array | None = None) -> Array:
        """Set the parameters' gradients from that by the activations; with `to_input`, return that by the input."""
        if self.slope is not None:
            gradient = gradient * self.slope(self.y)
        np.matmul(self.x.swapaxes(-1, -2), gradient, out=self.weight_gradient)
        np.matmul(ones(gradient.shape[-2]), gradient, out=self.bias_gradient)  # faster than a sum
        return self.by_input(gradient, out) if to_input else gradient

    def by_input(self, gradient: Array, out: Array | None = None) -> Array:
        """Return the gradient [B, in] by the input from that before the activation [B, out]."""
        if self.weight.shape[-1] == 1:  # faster than a product of two vectors
            return np.multiply(gradient, self.weight.swapaxes(-1, -2), out=out)
        return np.matmul(gradient, self.weight.swapaxes(-1, -2), out=out)


class Head(Protocol):
    """An action head, for outputs [B, n], as the module has it.

    Entropies that are equal in all rows are one number.
    """

    def evaluate(self, output: Array, mask: Array | None, action: Array) -> tuple[Array, Array]: ...

    def backward(self, log_prob: Array, entropy: Array | None) -> Array:
        """Return the gradient by the output of the last `evaluate` from those by what it returned; None: zeros."""

    def sample(self, output: Array, mask: Array | None, generator: np.random.Generator) -> Array: ...

    def mode(self, output: Array, mask: Array | None) -> Array: ...


class Categorical:
    """The head of discrete actions."""

    def __init__(self, head: CategoricalHead) -> None:
        self.start = head.start

    def _log_probs(self, output: Array, mask: Array | None) -> Array:
        """Return log-probabilities [n, B] for outputs [B, n]: sums over the first axis are several times as fast."""
        if mask is not None:
            output = np.where(mask, output, np.finfo(output.dtype).min)
        scores: Array = output.T.copy()
        scores -= np.maximum.reduce(scores, 0)
        scores -= np.log(np.add.reduce(np.exp(scores), 0))
        return scores

    def evaluate(self, output: Array, mask: Array | None, action: Array) -> tuple[Array, Array]:
        """Return log-probabilities of actions and entropies, [B]."""
        self.log_probs, self.mask = self._log_probs(output, mask), mask
        self.probs = np.exp(self.log_probs)
        self.index = (action - self.start, positions(len(action)))
        self.entropy = -np.add.reduce(self.probs * self.log_probs, 0)
        return self.log_probs[self.index], self.entropy

    def backward(self, log_prob: Array, entropy: Array | None) -> Array:
        """Return the gradient [B, n] by the output."""
        by_each = -log_prob
        if entropy is not None:
            by_each = by_each - entropy * (self.log_probs + self.entropy)
        gradient = self.probs * by_each
        gradient[self.index] += log_prob
        by_output: Array = gradient.T.copy()
        if self.mask is not None:
            by_output[~self.mask] = 0
        return by_output

    def sample(self, output: Array, mask: Array | None, generator: np.random.Generator) -> Array:
        """Return random actions [B]."""
        # as in the module, by exponential waiting times; NumPy's can be 0, which even a forbidden action would win with
        waiting = np.maximum(generator.standard_exponential(output.shape, np.float32), TINY)
        return (np.exp(self._log_probs(output, mask)) / waiting.T).argmax(0) + self.start  # type: ignore[no-any-return]

    def mode(self, output: Array, mask: Array | None) -> Array:
        """Return the most likely actions [B]."""
        return self._log_probs(output, mask).argmax(0) + self.start  # type: ignore[no-any-return]


class Gaussian:
    """The head of normal actions whose standard deviation is a parameter."""

    def __init__(self, head: GaussianHead) -> None:
        assert head.log_std.grad is not None
        self.shape = head.shape
        self.log_std, self.log_std_gradient = head.log_std.detach().numpy(), head.log_std.grad.numpy()

    def evaluate(self, output: Array, mask: Array | None, action: Array) -> tuple[Array, Array]:
        """Return log-probabilities of actions [B] and their entropy, a number."""
        self.precision = np.exp(-self.log_std)
        self.noise = (action.reshape(output.shape) - output) * self.precision
        log_prob = -np.add.reduce(0.5 * (self.noise * self.noise + LOG_2PI) + self.log_std, -1)
        return log_prob, np.add.reduce(self.log_std + 0.5 * (1 + LOG_2PI))

    def backward(self, log_prob: Array, entropy: Array | None) -> Array:
        """Return the gradient [B, n] by the output; set that of the standard deviation."""
        scaled = log_prob[:, None] * self.noise
        by_each = log_prob if entropy is None else log_prob - entropy
        np.matmul(ones(len(scaled)), scaled * self.noise - by_each[:, None], out=self.log_std_gradient)
        return scaled * self.precision  # type: ignore[no-any-return]

    def sample(self, output: Array, mask: Array | None, generator: np.random.Generator) -> Array:
        """Return random actions [B, …]."""
        action: Array = output + np.exp(self.log_std) * generator.standard_normal(output.shape, np.float32)
        return action.reshape(-1, *self.shape)

    def mode(self, output: Array, mask: Array | None) -> Array:
        """Return the most likely actions [B, …]."""
        return output.reshape(-1, *self.shape)


HEADS: dict[type[nn.Module], Callable[[Any], Head]] = {CategoricalHead: Categorical, GaussianHead: Gaussian}


# made-up batches, on which `engine/runtime.py` compares kernels with autograd


def fill_parameters(numbers: np.random.Generator, *networks: nn.Module) -> None:
    """Overwrite the parameters, in place, with made-up numbers: outputs are then neither zero nor alike."""
    for parameter in (parameter for net in networks for parameter in net.parameters()):
        values = 4 * numbers.random(tuple(parameter.shape)) - 2
        parameter.data.copy_(torch.as_tensor(values / math.sqrt(max(parameter.shape[-2:], default=1))))


def spread(numbers: np.random.Generator, *shape: Any, reach: float = 20.0) -> Array:
    """Return numbers of both signs and of many sizes up to `reach`, so that what is clipped anywhere shows."""
    return reach * (2 * numbers.random(shape) - 1) ** 3


def has_example(net: ActorCritic) -> bool:
    """Return whether `example_samples` fit a network."""
    return all(observes_vectors(torso) and torso.memory is None for torso in torsos(net))


def example_samples(
    net: ActorCritic, numbers: np.random.Generator, agents: int, critic_agents: int | None, with_factor: bool
) -> dict[str, Any]:
    """Make up the network's parameters and samples [1, S, A, …]; return these by name, in torch's default precision.

    `critic_agents` is A of the critic's observations, None where they are the policy's.
    """
    fill_parameters(numbers, net)
    lead, dtype = (1, EXAMPLES, agents), torch.get_default_dtype()

    def tensor(array: Array) -> Tensor:
        return torch.as_tensor(array, dtype=dtype)

    obs, critic_obs = {VECTOR: tensor(spread(numbers, *lead, net.torso.encoder.features, reach=3.0))}, None
    if critic_agents is not None and net.critic_torso is not None:
        shape = (1, EXAMPLES, critic_agents, net.critic_torso.encoder.features)
        critic_obs = {VECTOR: tensor(spread(numbers, *shape, reach=3.0))}
    first, mask, head = torch.zeros(lead, dtype=torch.bool), None, net.head
    with torch.no_grad():
        output, _ = net.policy(obs, {}, first, carries=False)
    if isinstance(head, CategoricalHead):
        index = torch.as_tensor((numbers.random(lead) * head.outputs).astype(np.int64))
        mask = torch.as_tensor(numbers.random((*lead, head.outputs)) < 0.7).scatter(-1, index[..., None], True)
        action = index + head.start
    elif type(head) is GaussianHead:
        action = tensor(spread(numbers, *lead, *head.shape, reach=2.0))
    else:
        action = head.sample(output, mask, torch.Generator().manual_seed(0))
    with torch.no_grad():
        log_prob, _ = head.evaluate(output, mask, action)
    inputs = {"obs": obs, "critic_obs": critic_obs, "first": first, "action": action, "mask": mask, "carry": {}}
    return {
        **inputs,
        **{name: tensor(numbers.random(lead) < 0.8) for name in ("weight", "value_weight")},
        **{name: tensor(spread(numbers, *lead)) for name in ("advantage", "target", "old_value")},
        "factor": tensor(np.exp(spread(numbers, *lead, reach=1.0))) if with_factor else None,
        "old_log_prob": log_prob + tensor(spread(numbers, *lead, reach=3.0)),
    }
