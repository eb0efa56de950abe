"""A run of environments stepped one after the other: resets, seeds and final observations happen here and nowhere else.

The in-process vector has one slice of all its environments, each worker process one of its share.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

from numpy import ndarray

from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Array, Buffer, Layout
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.errors import CadenzaError
from cadenza.types import SINGLE_GROUP, Environment, Frame, Tree

MakeEnv = Callable[[], Environment]
Mark = MutableSequence[int]  # [progress, environment, stage]: what is being done right now, read by whoever waits
PROGRESS, INDEX, STAGE = range(3)
IDLE, BUILD, RESET, STEP = range(4)


class Trouble(Exception):
    """A failure in environment `index` of a slice at some stage; the vector knows seeds and steps and words it."""

    def __init__(self, index: int, stage: int, reason: str) -> None:
        super().__init__(index, stage, reason)
        self.index, self.stage, self.reason = index, stage, reason


class Slice:
    """Environments that fill rows 0, 1, … of the buffers they are attached to."""

    def __init__(self, make_env: MakeEnv, count: int, seeds: EpisodeSeeds, mark: Mark) -> None:
        self._mark = mark
        self._seeds = seeds
        self._numbers = [0] * count  # episodes finished
        self.envs: list[Environment] = []
        for index in range(count):
            self.envs.append(self._guard(index, BUILD, make_env))
        self._first = [self._reset(index) for index in range(count)]
        self.layout = Layout.of(self.envs[0].spec, self._first[0])
        mark[STAGE] = IDLE

    def attach(self, buffers: Sequence[Buffer]) -> None:
        """Write into these from now on, beginning with the first observations into buffer 0."""
        self._writers = [Writer(buffer) for buffer in buffers]
        self._lone = _lone(self.envs, self.layout)
        self._show(self._first, self._writers[0])
        self._first = []

    def step(self, actions: dict[str, Array], turn: int) -> list[int]:
        """Step every environment into buffer `turn`; reset those whose episode ends, and name them."""
        mark, writer = self._mark, self._writers[turn]
        mark[PROGRESS] += 1
        mark[STAGE] = STEP
        writer.begin()
        ended: list[int] = []
        try:
            if self._lone:
                self._step_lone(self._lone, actions[SINGLE_GROUP][:, 0], writer, ended)
            else:
                self._step_any(actions, writer, ended)
        except (Exception, SystemExit) as problem:
            raise self._trouble(problem) from problem
        mark[STAGE] = IDLE
        return ended

    def _step_any(self, actions: dict[str, Array], writer: Writer, ended: list[int]) -> None:
        groups = tuple(actions)
        for index, (env, rows) in enumerate(zip(self.envs, zip(*actions.values(), strict=True), strict=True)):
            self._mark[INDEX] = index
            self._take(index, env.step(dict(zip(groups, rows, strict=True))), writer, ended)

    def _step_lone(self, envs: list[Gym], actions: Array, writer: Writer, ended: list[int]) -> None:
        """The same with frames only where an episode ends: making and reading one takes some microseconds."""
        mark, see = self._mark, writer.see
        mark[INDEX] = 0  # at whose action it would fail
        for index, (env, action) in enumerate(zip(envs, envs[0].actions(actions), strict=True)):
            mark[INDEX] = index
            outcome = env.act(action)
            told = outcome[4] and "action_mask" in outcome[4]
            if outcome[2] or outcome[3] or told or not see(index, outcome[0], outcome[1]):
                self._take(index, env.frame(outcome), writer, ended)

    def _take(self, index: int, frame: Frame, writer: Writer, ended: list[int]) -> None:
        """Write what a step led to; where an episode ended, begin the next."""
        writer.outcome(index, frame)
        if frame.terminated or frame.truncated:
            ended.append(index)
            writer.last(index, frame)
            self._numbers[index] += 1
            frame = self._reset(index)
            self._mark[STAGE] = STEP
        writer.seen(index, frame)

    def replay(self, numbers: Sequence[int], lengths: Sequence[int], actions: dict[str, Array], turn: int) -> None:
        """Come back to the middle of episodes by their seeds and actions (concatenated, environment by environment)."""
        self._numbers = list(numbers)
        frames, start = [], 0
        for index, length in enumerate(lengths):
            frame = self._reset(index)
            for at in range(start, start + length):
                self._mark[PROGRESS] += 1
                self._mark[STAGE] = STEP
                try:
                    frame = self.envs[index].step({group: array[at] for group, array in actions.items()})
                except (Exception, SystemExit) as problem:
                    raise self._trouble(problem) from problem
                if frame.terminated or frame.truncated:
                    short = f"{at - start + 1} of {length} repeated steps"
                    raise Trouble(index, RESET, f"ended after {short}: it does not repeat its episodes")
            frames.append(frame)
            start += length
        self._show(frames, self._writers[turn])
        self._mark[STAGE] = IDLE

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _show(self, frames: list[Frame], writer: Writer) -> None:
        for index, frame in enumerate(frames):
            self._guard(index, RESET, lambda index=index, frame=frame: writer.seen(index, frame))  # type: ignore[misc]

    def _reset(self, index: int) -> Frame:
        self._mark[PROGRESS] += 1
        seed = self._seeds(index, self._numbers[index])
        frame: Frame = self._guard(index, RESET, lambda: self.envs[index].reset(seed))
        return frame

    def _guard(self, index: int, stage: int, action: Callable[[], Any]) -> Any:
        self._mark[INDEX], self._mark[STAGE] = index, stage
        try:
            return action()
        except CadenzaError:  # a mistake in the config, told when the environment is made
            raise
        except (Exception, SystemExit) as problem:
            raise self._trouble(problem) from problem

    def _trouble(self, problem: BaseException) -> Trouble:
        if isinstance(problem, Trouble):
            return problem
        reason = str(problem) if isinstance(problem, Junk) else f"raised {type(problem).__name__}: {problem}"
        trouble = Trouble(int(self._mark[INDEX]), int(self._mark[STAGE]), reason)
        self._mark[STAGE] = IDLE  # it failed, so it does not hang
        return trouble


def _lone(envs: list[Environment], layout: Layout) -> list[Gym]:
    """The environments, if all are Gymnasium's, take the same actions and tell what frames need not carry."""
    lone = [env for env in envs if type(env) is Gym]
    told = layout.masks or layout.raw_reward or layout.won
    alike = len(lone) == len(envs) and all(env.env.action_space == lone[0].env.action_space for env in lone)
    return lone if alike and not told else []


