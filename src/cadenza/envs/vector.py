"""Environments stepped together under one contract: same-step resets, true final observations, exact resume."""

from __future__ import annotations

import dataclasses
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.layout import Array, Buffer, Layout, allocate_buffer, codes, shape_of
from cadenza.envs.ledger import Ledger
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.envs.slice import BUILD, IDLE, INDEX, RESET, STAGE, STEP, MakeEnv, Slice, Trouble
from cadenza.envs.watchdog import Hung, Watchdog
from cadenza.errors import ConfigError, EnvironmentFault
from cadenza.types import Episode, Step, VectorEnv

CORES = "CADENZA_CORES"  # how many processors one of several runs at the same time may count on
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Vector(ABC):
    """What all ways of stepping environments share; a subclass fills buffers (`_advance`) and brings episodes back.

    Steps are written into two buffers in turn, so a step outlives the next call but not the one after it.
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
        self._check_seen(0, list(range(num_envs)), None)

    def step(self, action: dict[str, Array]) -> Step:
        """Step every environment with its row of the actions [N, A, …]."""
        turn = self._turn = 1 - self._turn
        action = {group: as_taken(action[group], dtype, group) for group, dtype in self._dtypes}
        try:
            ended = self._advance(action, turn)
        except Trouble as trouble:
            raise self._fault(trouble, action) from trouble.__cause__
        buffer = self._buffers[turn]
        buffer.settle(ended)
        self._check_seen(turn, ended, action)
        step = buffer.step
        self._ledger.record(action, step.raw_reward or step.reward, ended, step.won)
        self.current = step
        return step

    def episodes(self) -> list[Episode]:
        """The episodes finished since last asked; ask before saving, they are no part of the state."""
        return self._ledger.take()

    def state_dict(self) -> dict[str, Any]:
        return self._ledger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Come back to where the running episodes stood; `current` is then what the next action must be chosen on."""
        if self.spec.restore == "restart":
            self.reset(np.asarray(state["numbers"]) + 1)
        else:
            self._ledger.load_state_dict(state)
            self._show(state)

    def reset(self, first_episode: int | Array = 0) -> Step:
        """Give up the running episodes and begin the one of this number in every environment."""
        self._ledger.restart(np.broadcast_to(first_episode, self.num_envs))
        self._show(None)
        return self.current

    def _show(self, state: dict[str, Any] | None) -> None:
        """Make `current` what the environments show after a restore: nothing has been earned, nothing has ended."""
        self._turn = 0
        try:
            self._restore(state)
        except Trouble as trouble:
            raise self._fault(trouble, None) from trouble.__cause__
        buffer = self._buffers[0]
        buffer.clear()
        np.equal(self._ledger.lengths, 0, out=buffer.step.is_first)
        self._check_seen(0, list(range(self.num_envs)), None)
        self.current = buffer.step

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        """Fill buffer `turn` and name the environments whose episode ended."""

    @abstractmethod
    def _restore(self, state: dict[str, Any] | None) -> None:
        """Bring the environments to where the ledger stands, with buffer 0 showing it; no state: all are at a start."""

    def _check_seen(self, turn: int, fresh: list[int], action: dict[str, Array] | None) -> None:
        """Refuse what nobody can see or choose from; `fresh` environments show a reset's observation."""
        self._check(self._floats[turn], self._codes[turn], fresh, action)
        if fresh and action is not None:
            self._check(self._final_floats[turn], self._final_codes[turn], [], action)
        step = self._buffers[turn].step
        for group, mask in step.mask.items():
            stuck = step.active[group] & ~mask.any(-1)
            if np.count_nonzero(stuck):
                self._refuse("told an action mask that allows nothing", stuck, fresh, action)

    def _check(self, floats: list[Any], codes: list[Any], fresh: list[int], action: dict[str, Array] | None) -> None:
        # A dot product is the cheapest thing that both survive; only what it raises suspicion of is looked at closely.
        for name, array, flat in floats:
            if not isfinite(flat.dot(flat)):
                seen = [] if name.startswith("reward") else fresh
                self._refuse(f"returned NaN or infinity ({name})", ~np.isfinite(array), seen, action)
        for name, array, lowest, highest in codes:
            beyond = (array < lowest) | (array > highest)
            if np.count_nonzero(beyond):  # quicker than any()
                told = f"returned a number that is not from {lowest} to {highest} (observation {name})"
                self._refuse(told, beyond, fresh, action)

    def _refuse(self, reason: str, wrong: Array, fresh: list[int], action: dict[str, Array] | None) -> None:
        bad = np.flatnonzero(wrong.reshape(self.num_envs, -1).any(axis=1))
        if len(bad):
            index = int(bad[0])
            raise self._fault(Trouble(index, RESET if index in fresh else STEP, reason), action)

    def _fault(self, trouble: Trouble, action: dict[str, Array] | None) -> EnvironmentFault:
        """The message for a failure: which environment, and what repeats it."""
        index, ledger = trouble.index, self._ledger
        number, seed, length = int(ledger.numbers[index]), ledger.seed(index), int(ledger.lengths[index])
        if action is None:
            when = f"at the start of episode {number} (seed {seed})"
            if length:
                when = f"while {length} steps of episode {number} were repeated (seed {seed})"
        elif trouble.stage == STEP:
            taken = ", ".join(f"{group} {array[index].tolist()}" for group, array in action.items())
            when = f"at step {length + 1} of episode {number} (seed {seed}, action {taken})"
        else:
            when = f"at the start of episode {number + 1} (seed {ledger.seed(index, ahead=1)})"
        return worded(trouble, f"environment {ledger.first_env + index} ({self.spec.id}) {trouble.reason}, {when}")


