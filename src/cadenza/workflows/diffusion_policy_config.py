"""Diffusion Policy's settings; the algorithm is in `diffusion_policy.py`. Torch-free, so mistakes show at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cadenza.config.algorithm_settings import SMALL_BATCH, AlgorithmSettings
from cadenza.config.checks import check_single_transitions, positive, refuse_unused
from cadenza.config.denoiser_settings import DenoisingTransformerConfig, UNetConfig
from cadenza.config.networks import MLPConfig, OptimizerConfig, TorsoConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

# what a regression has none of
DIFFUSION = (
    "denoiser",
    "unet",
    "transformer",
    "noise_schedule",
    "noise_steps",
    "sampler",
    "sampling_steps",
    "ddim_eta",
)


def _adamw() -> OptimizerConfig:
    return OptimizerConfig("adamw", eps=1e-8, betas=(0.95, 0.999), weight_decay=1e-6)


def _torso() -> TorsoConfig:
    return TorsoConfig(hidden_sizes=(256, 256), activation="relu")


def _mlp() -> MLPConfig:
    return MLPConfig((256, 256), "relu")


@dataclass(frozen=True)
class DiffusionPolicyConfig(AlgorithmSettings):
    """Diffusion Policy, and plain behaviour cloning beside it."""

    name: str = setting("diffusion_policy", "name of the variant")
    baseline: Literal["none", "cloning"] = setting(
        "none", "cloning: one regression from what was seen to the chunk of actions, instead of a diffusion"
    )
    history: int = setting(2, "observations that a chunk of actions starts from, the present one included")
    horizon: int = setting(16, "actions predicted at once, the present one first")
    executed: int = setting(8, "of those, actions that are done before the next chunk is made")
    denoiser: Literal["unet", "transformer"] = setting("unet", "network that predicts the noise in a chunk")
    noise_schedule: Literal["cosine", "linear"] = setting("cosine", "how noise grows from step to step")
    noise_steps: int = setting(100, "steps from actions to noise")
    sampler: Literal["ddim", "ddpm"] = setting("ddim", "way back from noise to actions")
    sampling_steps: int = setting(10, "calls of the network on the way back")
    ddim_eta: float = setting(0.0, "ddim: chance on the way back, up to 1, which is as much as ddpm has")
    buffer_size: int = setting(1_000_000, "rows of the replay: transitions, and one for each end of an episode", "rows")
    buffer_on_disk: bool = setting(False, "map the replay from a file instead of holding it in memory")
    batch_size: int = setting(256, "chunks in a gradient step")
    learning_rate: float | Schedule = setting(3e-4, "the optimizer's step size")
    learning_rate_warmup: int = setting(500, "gradient steps over which it grows to that", "updates")
    optimizer: OptimizerConfig = setting(doc="what turns gradients into steps", factory=_adamw)
    max_grad_norm: float | None = setting(None, "gradients are clipped to this norm; null: never")
    ema_power: float = setting(
        0.75, "how soon the average of the weights, which acts, grows long: 1 - (1 + updates) ** -ema_power is kept"
    )
    ema_max: float = setting(0.9999, "share of the average that is kept at most; 0: the newest weights act")
    torso: TorsoConfig = setting(doc="from an observation to features", factory=_torso)
    unet: UNetConfig = setting(doc="denoiser=unet", factory=UNetConfig)
    transformer: DenoisingTransformerConfig = setting(doc="denoiser=transformer", factory=DenoisingTransformerConfig)
    cloning: MLPConfig = setting(doc="baseline=cloning: the regression", factory=_mlp)

    def __post_init__(self) -> None:
        for key in ("history", "horizon", "executed", "noise_steps", "sampling_steps", "buffer_size", "batch_size"):
            if getattr(self, key) < 1:
                raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least 1")
        if self.learning_rate_warmup < 0:
            raise ConfigError(f"algorithm.learning_rate_warmup={self.learning_rate_warmup}: cannot be negative")
        positive(self, "learning_rate", "max_grad_norm", "ema_power")
        if not 0 <= self.ema_max < 1:
            raise ConfigError(f"algorithm.ema_max={self.ema_max:g}: must lie in [0, 1)")
        if not 0 <= self.ddim_eta <= 1:
            raise ConfigError(f"algorithm.ddim_eta={self.ddim_eta:g}: must lie between 0 and 1")
        if self.executed > self.horizon:
            raise ConfigError(f"algorithm.executed={self.executed}: at most horizon={self.horizon}")
        if self.sampling_steps > self.noise_steps:
            raise ConfigError(f"algorithm.sampling_steps={self.sampling_steps}: at most noise_steps={self.noise_steps}")
        shrinks = self.unet.shrinks
        if self.baseline == "none" and self.denoiser == "unet" and self.horizon % shrinks:
            scales = f"the {len(self.unet.widths)} scales of algorithm.unet.widths"
            raise ConfigError(f"algorithm.horizon={self.horizon}: must be a multiple of {shrinks}, for {scales}")
        if self.torso.memory.type != "none":
            raise ConfigError("algorithm.torso.memory: the memory of this algorithm is algorithm.history")
        if not self.torso.shared:
            raise ConfigError("algorithm.torso.shared=false: there is one torso in any case")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """What belongs to another part would change nothing, and is better refused than left out silently."""
        blocks = {name: [f"{name}.{key}" for key in vars(getattr(self, name))] for name in ("unet", "transformer")}
        alone = [key for name in DIFFUSION for key in blocks.get(name, [name])]
        unused = {
            "baseline=none": alone if self.baseline == "cloning" else [],
            "sampler=ddim": ["ddim_eta"] if self.sampler == "ddpm" else [],
            "denoiser=unet": blocks["unet"] if self.denoiser == "transformer" else [],
            "denoiser=transformer": blocks["transformer"] if self.denoiser == "unet" else [],
        }
        refuse_unused(self, unused)
        if self.baseline == "none" and self.cloning != _mlp():
            raise ConfigError("algorithm.cloning: does nothing without baseline=cloning")

    def shrunk(self) -> DiffusionPolicyConfig:
        return replace(self, batch_size=min(self.batch_size, SMALL_BATCH))

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        import numpy as np
        from gymnasium.spaces import Box, Discrete

        check_single_transitions(self, env)
        least = num_envs * (env.frame_stack + 2)
        if self.buffer_size < least:
            given = f"algorithm.buffer_size={self.buffer_size}"
            raise ConfigError(f"{given}: at least {least} for {num_envs} environments")
        for name, group in env.groups.items():
            where, action = f"{env.id} (group {name})", group.action
            if isinstance(action, Discrete):
                continue
            if not isinstance(action, Box) or not np.issubdtype(action.dtype, np.floating):
                raise ConfigError(f"{self.name} takes Discrete actions and Box actions of floats; {where} has {action}")
            reach = action.high.astype(np.float64) - action.low
            if not ((reach > 0) & (reach < 1e30)).all():
                raise ConfigError(f"{self.name}: the actions of {where} need a lower and an upper bound each")
