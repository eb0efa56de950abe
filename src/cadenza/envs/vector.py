"""Environments stepped together under one contract: same-step resets, true final observations, exact resume."""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.layout import Array, Buffer, Layout, codes, shape_of
from cadenza.envs.ledger import EpisodeSeeds, Ledger
from cadenza.envs.translation import before_translation, translate_vector
from cadenza.errors import ConfigError, EnvironmentFault
from cadenza.types import Environment, Episode, Step, VectorEnv

CORES = "CADENZA_CORES"  # environment variable: the processors that one of several concurrent runs may use
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

MakeEnv = Callable[[], Environment]
Mark = MutableSequence[int]  # [progress, environment, stage]: the current activity, for whoever detects hangs
PROGRESS, INDEX, STAGE = range(3)
IDLE, BUILD, RESET, STEP = range(4)
LOOKS = 4  # polls of an unchanged mark before it counts as hung; polls, not seconds, so a suspended process is safe


class StageError(Exception):
    """A failure of environment `index` at a stage. The vector adds seed and step and words it for the user."""

    def __init__(self, index: int, stage: int, reason: str) -> None:
        super().__init__(index, stage, reason)
        self.index, self.stage, self.reason = index, stage, reason


class Vector(ABC):
    """The base of all vector environments. A subclass fills buffers (`_advance`) and restores episodes (`_restore`).

    Steps are written alternately into two buffers, so a step stays valid during the next call but not the one after.
    """

    def __init__(self, layout: Layout, num_envs: int, seeds: EpisodeSeeds, buffers: Sequence[Buffer]) -> None:
        self.spec, self.num_envs = layout.spec, num_envs
        self._ledger = Ledger(layout.spec, num_envs, seeds)
        self._buffers = buffers
        self._floats = [[(name, array, array.reshape(-1)) for name, array in buffer.floats()] for buffer in buffers]
        self._final_floats = [[(n, array, array.reshape(-1)) for n, array in b.final_floats()] for b in buffers]
        self._codes = [codes(layout.spec, buffer.step.obs) for buffer in buffers]
        self._final_codes = [codes(layout.spec, buffer.final_obs) for buffer in buffers]
        self._dtypes = [(name, shape_of(group.action)[1]) for name, group in layout.spec.groups.items()]
        self._turn = 0
        self.current: Step = buffers[0].step
        self._check_buffer(0, list(range(num_envs)), None)

    def step(self, action: dict[str, Array]) -> Step:
        """Step every environment with its row of the actions [N, A, …]."""
        turn = self._turn = 1 - self._turn
        action = {group: cast_action(action[group], dtype, group) for group, dtype in self._dtypes}
        try:
            ended = self._advance(action, turn)
        except StageError as error:
            raise self._fault(error, action) from error.__cause__
        buffer = self._buffers[turn]
        buffer.settle(ended)
        self._check_buffer(turn, ended, action)
        step = buffer.step
        self._ledger.record(action, step.raw_reward or step.reward, ended, step.won)
        self.current = step
        return step

    def episodes(self) -> list[Episode]:
        """Return the episodes finished since the last call. Call it before saving: they are not part of the state."""
        return self._ledger.take()

    @property
    def reward_range(self) -> list[float] | None:
        """The lowest and the highest reward of an agent in a step so far; None before the first step."""
        return self._ledger.reward_range

    def state_dict(self) -> dict[str, Any]:
        return self._ledger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the running episodes; `current` then holds the observations for the next action."""
        self._ledger.load_state_dict(state)
        if self.spec.restore == "restart":
            self.reset(self._ledger.numbers + 1)
        else:
            self._show(state)

    def reset(self, first_episode: int | Array = 0) -> Step:
        """Abandon the running episodes and start the episode with number `first_episode` in every environment."""
        self._ledger.restart(np.broadcast_to(first_episode, self.num_envs))
        self._show(None)
        return self.current

    def _show(self, state: dict[str, Any] | None) -> None:
        """Restore the environments and set `current` to their observations, with zero rewards and no episode ends."""
        self._turn = 0
        try:
            self._restore(state)
        except StageError as error:
            raise self._fault(error, None) from error.__cause__
        buffer = self._buffers[0]
        buffer.clear()
        np.equal(self._ledger.lengths, 0, out=buffer.step.is_first)
        self._check_buffer(0, list(range(self.num_envs)), None)
        self.current = buffer.step

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        """Step all environments into buffer `turn`; return the indices of those whose episode ended."""

    @abstractmethod
    def _restore(self, state: dict[str, Any] | None) -> None:
        """Bring the environments to where the ledger stands and show it in buffer 0; without a state, reset them."""

    def _check_buffer(self, turn: int, fresh: list[int], action: dict[str, Array] | None) -> None:
        """Refuse values that are not finite, codes out of range and empty masks; `fresh` environments were reset."""
        self._check(self._floats[turn], self._codes[turn], fresh, action)
        if fresh and action is not None:
            self._check(self._final_floats[turn], self._final_codes[turn], [], action)
        step = self._buffers[turn].step
        for group, mask in step.mask.items():
            stuck = step.active[group] & ~mask.any(-1)
            if np.count_nonzero(stuck):
                self._refuse("returned an action mask that allows no action", stuck, fresh, action)

    def _check(self, floats: list[Any], codes: list[Any], fresh: list[int], action: dict[str, Array] | None) -> None:
        # A dot product is the cheapest operation that NaN and infinity both survive; only suspects are searched.
        for name, array, flat in floats:
            if not isfinite(flat.dot(flat)):
                just_reset = [] if name.startswith("reward") else fresh
                self._refuse(f"returned NaN or infinity ({name})", ~np.isfinite(array), just_reset, action)
        for name, array, lowest, highest in codes:
            beyond = (array < lowest) | (array > highest)
            if np.count_nonzero(beyond):  # quicker than any()
                reason = f"returned a number that is not from {lowest} to {highest} (observation {name})"
                self._refuse(reason, beyond, fresh, action)

    def _refuse(self, reason: str, wrong: Array, fresh: list[int], action: dict[str, Array] | None) -> None:
        bad = np.flatnonzero(wrong.reshape(self.num_envs, -1).any(axis=1))
        if len(bad):
            index = int(bad[0])
            raise self._fault(StageError(index, RESET if index in fresh else STEP, reason), action)

    def _fault(self, error: StageError, action: dict[str, Array] | None) -> EnvironmentFault:
        """Build the user's error: which environment failed, and the seed, step and action that repeat the failure."""
        index, ledger = error.index, self._ledger
        number, seed, length = int(ledger.numbers[index]), ledger.seed(index), int(ledger.lengths[index])
        if action is None:
            when = f"at the start of episode {number} (seed {seed})"
            if length:
                when = f"while {length} steps of episode {number} were repeated (seed {seed})"
        elif error.stage == STEP:
            actions = ", ".join(f"{group} {array[index].tolist()}" for group, array in action.items())
            when = f"at step {length + 1} of episode {number} (seed {seed}, action {actions})"
        else:
            when = f"at the start of episode {number + 1} (seed {ledger.seed(index, ahead=1)})"
        return _with_notes(error, f"environment {ledger.first_env + index} ({self.spec.id}) {error.reason}, {when}")


