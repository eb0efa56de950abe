"""A recorded episode again, from its seed and actions: `python -m cadenza.lab.inspector.player`, the inspector's child.

It first plays the episode and tells what happened, then has the policy look at it, then answers: pictures of single
steps, and what a world model imagines from one. Messages are a length, a JSON head and bytes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.envs.catalog import make
from cadenza.envs.display import has_display
from cadenza.errors import CadenzaError, ConfigError
from cadenza.lab.inspector.frames import in_a_row, own, stack
from cadenza.lab.inspector.messages import (
    NUMBERS,
    Tell,
    Wishes,
    as_picture,
    described,
    encoded,
    numbers,
    rounded,
    teller,
)
from cadenza.records import episodes
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves, map_tree
from cadenza.types import Credit, Environment, Episode, Explains, Frame, Imagines, Mode, Opinion

PICTURES = 300  # sent unasked, evenly over the episode
AT_ONCE = 8  # of which one in so many comes with the steps, the others when there is nothing else to do
PIECE = 100  # steps told, and judged, at once
KEPT = 96 << 20  # bytes of what was seen that wait to be judged; beyond that steps are played once more
KNOWN, HORIZON = 20, 15  # steps that a world model sees before it imagines, and that it then does
SHOWN = 3  # of those it saw
NAMED = 512  # actions whose names are told, at most
USUAL_FPS = 30.0


class Replay:
    """The episode on its environment; `at` says how many of its actions have been taken."""

    def __init__(self, folder: RunFolder, number: int, trust: bool, tell: Tell) -> None:
        self.folder, self.trust, self.tell = folder, trust, tell
        self.config = folder.read_config(trust)
        self.episode: Episode = episodes.find(folder, number)
        self.env = visible(self.config.environment)
        self.stride = max(1, -(-self.episode.length // PICTURES))
        self.shows = True
        self.missing = {*range(0, self.episode.length, self.stride), self.episode.length}  # pictures to be sent unasked
        self.at, self.frame = 0, self.env.reset(self.episode.seed)
        self.terminated = False
        self.kept: dict[int, list[Frame]] = {}
        self.workflow: Any = None

    def begin(self) -> Frame:
        self.at, self.frame = 0, self.env.reset(self.episode.seed)
        return self.frame

    def taken(self) -> dict[str, np.ndarray]:
        return {group: actions[self.at] for group, actions in self.episode.actions.items()}

    def advance(self) -> Frame:
        self.frame = self.env.step(self.taken())
        self.at += 1
        return self.frame

    def seek(self, step: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Go to a step, from the beginning if it lies behind; whether it was reached, or `stop` said to leave off."""
        if step < self.at:
            if stop():
                return False
            self.begin()
        while self.at < step:
            if stop():
                return False
            self.advance()
        return True

    def play(self, begin: int, look: bool = False) -> list[Frame]:
        """A piece of the episode: frames from a step on, and that which its last step led to."""
        self.seek(begin)
        frame, frames = self.frame, []
        while True:
            if look and self.at % (AT_ONCE * self.stride) == 0 and self.at in self.missing:
                self.picture()
            frames.append(own(frame))
            if self.at == self.end_of(begin):
                return frames
            frame = self.advance()

    def end_of(self, begin: int) -> int:
        return min(begin + PIECE, self.episode.length)

    def happened(self, judged: bool) -> None:
        """What was seen, done and earned at every step, with pictures of some; kept where it will be judged."""
        self.tell("episode", **self.facts())
        sums = {group: np.zeros(reward.shape, np.float64) for group, reward in self.frame.reward.items()}
        self.begin()
        room = KEPT if judged else 0
        for begin in range(0, self.episode.length, PIECE):
            frames = self.play(begin, look=True)
            self.tell("steps", begin=begin, steps=self.told(begin, frames))
            for frame in frames[1:]:
                for group, reward in (frame.raw_reward or frame.reward).items():
                    sums[group] += reward
            room -= sum(map(size, frames)) if room > 0 else 0
            if room > 0:
                self.kept[begin] = frames
        self.picture()  # of its end
        self.terminated = self.frame.terminated
        over = self.frame.terminated or self.frame.truncated
        same = all(np.array_equal(sums[group], values) for group, values in self.episode.returns.items())
        ended = {"terminated": self.frame.terminated, "truncated": self.frame.truncated}
        self.tell("happened", identical=bool(over and same), **ended)

    def told(self, begin: int, frames: list[Frame]) -> list[dict[str, Any]]:
        """Steps as the page reads them: what was seen, what was done then, and what that earned."""
        steps: list[dict[str, Any]] = [{} for _ in self.steps_in(begin, frames)]
        for group, actions in self.episode.actions.items():
            done = actions[begin : begin + len(frames) - 1]
            columns = {
                "obs": numbers(map_tree(stack, *(frame.obs[group] for frame in frames))),
                "action": rounded(done.reshape(*done.shape[:2], -1)[..., :NUMBERS]),
                "reward": rounded(np.stack([frame.reward[group] for frame in frames[1:]])),
            }
            if any(frame.active for frame in frames):
                columns["active"] = [frame.active and frame.active[group].tolist() for frame in frames]
            for n, step in enumerate(steps):
                step[group] = {key: column[n] for key, column in columns.items() if n < len(column)}
        return steps

    def steps_in(self, begin: int, frames: list[Frame]) -> list[Frame]:
        """What the steps of a piece began with; the episode's end is one, too, where nothing is done any more."""
        return frames if self.end_of(begin) == self.episode.length else frames[:-1]

    def facts(self) -> dict[str, Any]:
        groups = self.env.spec.groups
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
                    "action": described(group.action) | {"names": list(group.action_names[:NAMED])},
                    "sees": [list(leaf.shape[1:]) for _, leaf in leaves(self.frame.obs[name])],
                }
                for name, group in groups.items()
            },
        }

    # pictures

    def picture(self) -> None:
        """What the environment looks like now, and images that agents see."""
        self.missing.discard(self.at)
        if self.shows:
            rendered, why = None, "this environment renders no pictures"
            try:
                rendered = self.env.render()
            except NotImplementedError:
                pass
            except Exception as problem:  # a graphics library's: numbers are still worth telling
                why = f"it cannot be rendered here ({type(problem).__name__}: {problem})"
            if rendered is None:
                self.shows = False
                self.tell("note", text=why)
            else:
                self.tell("picture", encoded(rendered), what="frame", step=self.at, evenly=self.at % self.stride == 0)
        seen = self.seen()
        if seen is not None:
            self.tell("picture", encoded(seen), what="seen", step=self.at, evenly=self.at % self.stride == 0)
        elif not self.shows:
            self.missing.clear()

    def seen(self) -> np.ndarray | None:
        """The first image among what the first agent sees, as a picture."""
        for obs in self.frame.obs.values():
            for _, leaf in leaves(obs):
                if (picture := as_picture(leaf[0])) is not None:
                    return picture
        return None

    def fill(self, stop: Callable[[], bool]) -> None:
        """One of the pictures that are still missing: the next one from here, so that little is played again."""
        if self.seek(min(self.missing, key=lambda step: (step < self.at, step)), stop):
            self.picture()

    def show(self, begin: int, end: int, wishes: Wishes) -> None:
        """Pictures of a stretch of steps, until somebody wants others."""
        if not self.seek(begin, lambda: wishes.left(begin)):
            return
        while True:
            self.picture()
            if self.at >= min(end, self.episode.length) or wishes.elsewhere(self.at):
                return
            self.advance()

    # the policy

    def judge(self, checkpoint: str) -> None:
        """What the policy with the weights of a checkpoint makes of every step."""
        from cadenza.base.streams import EVALUATION, Streams
        from cadenza.engine.playback import load_policy

        player, name = load_policy(self.folder, checkpoint, self.trust)
        workflow = self.workflow = player.workflow
        self.tell("judge", checkpoint=name, imagines=isinstance(workflow, Imagines) and workflow.imagines)
        if not isinstance(workflow, Explains):
            self.tell(
                "note", text=f"{self.config.algorithm.name} explains no steps: only actions and rewards are shown"
            )
            self.tell("judged")
            return
        mode = Mode(False, player.phase, Streams(self.config.seed, branch=(EVALUATION,)))
        carry = workflow.initial_carry(1)
        values: dict[str, list[np.ndarray]] = {}
        earned: list[dict[str, np.ndarray]] = []
        died: list[dict[str, np.ndarray]] = []
        for begin in range(0, self.episode.length, PIECE):
            frames = self.kept.pop(begin, None) or self.play(begin)
            steps = self.steps_in(begin, frames)
            at = np.arange(begin, begin + len(steps)).clip(max=self.episode.length - 1)
            done = {group: actions[at] for group, actions in self.episode.actions.items()}
            explained = workflow.explain(in_a_row(steps, begin == 0), carry, replace(mode, forced=done))
            carry = explained.carry
            told: list[dict[str, dict[str, Any]]] = [{group: {} for group in explained.opinions} for _ in steps]
            for group, opinion in explained.opinions.items():
                for key, column in columns(opinion, group, done[group].shape[:2]).items():
                    for n, value in enumerate(rounded(column)):
                        told[n][group][key] = value
                    if key == "value":
                        values.setdefault(group, []).append(column)
            for frame in frames[1:]:
                earned.append(frame.reward)
                died.append(frame.died or map_tree(lambda x: np.zeros(x.shape, bool), frame.reward))
            self.tell("opinions", begin=begin, steps=told)
        for group, credit in explained.credit.items():
            if group in values:
                reward, over = self.credited(group, credit, map_tree(stack, *earned), map_tree(stack, *died))
                advantage = advantages(np.concatenate(values[group]), reward, over, credit)
                self.tell("advantages", group=group, values=rounded(advantage), credit=credit._asdict())
        self.tell("judged")

    def credited(
        self, group: str, credit: Credit, earned: dict[str, np.ndarray], died: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rewards that a group learns from [T, A], and where nothing follows."""
        reward, over, groups = earned[group], died[group].copy(), self.env.spec.groups
        if credit.team:
            mates = [other for other in groups if groups[other].team == groups[group].team]
            team = np.stack([earned[other].sum(-1) for other in mates]).sum(0)
            reward, over = np.broadcast_to(team[:, None], reward.shape), np.zeros_like(over)
        over[-1] |= self.terminated
        return reward, over

    # a world model

    def imagine(self, step: int, wishes: Wishes) -> None:
        """What a model makes of the steps up to one, and what it expects of those behind it by the actions alone."""
        begin, end = max(0, step - KNOWN + 1), min(step + HORIZON, self.episode.length)
        if not self.seek(max(0, begin - 1), lambda: wishes.left(step)):
            return
        drawn = self.stretch(begin, end)
        found = self.workflow.imagine(drawn, step - begin + 1, seed=step)
        skip = max(0, step - begin + 1 - SHOWN)
        both = [{key: x[0, skip:] for key, x in part.items()} for part in (found.obs, found.predicted_obs)]
        images = [
            [image for line in part.values() if line.ndim == 4 for x in line if (image := as_picture(x)) is not None]
            for part in both
        ]
        strip = b""
        if images[0] and len(images[0]) == len(images[1]):
            strip = encoded(np.concatenate([np.concatenate(line, 1) for line in images]), lossless=True)
        numbers = [part[key][:, :NUMBERS] for part in both for key in part if part[key].ndim == 2]
        rewards = (found.reward, found.predicted_reward)
        self.tell(
            "dream",
            strip,
            step=step,
            begin=begin + skip,
            end=end,
            numbers=[rounded(part) for part in numbers],
            rewards=[rounded(part[0, skip:]) for part in rewards],
        )

    def stretch(self, begin: int, end: int) -> Any:
        """The steps as replay would hold them, with one row before them that only leads there, where it stands."""
        from cadenza.data.batches import Sequences

        count, groups, frame = end - begin + 2, list(self.episode.actions), self.frame
        rows: list[tuple[Frame, dict[str, np.ndarray], dict[str, np.ndarray]]] = []
        nothing = {group: np.zeros_like(actions[0]) for group, actions in self.episode.actions.items()}
        unpaid = {group: np.zeros_like(reward) for group, reward in frame.reward.items()}
        if begin == 0:
            rows.append((frame, nothing, unpaid))
        while len(rows) < count:
            if self.at == self.episode.length:
                rows.append((self.frame, nothing, unpaid))
                break
            before, action = self.frame, self.taken()
            self.advance()
            rows.append((before, action, self.frame.reward))
        last = np.array([[begin - 1 + i == self.episode.length for i in range(len(rows))]])

        def column(of: Callable[[tuple[Any, ...]], Any]) -> Any:
            return map_tree(lambda *x: np.stack(x)[None], of(rows[0]), *(of(row) for row in rows[1:]))

        return Sequences(
            groups={
                group: {
                    "obs": column(lambda row, group=group: row[0].obs[group]),  # type: ignore[misc]
                    "action": column(lambda row, group=group: row[1][group]),  # type: ignore[misc]
                    "reward": column(lambda row, group=group: row[2][group]),  # type: ignore[misc]
                    "active": np.ones((1, len(rows), len(self.frame.reward[group])), bool),
                    "died": np.zeros((1, len(rows), len(self.frame.reward[group])), bool),
                }
                for group in groups
            },
            is_first=np.array([[begin - 1 + i <= 0 for i in range(len(rows))]]),
            terminated=last & self.terminated,
            truncated=last & (not self.terminated),
            last=last,
            index=np.arange(len(rows))[None],
        )


def columns(opinion: Opinion, group: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return what an opinion says, by name; an array that is not [N, A, …] is refused."""
    stated = {name: np.asarray(x, np.float64) for name, x in vars(opinion).items() if x is not None}
    for name, x in stated.items():
        if x.shape[:2] != shape or x.ndim != (2 if name in ("value", "reward") else 3):
            raise ConfigError(f"explain: {name} of group {group} has the shape {x.shape}, not [N, A, …] = {shape}")
    return stated


def size(frame: Frame) -> int:
    """Bytes of what was seen."""
    return sum(leaf.nbytes for tree in (frame.obs, frame.state) if tree is not None for _, leaf in leaves(tree))


def advantages(value: np.ndarray, reward: np.ndarray, over: np.ndarray, credit: Credit) -> np.ndarray:
    """Return generalised advantage estimates [T, A] of values [T + 1, A]; nothing follows where it is `over` [T, A]."""
    import torch

    from cadenza.ops.returns import gae

    reward = np.clip(reward / credit.reward_scale, -credit.reward_clip, credit.reward_clip)
    if credit.on_arrival:  # a step earns what led to it; a final state is worth the reward for getting there
        before = np.concatenate([np.zeros_like(reward[:1]), reward[:-1]])
        reward = before + credit.gamma * np.where(over, reward, 0.0)
    arrays = (np.asarray(reward, np.float64), value[:-1], np.where(over, 0.0, value[1:]))
    paid, now, following = map(torch.from_numpy, arrays)
    return gae(paid, now, following, torch.from_numpy(over), credit.gamma, credit.trace).numpy()


def visible(config: Any) -> Environment:
    """An environment that renders pictures, with or without a screen at hand."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    try:
        return make(config, render=True)
    except CadenzaError:
        return make(config)


def fps_of(env: Any) -> float:
    metadata = getattr(getattr(env, "env", env), "metadata", None) or {}
    return float(metadata.get("render_fps") or USUAL_FPS)


def main(run: str, number: str, checkpoint: str, trust: str) -> None:
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no message
    with contextlib.suppress(OSError):
        os.nice(5)
    tell = teller(stream)
    try:
        replay = Replay(RunFolder(Path(run)), int(number), trust == "trust", tell)
        replay.happened(judged=bool(checkpoint))
        if checkpoint:
            try:
                replay.judge(checkpoint)
            except BrokenPipeError:
                raise
            except Exception as problem:  # an algorithm of somebody else's, maybe: what happened is still worth seeing
                tell("note", text=f"the policy cannot be asked ({type(problem).__name__}: {problem})")
                tell("judged")
        replay.kept.clear()
        tell("ready")
        wishes = Wishes()
        while True:
            while replay.missing and not wishes.waiting():
                replay.fill(wishes.waiting)
            if (asked := wishes.next()) is None:
                return
            if "show" in asked:
                begin, end = asked["show"]
                replay.show(begin, end, wishes)
            elif "imagine" in asked and replay.workflow is not None:
                replay.imagine(int(asked["imagine"]), wishes)
            tell("answered", asked=asked)
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more
    except CadenzaError as problem:
        tell("failed", message=" ".join(str(problem).split("\n")))
    except Exception as problem:
        tell("failed", message=f"{type(problem).__name__}: {' '.join(str(problem).split(chr(10)))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