def worded(trouble: Trouble, message: str) -> EnvironmentFault:
    """The user's error, with what was noted on the way (a worker's traceback)."""
    fault = EnvironmentFault(message)
    for note in getattr(trouble, "__notes__", ()):
        fault.add_note(note)
    return fault


def starting_fault(trouble: Trouble, seeds: EpisodeSeeds) -> EnvironmentFault:
    """The message for a failure before the first step."""
    made = trouble.stage != BUILD
    when = f"at the start of episode 0 (seed {seeds(trouble.index, 0)})" if made else "while it was made"
    return worded(trouble, f"environment {seeds.first_env + trouble.index} {trouble.reason}, {when}")


def as_taken(action: Any, dtype: Any, group: str) -> Array:
    """Actions of one group in the type of their space; what would lose its fraction on the way is refused."""
    try:
        return np.asarray(action).astype(dtype, casting="same_kind", copy=False)
    except TypeError:
        kinds = f"{np.asarray(action).dtype}, where group '{group}' acts in {np.dtype(dtype)}"
        raise ConfigError(f"the algorithm's actions are of {kinds}") from None


class InProcess(Vector):
    """Environments stepped one after the other in this process: the fastest way for light ones."""

    def __init__(self, make_env: MakeEnv, num_envs: int, seeds: EpisodeSeeds, timeout_seconds: float = 60.0) -> None:
        self._timeout = timeout_seconds
        self._mark = [0, 0, IDLE]
        self._watchdog = Watchdog(self._mark, timeout_seconds)
        try:
            self._slice = self._start(make_env, num_envs, seeds)
            buffers = [allocate_buffer(self._slice.layout, num_envs) for _ in range(2)]
            self._slice.attach(buffers)
        except BaseException as problem:
            self._watchdog.close()
            if isinstance(problem, Trouble):
                raise starting_fault(problem, seeds) from problem.__cause__
            raise
        weakref.finalize(self, self._watchdog.close)
        super().__init__(self._slice.layout, num_envs, seeds, buffers)

    def close(self) -> None:
        self._watchdog.close()
        self._slice.close()

    def _start(self, make_env: MakeEnv, num_envs: int, seeds: EpisodeSeeds) -> Slice:
        try:
            return Slice(make_env, num_envs, seeds, self._mark)
        except Hung:
            raise self._hung() from None

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        try:
            return self._slice.step(action, turn)
        except Hung:
            raise self._hung() from None

    def _restore(self, state: dict[str, Any] | None) -> None:
        running = self._ledger.state_dict()
        try:
            self._slice.replay(running["numbers"].tolist(), running["lengths"].tolist(), running["actions"], 0)
        except Hung:
            raise self._hung() from None

    def _hung(self) -> Trouble:
        stage, self._mark[STAGE] = self._mark[STAGE], IDLE
        return Trouble(self._mark[INDEX], stage, f"took longer than {self._timeout:g} s")


