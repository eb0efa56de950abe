"""Environments stepped one after the other: resets, seeds and final observations happen here and nowhere else.

The in-process vector holds all its environments in one `SequentialEnvs`; each worker process holds its share in one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy import asarray, ndarray

from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Array, Buffer, Layout
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.vector import BUILD, IDLE, INDEX, PROGRESS, RESET, STAGE, STEP, MakeEnv, Mark, StageError
from cadenza.errors import CadenzaError
from cadenza.types import SINGLE_GROUP, Environment, Frame, Tree

if TYPE_CHECKING:
    from cadenza.envs.families.mujoco import HalfCheetahs


class SequentialEnvs:
    """Environments that fill rows 0, 1, … of the buffers they are attached to."""

    def __init__(self, make_env: MakeEnv, count: int, seeds: EpisodeSeeds, mark: Mark) -> None:
        self._mark = mark
        self._seeds = seeds
        self._numbers = [0] * count  # episodes finished
        self.envs: list[Environment] = []
        for index in range(count):
            self.envs.append(self._guard(index, BUILD, make_env))
        self._first = [self._reset(index) for index in range(count)]
        self.layout = Layout.from_frame(self.envs[0].spec, self._first[0])
        mark[STAGE] = IDLE

    def attach(self, buffers: Sequence[Buffer]) -> None:
        """Write into `buffers` from now on; the first observations go into buffer 0."""
        self._writers = [Writer(buffer) for buffer in buffers]
        self._fast_envs = _fast_envs(self.envs, self.layout)
        self._together = _together(self._fast_envs)
        self._show(self._first, self._writers[0])
        self._first = []

    def step(self, actions: dict[str, Array], turn: int) -> list[int]:
        """Step every environment into buffer `turn`; reset those whose episode ends and return their indices."""
        mark, writer = self._mark, self._writers[turn]
        mark[PROGRESS] += 1
        mark[STAGE] = STEP
        writer.begin()
        ended: list[int] = []
        try:
            if self._together is not None:
                self._step_together(self._together, actions[SINGLE_GROUP][:, 0], writer, ended)
            elif self._fast_envs:
                self._step_fast(self._fast_envs, actions[SINGLE_GROUP][:, 0], writer, ended)
            else:
                self._step_any(actions, writer, ended)
        except (Exception, SystemExit) as problem:
            raise self._stage_error(problem) from problem
        mark[STAGE] = IDLE
        return ended

    def _step_any(self, actions: dict[str, Array], writer: Writer, ended: list[int]) -> None:
        groups = tuple(actions)
        for index, (env, rows) in enumerate(zip(self.envs, zip(*actions.values(), strict=True), strict=True)):
            self._mark[INDEX] = index
            self._write_step(index, env.step(dict(zip(groups, rows, strict=True))), writer, ended)

    def _step_fast(self, envs: list[Gym], actions: Array, writer: Writer, ended: list[int]) -> None:
        """Step like `_step_any`, but build a frame only where an episode ends: a frame costs some microseconds."""
        mark, write_fast = self._mark, writer.write_fast
        mark[INDEX] = 0  # named if the conversion of the actions fails
        for index, (env, action) in enumerate(zip(envs, envs[0].actions(actions), strict=True)):
            mark[INDEX] = index
            outcome = env.act(action)
            has_mask = outcome[4] and "action_mask" in outcome[4]
            if outcome[2] or outcome[3] or has_mask or not write_fast(index, outcome[0], outcome[1]):
                self._write_step(index, env.frame(outcome), writer, ended)

    def _step_together(self, batch: HalfCheetahs, actions: Array, writer: Writer, ended: list[int]) -> None:
        """Step like `_step_fast`, all environments by one call."""
        envs, (obs, rewards) = self._fast_envs, writer.rows
        self._mark[INDEX] = 0
        outcomes = batch.step(asarray(envs[0].actions(actions)), obs, self._mark, INDEX)
        rewards[:] = outcomes
        for index, env in enumerate(envs):
            if env.count_step():
                self._mark[INDEX] = index
                self._write_step(index, env.frame((obs[index].copy(), outcomes[index], False, True, {})), writer, ended)

    def _write_step(self, index: int, frame: Frame, writer: Writer, ended: list[int]) -> None:
        """Write the result of a step; where the episode ended, reset and write the new episode's first observation."""
        writer.write_outcome(index, frame)
        if frame.terminated or frame.truncated:
            ended.append(index)
            writer.write_final(index, frame)
            self._numbers[index] += 1
            frame = self._reset(index)
            self._mark[STAGE] = STEP
        writer.write_observation(index, frame)

    def replay(self, numbers: Sequence[int], lengths: Sequence[int], actions: dict[str, Array], turn: int) -> None:
        """Restore running episodes: reset each to its seed and repeat its actions; show the result in buffer `turn`.

        `actions` [sum of lengths, A, …] holds the actions of environment 0, then those of environment 1, and so on.
        """
        self._numbers = list(numbers)
        frames, start = [], 0
        for index, length in enumerate(lengths):
            frame = self._reset(index)
            for time in range(start, start + length):
                self._mark[PROGRESS] += 1
                self._mark[STAGE] = STEP
                try:
                    frame = self.envs[index].step({group: array[time] for group, array in actions.items()})
                except (Exception, SystemExit) as problem:
                    raise self._stage_error(problem) from problem
                if frame.terminated or frame.truncated:
                    self._mark[STAGE] = IDLE
                    after = f"{time - start + 1} of {length} repeated steps"
                    raise StageError(index, RESET, f"ended after {after}: it does not repeat its episodes")
            frames.append(frame)
            start += length
        self._show(frames, self._writers[turn])

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _show(self, frames: list[Frame], writer: Writer) -> None:
        """Write the observations of all environments; afterwards the mark is idle, since nothing runs until a step."""
        for index, frame in enumerate(frames):
            self._guard(index, RESET, lambda index=index, frame=frame: writer.write_observation(index, frame))  # type: ignore[misc]
        self._mark[STAGE] = IDLE

    def _reset(self, index: int) -> Frame:
        self._mark[PROGRESS] += 1
        seed = self._seeds(index, self._numbers[index])
        frame: Frame = self._guard(index, RESET, lambda: self.envs[index].reset(seed))
        return frame

    def _guard(self, index: int, stage: int, action: Callable[[], Any]) -> Any:
        self._mark[INDEX], self._mark[STAGE] = index, stage
        try:
            return action()
        except CadenzaError:  # a mistake in the config that shows when the environment is made
            self._mark[STAGE] = IDLE
            raise
        except (Exception, SystemExit) as problem:
            raise self._stage_error(problem) from problem

    def _stage_error(self, problem: BaseException) -> StageError:
        if isinstance(problem, StageError):
            return problem
        reason = str(problem) if isinstance(problem, FrameError) else f"raised {type(problem).__name__}: {problem}"
        error = StageError(int(self._mark[INDEX]), int(self._mark[STAGE]), reason)
        self._mark[STAGE] = IDLE  # it failed, so it does not hang
        return error


