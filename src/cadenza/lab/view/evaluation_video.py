"""Videos of an episode at evaluations, which leave the run's state as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from cadenza.base.resource_usage import Usage
from cadenza.config.schema import RunConfig
from cadenza.engine.events import Ended, Evaluated, Event
from cadenza.envs.ledger import PLAY, EpisodeSeeds
from cadenza.errors import explanation
from cadenza.lab.playback import PLAYING, Player
from cadenza.lab.view.play import VIDEO_FRAMES, fps_of, make_visible, play_episode
from cadenza.lab.view.video import can_mp4, open_video
from cadenza.records.folder import RunFolder, evaluation_video_name
from cadenza.types import Environment, Workflow


class EvaluationVideos:
    """A listener that records a video at every `video_every`-th evaluation.

    The seed is always the same, so that videos can be compared. The first failure ends the recording, not the run.
    """

    def __init__(
        self, config: RunConfig, workflow: Workflow, folder: RunFolder, usage: Usage, warn: Callable[[str], None]
    ) -> None:
        self._config, self._workflow, self._folder, self._usage, self._warn = config, workflow, folder, usage, warn
        # TensorBoard plays no other format
        self._suffix = ".gif" if config.logging.tensorboard or not can_mp4() else ".mp4"
        self._env: Environment | None = None
        self._failed = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Ended) and self._env is not None:
            with suppress(Exception):
                self._env.close()
        every = self._config.evaluation.video_every
        if isinstance(event, Evaluated) and not self._failed and event.number % every == 0:
            try:
                with self._usage.part("video"):
                    self._record(event.env_steps)
            except Exception as problem:  # whatever a foreign renderer may raise
                self._failed = True
                reason = explanation(problem)
                self._warn(f"no more videos of evaluations: {reason}")

    def _record(self, env_steps: int) -> None:
        config = self._config
        if self._env is None:
            self._env = make_visible(config.environment)
        env, player = self._env, Player(self._workflow, config, self._env.spec, PLAYING)
        path = self._folder.videos / (evaluation_video_name(env_steps) + self._suffix)
        with open_video(path, fps_of(env)) as screen:
            limit, title = VIDEO_FRAMES * screen.stride, f"{env_steps:,} env_steps"
            seed = EpisodeSeeds(config.seed, PLAY)(0, 0)
            play_episode(env, 0, seed, lambda _, frame: player.act(frame), screen, limit, title=title)
