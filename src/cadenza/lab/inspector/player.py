"""The child process that replays a recorded episode from its seed and actions.

Runs as `python -m cadenza.lab.inspector.player`. It sends the steps of the episode, then the policy's opinions about
them. Then it answers requests: for pictures of steps, and for what a world model imagines at a step.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.envs.catalog import make
from cadenza.errors import CadenzaError, ConfigError
from cadenza.lab.inspector.frames import (
    NUMBERS,
    as_image,
    copied,
    describe_action,
    encoded,
    first_numbers,
    image_of,
    number_names,
    rounded,
    size,
    stack,
)
from cadenza.lab.inspector.messages import Advantages, Dream, Message, Picture, Requests, State, TableRows, send
from cadenza.lab.view.play import fps_of, make_visible
from cadenza.records import episodes
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves, map_tree
from cadenza.types import Credit, Environment, Episode, Explains, Frame, Imagines, Mode, Opinion, Workflow

PICTURES = 300  # sent without a request, evenly over the episode
WITH_STEPS = 8  # every 8th of these is sent with the steps, the others when there is nothing else to do
PIECE = 100  # steps sent, and judged, together
CACHE_BYTES = 96 << 20  # of frames that wait to be judged; steps beyond that are played a second time
CONTEXT, HORIZON = 20, 15  # steps that a world model observes before it imagines, and that it then imagines
CONTEXT_SHOWN = 3  # of the observed steps, how many are shown
MAX_NAMES = 512  # of actions


class EpisodePlayer:
    """An episode on its environment; `at` is the number of actions executed."""

    def __init__(self, folder: RunFolder, number: int, trust: bool, sink: Callable[[Message], None]) -> None:
        self.folder, self.trust, self.send = folder, trust, sink
        self.config = folder.read_config(trust)
        self.episode: Episode = episodes.find(folder, number)
        self.env = environment(self.config.environment)
        self.stride = max(1, -(-self.episode.length // PICTURES))
        self.renders = True
        # pictures to send without a request
        self.missing = {*range(0, self.episode.length, self.stride), self.episode.length}
        self.at, self.frame = 0, self.env.reset(self.episode.seed)
        self.terminated = False
        self.notes: list[str] = []
        self.cache: dict[int, list[Frame]] = {}  # frames that wait to be judged, by the first step of their piece
        self.workflow: Workflow | None = None

    # position

    def restart(self) -> Frame:
        """Go to the first step."""
        self.at, self.frame = 0, self.env.reset(self.episode.seed)
        return self.frame

    def actions(self, step: int) -> dict[str, np.ndarray]:
        """Return the recorded actions of a step, by group."""
        return {group: actions[step] for group, actions in self.episode.actions.items()}

    def advance(self) -> Frame:
        """Execute the next recorded action."""
        self.frame = self.env.step(self.actions(self.at))
        self.at += 1
        return self.frame

    def seek(self, step: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Go to a step, from the beginning if it has been passed; return False if `stop` ended that before."""
        if step < self.at:
            if stop():
                return False
            self.restart()
        while self.at < step:
            if stop():
                return False
            self.advance()
        return True

    def piece(self, begin: int, pictures: bool = False) -> list[Frame]:
        """Play the PIECE of the episode that begins at a step; return its frames and the one after its last action."""
        self.seek(begin)
        frames = []
        end = min(begin + PIECE, self.episode.length)
        while True:
            if pictures and self.at % (WITH_STEPS * self.stride) == 0 and self.at in self.missing:
                self.send_pictures()
            frames.append(copied(self.frame))
            if self.at == end:
                return frames
            self.advance()

    def steps_in(self, begin: int, frames: list[Frame]) -> list[Frame]:
        """Return the frame each step of a piece begins with; the episode's end counts as a step without an action."""
        return frames if begin + len(frames) > self.episode.length else frames[:-1]

    def note(self, text: str) -> None:
        """Add a line to the notes that the page shows."""
        self.notes.append(text)
        self.send(State({"notes": self.notes}))

    # steps

    def play(self, cache: bool) -> None:
        """Send observations, actions and rewards of every step, and some pictures; `cache` frames for the policy."""
        self.send(State({"stage": "playing", "facts": self.facts()}))
        sums = {group: np.zeros(reward.shape, np.float64) for group, reward in self.frame.reward.items()}
        self.restart()
        room = CACHE_BYTES if cache else 0
        for begin in range(0, self.episode.length, PIECE):
            frames = self.piece(begin, pictures=True)
            self.send(TableRows("steps", self.rows(begin, frames)))
            for frame in frames[1:]:
                for group, reward in (frame.raw_reward or frame.reward).items():
                    sums[group] += reward
            room -= sum(map(size, frames)) if room > 0 else 0
            if room > 0:
                self.cache[begin] = frames
        self.send_pictures()  # of the end
        self.terminated = self.frame.terminated
        same = all(np.array_equal(sums[group], values) for group, values in self.episode.returns.items())
        end = {"terminated": self.frame.terminated, "truncated": self.frame.truncated}
        self.send(State({"stage": "judging", "identical": bool(any(end.values()) and same), **end}))

    def rows(self, begin: int, frames: list[Frame]) -> list[dict[str, Any]]:
        """Return the steps of a piece for the page: observations, actions and their rewards."""
        rows: list[dict[str, Any]] = [{} for _ in self.steps_in(begin, frames)]
        for group, actions in self.episode.actions.items():
            piece = actions[begin : begin + len(frames) - 1]
            table = {
                "obs": first_numbers(map_tree(stack, *(frame.obs[group] for frame in frames))),
                "action": rounded(piece.reshape(*piece.shape[:2], -1)[..., :NUMBERS]),
                "reward": rounded(np.stack([frame.reward[group] for frame in frames[1:]])),
            }
            if any(frame.active for frame in frames):
                table["active"] = [frame.active and frame.active[group].tolist() for frame in frames]
            for n, row in enumerate(rows):
                row[group] = {key: column[n] for key, column in table.items() if n < len(column)}
        return rows

    def facts(self) -> dict[str, Any]:
        """Return what the page shows of the episode as a whole."""
        return {
            "length": self.episode.length,
            "seed": self.episode.seed,
            "returns": {group: values.tolist() for group, values in self.episode.returns.items()},
            "won": self.episode.won,
            "stride": self.stride,
            "fps": fps_of(self.env),
            "groups": {
                name: {
                    "agents": list(group.agents),
                    "team": group.team,
                    "action": describe_action(group.action) | {"names": list(group.action_names[:MAX_NAMES])},
                    "sees": [list(leaf.shape[1:]) for _, leaf in leaves(self.frame.obs[name])],
                    "keys": [path for path, _ in leaves(self.frame.obs[name])],
                    "numbers": number_names(self.frame.obs[name]),
                }
                for name, group in self.env.spec.groups.items()
            },
        }

    # pictures

    def send_pictures(self) -> None:
        """Send the page two pictures of the current step, if there are such: rendered, and the first agent's image."""
        self.missing.discard(self.at)
        evenly = self.at % self.stride == 0
        if self.renders and (rendered := self.render()) is not None:
            self.send(Picture("frame", self.at, encoded(rendered), evenly))
        images = (image_of(obs) for obs in self.frame.obs.values())
        if (image := next((image for image in images if image is not None), None)) is not None:
            self.send(Picture("seen", self.at, encoded(image), evenly))
        elif not self.renders:
            self.missing.clear()

    def render(self) -> np.ndarray | None:
        """Render the current step; return None from the first failure on, which is noted."""
        problem = "this environment renders no pictures"
        try:
            if (rendered := self.env.render()) is not None:
                return rendered
        except NotImplementedError:
            pass
        except Exception as error:  # of a graphics library; the numbers can still be shown
            problem = f"it cannot be rendered here ({type(error).__name__}: {error})"
        self.renders = False
        self.note(problem)
        return None

    def send_missing(self, stop: Callable[[], bool]) -> None:
        """Send the next missing picture after the current step, so that little is played twice."""
        if self.seek(min(self.missing, key=lambda step: (step < self.at, step)), stop):
            self.send_pictures()

    def show(self, begin: int, end: int, requests: Requests) -> None:
        """Send the pictures of the steps from `begin` to `end`, until another request supersedes that."""
        if not self.seek(begin, lambda: requests.superseded(begin)):
            return
        while True:
            self.send_pictures()
            if self.at >= min(end, self.episode.length) or requests.superseded(self.at, showing=True):
                return
            self.advance()

    # the policy

    def judge(self, checkpoint: str) -> None:
        """Send what the policy of a checkpoint computes for every step: values, probabilities, advantages."""
        from cadenza.base.streams import EVALUATION, Streams
        from cadenza.lab.playback import as_step, load_policy

        player, name = load_policy(self.folder, checkpoint, self.trust)
        workflow = self.workflow = player.workflow
        self.send(State({"checkpoint": name, "imagines": isinstance(workflow, Imagines) and workflow.imagines}))
        if not isinstance(workflow, Explains):
            self.note(f"{self.config.algorithm.name} explains no steps: only actions and rewards are shown")
            return
        mode = Mode(False, player.phase, Streams(self.config.seed, branch=(EVALUATION,)))
        carry = workflow.initial_carry(1)
        values: dict[str, list[np.ndarray]] = {}
        frames_after: list[Frame] = []
        for begin in range(0, self.episode.length, PIECE):
            frames = self.cache.pop(begin, None) or self.piece(begin)
            steps = self.steps_in(begin, frames)
            at = np.arange(begin, begin + len(steps)).clip(max=self.episode.length - 1)
            actions = {group: recorded[at] for group, recorded in self.episode.actions.items()}
            explained = workflow.explain(as_step(steps, begin == 0), carry, replace(mode, forced=actions))
            carry = explained.carry
            rows: list[dict[str, dict[str, Any]]] = [{group: {} for group in explained.opinions} for _ in steps]
            for group, opinion in explained.opinions.items():
                for key, column in columns(opinion, group, actions[group].shape[:2]).items():
                    for row, value in zip(rows, rounded(column), strict=True):
                        row[group][key] = value
                    if key == "value":
                        values.setdefault(group, []).append(column)
            frames_after += [Frame({}, frame.reward, died=frame.died) for frame in frames[1:]]
            self.send(TableRows("opinions", rows))
        credit = {group: one for group, one in explained.credit.items() if group in values}
        for group, one in credit.items():
            reward, over = self.rewards(group, one, frames_after)
            self.send(Advantages(group, rounded(advantages(np.concatenate(values[group]), reward, over, one))))
        numbers = {group: one._replace(estimate=None)._asdict() for group, one in credit.items()}
        self.send(State({"credit": numbers}))

    def rewards(self, group: str, credit: Credit, frames: list[Frame]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rewards [T, A] that the values of a group predict, and where they end (no bootstrap) [T, A]."""
        groups = self.env.spec.groups
        if credit.team:
            mates = [other for other in groups if groups[other].team == groups[group].team]
            team = np.stack([sum(frame.reward[other].sum() for other in mates) for frame in frames])
            reward = np.broadcast_to(team[:, None], (len(frames), len(groups[group].agents)))
            over = np.zeros(reward.shape, bool)
        else:
            reward = np.stack([frame.reward[group] for frame in frames])
            over = np.stack([frame.died[group] if frame.died else np.zeros(reward.shape[1], bool) for frame in frames])
        over[-1] |= self.terminated
        return reward, over

    # a world model

    def imagine(self, step: int, requests: Requests) -> None:
        """Send the model's reconstruction of the steps up to one, and its prediction of those after it from actions."""
        assert isinstance(self.workflow, Imagines)
        begin, end = max(0, step - CONTEXT + 1), min(step + HORIZON, self.episode.length)
        if not self.seek(max(0, begin - 1), lambda: requests.superseded(step)):
            return
        imagination = self.workflow.imagine(self.sequence(begin, end), step - begin + 1, seed=step)
        skip = max(0, step - begin + 1 - CONTEXT_SHOWN)
        both = [{key: x[0, skip:] for key, x in obs.items()} for obs in (imagination.obs, imagination.predicted_obs)]
        strips = [[as_image(x) for part in obs.values() if part.ndim == 4 for x in part] for obs in both]
        strips = [[image for image in strip if image is not None] for strip in strips]
        if strips[0] and len(strips[0]) == len(strips[1]):
            picture = np.concatenate([np.concatenate(strip, 1) for strip in strips])
            self.send(Picture("dream", step, encoded(picture, lossless=True)))
        numbers = [rounded(x[:, :NUMBERS]) for obs in both for x in obs.values() if x.ndim == 2]
        rewards = [rounded(x[0, skip:]) for x in (imagination.reward, imagination.predicted_reward)]
        self.send(Dream(step, begin + skip, end, numbers, rewards))

    def sequence(self, begin: int, end: int) -> Any:
        """Return steps as a replay stores them, preceded by the row that leads to the first."""
        from cadenza.data.batches import Sequences

        blank_action = {group: np.zeros_like(actions[0]) for group, actions in self.episode.actions.items()}
        blank_reward = {group: np.zeros_like(reward) for group, reward in self.frame.reward.items()}
        frames, actions, rewards = [copied(self.frame)], [blank_action], [blank_reward]
        if begin == 0:  # there is no row before the first
            frames = frames * 2
        else:
            actions, rewards = [], []
        count = end - begin + 2
        while len(actions) < count:
            over = self.at == self.episode.length
            actions.append(blank_action if over else self.actions(self.at))
            frames.append(frames[-1] if over else copied(self.advance()))
            rewards.append(blank_reward if over else frames[-1].reward)
        del frames[count:]
        rows = np.arange(begin - 1, begin - 1 + count)[None]
        agents = {group: (1, len(frames), len(reward)) for group, reward in self.frame.reward.items()}
        last = rows == self.episode.length
        return Sequences(
            groups={
                group: {
                    "obs": map_tree(lambda *x: np.stack(x)[None], *(frame.obs[group] for frame in frames)),
                    "action": np.stack([action[group] for action in actions])[None],
                    "reward": np.stack([reward[group] for reward in rewards])[None],
                    "active": np.ones(shape, bool),
                    "died": np.zeros(shape, bool),
                }
                for group, shape in agents.items()
            },
            is_first=rows <= 0,
            terminated=last & self.terminated,
            truncated=last & (not self.terminated),
            last=last,
            index=np.arange(len(frames))[None],
        )

    def serve(self, requests: Requests) -> None:
        """Answer requests, and send missing pictures while there is none, until the parent is gone."""
        while True:
            while self.missing and not requests.waiting():
                self.send_missing(requests.waiting)
            if (request := requests.next()) is None:
                return
            if request.what == "show":
                self.show(request.begin, request.end, requests)
            elif isinstance(self.workflow, Imagines):
                self.imagine(request.begin, requests)
            self.send(request)


def environment(config: Any) -> Environment:
    """Make the environment, with rendering where it is possible."""
    try:
        return make_visible(config)
    except CadenzaError:
        return make(config)


def columns(opinion: Opinion, group: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the arrays of an opinion by name; one that is not [N, A, …] is refused."""
    arrays = {name: np.asarray(x, np.float64) for name, x in vars(opinion).items() if x is not None}
    for name, x in arrays.items():
        if x.shape[:2] != shape or x.ndim != (2 if name in ("value", "reward") else 3):
            raise ConfigError(f"explain: {name} of group {group} has the shape {x.shape}, not [N, A, …] = {shape}")
    return arrays


def advantages(value: np.ndarray, reward: np.ndarray, over: np.ndarray, credit: Credit) -> np.ndarray:
    """Return estimates of advantages [T, A] from values [T + 1, A]; no bootstrap where `over` [T, A]."""
    import torch

    from cadenza.ops.returns import gae

    estimate: Callable[..., Any] = credit.estimate or gae
    reward = np.clip(reward / credit.reward_scale, -credit.reward_clip, credit.reward_clip)
    if credit.on_arrival:  # a state's value includes the reward for reaching it
        before = np.concatenate([np.zeros_like(reward[:1]), reward[:-1]])
        reward = before + credit.gamma * np.where(over, reward, 0.0)
    arrays = (np.asarray(reward, np.float64), value[:-1], np.where(over, 0.0, value[1:]), over)
    steps = [torch.from_numpy(x)[:, None] for x in arrays]  # of one environment
    with torch.no_grad():
        result = estimate(*steps, credit.gamma, credit.trace)
    advantage: np.ndarray = (result[0] if isinstance(result, tuple) else result)[:, 0].numpy()
    return advantage


def main(run: str, number: str, checkpoint: str, trust: str) -> None:
    """Play the episode and serve the parent, with messages on standard output."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print to stderr instead, as stdout carries the messages
    with contextlib.suppress(OSError, AttributeError):
        os.nice(5)
    sink = partial(send, stream)
    try:
        player = EpisodePlayer(RunFolder(Path(run)), int(number), trust == "trust", sink)
        player.play(cache=bool(checkpoint))
        if checkpoint:
            try:
                player.judge(checkpoint)
            except BrokenPipeError:
                raise
            except Exception as problem:  # perhaps of an outside algorithm; the steps can still be shown
                player.note(f"the policy cannot be evaluated ({type(problem).__name__}: {problem})")
        player.cache.clear()
        sink(State({"stage": "ready"}))
        player.serve(Requests(sys.stdin.buffer))
    except BrokenPipeError:
        os._exit(0)  # the parent is gone
    except Exception as problem:
        kind = "" if isinstance(problem, CadenzaError) else f"{type(problem).__name__}: "
        sink(State({"failed": kind + " ".join(str(problem).split("\n"))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
