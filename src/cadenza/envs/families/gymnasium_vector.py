"""Gymnasium's vector environments, in each of their three autoreset modes, under cadenza's same-step contract.

Where the vector environment takes a reset mask, ended environments are reset in the same step with their own episode
seed, in every mode: no dummy transitions, and the same episodes as in process. Elsewhere Gymnasium seeds once and
resets by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.wrappers import TimeLimit

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families.gym import Gym, as_dict_space, observer
from cadenza.envs.layout import Array, Buffer, Layout, allocate_buffer
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.vector import MakeEnv, Vector
from cadenza.envs.wrappers import RawReward, layer
from cadenza.errors import ConfigError, EnvironmentFault
from cadenza.trees import leaves, map_tree
from cadenza.types import SINGLE_GROUP, EnvSpec, Episode, GroupSpec, Step, Tree

MODES = {"next_step": AutoresetMode.NEXT_STEP, "same_step": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED}


def synchronous(make_env: MakeEnv, num_envs: int, seeds: EpisodeSeeds, config: EnvironmentConfig) -> GymnasiumVector:
    """Put Gymnasium's SyncVectorEnv around Gymnasium environments; refuse any other kind."""
    first = make_env()
    if not isinstance(first, Gym):
        raise ConfigError(
            f"environment.vectorize=gymnasium: {config.id} is not one of Gymnasium's; use auto or workers"
        )
    spec, raw_reward = first.spec, layer(first.bare, RawReward)
    first.close()
    if raw_reward is not None:  # the vector's steps cannot carry the environment's own reward beside the changed one
        reason = f"{config.id} changes its rewards (environment.kwargs), and its own would be lost"
        raise ConfigError(f"environment.vectorize=gymnasium: {reason}; use auto")

    def bare() -> Any:
        env = make_env().env  # type: ignore[attr-defined]
        return TimeLimit(env, spec.max_episode_steps) if spec.max_episode_steps else env

    envs = SyncVectorEnv([bare] * num_envs, autoreset_mode=MODES[config.autoreset], copy=False)
    return GymnasiumVector(envs, seeds, spec=spec, clip_actions=config.clip_actions)


class GymnasiumVector(Vector):
    """Any gymnasium.vector.VectorEnv. Running episodes cannot be restored: on resume new ones begin."""

    def __init__(
        self,
        envs: GymnasiumVectorEnv[Any, Any, Any],
        seeds: EpisodeSeeds,
        *,
        spec: EnvSpec | None = None,
        clip_actions: bool = True,
        masked_reset: bool | None = None,
    ) -> None:
        self._envs, self._clip = envs, clip_actions
        self._mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        heeds_mask = isinstance(envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)  # others may ignore the reset mask
        self._masked = heeds_mask if masked_reset is None else masked_reset
        if self._mode is AutoresetMode.DISABLED and not self._masked:
            raise ConfigError(f"{type(envs).__name__} neither resets by itself nor takes a reset mask")
        space = as_dict_space(envs.single_observation_space)
        self._observe, self._observe_one = observer(space, axis=1), observer(space, axis=None)
        self._waiting = np.zeros(envs.num_envs, bool)  # ended in the last step; the next one only resets them
        facts = spec or EnvSpec(
            envs.spec.id if envs.spec else type(envs).__name__,
            {SINGLE_GROUP: GroupSpec((SINGLE_GROUP,), space, envs.single_action_space)},
            max_episode_steps=envs.spec.max_episode_steps if envs.spec else None,
            return_threshold=envs.spec.reward_threshold if envs.spec else None,
        )
        obs, info = self._reset([seeds(index, 0) for index in range(envs.num_envs)])
        mask = info.get("action_mask")
        layout = Layout(replace(facts, restore="restart"), {} if mask is None else {SINGLE_GROUP: mask.shape[-1]})
        buffers = [allocate_buffer(layout, envs.num_envs) for _ in range(2)]
        _write_observations(buffers[0].step, self._observe(obs), info)
        super().__init__(layout, envs.num_envs, seeds, buffers)

    def step(self, action: dict[str, Array]) -> Step:
        waited = np.flatnonzero(self._waiting)
        step = super().step(action)
        self._ledger.skip(waited)
        return step

    def episodes(self) -> list[Episode]:
        """Return the episodes finished since the last call; the seed is -1 where Gymnasium chose it."""
        episodes = super().episodes()
        return episodes if self._masked else [replace(episode, seed=-1) for episode in episodes]

    def close(self) -> None:
        self._envs.close()

    def _reset(self, seeds: list[int], only: Array | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset with one seed per environment, or with a single one where the vector takes no reset mask."""
        options = None if only is None else {"reset_mask": only.copy()}
        return self._envs.reset(seed=seeds if self._masked else seeds[0], options=options)  # type: ignore[arg-type]

    def _restore(self, state: dict[str, Any] | None) -> None:
        obs, info = self._reset([self._ledger.seed(index) for index in range(self.num_envs)])
        step = self._buffers[0].step
        self._waiting[:] = False
        step.active[SINGLE_GROUP].fill(True)
        _write_observations(step, self._observe(obs), info)

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        buffer, step = self._buffers[turn], self._buffers[turn].step
        for group, rows in step.mask.items():
            rows[:] = self.current.mask[group]
        try:
            obs, reward, terminated, truncated, info = self._envs.step(self._convert(action[SINGLE_GROUP][:, 0]))
        except Exception as problem:
            reason = f"raised {type(problem).__name__}: {problem}"
            raise EnvironmentFault(f"{self.spec.id} {reason} (vectorize=workers tells which environment)") from problem
        step.reward[SINGLE_GROUP][:, 0] = reward
        step.terminated[:], step.truncated[:] = terminated, truncated
        over = step.terminated | step.truncated
        ended: list[int] = np.flatnonzero(over).tolist()
        _write_observations(step, self._observe(obs), info)
        if ended:
            self._write_final(buffer, info, ended)
            if self._masked:
                obs, info = self._reset([self._ledger.seed(i, ahead=1) for i in range(self.num_envs)], over)
                _write_observations(step, self._observe(obs), info)
        started = self._waiting.copy()
        self._waiting[:] = over & (self._mode is AutoresetMode.NEXT_STEP and not self._masked)
        step.active[SINGLE_GROUP][:, 0] = ~self._waiting
        step.is_first[:] = (over & ~self._waiting) | started
        return ended

    def _convert(self, action: Array) -> Array:
        space = self._envs.action_space
        return np.clip(action, space.low, space.high) if self._clip and isinstance(space, Box) else action

    def _write_final(self, buffer: Buffer, info: dict[str, Any], ended: list[int]) -> None:
        """Write the final observations: those in `info` where Gymnasium has already reset, else the current ones."""
        final, obs = buffer.final_obs[SINGLE_GROUP], buffer.step.obs[SINGLE_GROUP]
        for index in ended:
            if self._mode is AutoresetMode.SAME_STEP:
                last = map_tree(lambda leaf: leaf[None], self._observe_one(info["final_obs"][index]))
            else:
                last = map_tree(lambda rows, index=index: rows[index], obs)
            map_tree(lambda rows, value, index=index: rows.__setitem__(index, value), final, last)


def _write_observations(step: Step, obs: Tree, info: dict[str, Any]) -> None:
    for (_, rows), (_, array) in zip(leaves(step.obs[SINGLE_GROUP]), leaves(obs), strict=True):
        rows[...] = array
    for rows in step.mask.values():
        if "action_mask" in info:
            present = info.get("_action_mask", np.ones(len(rows), bool))
            rows[present, 0] = info["action_mask"][present]