def _with_notes(error: StageError, message: str) -> EnvironmentFault:
    """Build the user's error with the notes of `error` (a worker's traceback)."""
    fault = EnvironmentFault(message)
    for note in getattr(error, "__notes__", ()):
        fault.add_note(note)
    return fault


def starting_fault(error: StageError, seeds: EpisodeSeeds) -> EnvironmentFault:
    """Build the user's error for a failure before the first step."""
    seed = seeds(error.index, 0)
    when = "while it was made" if error.stage == BUILD else f"at the start of episode 0 (seed {seed})"
    return _with_notes(error, f"environment {seeds.first_env + error.index} {error.reason}, {when}")


def cast_action(action: Any, dtype: Any, group: str) -> Array:
    """Return one group's actions in the dtype of their space; refuse a cast that would drop fractions."""
    try:
        return np.asarray(action).astype(dtype, casting="same_kind", copy=False)
    except TypeError:
        kinds = f"{np.asarray(action).dtype}, where group '{group}' acts in {np.dtype(dtype)}"
        raise ConfigError(f"the algorithm's actions are of {kinds}") from None


def make_vector(
    config: EnvironmentConfig,
    seeds: EpisodeSeeds,
    *,
    num_envs: int | None = None,
    decisions: dict[str, Any] | None = None,
    first: catalog.FirstEnvironment | None = None,
) -> VectorEnv:
    """Make the configured vector environment; `num_envs` overrides the config's.

    A setting that is `auto` is decided once: the decision is read from `decisions`, or made and written there.
    `first` becomes environment 0 if the environments are stepped in this process; otherwise it is closed.
    """
    decisions = {} if decisions is None else decisions
    config = dataclasses.replace(config, id=environments.resolve(config.id), num_envs=num_envs or config.num_envs)
    count = config.num_envs
    kind = decide_vectorize(config, count, decisions)
    if kind in ("in_process", "gymnasium") and count > 1 and catalog.one_per_process(config.id):
        reason = f"a process can hold one {config.id} at a time, and environment.num_envs={count}"
        raise ConfigError(f"environment.vectorize={kind}: {reason}; use workers")
    make_env: MakeEnv = partial(catalog.make, config)
    if first is not None and kind == "in_process":
        make_env = first.then(make_env)
    elif first is not None:
        first.close()
    if kind == "native":
        native = catalog.native_version(before_translation(config))
        if native is None:
            under = f" under environment.{config.dressing[0]}" if config.dressing else ""
            raise ConfigError(
                f"environment.vectorize=native: {config.id} has no native version{under}; use auto or in_process"
            )
        return translate_vector(native.make(count, seeds), config)
    if kind == "workers":
        from cadenza.envs.workers import Workers
        from cadenza.envs.wrapping import for_other_processes

        make_env = partial(catalog.make, for_other_processes(config))
        workers = count if catalog.one_per_process(config.id) else min(decisions["environment.workers"], count)
        return Workers(make_env, count, seeds, config.timeout_seconds, workers, config.id)
    if kind == "envpool":
        from cadenza.envs.families.envpool import pooled

        return pooled(config, count, seeds)
    if kind == "gymnasium":
        if config.wrappers:  # the vector's steps cannot carry the environment's own reward beside the wrapped one
            raise ConfigError("environment.vectorize=gymnasium: cannot be used with environment.wrappers; use auto")
        from cadenza.envs.families.gymnasium_vector import synchronous

        return synchronous(make_env, count, seeds, config)
    from cadenza.envs.in_process import InProcess

    return InProcess(make_env, count, seeds, config.timeout_seconds)


