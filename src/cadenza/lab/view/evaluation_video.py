"""An episode filmed at evaluations: how the policy looked on its way. It leaves no trace in the run's state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from cadenza.base.resource_usage import Usage
from cadenza.config.schema import RunConfig
from cadenza.engine.events import Ended, Evaluated, Event
from cadenza.engine.playback import PLAYING, Player
from cadenza.envs.seeds import PLAY, EpisodeSeeds
from cadenza.errors import CadenzaError
from cadenza.lab.view.play import RECORDED_PICTURES, fps_of, make_visible, show
from cadenza.lab.view.video import can_mp4, open_video
from cadenza.records.folder import RunFolder, evaluation_video_name
from cadenza.types import Environment, Workflow


class EvaluationVideos:
    """A listener; always the same episode, so that films can be compared. One that cannot be made ends the filming."""

    def __init__(
        self, config: RunConfig, workflow: Workflow, folder: RunFolder, usage: Usage, warn: Callable[[str], None]
    ) -> None:
        self._config, self._workflow, self._folder, self._usage, self._warn = config, workflow, folder, usage, warn
        # TensorBoard shows no other films than these
        self._kind = ".gif" if config.logging.tensorboard or not can_mp4() else ".mp4"
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
                    self._film(event.env_steps)
            except Exception as problem:  # whatever a stranger's renderer may raise
                self._failed = True
                reason = str(problem) if isinstance(problem, CadenzaError) else f"{type(problem).__name__}: {problem}"
                self._warn(f"no more videos of evaluations: {reason}")

    def _film(self, env_steps: int) -> None:
        config = self._config
        if self._env is None:
            self._env = make_visible(config.environment)
        env, player = self._env, Player(self._workflow, config, self._env.spec, PLAYING)
        path = self._folder.videos / (evaluation_video_name(env_steps) + self._kind)
        with open_video(path, fps_of(env)) as screen:
            limit, title = RECORDED_PICTURES * screen.stride, f"{env_steps:,} env_steps"
            seed = EpisodeSeeds(config.seed, PLAY)(0, 0)
            show(env, 0, seed, lambda _, frame: player.act(frame), screen, limit, title=title)
