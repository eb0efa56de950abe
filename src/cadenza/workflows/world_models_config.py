"""The settings of World Models; the algorithm is in `world_models.py`. They import without torch.

`controller=random`, the baseline of every experiment, may keep the settings of the controller that it replaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from cadenza.config.algorithm_settings import accumulation
from cadenza.config.checks import check_actions, check_divisor, check_one_agent
from cadenza.config.networks import OwnDynamics, OwnNetwork, OwnPlanner
from cadenza.config.replay_settings import ReplaySettings
from cadenza.config.setting import setting
from cadenza.config.world_model_settings import PlanningConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

SMALL = 8  # images, sequences and controllers in a run that need not learn anything
SMALL_STATE = 64  # units of its memory
PLANNED, EVOLVED = "controller=plan|random", "controller=evolved|random"
IDENTITY_HAS_NONE = "representation=auto|vae|yours"


@dataclass(frozen=True)
class VisionConfig:
    """V: the variational autoencoder that encodes an image as a short vector."""

    scheduled: ClassVar[str] = "kl_tolerance learning_rate"
    latent: int = setting(32, "length of the vector that encodes an image", least=1)
    depth: int = setting(32, "base number of channels of the convolutions; they grow in multiples of it", least=1)
    kl_tolerance: float = setting(0.5, "divergence of each number that costs nothing", "nats", least=0)
    batch_size: int = setting(100, "images in a gradient step", least=1)
    learning_rate: float = setting(1e-4, "step size of the optimizer", above=0)


@dataclass(frozen=True)
class PredictorConfig:
    """M: the model that predicts the next observation, reward and end."""

    scheduled: ClassVar[str] = "reward_scale end_scale learning_rate max_grad_norm"
    hidden: int = setting(256, "units", least=1)
    mixtures: int = setting(
        5, "normals in the mixture that predicts the next value of each number", least=1, needs="dynamics=mdn_rnn"
    )
    min_std: float = setting(
        0.01,
        "smallest standard deviation of these normals; numbers that repeat exactly would draw it to zero",
        least=0,
        needs="dynamics=mdn_rnn",
    )
    reward_scale: float = setting(1.0, "weight of the loss of predicted rewards", least=0)
    end_scale: float = setting(1.0, "weight of the loss of predicted ends", least=0)
    batch_size: int = setting(100, "sequences in a gradient step", least=1)
    learning_rate: float = setting(1e-3, "step size of the optimizer", above=0)
    max_grad_norm: float | None = setting(1.0, "clip gradients to this norm; null: never", above=0)


@dataclass(frozen=True)
class EvolutionConfig:
    """CMA-ES, which searches for C, the controller."""

    scheduled: ClassVar[str] = "temperature"
    population: int = setting(64, "controllers in a generation", least=4)
    sigma: float = setting(0.1, "initial standard deviation of CMA-ES", above=0)
    network: Literal["linear"] | OwnNetwork = setting(
        "linear",
        "C: a linear map, or a network of yours, made with inputs and outputs, whose parameters evolve from its own",
        sparse=True,
    )
    sees: Literal["z", "z_h", "z_h_c"] = setting(
        "z_h", "input of the controller: the latent alone, with the memory's state, or with its cell, too"
    )
    clipped: tuple[int, ...] = setting(
        (), "indices of the numbers of a continuous action that are clipped to their bounds instead of rescaled"
    )
    inside: Literal["environment", "dream"] = setting("environment", "where controllers are evaluated")
    temperature: float = setting(
        1.15,
        "uncertainty of the dream per that of the memory",
        above=0,
        needs="dynamics=mdn_rnn|yours and evolution.inside=dream",
    )

    def __post_init__(self) -> None:
        check_divisor(self.temperature, "algorithm.evolution.temperature")


@dataclass(frozen=True)
class WorldModelsConfig(ReplaySettings):
    """A world model learned from random rollouts, and a small controller on top of it."""

    name: str = setting("world_models", "name of the variant")
    rollout_steps: int = setting(
        10_000, "steps that the model is learned from; at least as many as a sequence needs", "env_steps", least=1
    )
    rollout_actions: Literal["random", "policy"] = setting(
        "random",
        "their actions: random, or those of the first generation of controllers",
        needs="controller=evolved|plan",
    )
    representation: Literal["auto", "vae", "identity"] | OwnNetwork = setting(
        "auto", "encoding of an observation: by V (or one of yours), or the observation itself; auto: V for images"
    )
    vision: VisionConfig = setting(doc="V, the autoencoder", factory=VisionConfig, needs=IDENTITY_HAS_NONE)
    vision_updates: int = setting(4000, "gradient steps of V", "updates", least=1, needs=IDENTITY_HAS_NONE)
    dynamics: Literal["mdn_rnn", "mlp"] | OwnDynamics = setting(
        "mdn_rnn",
        "prediction of the next observation: a recurrent mixture of normals, a deterministic network, or a model of "
        "yours",
    )
    memory: PredictorConfig = setting(doc="M, the memory", factory=PredictorConfig)
    memory_updates: int = setting(4000, "gradient steps of M", "updates", least=1)
    accumulate: int = accumulation()
    batch_length: int = setting(64, "steps of the sequences that M learns from", "steps", least=1)
    controller: Literal["evolved", "plan", "random"] = setting(
        "evolved", "C: found by evolution, a search in the model for each action, or random actions"
    )
    evolution: EvolutionConfig = setting(doc="the search for C", factory=EvolutionConfig, needs=EVOLVED)
    trials: int = setting(16, "episodes of each controller of a generation", "episodes", least=1, needs=EVOLVED)
    generations: int | None = setting(
        None, "number of generations; null: as many as the run's budget allows", "updates", least=1, needs=EVOLVED
    )
    dream_steps: int = setting(1000, "longest episode in a dream", "steps", least=1, needs="evolution.inside=dream")
    planning: PlanningConfig = setting(doc="the search for actions", factory=PlanningConfig, needs=PLANNED)
    planner: Literal["cem"] | OwnPlanner = setting(
        "cem",
        "the search: the cross-entropy method, or a function of yours with its arguments",
        sparse=True,
        needs=PLANNED,
    )
    horizon: int = setting(15, "length of a plan", "steps", least=1, needs=PLANNED)
    train_every: int = setting(50, "steps collected between updates of M", "env_steps", least=1, needs=PLANNED)
    train_ratio: float = setting(1.0, "updates of M per env_step collected after the rollouts", above=0, needs=PLANNED)

    def __post_init__(self) -> None:
        if self.generations is None and self.dreams:
            raise ConfigError("algorithm.generations: evolution.inside=dream takes no env_steps, so set their number")

    @property
    def dreams(self) -> bool:
        """Whether controllers are evaluated in the model."""
        return self.controller == "evolved" and self.evolution.inside == "dream"

    @property
    def remembers(self) -> bool:
        """Whether the controller needs M."""
        if self.controller == "evolved":
            return self.dreams or self.evolution.sees != "z"
        return self.controller == "plan"

    def shrunk(self) -> WorldModelsConfig:
        """Return settings with small gradient steps, short searches and small generations of small controllers.

        A controller has weights for the state of the memory, and CMA-ES decomposes a matrix of weights by weights.
        """
        batch_size, hidden = min(self.memory.batch_size, SMALL), min(self.memory.hidden, SMALL_STATE)
        small: dict[str, Any] = {"memory": replace(self.memory, batch_size=batch_size, hidden=hidden)}
        if self.representation != "identity":
            small["vision"] = replace(self.vision, batch_size=min(self.vision.batch_size, SMALL))
        if self.controller == "evolved":
            small["evolution"] = replace(self.evolution, population=min(self.evolution.population, SMALL))
        elif self.controller in ("plan", "random"):
            small["planning"] = self.planning.shrunk()
        return replace(self, **small)

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        from gymnasium.spaces import Discrete

        check_one_agent(self, env)
        self.check_room(num_envs, self.batch_length + 3, f"algorithm.batch_length={self.batch_length}")
        self._check_representation(env)
        check_actions(self, env, discrete=self.controller != "plan")
        (group,) = env.groups.values()
        if self.evolution.clipped and isinstance(group.action, Discrete):
            raise ConfigError(f"algorithm.evolution.clipped: the actions of {env.id} are discrete")
        size = math.prod(group.action.shape or ())
        for index in self.evolution.clipped:
            if not 0 <= index < size:
                raise ConfigError(f"algorithm.evolution.clipped: {index} is none of the numbers 0 to {size - 1}")

    def _check_representation(self, env: EnvSpec) -> None:
        from cadenza.nets.observe import images, vector_size

        (group,) = env.groups.values()
        pictures, numbers = len(images(group.observation)), vector_size(group.observation)
        if pictures > 1 or (pictures and numbers):
            content = f"{env.id} has {pictures} of them and {numbers} numbers"
            raise ConfigError(f"{self.name} encodes one image and nothing else, or numbers alone; {content}")
        if pictures and self.representation == "identity":
            raise ConfigError(f"algorithm.representation=identity: {env.id} has images; take vae")
        if not pictures and self.representation not in ("auto", "identity"):
            kind = self.representation.name if isinstance(self.representation, OwnNetwork) else self.representation
            raise ConfigError(f"algorithm.representation={kind}: {env.id} has no images; take identity")
