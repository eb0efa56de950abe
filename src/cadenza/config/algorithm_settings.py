"""The interface of an algorithm's settings: a base class with defaults, and the check of other classes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

# Limits of `shrunk` for algorithms with a replay.
SMALL_RATIO = 0.125  # updates per env_step
SMALL_BATCH = 32


USUAL_ROWS = 1024  # of a gradient step, where no setting names them, as with whole episodes


@dataclass(frozen=True)
class AlgorithmSettings(ABC):
    """The settings of an algorithm: a frozen dataclass.

    `name` and `check` are required, the other members have defaults. A class that does not inherit from this one gets
    the members that it lacks when its algorithm is registered or loaded (`adopt`).
    """

    scheduled: ClassVar[str] = ""  # names of numbers that may be schedules, separated by spaces (`TimedSettings`)
    one_graph: ClassVar[bool] = False  # an update is one function of tensors, which CUDA can replay as a graph
    has_graphs: ClassVar[bool] = False  # its gradient steps can be captured as CUDA graphs
    has_bf16: ClassVar[bool] = False  # its networks can be computed in bfloat16

    name: str

    @abstractmethod
    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse an environment that the algorithm cannot act in, and sizes that do not fit it."""

    @property
    def default_groups(self) -> Any:
        """The value of `environment.groups` that `auto` stands for; `auto` leaves it to the environment."""
        return "auto"

    def updates_per_env_step(self, num_envs: int) -> float:
        """Return the number of gradient steps per env_step; 0 if it does not depend on env_steps."""
        return 0.0

    def rows_per_update(self, num_envs: int) -> float:
        """Return about how many rows a gradient step learns from, for each agent: by default as `batch_size` says."""
        settings = vars(self)
        batch = settings.get("batch_size")
        if not isinstance(batch, int | float):
            return USUAL_ROWS
        if batch <= 1:  # a fraction of the rollout
            batch *= settings.get("n_steps", 1) * num_envs
        return batch * settings.get("batch_length", 1)  # type: ignore[no-any-return]

    def shrunk(self) -> Self:
        """Return settings with quick updates and quick actions, for a run that need not learn anything."""
        return self

    def for_one_environment(self, num_envs: int) -> Self:
        """Return settings that collect as much between updates in one environment as these do in `num_envs`.

        By default, whole numbers counted in vec_steps are multiplied: they are the lengths of rollouts.
        """
        rollouts = [field.name for field in fields(self) if field.metadata.get("unit") == "vec_steps"]
        lengths = {name: length for name in rollouts if type(length := getattr(self, name)) is int}
        longer: dict[str, Any] = {name: length * num_envs for name, length in lengths.items()}
        return replace(self, **longer)


def accumulation() -> Any:
    """Return the setting `accumulate` of algorithms that learn by gradients (`in_parts` in `nets/optimizers.py`)."""
    doc = "parts of a minibatch whose gradients are computed one after the other, with less memory in more time"
    return setting(1, doc, least=1, sparse=True)


METHODS = ("check", "updates_per_env_step", "rows_per_update", "shrunk", "for_one_environment")
DEFAULTS = ("one_graph", "has_graphs", "has_bf16", "default_groups", *METHODS[1:])


def adopt(algorithm: str, settings: Any) -> None:
    """Check the class of an algorithm's settings, and add the members that it lacks."""
    mistake = _mistake(settings)
    if mistake:
        name = getattr(settings, "__name__", settings)
        raise ConfigError(f"algorithm {algorithm}: its settings {name!r} {mistake}")
    if not issubclass(settings, AlgorithmSettings):
        for member in DEFAULTS:
            if not hasattr(settings, member):
                setattr(settings, member, vars(AlgorithmSettings)[member])
        AlgorithmSettings.register(settings)


def _mistake(settings: Any) -> str | None:
    """Return the reason why a class cannot hold an algorithm's settings, or None."""
    parameters = getattr(settings, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return "must be a frozen dataclass"
    if "name" not in {field.name for field in fields(settings)}:
        return "lacks the field name: str"
    if not callable(getattr(settings, "check", None)):
        return "lacks the method check(env, num_envs), which refuses environments that do not fit"
    for method in METHODS:
        member, expected = getattr(settings, method, None), inspect.signature(getattr(AlgorithmSettings, method))
        if member is None and not hasattr(settings, method):
            continue
        arguments = ", ".join(expected.parameters)
        if not callable(member):
            return f"must have a method {method}({arguments}), not a {type(member).__name__} of that name"
        try:
            inspect.signature(member).bind(*expected.parameters)
        except TypeError:
            return f"has {method}{inspect.signature(member)}, which must take ({arguments})"
    return None
