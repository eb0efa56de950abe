"""One episode of a trained policy as a moving picture."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from cadenza.envs.catalog import make
from cadenza.envs.seeds import PLAY, EpisodeSeeds
from cadenza.errors import ConfigError
from cadenza.orchestration.playback import Player, load_policy
from cadenza.records.atomic import temporary_beside
from cadenza.records.folder import RunFolder
from cadenza.types import Environment

FRAME_SECONDS = 0.04  # what a GIF can show everywhere
WIDTH = 320
MAX_FRAMES = 400


def record(folder: RunFolder, checkpoint: str = "best", seed: int = 0, trust: bool = False) -> Path:
    """Write `videos/<checkpoint>.gif` and return its path."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame complains that it finds no screen
    player, name = load_policy(folder, checkpoint, trust)
    frames = play(player, seed)
    path = folder.videos / f"{name}.gif"
    path.parent.mkdir(exist_ok=True)
    write_gif(frames, path)
    return path


def play(player: Player, seed: int) -> list[np.ndarray]:
    """The pictures [height, width, 3] of one episode, every second step."""
    env = make(player.config.environment, render=True)
    frames: list[np.ndarray] = []
    try:
        player.reset()
        frame = env.reset(EpisodeSeeds(seed, PLAY)(0, 0))
        step = 0
        while not (frame.terminated or frame.truncated) and len(frames) < MAX_FRAMES:
            if step % 2 == 0:
                frames.append(rendered(env))
            frame = env.step(player.act(frame))
            step += 1
    finally:
        env.close()
    return frames


def rendered(env: Environment) -> np.ndarray:
    try:
        picture = env.render()
    except NotImplementedError:
        picture = None
    if picture is None:
        raise ConfigError(f"{env.spec.id} has nothing to show")
    return picture


def write_gif(frames: list[np.ndarray], path: Path) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    scale = min(1.0, WIDTH / pictures[0].width)
    size = (round(pictures[0].width * scale), round(pictures[0].height * scale))
    small = [picture.resize(size).quantize(64, method=Image.Quantize.FASTOCTREE) for picture in pictures]
    temporary = temporary_beside(path)
    small[0].save(temporary, "GIF", save_all=True, append_images=small[1:], duration=int(FRAME_SECONDS * 1000), loop=0)
    temporary.replace(path)