class Junk(Exception):
    """An environment returned something that is not what its spec declares."""


class Writer:
    """Puts frames into the rows of one buffer, with everything looked up beforehand."""

    def __init__(self, buffer: Buffer) -> None:
        self._step = buffer.step
        self._obs = _places(buffer.step.obs)
        self._final = _places(buffer.final_obs)
        self._final_state = buffer.final_state
        self._rewards = list(buffer.step.reward.items())
        self._raw_rewards = list(buffer.step.raw_reward.items())
        self._masks = list(buffer.step.mask.items())
        self._one = self._obs[0][1:] if len(self._obs) == 1 else None  # the only array there is to see
        self._varied = False  # someone was inactive once: from then on activity is written at every step

    def begin(self) -> None:
        self._step.terminated.fill(False)
        self._step.truncated.fill(False)
        self._step.is_first.fill(False)
        if self._step.won is not None:
            self._step.won.fill(False)

    def outcome(self, index: int, frame: Frame) -> None:
        """What a step led to, whether or not a reset follows."""
        for group, rows in self._rewards:
            rows[index] = frame.reward[group]
        for group, rows in self._raw_rewards:
            rows[index] = frame.raw_reward[group]  # type: ignore[index]
        if frame.died is not None or self._varied:
            self._varied = True
            for group, rows in self._step.died.items():
                rows[index] = frame.died[group] if frame.died is not None else False

    def see(self, index: int, obs: Any, reward: Any) -> bool:
        """A lone agent's step in which nothing ended; false where it takes a frame to understand or refuse it."""
        if self._one is None or type(obs) is not ndarray:
            return False
        rows, shape, dtype = self._one
        if obs.dtype is not dtype or obs.shape != shape[1:]:
            return False
        rows[index, 0] = obs
        self._rewards[0][1][index] = reward
        return True

    def last(self, index: int, frame: Frame) -> None:
        """The end of an episode: its true last observation, kept apart from the reset's."""
        self._step.terminated[index] = frame.terminated
        self._step.truncated[index] = frame.truncated
        self._step.is_first[index] = True
        if self._step.won is not None:
            self._step.won[index] = frame.won
        _put(self._final, index, frame.obs)
        if self._final_state is not None:
            self._final_state[index] = frame.state

    def seen(self, index: int, frame: Frame) -> None:
        """What the agents act on next."""
        _put(self._obs, index, frame.obs)
        if frame.mask and not self._masks:
            raise Junk("told an action mask, but none when it was first reset; tell one from there on")
        for group, rows in self._masks:
            rows[index] = frame.mask[group] if frame.mask is not None else True
        if frame.active is not None or self._varied:
            self._varied = True
            for group, rows in self._step.active.items():
                rows[index] = frame.active[group] if frame.active is not None else True
        if self._step.state is not None:
            self._step.state[index] = frame.state


Place = tuple[tuple[str, ...], Array, tuple[int, ...], Any]


def _places(tree: Tree, path: tuple[str, ...] = ()) -> list[Place]:
    if isinstance(tree, dict):
        return [place for key, part in tree.items() for place in _places(part, (*path, key))]
    return [(path, tree, tree.shape[1:], tree.dtype)]


def _put(places: list[Place], index: int, obs: Tree) -> None:
    for path, rows, shape, dtype in places:
        value = obs
        for key in path:
            value = value[key]
        if value.shape != shape or value.dtype != dtype:
            raise Junk(
                f"returned an observation ({'.'.join(path)}) of shape {value.shape[1:]} and dtype {value.dtype} "
                f"where {shape[1:]} and {dtype} are declared"
            )
        rows[index] = value
