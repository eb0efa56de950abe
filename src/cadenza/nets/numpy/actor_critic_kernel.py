"""Plain actor-critics run and differentiated in NumPy: on a CPU its calls cost a fraction of torch's and of autograd's.

The modules of `actor_critic.py` own the parameters and are the reference: tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.nets.actor_critic import ActorCritic
from cadenza.nets.heads import LOG_2PI, CategoricalHead, GaussianHead
from cadenza.nets.mlp import MLP
from cadenza.nets.observe import VECTOR, ObservationTensors
from cadenza.nets.torso import Encoder
from cadenza.ops.surrogate import ClippedObjective, Experience

Array = np.ndarray[Any, Any]


@cache
def zeros(shape: tuple[int, ...]) -> Array:
    """Comparing with these is several times quicker than with a single zero."""
    return np.zeros(shape, np.float32)


# what a module does, in place, and its slope as a function of the result
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Array], Any], Callable[[Array], Array]]] = {
    nn.Tanh: (lambda x: np.tanh(x, out=x), lambda y: 1 - y * y),
    nn.ReLU: (lambda x: np.maximum(x, zeros(x.shape), out=x), lambda y: y > 0),
}


class Samples(Experience, Protocol):
    """Steps without a memory, tensors [1, S, A, …]."""

    @property
    def obs(self) -> ObservationTensors: ...
    @property
    def critic_obs(self) -> ObservationTensors | None: ...  # None: the same
    @property
    def action(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor | None: ...


class Rows:
    """Some of the samples as arrays [B, …], the agents of each among the rows."""

    def __init__(self, samples: Samples, index: Array) -> None:
        def pick(x: Tensor) -> Array:
            picked: Array = x.numpy()[0].take(index, 0)
            return picked.reshape(-1, *x.shape[3:])

        self.obs = pick(samples.obs[VECTOR])
        self.critic_obs = None if samples.critic_obs is None else pick(samples.critic_obs[VECTOR])
        self.action = pick(samples.action)
        self.mask = None if samples.mask is None else pick(samples.mask)
        self.weight, self.advantage, self.target = map(pick, (samples.weight, samples.advantage, samples.target))
        self.old_value, self.old_log_prob = pick(samples.old_value), pick(samples.old_log_prob)
        self.value_weight = self.weight if samples.value_weight is samples.weight else pick(samples.value_weight)
        self.factor = None if samples.factor is None else pick(samples.factor)


class PlainActorCritic:
    """Writes gradients where the parameters' own are: to be made after their optimizer, which settles that."""

    def __init__(self, net: ActorCritic) -> None:
        assert isinstance(net.actor, MLP)
        assert isinstance(net.critic, MLP)
        shared = net.critic_torso is None
        self.trunk = Layers(net.torso.mix if shared else ())
        self.actor = Layers(net.actor if shared else (*net.torso.mix, *net.actor))
        self.critic = Layers(net.critic if net.critic_torso is None else (*net.critic_torso.mix, *net.critic))
        self.head = HEADS[type(net.head)](net.head)

    def act(self, vector: Array, mask: Array | None, draw: np.random.Generator | None) -> Array:
        """Actions [N, A, …] for observations [N, A, F], drawn at random or the most likely ones."""
        output = self.actor(self.trunk(vector.reshape(-1, vector.shape[-1])))
        output = output.reshape(*vector.shape[:-1], -1)
        return self.head.mode(output, mask) if draw is None else self.head.sample(output, mask, draw)

    @np.errstate(all="ignore")  # who diverges is told by the checks of the run
    def gradients(self, samples: Samples, index: Tensor, objective: ClippedObjective) -> Tensor:
        """Leave the gradients of the objective on some of the samples with the parameters; its figures."""
        rows = Rows(samples, index.numpy())
        features = self.trunk(rows.obs)
        log_prob, entropy = self.head.evaluate(self.actor(features), rows.mask, rows.action)
        value = self.critic(features if rows.critic_obs is None else rows.critic_obs)[:, 0]
        agents = len(log_prob) // len(value)  # that one value is for
        slopes, figures = objective.slopes(log_prob, entropy, value if agents == 1 else value.repeat(agents), rows)
        shared = bool(self.trunk.layers)
        by_actor = self.actor.pull(self.head.pull(slopes.log_prob, slopes.entropy), shared)
        by_value = slopes.value if agents == 1 else slopes.value.reshape(-1, agents).sum(1)
        by_critic = self.critic.pull(by_value[:, None], shared)
        if shared:
            self.trunk.pull(by_actor + by_critic, further=False)
        return figures


