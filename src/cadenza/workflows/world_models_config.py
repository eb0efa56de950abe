"""Settings of World Models; the algorithm is in `world_models.py`. Torch-free, so that mistakes show at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.checks import refuse_unused
from cadenza.config.setting import setting
from cadenza.config.world_model_settings import PlanningConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


@dataclass(frozen=True)
class VisionConfig:
    """V: the variational autoencoder that makes a few numbers of an image."""

    latent: int = setting(32, "numbers that an image is told in")
    depth: int = setting(32, "channels of the convolutions, in multiples of which they grow")
    kl_tolerance: float = setting(0.5, "divergence of each number that costs nothing", "nats")
    batch_size: int = setting(100, "images in a gradient step")
    learning_rate: float = setting(1e-4, "the optimizer's step size")

    def __post_init__(self) -> None:
        _at_least(self, "vision", 1, "latent", "depth", "batch_size")
        _above_zero(self, "vision", "learning_rate")
        _at_least(self, "vision", 0, "kl_tolerance")


@dataclass(frozen=True)
class MemoryConfig:
    """M: the model of what comes next."""

    hidden: int = setting(256, "units")
    mixtures: int = setting(5, "dynamics=mdn_rnn: normals that the next value of each number is a mixture of")
    min_std: float = setting(
        0.01, "dynamics=mdn_rnn: least deviation of those; numbers that repeat exactly would draw it to zero"
    )
    reward_scale: float = setting(1.0, "weight of the loss of predicted rewards")
    end_scale: float = setting(1.0, "weight of the loss of predicted ends")
    batch_size: int = setting(100, "sequences in a gradient step")
    learning_rate: float = setting(1e-3, "the optimizer's step size")
    max_grad_norm: float | None = setting(1.0, "gradients are clipped to this norm; null: never")

    def __post_init__(self) -> None:
        _at_least(self, "memory", 1, "hidden", "mixtures", "batch_size")
        _at_least(self, "memory", 0, "min_std", "reward_scale", "end_scale")
        _above_zero(self, "memory", "learning_rate", "max_grad_norm")


@dataclass(frozen=True)
class EvolutionConfig:
    """How C, the linear controller, is found: by CMA-ES."""

    population: int = setting(64, "controllers of a generation")
    sigma: float = setting(0.1, "how far the first ones lie from nothing: their deviation")
    sees: Literal["z", "z_h", "z_h_c"] = setting(
        "z_h", "what the controller sees: the latent alone, with the memory's state, with its cell, too"
    )
    clipped: tuple[int, ...] = setting(
        (), "numbers of a continuous action that are cut to their bounds instead of stretched over them: a brake, say"
    )
    inside: Literal["environment", "dream"] = setting("environment", "where controllers are tried")
    temperature: float = setting(1.15, "inside=dream: how much less certain than the memory the dream is")

    def __post_init__(self) -> None:
        _at_least(self, "evolution", 4, "population")
        _above_zero(self, "evolution", "sigma", "temperature")


@dataclass(frozen=True)
class WorldModelsConfig(AlgorithmSettings):
    """See, remember, act: a model of the world learned from random rollouts, and a small controller on top of it."""

    name: str = setting("world_models", "name of the variant")
    buffer_size: int = setting(1_000_000, "rows of the replay: transitions, and one for each end of an episode", "rows")
    buffer_on_disk: bool = setting(False, "map the replay from a file instead of holding it in memory")
    rollout_steps: int = setting(
        10_000, "what the model is learned from, and at least as many as a sequence needs", "env_steps"
    )
    rollout_actions: Literal["random", "policy"] = setting(
        "random", "who acts then: nobody in particular, or the controllers of the first generation"
    )
    representation: Literal["auto", "vae", "identity"] = setting(
        "auto", "what tells an observation in numbers: V, or the numbers themselves; auto: V for images"
    )
    vision: VisionConfig = setting(doc="V, which sees", factory=VisionConfig)
    vision_updates: int = setting(4000, "gradient steps of V", "updates")
    dynamics: Literal["mdn_rnn", "mlp"] = setting(
        "mdn_rnn", "what says what comes next: a recurrent mixture of normals, or a deterministic network"
    )
    memory: MemoryConfig = setting(doc="M, which remembers and predicts", factory=MemoryConfig)
    memory_updates: int = setting(4000, "gradient steps of M", "updates")
    batch_length: int = setting(64, "steps of the sequences that M learns from", "steps")
    controller: Literal["evolved", "plan", "random"] = setting(
        "evolved", "C: a linear one found by evolution, a search in the model for each action, or chance"
    )
    evolution: EvolutionConfig = setting(doc="controller=evolved: the search for it", factory=EvolutionConfig)
    trials: int = setting(16, "episodes that each controller of a generation is tried for", "episodes")
    generations: int | None = setting(None, "how many there are; null: as many as the run's budget allows", "updates")
    dream_steps: int = setting(1000, "evolution.inside=dream: how long an episode lasts at most", "steps")
    planning: PlanningConfig = setting(doc="controller=plan: the search", factory=PlanningConfig)
    horizon: int = setting(15, "controller=plan: length of a plan", "steps")
    train_every: int = setting(50, "controller=plan: steps collected between updates of M", "env_steps")
    train_ratio: float = setting(1.0, "controller=plan: updates of M per env_step collected then")

    def __post_init__(self) -> None:
        for key in ("buffer_size", "rollout_steps", "vision_updates", "memory_updates", "batch_length", "trials"):
            _at_least(self, "", 1, key)
        _at_least(self, "", 1, "dream_steps", "horizon", "train_every")
        _above_zero(self, "", "train_ratio")
        if self.generations is not None:
            _at_least(self, "", 1, "generations")
        elif self.dreams:
            raise ConfigError("algorithm.generations: evolution.inside=dream takes no env_steps, so give their number")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """What belongs to other parts would change nothing, and is better refused than left out silently.

        But for `controller=random`, the baseline of every experiment: it may keep the settings of what it stands for.
        """
        planned, random = (self.controller == name for name in ("plan", "random"))
        search = ("planning.candidates", "planning.elites", "planning.iterations")
        evolved = (*(f"evolution.{key}" for key in vars(self.evolution)), "trials", "generations")
        drawing = ("memory.mixtures", "memory.min_std", "evolution.temperature")
        seeing = (*(f"vision.{key}" for key in vars(self.vision)), "vision_updates")
        unused = {
            "representation=vae": seeing if self.representation == "identity" else (),
            "dynamics=mdn_rnn": () if self.dynamics == "mdn_rnn" else drawing,
            "controller=plan": () if planned or random else (*search, "horizon", "train_every", "train_ratio"),
            "controller=evolved": evolved if planned else (),
            "evolution.inside=dream": () if self.dreams or random else ("evolution.temperature", "dream_steps"),
            "another controller than random": ("rollout_actions",) if random else (),
        }
        refuse_unused(self, unused)

    @property
    def dreams(self) -> bool:
        return self.controller == "evolved" and self.evolution.inside == "dream"

    @property
    def remembers(self) -> bool:
        """Whether anything needs M."""
        if self.controller == "evolved":
            return self.dreams or self.evolution.sees != "z"
        return self.controller == "plan"

    def shrunk(self) -> WorldModelsConfig:
        planned = self.controller in ("plan", "random")
        return replace(self, planning=replace(self.planning, iterations=1)) if planned else self

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        import numpy as np
        from gymnasium.spaces import Box, Discrete

        agents = sum(len(group.agents) for group in env.groups.values())
        if agents > 1:
            raise ConfigError(f"{self.name} models the world of one agent; {env.id} has {agents}")
        least = num_envs * (self.batch_length + 3)
        if self.buffer_size < least:
            given = f"algorithm.buffer_size={self.buffer_size}"
            raise ConfigError(f"{given}: at least {least} for {num_envs} environments and this batch_length")
        self._check_representation(env)
        (group,) = env.groups.values()
        action = group.action
        if isinstance(action, Discrete):
            if self.controller == "plan":
                raise ConfigError(f"controller=plan plans continuous actions; those of {env.id} are discrete")
            if self.evolution.clipped:
                raise ConfigError(f"algorithm.evolution.clipped: the actions of {env.id} are discrete")
            return
        if not isinstance(action, Box) or not np.issubdtype(action.dtype, np.floating):
            raise ConfigError(f"{self.name} takes Discrete actions and Box actions of floats; {env.id} has {action}")
        reach = action.high.astype(np.float64) - action.low
        if not ((reach > 0) & (reach < 1e30)).all():
            raise ConfigError(f"{self.name}: the actions of {env.id} need a lower and an upper bound each")
        for index in self.evolution.clipped:
            if not 0 <= index < reach.size:
                raise ConfigError(f"algorithm.evolution.clipped: {index} is none of the numbers 0 to {reach.size - 1}")

    def _check_representation(self, env: EnvSpec) -> None:
        from cadenza.nets.observe import images, vector_size

        (group,) = env.groups.values()
        pictures, numbers = len(images(group.observation)), vector_size(group.observation)
        if pictures > 1 or (pictures and numbers):
            seen = f"{env.id} has {pictures} of them and {numbers} numbers"
            raise ConfigError(f"{self.name} tells one image and nothing else, or numbers alone; {seen}")
        if pictures and self.representation == "identity":
            raise ConfigError(f"algorithm.representation=identity: {env.id} has images; take vae")
        if not pictures and self.representation == "vae":
            raise ConfigError(f"algorithm.representation=vae: {env.id} has no images; take identity")


def _at_least(config: Any, block: str, least: int, *keys: str) -> None:
    for key in keys:
        if getattr(config, key) < least:
            raise ConfigError(f"{_path(block, key)}={getattr(config, key)}: must be at least {least}")


def _above_zero(config: Any, block: str, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        if value is not None and value <= 0:
            raise ConfigError(f"{_path(block, key)}={value:g}: must be above 0")


def _path(block: str, key: str) -> str:
    return f"algorithm.{block}.{key}" if block else f"algorithm.{key}"
