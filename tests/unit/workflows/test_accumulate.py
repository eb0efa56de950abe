"""`algorithm.accumulate`: gradients in parts are those of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cadenza.config.load import load
from cadenza.errors import ConfigError
from cadenza.nets.optimizers import in_parts
from harness.collecting import PHASE, warming
from harness.traced_runs import DENOISING, DIFFUSION, DQN, DREAMS, LATENTS, PPO, SAC, SEARCH, WORLD_MODELS

TOLERANCE = 1e-6  # of the largest entry of a gradient in single precision
CONVOLUTIONS = {"diffusion policy": 1e-4}  # one-dimensional ones round differently for other batches; see the last test
SGD = "algorithm.optimizer={name: sgd}"  # a step is the gradient, where Adam's would be its sign
GRU = "algorithm.torso.memory={type: gru, size: 8, sequence_length: 8, burn_in: 4}"
LAPROP = "algorithm.optimizer={name: sgd, warmup: 0, agc: 0, eps: 1e-8}"
CLONING = [setting for setting in DIFFUSION if "steps=" not in setting and "unet" not in setting]
NUMPY = "runtime.kernels=numpy"
RUNS = {
    "ppo, numpy": ("toy/identity_box:ppo", [*PPO, SGD, NUMPY]),
    "ppo, images": ("toy/image:ppo", [*PPO, SGD]),
    "ppo, gru": ("CartPole-v1:ppo", [*PPO, SGD, GRU]),
    "mappo": ("toy/pair:mappo", [*PPO, SGD, "algorithm.critic.sees=state"]),
    "reinforce": ("CartPole-v1:reinforce", [SGD, "algorithm.policy_targets=advantages"]),
    "sac, numpy": ("Pendulum-v1:sac", [*SAC, SGD, NUMPY]),
    "sac, discrete": ("toy/identity:sac", [*SAC, SGD]),
    "dqn, numpy": ("CartPole-v1:dqn", [*DQN, SGD, NUMPY]),
    "rainbow": ("toy/image:rainbow", [*DQN, SGD]),
    "dreamer_v1": ("toy/identity_box:dreamer_v1", [*DREAMS, SGD]),
    "dreamer_v2": ("toy/identity:dreamer_v2", [*DREAMS, SGD]),
    "dreamer_v2, box": ("toy/identity_box:dreamer_v2", [*DREAMS, SGD]),
    "dreamer_v3": ("toy/image:dreamer_v3", [*DREAMS, LAPROP]),
    "planet": ("toy/identity_box:planet", [*DREAMS[:8], *DREAMS[9:], *SEARCH, SGD]),
    "tdmpc": ("toy/identity_box:tdmpc", [*LATENTS, SGD, "algorithm.model.critics=2"]),
    "tdmpc2": ("toy/identity_box:tdmpc2", [*LATENTS, SGD, "algorithm.policy_optimizer={name: sgd}"]),
    "world_models": ("toy/glimpse:world_models", WORLD_MODELS),
    "diffusion policy": ("toy/pair:diffusion_policy", [*DIFFUSION, SGD]),
    "diffusion policy, transformer": ("toy/identity_box:diffusion_policy", [*DENOISING, SGD]),
    "cloning": ("toy/identity_box:diffusion_policy", [*CLONING, SGD, "algorithm.baseline=cloning"]),
}


@pytest.mark.parametrize("name", RUNS)
def test_gradients_in_parts_are_those_of_the_whole_batch(name: str) -> None:
    spec, settings = RUNS[name]

    with warming(["device=cpu", *settings]) as warm:

        def gradients(parts: int) -> dict[str, torch.Tensor]:
            workflow, store = warm(spec, f"algorithm.accumulate={parts}")
            hook = "update_world_model" if name == "world_models" else "update"
            metrics = getattr(workflow, hook)(store, PHASE).metrics
            blocks = {
                f"{net}.{part}": block.gradient.clone()
                for net, optimizer in workflow.optimizers.items()
                for part, block in optimizer.blocks.items()
            }
            return {**blocks, **{key: torch.as_tensor(value).double() for key, value in metrics.items()}}

        whole, summed = gradients(1), gradients(3)
    assert whole.keys() == summed.keys()
    assert sum(bool(x.any()) for x in whole.values()) > len(whole) // 2
    tolerance = CONVOLUTIONS.get(name, TOLERANCE)
    for key, x in whole.items():
        difference, allowed = float((x - summed[key]).abs().max()), tolerance * max(1.0, float(x.abs().max()))
        assert difference <= allowed, f"{key}: {difference:g}, more than {allowed:g}"


def test_what_cannot_be_cut_in_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.accumulate=2: not with dropout"):
        load("Pendulum-v1:droq", ["algorithm.accumulate=2"])
    with pytest.raises(ConfigError, match=r"algorithm.accumulate=0: must be at least 1"):
        load("Pendulum-v1:sac", ["algorithm.accumulate=0"])
    with pytest.raises(ConfigError, match="accumulate"):
        load("toy/identity:qlearning", ["algorithm.accumulate=2"])


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_unet_in_double_precision_has_the_same_gradients(double_precision: None) -> None:
    with warming(["device=cpu", *DIFFUSION]) as warm:
        workflow, _ = warm("toy/pair:diffusion_policy")
    policy = workflow.nets["runner"]
    features = torch.randn(8, workflow.config.history, policy.torso.features)
    inputs = {"x": torch.randn(8, *policy.shape), "at": torch.arange(8), "features": features}

    def gradients(parts: int) -> tuple[torch.Tensor, ...]:
        output = in_parts(lambda part: policy.denoiser(*part.values()), inputs, parts)
        return torch.autograd.grad(output.square().mean(), list(policy.denoiser.parameters()))

    for x, y in zip(gradients(1), gradients(3), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