def plain(net: ActorCritic, kernels: str) -> PlainActorCritic | None:
    """The network by hand, where that is asked for and can be: vectors, layers and a head known here, no memory."""
    if kernels != "numpy":
        return None
    torsos = [net.torso] if net.critic_torso is None else [net.torso, net.critic_torso]
    if any(not isinstance(t.encoder, Encoder) or t.encoder.images or t.memory is not None for t in torsos):
        return None
    if not isinstance(net.actor, MLP) or not isinstance(net.critic, MLP):
        return None
    layers = [layer for part in (*(t.mix for t in torsos), net.actor, net.critic) for layer in part]
    if type(net.head) not in HEADS or any(type(layer) not in (nn.Linear, *ACTIVATIONS) for layer in layers):
        return None
    if isinstance(net.head, GaussianHead) and net.head.config.std == "state":
        return None
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in net.parameters()):
        return None
    return PlainActorCritic(net)


class Layers:
    """Linear layers with what comes after each; remembers its last call for `pull` and `climb`."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self.layers: list[Layer] = []
        for module in modules:
            if isinstance(module, nn.Linear):
                assert module.weight.grad is not None
                assert module.bias.grad is not None
                gradients = module.weight.grad.numpy().T, module.bias.grad.numpy()
                self.layers.append(Layer(module.weight.detach().numpy().T, module.bias.detach().numpy(), *gradients))
            else:
                self.activate_with(module)

    def activate_with(self, module: nn.Module) -> None:
        """After the last layer so far."""
        self.layers[-1].activate, self.layers[-1].slope = ACTIVATIONS[type(module)]

    def __call__(self, x: Array) -> Array:
        """[B, F] to [B, O]"""
        for layer in self.layers:
            x = layer(x)
        return x

    def pull(self, flow: Array, further: bool) -> Array:
        """From the gradient by the output to those of the parameters; if `further`, to that by the input too."""
        for index in reversed(range(len(self.layers))):
            flow = self.layers[index].pull(flow, further or index > 0)
        return flow

    def climb(self, rows: Array) -> Array:
        """How the one output changes with the input, for these rows of the last call; the parameters are left alone."""
        flow = np.ones((len(rows), 1), np.float32)
        for layer in reversed(self.layers):
            if layer.slope is not None:
                flow = flow * layer.slope(layer.y[rows])
            flow = layer.back(flow)
        return flow


class Layer:
    """Arrays that belong to a module: weights [in, out] and biases, and their gradients."""

    activate: Callable[[Array], Any] | None = None
    slope: Callable[[Array], Array] | None = None

    def __init__(self, weight: Array, bias: Array, weight_gradient: Array, bias_gradient: Array) -> None:
        self.weight, self.bias = weight, bias
        self.weight_gradient, self.bias_gradient = weight_gradient, bias_gradient

    def __call__(self, x: Array) -> Array:
        y: Array = x @ self.weight
        y += self.bias
        if self.activate is not None:
            self.activate(y)
        self.x, self.y = x, y
        return y

    def pull(self, flow: Array, further: bool) -> Array:
        if self.slope is not None:
            flow = flow * self.slope(self.y)
        np.matmul(self.x.T, flow, out=self.weight_gradient)
        np.matmul(ones(len(flow)), flow, out=self.bias_gradient)  # a sum, by the quicker way
        return self.back(flow) if further else flow

    def back(self, flow: Array) -> Array:
        """From the gradient by what was added up to that by the input."""
        if self.weight.shape[1] == 1:  # a product of two vectors, which multiplying is quicker at
            return flow * self.weight[:, 0]
        return flow @ self.weight.T


@cache
def ones(count: int) -> Array:
    return np.ones(count, np.float32)


class Head(Protocol):
    """As the module, `evaluate` on outputs [B, n] and `sample` and `mode` on [N, A, n].

    `pull` goes from the gradients by what `evaluate` last told to the gradient by its output.
    """

    def evaluate(self, output: Array, mask: Array | None, action: Array) -> tuple[Array, Array]: ...
    def pull(self, log_prob: Array, entropy: Array) -> Array: ...
    def sample(self, output: Array, mask: Array | None, draw: np.random.Generator) -> Array: ...
    def mode(self, output: Array, mask: Array | None) -> Array: ...


class Categorical:
    def __init__(self, head: CategoricalHead) -> None:
        self.start = head.start

    def _log_probs(self, output: Array, mask: Array | None) -> Array:
        if mask is not None:
            output = np.where(mask, output, np.finfo(np.float32).min)
        shifted = output - output.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))  # type: ignore[no-any-return]

    def evaluate(self, output: Array, mask: Array | None, action: Array) -> tuple[Array, Array]:
        self.log_probs, self.mask = self._log_probs(output, mask), mask
        self.probs = np.exp(self.log_probs)
        self.taken = (np.arange(len(action)), action - self.start)
        self.entropy = -(self.probs * self.log_probs).sum(-1)
        return self.log_probs[self.taken], self.entropy

    def pull(self, log_prob: Array, entropy: Array) -> Array:
        flow = self.probs * (-log_prob[:, None] - entropy[:, None] * (self.log_probs + self.entropy[:, None]))
        flow[self.taken] += log_prob
        if self.mask is not None:
            flow[~self.mask] = 0
        return flow  # type: ignore[no-any-return]

    def sample(self, output: Array, mask: Array | None, draw: np.random.Generator) -> Array:
        # a race, as in the module; NumPy's waiting times can be 0, at which even the impossible would win
        waiting = np.maximum(draw.standard_exponential(output.shape, np.float32), np.finfo(np.float32).tiny)
        return (np.exp(self._log_probs(output, mask)) / waiting).argmax(-1) + self.start  # type: ignore[no-any-return]

    def mode(self, output: Array, mask: Array | None) -> Array:
        return self._log_probs(output, mask).argmax(-1) + self.start  # type: ignore[no-any-return]


class Gaussian:
    """With one standard deviation for all states."""

    def __init__(self, head: GaussianHead) -> None:
        assert head.log_std.grad is not None
        self.shape = head.shape
        self.log_std, self.log_std_gradient = head.log_std.detach().numpy(), head.log_std.grad.numpy()

    def evaluate(self, output: Array, mask: Array | None, action: Array) -> tuple[Array, Array]:
        self.precision = np.exp(-self.log_std)
        self.noise = (action.reshape(output.shape) - output) * self.precision
        log_prob = -(0.5 * (self.noise * self.noise + np.float32(LOG_2PI)) + self.log_std).sum(-1)
        entropy = (self.log_std + np.float32(0.5 * (1 + LOG_2PI))).sum()
        return log_prob, np.broadcast_to(entropy, len(output))

    def pull(self, log_prob: Array, entropy: Array) -> Array:
        pushed = log_prob[:, None] * self.noise
        np.matmul(ones(len(pushed)), pushed * self.noise - (log_prob - entropy)[:, None], out=self.log_std_gradient)
        return pushed * self.precision  # type: ignore[no-any-return]

    def sample(self, output: Array, mask: Array | None, draw: np.random.Generator) -> Array:
        action: Array = output + np.exp(self.log_std) * draw.standard_normal(output.shape, np.float32)
        return action.reshape(*output.shape[:-1], *self.shape)

    def mode(self, output: Array, mask: Array | None) -> Array:
        return output.reshape(*output.shape[:-1], *self.shape)


HEADS: dict[type[nn.Module], Callable[[Any], Head]] = {CategoricalHead: Categorical, GaussianHead: Gaussian}
