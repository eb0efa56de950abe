"""Datasets in LeRobot's formats (v2.0, v2.1, v3.0), converted to datasets of cadenza.

DIR/meta/info.json        the format, frames per second, the features and their shapes
DIR/data/*/*.parquet      a row per frame: observation and action; next.reward and next.done, if recorded
DIR/videos/…              the images of features of dtype video; those of dtype image are in their rows

They name no environment: names and shapes of observations and actions must match the run's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.base.parsing import json_object, read_user_file
from cadenza.config.schema import RunConfig
from cadenza.data.batches import Past
from cadenza.data.datasets import episode_rows, merged, write_dataset
from cadenza.envs.families.gym import observer
from cadenza.envs.images import image_change, is_image
from cadenza.errors import ConfigError, MissingExtraError, install
from cadenza.trees import map_tree
from cadenza.types import EnvSpec, Tree

INFO = Path("meta/info.json")
VERSIONS = ("v2.0", "v2.1", "v3.0")
# LeRobot's names of the parts of its environments' observations; any other part keeps its name
NAMES = {"agent_pos": "state", "pixels": "image"}


def recognised(name: str) -> bool:
    """Return whether a folder is a dataset of LeRobot."""
    return (Path(name).expanduser() / INFO).is_file()


def convert(name: str, out: Path, config: RunConfig, spec: EnvSpec) -> None:
    """Write the episodes in a folder as a dataset of the run's environment."""
    where = f"training.dataset={name}"
    if len(spec.groups) != 1 or len(next(iter(spec.groups.values())).agents) != 1:
        raise ConfigError(f"{where}: is of one agent, {spec.id} has several")
    if config.environment.rescale_actions:
        raise ConfigError(f"{where}: holds actions as they were recorded; environment.rescale_actions must be false")
    source = Source(where, Path(name).expanduser(), config)
    past = Past(merged(source.episodes(spec)), np.zeros(0, np.int64))
    write_dataset(out, past, config, spec, {"lerobot": source.version, "what": "episodes"})


