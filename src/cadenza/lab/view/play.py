"""Episodes to look at: of a trained policy, or a training episode as it was recorded."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.action_names import name_of
from cadenza.envs.catalog import make
from cadenza.envs.display import has_display
from cadenza.envs.seeds import PLAY, EpisodeSeeds
from cadenza.errors import CadenzaError, ConfigError, EnvironmentFault
from cadenza.lab.view.terminal import Terminal
from cadenza.lab.view.video import Place, Screen, open_video
from cadenza.lab.view.window import Closed, Window
from cadenza.records import episodes as recorded
from cadenza.records.folder import RunFolder
from cadenza.types import Environment, EnvSpec, Frame

STEP_LIMIT = 5_000  # where an environment has no time limit
USUAL_FPS = 30.0
RECORDED_PICTURES = 400  # in the video that a training run leaves, which should stay small

Choose = Callable[[int, Frame], dict[str, np.ndarray]]  # (step of the episode, what is shown) -> actions
Watch = Callable[[Frame, dict[str, np.ndarray], Frame], None]  # before, actions, after


@dataclass(frozen=True)
class On:
    """Where to show, if it was said: a file, or the terminal; and how many steps make a second."""

    video: Path | None = None
    terminal: bool = False
    fps: float | None = None


@dataclass(frozen=True)
class Played:
    """An episode that was shown; `ended` is False where it was cut at the limit."""

    number: int
    seed: int
    length: int
    returns: dict[str, np.ndarray]  # [A] rewards summed, as records keep them
    ended: bool

    def facts(self) -> dict[str, Any]:
        """As `play --json` tells it, by group where there are several."""
        groups = {group: float(values.sum()) for group, values in self.returns.items()}
        told = {"episode": self.number, "seed": self.seed, "return": sum(groups.values()), "length": self.length}
        return told | {"ended": self.ended} | ({"returns": groups} if len(groups) > 1 else {})


@dataclass(frozen=True)
class Shown:
    """What was played, and where it can be seen again."""

    source: str  # the checkpoint, or the episode
    episodes: list[Played]
    video: Place | None
    identical: bool | None = None  # a recorded episode: whether it came out as it was recorded


def show_policy(
    folder: RunFolder,
    episodes: int = 1,
    seed: int = 0,
    checkpoint: str | None = None,
    explore: bool = False,
    shown_on: On | None = None,
    trust: bool = False,
) -> Shown:
    """Play with the weights of a checkpoint: the best, where none is named and there is one."""
    from cadenza.engine.playback import load_policy

    player, name = load_policy(folder, checkpoint or folder.best_or_last, trust)
    seeds, played = EpisodeSeeds(seed, PLAY), []
    otherwise = folder.outlet / "videos" / f"play-{name}-seed{seed}.gif"
    with (
        closing(make_visible(player.config.environment)) as env,
        screen_for(env, shown_on or On(), otherwise, folder.id) as screen,
        suppress(Closed),
    ):
        for number in range(episodes):
            player.reset()
            played.append(show(env, number, seeds(0, number), lambda _, frame: player.act(frame, explore), screen))
    return Shown(name, played, screen.path)


def show_episode(folder: RunFolder, k: int, shown_on: On | None = None, trust: bool = False) -> Shown:
    """Training episode `k` again, from its seed and actions; needs no policy."""
    config = folder.read_config(trust)
    episode = recorded.find(folder, k)

    def taken(step: int, _: Frame) -> dict[str, np.ndarray]:
        return {group: actions[step] for group, actions in episode.actions.items()}

    otherwise, source = folder.outlet / "videos" / f"episode-{k}.gif", f"episode {k}"
    with (
        closing(make_visible(config.environment)) as env,
        screen_for(env, shown_on or On(), otherwise, folder.id) as screen,
    ):
        try:
            played = show(env, k, episode.seed, taken, screen, episode.length)
        except Closed:
            return Shown(source, [], None)
    same = all(np.array_equal(played.returns[group], values) for group, values in episode.returns.items())
    return Shown(source, [played], screen.path, same and played.ended and played.length == episode.length)


def record(folder: RunFolder, checkpoint: str, trust: bool = False, path: Place | None = None) -> Place:
    """Write `videos/<checkpoint>.gif` or the file given, the beginning of an episode, and return its path."""
    from cadenza.engine.playback import load_policy

    player, name = load_policy(folder, checkpoint, trust)
    path = path or folder.videos / f"{name}.gif"
    with closing(make_visible(player.config.environment)) as env, open_video(path, fps_of(env)) as screen:
        limit = RECORDED_PICTURES * screen.stride
        show(env, 0, EpisodeSeeds(0, PLAY)(0, 0), lambda _, frame: player.act(frame), screen, limit)
    return path


def show(
    env: Environment,
    number: int,
    seed: int,
    choose: Choose,
    screen: Screen,
    limit: int | None = None,
    watch: Watch | None = None,
    title: str | None = None,
) -> Played:
    """One episode on a screen, until it ends or reaches the limit; the caption begins with `title`, else its number."""
    if limit is None:
        limit = env.spec.max_episode_steps or STEP_LIMIT
    frame, length, done = env.reset(seed), 0, ""
    returns = {group: np.zeros(reward.shape, np.float64) for group, reward in frame.reward.items()}
    while True:
        ended = frame.terminated or frame.truncated
        if length % screen.stride == 0 or ended:
            total = sum(values.sum() for values in returns.values())
            told = f"{title or f'episode {number}'}   step {length}   return {round(total, 2) + 0.0:.2f}{done}"
            screen.show(rendered(env), told)
        if ended or length >= limit:
            return Played(number, seed, length, returns, ended)
        before, action = frame, choose(length, frame)
        frame, done = env.step(action), called(env.spec, action)
        if watch is not None:
            watch(before, action, frame)
        for group, reward in (frame.raw_reward or frame.reward).items():
            returns[group] += reward
        length += 1


def called(spec: EnvSpec, action: dict[str, np.ndarray]) -> str:
    """What was done, for the end of a caption, where one agent chooses among things that have names."""
    name, group = next(iter(spec.groups.items()))
    alone = len(spec.groups) == len(group.agents) == 1
    if not alone or not group.action_names or not isinstance(group.action, Discrete):
        return ""
    return f"   {name_of(group, int(action[name][0]))}"


def make_visible(config: EnvironmentConfig) -> Environment:
    """An environment that renders pictures, with or without a screen at hand."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would be printed to stdout
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame complains that it finds no screen
    return make(config, render=True)


def rendered(env: Environment) -> np.ndarray:
    try:
        picture = env.render()
    except NotImplementedError:
        picture = None
    except CadenzaError:
        raise
    except Exception as problem:  # a graphics library's
        reason = f"{type(problem).__name__}: {problem}"
        raise EnvironmentFault(f"{env.spec.id} cannot be rendered here ({reason})") from problem
    if picture is None:
        raise ConfigError(f"{env.spec.id} has nothing to show: it renders no pictures")
    return picture


def fps_of(env: Environment) -> float:
    """Steps of the environment that make a second."""
    metadata = getattr(getattr(env, "env", env), "metadata", None) or {}
    return float(metadata.get("render_fps") or USUAL_FPS)


def screen_for(env: Environment, on: On, otherwise: Place, title: str) -> Screen:
    """What was asked for, else a window where there is a display, else a file beside the run."""
    pace = on.fps or fps_of(env)
    if on.terminal:
        return Terminal(pace, title)
    if on.video is None and has_display():
        return Window(pace, title)
    return open_video(on.video or otherwise, pace)
