"""The settings of Diffusion Policy; the algorithm is in `diffusion_policy.py`. They import without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import SMALL_BATCH, accumulation
from cadenza.config.checks import check_actions, check_single_transitions, refuse_memory
from cadenza.config.denoiser_settings import DenoisingTransformerConfig, UNetConfig
from cadenza.config.networks import MLPConfig, OptimizerConfig, OwnNetwork, TorsoConfig
from cadenza.config.replay_settings import ReplaySettings
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

DIFFUSION = "baseline=none"  # what the regression has none of


@dataclass(frozen=True)
class DiffusionPolicyConfig(ReplaySettings):
    """Diffusion Policy, and plain behaviour cloning as its baseline."""

    scheduled: ClassVar[str] = "learning_rate max_grad_norm ema_max ema_power"
    name: str = setting("diffusion_policy", "name of the variant")
    baseline: Literal["none", "cloning"] = setting(
        "none", "cloning: a regression from observations to the chunk of actions, instead of a diffusion"
    )
    history: int = setting(2, "observations that a chunk is predicted from, the current one included", least=1)
    horizon: int = setting(16, "length of the predicted chunk of actions, the current one first", least=1)
    executed: int = setting(8, "actions of a chunk that are executed before the next chunk is predicted", least=1)
    denoiser: Literal["unet", "transformer"] | OwnNetwork = setting(
        "unet", "network that predicts the noise: one of these or of yours", needs=DIFFUSION
    )
    noise_schedule: Literal["cosine", "linear"] = setting("cosine", "growth of noise over the steps", needs=DIFFUSION)
    noise_steps: int = setting(100, "noising steps from actions to pure noise", least=1, needs=DIFFUSION)
    sampler: Literal["ddim", "ddpm"] = setting("ddim", "sampler of actions from noise", needs=DIFFUSION)
    sampling_steps: int = setting(10, "calls of the network per sample", least=1, needs=DIFFUSION)
    ddim_eta: float = setting(
        0.0,
        "stochasticity, from 0 (deterministic) to 1 (as ddpm)",
        least=0,
        most=1,
        needs=f"{DIFFUSION} and sampler=ddim",
    )
    batch_size: int = setting(256, "chunks in a gradient step", least=1)
    learning_rate: float = setting(3e-4, "step size of the optimizer", above=0)
    learning_rate_warmup: int = setting(500, "gradient steps over which it grows to its full value", "updates", least=0)
    accumulate: int = accumulation()
    optimizer: OptimizerConfig = setting(
        doc="the optimizer", factory=lambda: OptimizerConfig("adamw", eps=1e-8, betas=(0.95, 0.999), weight_decay=1e-6)
    )
    max_grad_norm: float | None = setting(None, "clip gradients to this norm; null: never", above=0)
    ema_power: float = setting(0.75, "the acting weights' decay is 1 - (1 + updates) ** -ema_power", above=0)
    ema_max: float = setting(0.9999, "largest decay of the acting weights; 0: the newest weights act", least=0, below=1)
    torso: TorsoConfig = setting(
        doc="from an observation to features", factory=lambda: TorsoConfig(hidden_sizes=(256, 256), activation="relu")
    )
    unet: UNetConfig = setting(doc="the U-Net", factory=UNetConfig, needs=f"{DIFFUSION} and denoiser=unet")
    transformer: DenoisingTransformerConfig = setting(
        doc="the transformer", factory=DenoisingTransformerConfig, needs=f"{DIFFUSION} and denoiser=transformer"
    )
    cloning: MLPConfig = setting(
        doc="regression", factory=lambda: MLPConfig((256, 256), "relu"), needs="baseline=cloning"
    )

    def __post_init__(self) -> None:
        if self.executed > self.horizon:
            raise ConfigError(f"algorithm.executed={self.executed}: at most horizon={self.horizon}")
        if self.sampling_steps > self.noise_steps:
            raise ConfigError(f"algorithm.sampling_steps={self.sampling_steps}: at most noise_steps={self.noise_steps}")
        shrinks = self.unet.shrinks
        if self.baseline == "none" and self.denoiser == "unet" and self.horizon % shrinks:
            scales = f"the {len(self.unet.widths)} scales of algorithm.unet.widths"
            raise ConfigError(f"algorithm.horizon={self.horizon}: must be a multiple of {shrinks}, for {scales}")
        refuse_memory(self.torso, "the memory of this algorithm is algorithm.history", "there is one torso in any case")

    def shrunk(self) -> DiffusionPolicyConfig:
        """Return settings with small gradient steps."""
        return replace(self, batch_size=min(self.batch_size, SMALL_BATCH))

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        check_single_transitions(self, env)
        self.check_room(num_envs, env.frame_stack + 2, f"environment.frame_stack={env.frame_stack}")
        check_actions(self, env)