def make_vector(
    config: EnvironmentConfig,
    seeds: EpisodeSeeds,
    *,
    num_envs: int | None = None,
    decisions: dict[str, Any] | None = None,
) -> VectorEnv:
    """The configured environments. What `auto` comes to is noted in `decisions`, or read there if it was before."""
    decisions = {} if decisions is None else decisions
    config = dataclasses.replace(config, id=environments.resolve(config.id), num_envs=num_envs or config.num_envs)
    count = config.num_envs
    way = decide_vectorize(config, count, decisions)
    if way in ("in_process", "gymnasium") and count > 1 and catalog.one_per_process(config.id):
        held = f"a process can hold one {config.id} at a time, and environment.num_envs={count}"
        raise ConfigError(f"environment.vectorize={way}: {held}; use workers")
    make_env = partial(catalog.make, config)
    if way == "native":
        from cadenza.envs.padding import arranged_vector, by_type

        native = catalog.native_version(by_type(config))
        if native is None:
            under = f" under environment.{config.dressing[0]}" if config.dressing else ""
            raise ConfigError(
                f"environment.vectorize=native: {config.id} has no native version{under}; use auto or in_process"
            )
        return arranged_vector(native.make(count, seeds), config)
    if way == "workers":
        from cadenza.envs.workers import Workers
        from cadenza.envs.wrapping import for_other_processes

        make_env = partial(catalog.make, for_other_processes(config))
        workers = count if catalog.one_per_process(config.id) else min(decisions["environment.workers"], count)
        return Workers(make_env, count, seeds, config.timeout_seconds, workers, config.id)
    if way == "envpool":
        from cadenza.envs.families.envpool import pooled

        return pooled(config, count, seeds)
    if way == "gymnasium":
        if config.wrappers:  # the vector's steps have no place for the environment's own reward beside the wrapped one
            raise ConfigError("environment.vectorize=gymnasium: cannot be used with environment.wrappers; use auto")
        from cadenza.envs.families.gymnasium_vector import synchronous

        return synchronous(make_env, count, seeds, config)
    return InProcess(make_env, count, seeds, config.timeout_seconds)


def decide_vectorize(config: EnvironmentConfig, num_envs: int, decisions: dict[str, Any]) -> str:
    """How to step them: what was decided before, what is configured, or what `auto` comes to."""
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
            which = "no native version under wrappers" if config.dressing else "no native version"
            value, reason = "in_process", f"{config.id} has {which}, and light steps are not worth processes"
        elif num_envs < native.worthwhile_from:
            value, reason = "in_process", f"the native version pays from {native.worthwhile_from} environments on"
        else:
            value, reason = "native", f"fastest for {num_envs} environments, and restored exactly"
        decisions[key] = {"value": value, "reason": reason}
    return str(decisions[key]["value"])


def cores() -> int:
    """The processors this process may use."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(here, int(os.environ.get(CORES, here)))


def share_of_cores(processes: int) -> int:
    """The processors each of so many may count on."""
    return max(1, cores() // processes)


def limited_to(count: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a process that may count on so many processors; threads that are set stay so."""
    return {**environ, **{name: environ.get(name, str(count)) for name in THREADS}, CORES: str(count)}