def decide_vectorize(config: EnvironmentConfig, num_envs: int, decisions: dict[str, Any]) -> str:
    """Return how to step the environments: the configured way, the one in `decisions`, or a new decision for `auto`."""
    if config.vectorize == "workers":
        decisions.setdefault("environment.workers", cores() if config.workers == "auto" else config.workers)
    if config.vectorize != "auto":
        return config.vectorize
    key = "environment.vectorize"
    if key not in decisions and catalog.one_per_process(config.id):
        decisions[key] = {"value": "workers", "reason": f"a process can hold one {config.id} at a time"}
    if key not in decisions:
        native = catalog.native_version(config)
        if native is None:
            lacks = "no native version under wrappers" if config.dressing else "no native version"
            value, reason = "in_process", f"{config.id} has {lacks}, and light steps are not worth processes"
        elif num_envs < native.worthwhile_from:
            value, reason = "in_process", f"the native version pays from {native.worthwhile_from} environments on"
        else:
            value, reason = "native", f"fastest for {num_envs} environments, and restored exactly"
        decisions[key] = {"value": value, "reason": reason}
    return str(decisions[key]["value"])


def cores() -> int:
    """Count the processors that this process may use, in a container and beside concurrent runs, too."""
    from cadenza.base.processors import usable

    available = usable()
    return min(available, int(os.environ.get(CORES, available)))


def share_of_cores(processes: int) -> int:
    """Return the processors for each of `processes` concurrent processes, at least one."""
    return max(1, cores() // processes)


def limited_to(count: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for a process that may use `count` processors; thread counts that are set stay."""
    return {**environ, **{name: environ.get(name, str(count)) for name in THREADS}, CORES: str(count)}