def _fast_envs(envs: list[Environment], layout: Layout) -> list[Gym]:
    """Return the environments if all are Gymnasium's, act alike and report nothing that needs a frame; else none."""
    gyms = [env for env in envs if type(env) is Gym]
    needs_frames = layout.masks or layout.raw_reward or layout.won
    alike = len(gyms) == len(envs) and all(env.env.action_space == gyms[0].env.action_space for env in gyms)
    return gyms if alike and not needs_frames else []


def _together(envs: list[Gym]) -> HalfCheetahs | None:
    """Return what steps these environments by one call, if anything does."""
    if not envs or "gymnasium.envs.mujoco.half_cheetah_v5" not in sys.modules:
        return None
    from cadenza.envs.families.mujoco import together

    return together(envs)


class FrameError(Exception):
    """An environment returned something that its spec does not declare."""


class Writer:
    """Writes frames into the rows of one buffer. All look-ups are done once, in the constructor."""

    def __init__(self, buffer: Buffer) -> None:
        self._step = buffer.step
        self._obs = _places(buffer.step.obs)
        self._final = _places(buffer.final_obs)
        self._final_state = buffer.final_state
        self._rewards = list(buffer.step.reward.items())
        self._raw_rewards = list(buffer.step.raw_reward.items())
        self._masks = list(buffer.step.mask.items())
        self._only_array = self._obs[0][1:] if len(self._obs) == 1 else None
        self._varied = False  # someone was inactive once: from then on activity is written at every step

    @property
    def rows(self) -> tuple[Array, Array]:
        """The rows [N, …] of a single agent's observations and rewards."""
        return self._obs[0][1][:, 0], self._rewards[0][1][:, 0]

    def begin(self) -> None:
        """Clear the episode flags of all rows."""
        self._step.terminated.fill(False)
        self._step.truncated.fill(False)
        self._step.is_first.fill(False)
        if self._step.won is not None:
            self._step.won.fill(False)

    def write_outcome(self, index: int, frame: Frame) -> None:
        """Write rewards and deaths of a step, whether or not a reset follows."""
        for group, rows in self._rewards:
            rows[index] = frame.reward[group]
        for group, rows in self._raw_rewards:
            rows[index] = frame.raw_reward[group]  # type: ignore[index]
        if frame.died is not None or self._varied:
            self._varied = True
            for group, rows in self._step.died.items():
                rows[index] = frame.died[group] if frame.died is not None else False

    def write_fast(self, index: int, obs: Any, reward: Any) -> bool:
        """Write a single agent's step that ended nothing; return False where only a frame can convert or refuse it."""
        if self._only_array is None or type(obs) is not ndarray:
            return False
        rows, shape, dtype = self._only_array
        if obs.dtype is not dtype or obs.shape != shape[1:]:
            return False
        rows[index, 0] = obs
        self._rewards[0][1][index] = reward
        return True

    def write_final(self, index: int, frame: Frame) -> None:
        """Write the end of an episode, with its true last observation kept apart from the reset's."""
        self._step.terminated[index] = frame.terminated
        self._step.truncated[index] = frame.truncated
        self._step.is_first[index] = True
        if self._step.won is not None:
            self._step.won[index] = frame.won
        _write(self._final, index, frame.obs)
        if self._final_state is not None:
            self._final_state[index] = frame.state

    def write_observation(self, index: int, frame: Frame) -> None:
        """Write what the agents act on next: observations, masks, activity and state."""
        _write(self._obs, index, frame.obs)
        if frame.mask and not self._masks:
            raise FrameError("returned an action mask, but none at its first reset; return one from there on")
        for group, rows in self._masks:
            rows[index] = frame.mask[group] if frame.mask is not None else True
        if frame.active is not None or self._varied:
            self._varied = True
            for group, rows in self._step.active.items():
                rows[index] = frame.active[group] if frame.active is not None else True
        if self._step.state is not None:
            self._step.state[index] = frame.state


Place = tuple[tuple[str, ...], Array, tuple[int, ...], Any]  # path of keys, rows, shape and dtype of one row


def _places(tree: Tree, path: tuple[str, ...] = ()) -> list[Place]:
    if isinstance(tree, dict):
        return [place for key, part in tree.items() for place in _places(part, (*path, key))]
    return [(path, tree, tree.shape[1:], tree.dtype)]


def _write(places: list[Place], index: int, obs: Tree) -> None:
    for path, rows, shape, dtype in places:
        value = obs
        for key in path:
            value = value[key]
        if value.shape != shape or value.dtype != dtype:
            raise FrameError(
                f"returned an observation ({'.'.join(path)}) of shape {value.shape[1:]} and dtype {value.dtype} "
                f"where {shape[1:]} and {dtype} are declared"
            )
        rows[index] = value