@dataclass
class Source:
    """The reader of a folder, with the state of its videos."""

    where: str
    folder: Path
    config: RunConfig
    videos: dict[str, VideoReader] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        with self.reading(str(INFO)):
            info = json_object(read_user_file(self.file(self.folder / INFO)))
            self.version = str(info["codebase_version"])
            self.features: dict[str, Any] = dict(info["features"])
            self.count, self.fps = int(info["total_episodes"]), float(info["fps"])
            self.chunk = int(info.get("chunks_size", 1000))
            if not self.count or not self.fps > 0 or self.chunk < 1:
                raise ValueError("no episode, or no frames in a second")
        if self.version not in VERSIONS:
            supported = ", ".join(VERSIONS)
            raise ConfigError(f"{self.where}: is in LeRobot's format {self.version}; this version reads {supported}")

    def file(self, path: Path) -> Path:
        """Return a file of the dataset; a link may lead to another one, or into the blobs of the Hub's cache."""
        place, folder = path.resolve(), self.folder.resolve()
        if not any(place.is_relative_to(home) for home in (folder, folder.parent.parent / "blobs")):
            raise ValueError(f"{path.name} leads out of the dataset")
        if not place.is_file():
            raise FileNotFoundError(f"{path.name} is not there, or is no file")
        return place

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Turn errors of reading into one line that names `what` cannot be read."""
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as problem:
            reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            reason = f"there is no {reason}" if isinstance(problem, KeyError) else reason
            raise ConfigError(f"{self.where}: {what} cannot be read ({reason})") from problem

    def episodes(self, spec: EnvSpec) -> Iterator[dict[str, np.ndarray]]:
        """Yield each episode as rows by path, its last observation in a row of its own."""
        (group,) = spec.groups.values()
        read_obs = self.observation_reader(group.observation, ())
        read_action = self.number_reader(group.action, "action", "this environment takes as actions")
        count = 0
        for number, rows in self.tables():
            count += 1
            with self.reading(f"episode {number}"):
                obs, action = read_obs(number, rows), observer(group.action, axis=None)(read_action(number, rows))
                terminated = "next.done" in rows.column_names and bool(array_of(rows["next.done"])[-1])
                reward = array_of(rows["next.reward"]) if "next.reward" in rows.column_names else np.zeros(len(action))
                reward = finite("next.reward", reward.reshape(len(action)))
                # the observation after the last action is not recorded: after a termination, nothing depends on it
                if terminated:
                    obs = with_last_repeated(obs)
                else:
                    action, reward = action[:-1], reward[:-1]
                if not len(action):
                    continue
                action = self.within(group.action, action, number)
                episode = episode_rows(spec, obs, action, reward, terminated, not terminated)
            yield episode
        if count != self.count:
            raise ConfigError(f"{self.where}: {count} of its {self.count} episodes are here; is its download whole?")

    def tables(self) -> Iterator[tuple[int, Any]]:
        """Yield the number and the frames of each episode, file by file."""
        read_table = self.extra("pyarrow.parquet", "parquet").read_table
        for file in sorted(self.folder.glob("data/*/*.parquet")):
            with self.reading(str(file.relative_to(self.folder))):
                rows = read_table(self.file(file))
                episode, frame = array_of(rows["episode_index"]), array_of(rows["frame_index"])
                starts = np.flatnonzero(np.diff(episode, prepend=-1))
                if not np.array_equal(frame, np.arange(len(frame)) - np.repeat(starts, np.diff([*starts, len(frame)]))):
                    raise ValueError("its frames are not in their order")
            for low, high in pairwise([*starts, len(frame)]):
                yield int(episode[low]), rows.slice(low, high - low)

    def extra(self, module: str, extra: str) -> Any:
        try:
            return import_module(module)
        except ImportError:
            raise MissingExtraError(f"{self.where}: needs an extra: {install(extra)}") from None

    # from names to arrays

    def observation_reader(self, space: spaces.Space[Any], path: tuple[str, ...]) -> Callable[[int, Any], Tree]:
        """Return a function from an episode's number and rows to its observations [T, …]."""
        if isinstance(space, spaces.Dict):
            readers = {key: self.observation_reader(part, (*path, key)) for key, part in space.spaces.items()}
            return lambda number, rows: {key: read(number, rows) for key, read in readers.items()}
        name = self.feature_for(space, path)
        if not is_image(space):
            return self.number_reader(space, name, f"this environment shows{suffix(path)}")
        change = image_change(self.config.environment)

        def read_images(number: int, rows: Any) -> np.ndarray:
            images = [change(image) for image in self.images(name, number, rows)]
            if images[0].shape != space.shape:
                shapes = f"has images {dimensions(images[0].shape)}, this run {dimensions(space.shape or ())} [C, H, W]"
                raise ConfigError(
                    f"{self.where}: {name} {shapes}; environment.resize and environment.grayscale change both"
                )
            return np.stack(images)

        return read_images

    def feature_for(self, space: spaces.Space[Any], path: tuple[str, ...]) -> str:
        """Return the feature of a part of the observations: by LeRobot's name, by cadenza's, or the only camera."""
        ours = ".".join(path) or ("pixels" if is_image(space) else "agent_pos")
        theirs = NAMES.get(ours, ours.replace("pixels.", "images.", 1))
        cameras = [name for name in self.features if name.startswith("observation.images.")]
        names = [f"observation.{theirs}", f"observation.{ours}", *cameras * (is_image(space) and len(cameras) == 1)]
        for name in names:
            if name in self.features:
                return name
        present = ", ".join(name for name in self.features if name.startswith("observation.")) or "no observations"
        missing = f"has no {names[0]}, which this environment shows{suffix(path)}"
        raise ConfigError(f"{self.where}: {missing}; it has {present}")

    def number_reader(self, space: spaces.Space[Any], name: str, what: str) -> Callable[[int, Any], np.ndarray]:
        """Return a function from an episode to the numbers of a feature, whose shape must be the space's."""
        if name not in self.features:
            raise ConfigError(f"{self.where}: has no {name}")
        expected = space.shape or ()
        with self.reading(f"the shape of {name}"):
            shape = tuple(int(size) for size in self.features[name]["shape"])
        if shape != expected and (shape, expected) != ((1,), ()):
            raise ConfigError(f"{self.where}: {name} has shape {list(shape)}, what {what} has {list(expected)}")

        def read(number: int, rows: Any) -> np.ndarray:
            return finite(name, array_of(rows[name]).reshape(len(rows), *expected))

        return read

    def within(self, space: spaces.Space[Any], action: np.ndarray, number: int) -> np.ndarray:
        """Return actions as the environment takes them: clipped if the run clips, else refused outside the space."""
        if isinstance(space, spaces.Box):
            return np.clip(action, space.low, space.high) if self.config.environment.clip_actions else action
        if not all(space.contains(one) for one in action):
            raise ConfigError(f"{self.where}: episode {number} has actions that are not in {space}")
        return action

    def images(self, name: str, number: int, rows: Any) -> Iterator[np.ndarray]:
        """Yield the images [H, W, C] of one episode."""
        if self.features[name]["dtype"] != "video":
            from PIL import Image

            for image in rows[name].to_pylist():
                if image["bytes"] is None:
                    raise ValueError(f"{name} names files of images instead of holding them")
                yield np.asarray(Image.open(io.BytesIO(image["bytes"])).convert("RGB"))
        else:
            if name not in self.videos:
                self.videos[name] = VideoReader(self.extra("av", "video"), self.fps, self.video_places(name), self.file)
            yield from self.videos[name].frames(number, len(rows))

    def video_places(self, name: str) -> dict[int, tuple[Path, float]]:
        """Return for each episode the file of its images, and the second at which they begin."""
        videos = self.folder / "videos"
        if not self.version.startswith("v3"):
            chunks = ((one, videos / f"chunk-{one // self.chunk:03d}" / name) for one in range(self.count))
            return {one: (chunk / f"episode_{one:06d}.mp4", 0.0) for one, chunk in chunks}
        places: dict[int, tuple[Path, float]] = {}
        read_table = self.extra("pyarrow.parquet", "parquet").read_table
        keys = [f"videos/{name}/{key}" for key in ("chunk_index", "file_index", "from_timestamp")]
        for file in sorted(self.folder.glob("meta/episodes/*/*.parquet")):
            rows = read_table(self.file(file), columns=["episode_index", *keys])
            for one, chunk, part, start in zip(*(array_of(column) for column in rows.columns), strict=True):
                places[int(one)] = (videos / name / f"chunk-{chunk:03d}/file-{part:03d}.mp4", float(start))
        return places


