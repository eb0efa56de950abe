"""EnvPool (Weng et al. 2022): environments of other families in C++, fast, without restore of running episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families.gym import as_dict_space
from cadenza.envs.families.gymnasium_vector import GymnasiumVector
from cadenza.envs.layout import Array
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.errors import ConfigError, MissingExtraError, install
from cadenza.types import SINGLE_GROUP, EnvSpec, GroupSpec

WHERE = "environment.vectorize=envpool"


class Pool(GymnasiumVector):
    """A pool of environments. EnvPool takes its seed when it is made, so a reset to other episodes makes it again."""

    def __init__(self, make: Callable[[int], Any], seeds: EpisodeSeeds, config: EnvironmentConfig) -> None:
        self._make, self._used = make, False
        envs = make(seeds(0, 0))
        space = as_dict_space(envs.single_observation_space)
        facts = EnvSpec(
            config.id,
            {SINGLE_GROUP: GroupSpec((SINGLE_GROUP,), space, envs.single_action_space)},
            max_episode_steps=envs.spec.config.max_episode_steps,
            return_threshold=envs.spec.reward_threshold,
        )
        super().__init__(envs, seeds, spec=facts, clip_actions=config.clip_actions)

    def _reset(self, seeds: list[int], only: Array | None = None) -> tuple[Any, dict[str, Any]]:
        if self._used:
            self._envs.close()
            self._envs = self._make(seeds[0])
        self._used = True
        outcome: tuple[Any, dict[str, Any]] = self._envs.reset()
        return outcome


def pooled(config: EnvironmentConfig, num_envs: int, seeds: EpisodeSeeds) -> Pool:
    """Make EnvPool's version of an environment under the same settings; refuse those that EnvPool does not have."""
    family = environments.family_of(config.id)
    translate = getattr(family[1], "pool_options", None) if family else None
    for name in config.dressing:
        if translate is None or name not in family[1].NATIVE_DRESSING:  # type: ignore[index]
            raise ConfigError(f"{WHERE}: cannot be used with environment.{name}; use auto")
    try:
        import envpool
    except ImportError:
        raise MissingExtraError(f"{WHERE} needs an extra: {install('envpool')}") from None
    name, offered = config.id.removeprefix("ALE/"), envpool.list_all_envs()
    if name not in offered:
        raise ConfigError(f"{WHERE}: EnvPool has no {config.id}; use auto")
    options = dict(config.kwargs) if translate is None else translate(config)
    if config.max_episode_steps:
        options["max_episode_steps"] = config.max_episode_steps

    def make(seed: int) -> Any:
        try:
            return envpool.make_gymnasium(name, num_envs=num_envs, seed=seed, **options)
        except (AssertionError, TypeError, ValueError, RuntimeError) as problem:
            reason = str(problem).partition("\n")[0]
            raise ConfigError(f"environment.kwargs: EnvPool's {name} refuses {options} ({reason})") from problem

    return Pool(make, seeds, config)
