"""Environments whose agents appear in other groups, or with other spaces, than the environment's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.grouping import Regrouping, arrange
from cadenza.envs.layout import Array
from cadenza.types import Environment, Episode, Frame, GroupSpec, Step, Tree, VectorEnv

FrameOrStep = TypeVar("FrameOrStep", Frame, Step)


class Translation(Protocol):
    """The way between an environment's own groups and the `groups` it shows; `axis` is the arrays' agent axis."""

    groups: Mapping[str, GroupSpec]

    def observations(self, obs: Mapping[str, Tree], axis: int) -> dict[str, Tree]: ...

    def per_agent(self, arrays: Mapping[str, Array], axis: int) -> dict[str, Array]:
        """Translate arrays that have one row for each agent: rewards, deaths, recorded actions."""

    def masks(self, masks: Mapping[str, Array], reward: Mapping[str, Array], axis: int) -> dict[str, Array]:
        """Translate action masks; groups may have none. The environment's own `reward` says of how many agents."""

    def actions(self, actions: dict[str, Array], axis: int) -> dict[str, Array]:
        """Translate actions back to the environment's own groups."""


def before_translation(config: EnvironmentConfig) -> EnvironmentConfig:
    """Return the config to make the bare environment with: padding needs the types apart, grouping comes after it."""
    return config if config.padding == "none" else dataclasses.replace(config, groups="auto", teams={})


def translate(env: Environment, config: EnvironmentConfig) -> Environment:
    """Pad and group the agents as `config` asks; return the environment itself where nothing changes."""
    for translation in _translations(env.spec.groups, config):
        env = Translated(env, translation)
    return env


def translate_vector(env: VectorEnv, config: EnvironmentConfig) -> VectorEnv:
    """Pad and group the agents of a vector environment that has no single environments to translate."""
    for translation in _translations(env.spec.groups, config):
        env = TranslatedVector(env, translation)
    return env


def _translations(groups: Mapping[str, GroupSpec], config: EnvironmentConfig) -> list[Translation]:
    steps: list[Translation] = []
    if config.padding != "none" and len(groups) > 1:
        from cadenza.envs.padding import Padding

        steps.append(Padding(groups, config.padding == "types"))
        groups = steps[0].groups
    arranged = arrange(groups, config)
    if list(arranged.items()) != list(groups.items()):  # their order counts, too
        steps.append(Regrouping(groups, arranged))
    return steps


class Translated:
    """An environment seen through a translation."""

    def __init__(self, env: Environment, translation: Translation) -> None:
        self.env, self._translation = env, translation
        self.spec = dataclasses.replace(env.spec, groups=translation.groups)

    def reset(self, seed: int) -> Frame:
        return _translated(self.env.reset(seed), self._translation, axis=0)

    def step(self, action: dict[str, Array]) -> Frame:
        return _translated(self.env.step(self._translation.actions(action, axis=0)), self._translation, axis=0)

    def render(self) -> Array | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class TranslatedVector:
    """A vector environment seen through a translation. Its state is the inner environment's."""

    def __init__(self, env: VectorEnv, translation: Translation) -> None:
        self.env, self.num_envs, self._translation = env, env.num_envs, translation
        self.spec = dataclasses.replace(env.spec, groups=translation.groups)
        self.current = self._show(env.current)

    @property
    def reward_range(self) -> list[float] | None:
        return self.env.reward_range

    def reset(self, first_episode: int = 0) -> Step:
        return self._show(self.env.reset(first_episode))

    def step(self, action: dict[str, Array]) -> Step:
        return self._show(self.env.step(self._translation.actions(action, axis=1)))

    def episodes(self) -> list[Episode]:
        per_agent = self._translation.per_agent
        return [
            dataclasses.replace(
                episode, returns=per_agent(episode.returns, axis=0), actions=per_agent(episode.actions, axis=1)
            )
            for episode in self.env.episodes()
        ]

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state)
        self._show(self.env.current)

    def _show(self, step: Step) -> Step:
        self.current = view = _translated(step, self._translation, axis=1)
        same = step.final_obs is step.obs
        view.final_obs = view.obs if same else self._translation.observations(step.final_obs, axis=1)
        return view


def _translated(view: FrameOrStep, translation: Translation, axis: int) -> FrameOrStep:
    """Return a frame or step under the translation's groups; a step's final observations are left as they are."""
    present = {name: arrays for name in ("active", "died", "raw_reward") if (arrays := getattr(view, name))}
    changes: dict[str, Any] = {name: translation.per_agent(arrays, axis) for name, arrays in present.items()}
    return dataclasses.replace(
        view,
        obs=translation.observations(view.obs, axis),
        reward=translation.per_agent(view.reward, axis),
        mask=translation.masks(view.mask or {}, view.reward, axis) or view.mask,
        **changes,
    )