@dataclass
class VideoReader:
    """A reader of one feature's videos. Consecutive episodes in a file are decoded in one pass."""

    av: Any
    fps: float
    places: dict[int, tuple[Path, float]]
    file: Callable[[Path], Path]  # checks one before it is opened
    path: Path | None = None
    decoded: Iterator[Any] = field(default_factory=lambda: iter(()))

    def frames(self, number: int, count: int) -> Iterator[np.ndarray]:
        """Yield the `count` images of an episode."""
        path, start = self.places[number]
        if path != self.path:
            self.path, self.decoded = path, self.decode(path)
        for index in range(count):
            due = start + index / self.fps
            frame = next((one for one in self.decoded if one.time > due - 0.5 / self.fps), None)
            if frame is None or frame.time > due + 0.5 / self.fps:
                raise ValueError(f"{path.name} has no image at {due:.3f} s")
            yield frame.to_ndarray(format="rgb24")

    def decode(self, path: Path) -> Iterator[Any]:
        """Yield the frames of a file."""
        with self.av.open(str(self.file(path))) as video:
            yield from video.decode(video=0)


def array_of(column: Any) -> np.ndarray:
    """Return a column of numbers, or of lists of them, as a flat array."""
    array = column.combine_chunks()
    array = getattr(array, "storage", array)
    while hasattr(array, "flatten") and "list" in str(array.type):
        array = array.flatten()
    return np.asarray(array.to_numpy(zero_copy_only=False))


def finite(name: str, values: np.ndarray) -> np.ndarray:
    """Return the values of a feature; refuse them if any is not finite."""
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return values


def with_last_repeated(obs: Tree) -> Tree:
    """Return observations [T + 1, …] that end with the last of these [T, …] twice."""
    return map_tree(lambda x: np.concatenate([x, x[-1:]]), obs)


def suffix(path: tuple[str, ...]) -> str:
    """Return the name of a part of the observations for a message; nothing for an observation without parts."""
    return f" as {'.'.join(path)}" if path else ""


def dimensions(shape: tuple[int, ...]) -> str:
    """Return a shape in words."""
    return " x ".join(str(size) for size in shape)
