from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cadenza.config.load import load
from cadenza.config.networks import EstimatorConfig, NetworkConfig, OwnNetwork
from cadenza.errors import ConfigError
from cadenza.nets.mlp import network
from cadenza.nets.own_parts import own_denoiser
from cadenza.ops.returns import gae
from cadenza.workflows.parts import estimator


class Gated(nn.Module):
    """One layer that gates another."""

    def __init__(self, inputs: int, outputs: int, units: int = 8) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, units), nn.Linear(inputs, units)
        self.last = nn.Linear(units, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.value(x) * self.gate(x).sigmoid())


class Flattening(Gated):
    """Loses the axes in front."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(0, -2))


def test_a_network_of_a_user_is_made_with_inputs_outputs_and_kwargs() -> None:
    net = network(4, 2, NetworkConfig(network=f"{__name__}:Gated", kwargs={"units": 5}))
    assert net(torch.zeros(7, 3, 4)).shape == (7, 3, 2)
    assert isinstance(net, Gated)
    assert net.last.in_features == 5


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("Gated", {"unit": 5}, "cannot be made with inputs, outputs and its kwargs .*unit"),
        ("Flattening", {}, r"makes \[6, 2\] torch.float32 of \[3, 2, 4\], not \[3, 2, 2\]"),
        ("gae", {}, "cannot be made"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        network(4, 2, NetworkConfig(network=f"{__name__}:{name}", kwargs=kwargs))


def test_a_denoiser_that_returns_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"denoiser '.*:Spread': noise has the shape \[3, 4, 1\], not \[3, 4, 2\]"):
        own_denoiser(OwnNetwork(f"{__name__}:Spread"), actions=2, horizon=4, history=2, features=3)


class Spread(nn.Module):
    """A denoiser that expects one number in an action."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, step: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
        return x[..., :1]


def test_layers_have_no_effect_beside_a_network_of_a_user() -> None:
    actor = f"algorithm.actor.network={__name__}:Gated"
    assert load("Pendulum-v1:sac", [actor]).algorithm.actor == NetworkConfig(network=f"{__name__}:Gated")
    with pytest.raises(ConfigError, match=r"algorithm\.actor\.hidden_sizes: no effect with a network of yours"):
        load("CartPole-v1:ppo", [actor, "algorithm.actor.hidden_sizes=[8]"])
    with pytest.raises(ConfigError, match=r"algorithm\.actor\.kwargs need a network of yours"):
        load("CartPole-v1:ppo", ["algorithm.actor.kwargs.units=8"])


def one_step(
    reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, done: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    return reward + gamma * next_value - value


def summed(*arguments: Any) -> torch.Tensor:
    return one_step(*arguments).sum(-1)


def test_an_estimator_of_a_user_is_called_as_gae_is() -> None:

    def made(name: str, **kwargs: Any) -> Any:
        return estimator(EstimatorConfig(name, kwargs), "algorithm.advantage")

    assert made("gae") is gae
    assert made(f"{__name__}:one_step") is one_step
    with pytest.raises(ConfigError, match=r"must return a tensor of the shape of the rewards, \[T, N, A\]"):
        made(f"{__name__}:summed")
    with pytest.raises(ConfigError, match=r"algorithm\.advantage=math:sqrt cannot be called as gae is"):
        made("math:sqrt")
    with pytest.raises(ConfigError, match="n=0: must be at least 1"):
        made("n_step", n=0)
    with pytest.raises(ConfigError, match=r"must be one of gae, .* did you mean 'vtrace'"):
        made("v_trace")
