"""Episodes on a screen or in a video: played by a trained policy, or replayed as recorded in training."""

from __future__ import annotations

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
from cadenza.envs.display import has_display, prepare_pygame
from cadenza.envs.ledger import PLAY, EpisodeSeeds
from cadenza.errors import CadenzaError, CheckpointError, ConfigError, EnvironmentFault, foreign_code
from cadenza.lab import checkpoint_list
from cadenza.lab.view.terminal import Terminal
from cadenza.lab.view.video import Screen, VideoPath, open_video
from cadenza.lab.view.window import ClosedByUserError, Window
from cadenza.records import episodes as recorded
from cadenza.records.folder import RunFolder
from cadenza.types import Environment, EnvSpec, Frame

STEP_LIMIT = 5_000  # for environments without a time limit
DEFAULT_FPS = 30.0
VIDEO_FRAMES = 400  # in the videos of training runs, to keep them small

ChooseActions = Callable[[int, Frame], dict[str, np.ndarray]]  # (step of the episode, frame) -> actions
OnStep = Callable[[Frame, dict[str, np.ndarray], Frame], None]  # frame before, actions, frame after


@dataclass(frozen=True)
class ScreenOptions:
    """The requested output, a video file or the terminal, and the steps per second."""

    video: Path | None = None
    terminal: bool = False
    fps: float | None = None


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode that was played; `ended` is False if it was cut at the step limit."""

    number: int
    seed: int
    length: int
    returns: dict[str, np.ndarray]  # [A] sums of rewards, as recorded in training
    ended: bool

    def facts(self) -> dict[str, Any]:
        """Return the entry of `play --json`, with returns by group if there are several."""
        groups = {group: float(values.sum()) for group, values in self.returns.items()}
        facts = {"episode": self.number, "seed": self.seed, "return": sum(groups.values()), "length": self.length}
        return facts | {"ended": self.ended} | ({"returns": groups} if len(groups) > 1 else {})


@dataclass(frozen=True)
class PlayResult:
    """The episodes that were played, and the video of them."""

    source: str  # the checkpoint or the recorded episode
    title: str  # the run and the source, for people
    episodes: list[PlayedEpisode]
    video: VideoPath | None
    identical: bool | None = None  # whether a recorded episode was repeated exactly


def play_policy(
    folder: RunFolder,
    episodes: int = 1,
    seed: int = 0,
    checkpoint: str | None = None,
    explore: bool = False,
    options: ScreenOptions | None = None,
    trust: bool = False,
) -> PlayResult:
    """Play episodes with the weights of a checkpoint, by default the best, else the last."""
    from cadenza.lab.playback import load_policy

    player, name = load_policy(folder, checkpoint or folder.best_or_last, trust)
    seeds, played, title = EpisodeSeeds(seed, PLAY), [], checkpoint_list.title(folder, name)
    default = folder.outlet / "videos" / f"play-{name}-seed{seed}.gif"
    with (
        closing(make_visible(player.config.environment)) as env,
        screen_for(env, options or ScreenOptions(), default, title) as screen,
        suppress(ClosedByUserError),
    ):
        for number in range(episodes):
            player.reset()
            episode = play_episode(env, number, seeds(0, number), lambda _, frame: player.act(frame, explore), screen)
            played.append(episode)
    return PlayResult(name, title, played, screen.path)


def replay_episode(folder: RunFolder, k: int, options: ScreenOptions | None = None, trust: bool = False) -> PlayResult:
    """Repeat training episode `k` from its seed and actions, without a policy."""
    config = folder.read_config(trust)
    episode = recorded.find(folder, k)

    def recorded_actions(step: int, _: Frame) -> dict[str, np.ndarray]:
        return {group: actions[step] for group, actions in episode.actions.items()}

    default, source = folder.outlet / "videos" / f"episode-{k}.gif", f"episode {k}"
    title = f"{folder.id}, {source}"
    with (
        closing(make_visible(config.environment)) as env,
        screen_for(env, options or ScreenOptions(), default, title) as screen,
    ):
        try:
            played = play_episode(env, k, episode.seed, recorded_actions, screen, episode.length)
        except ClosedByUserError:
            return PlayResult(source, title, [], None)
        except CadenzaError:
            raise
        except Exception as problem:  # the environment's own, of actions that it does not have
            reason = f"{type(problem).__name__}: {problem}"
            raise CheckpointError(f"{source} of {folder.id} cannot be played again ({reason})") from problem
    same = all(np.array_equal(played.returns[group], values) for group, values in episode.returns.items())
    return PlayResult(source, title, [played], screen.path, same and played.ended and played.length == episode.length)


def record_video(folder: RunFolder, checkpoint: str, trust: bool = False, path: VideoPath | None = None) -> VideoPath:
    """Record the beginning of an episode to `path`, by default `videos/<checkpoint>.gif`; return the path."""
    from cadenza.lab.playback import load_policy

    player, name = load_policy(folder, checkpoint, trust)
    path = path or folder.videos / f"{name}.gif"
    with closing(make_visible(player.config.environment)) as env, open_video(path, fps_of(env)) as screen:
        limit = VIDEO_FRAMES * screen.stride
        play_episode(env, 0, EpisodeSeeds(0, PLAY)(0, 0), lambda _, frame: player.act(frame), screen, limit)
    return path


def play_episode(
    env: Environment,
    number: int,
    seed: int,
    choose: ChooseActions,
    screen: Screen,
    limit: int | None = None,
    on_step: OnStep | None = None,
    title: str | None = None,
) -> PlayedEpisode:
    """Play an episode on a screen until it ends or reaches the limit; captions begin with `title` or its number."""
    if limit is None:
        limit = env.spec.max_episode_steps or STEP_LIMIT
    frame, length, action_text = env.reset(seed), 0, ""
    returns = {group: np.zeros(reward.shape, np.float64) for group, reward in frame.reward.items()}
    while True:
        ended = frame.terminated or frame.truncated
        if length % screen.stride == 0 or ended:
            total = round(sum(values.sum() for values in returns.values()), 2) + 0.0  # turns -0.0 into 0.0
            caption = f"{title or f'episode {number}'}   step {length}   return {total:.2f}{action_text}"
            screen.show(render(env), caption)
        if ended or length >= limit:
            return PlayedEpisode(number, seed, length, returns, ended)
        before, action = frame, choose(length, frame)
        frame, action_text = env.step(action), action_caption(env.spec, action)
        if on_step is not None:
            on_step(before, action, frame)
        for group, reward in (frame.raw_reward or frame.reward).items():
            returns[group] += reward
        length += 1


def action_caption(spec: EnvSpec, action: dict[str, np.ndarray]) -> str:
    """Return the end of a caption: the action's name where a single agent has named actions, else nothing."""
    name, group = next(iter(spec.groups.items()))
    alone = len(spec.groups) == len(group.agents) == 1
    if not alone or not group.action_names or not isinstance(group.action, Discrete):
        return ""
    return f"   {name_of(group, int(action[name][0]))}"


def make_visible(config: EnvironmentConfig) -> Environment:
    """Make an environment that renders pictures, with or without a display."""
    prepare_pygame()
    return make(config, render=True)


def render(env: Environment) -> np.ndarray:
    """Return a picture of the environment; one that renders none is refused."""
    picture = None
    with foreign_code(f"{env.spec.id} cannot be rendered here", EnvironmentFault), suppress(NotImplementedError):
        picture = env.render()
    if picture is None:
        raise ConfigError(f"{env.spec.id} renders no pictures")
    return picture


def fps_of(env: Environment) -> float:
    """Return the environment's steps per second."""
    metadata = getattr(getattr(env, "env", env), "metadata", None) or {}
    return float(metadata.get("render_fps") or DEFAULT_FPS)


def screen_for(env: Environment, options: ScreenOptions, default: VideoPath, title: str) -> Screen:
    """Open the requested screen; without a request a window, or the video `default` where there is no display."""
    fps = options.fps or fps_of(env)
    if options.terminal:
        return Terminal(fps, title)
    if options.video is None and has_display():
        return Window(fps, title)
    return open_video(options.video or default, fps)
