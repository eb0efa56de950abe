"""Datasets in LeRobot's formats (v2.0, v2.1, v3.0), written down as ours: from then on they are like any other.

DIR/meta/info.json        the format, frames a second, the features and their shapes
DIR/data/*/*.parquet      a row a frame: what was seen, what was then done; next.reward and next.done, if known
DIR/videos/…              the pictures of features whose dtype is video; those of dtype image stand in their rows

They name no environment. Whether they are of a run's is judged by what it sees and does: names and shapes.
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
from cadenza.types import EnvSpec, Tree

INFO = Path("meta/info.json")
VERSIONS = ("v2.0", "v2.1", "v3.0")
# what LeRobot calls the parts of its environments' observations; any other keeps its name
NAMES = {"agent_pos": "state", "pixels": "image"}


def recognised(given: str) -> bool:
    return (Path(given).expanduser() / INFO).is_file()


def convert(given: str, out: Path, config: RunConfig, spec: EnvSpec) -> None:
    """Write the episodes in this folder as a dataset of the run's environment."""
    where = f"training.dataset={given}"
    if len(spec.groups) != 1 or len(next(iter(spec.groups.values())).agents) != 1:
        raise ConfigError(f"{where}: is of one agent, {spec.id} has several")
    if config.environment.rescale_actions:
        raise ConfigError(f"{where}: holds actions as they were recorded; environment.rescale_actions must be false")
    source = Source(where, Path(given).expanduser(), config)
    pieces = merged(source.episodes(spec))
    about = {"lerobot": source.version, "what": "episodes"}
    write_dataset(out, Past(pieces, np.zeros(0, np.int64)), config, spec, about)


@dataclass
class Source:
    """The folder, and where its reader stands in its films."""

    where: str
    folder: Path
    config: RunConfig
    films: dict[str, Film] = field(init=False, default_factory=dict)

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
            known = ", ".join(VERSIONS)
            raise ConfigError(f"{self.where}: is in LeRobot's format {self.version}; this version reads {known}")

    def file(self, path: Path) -> Path:
        """Return a file of the dataset; a link may lead to another, or into the blobs of the Hub's cache around it."""
        place, folder = path.resolve(), self.folder.resolve()
        if not any(place.is_relative_to(home) for home in (folder, folder.parent.parent / "blobs")):
            raise ValueError(f"{path.name} leads out of the dataset")
        if not place.is_file():
            raise FileNotFoundError(f"{path.name} is not there, or is no file")
        return place

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """What cannot be read is told in a line that names it."""
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as problem:
            reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            reason = f"there is no {reason}" if isinstance(problem, KeyError) else reason
            raise ConfigError(f"{self.where}: {what} cannot be read ({reason})") from problem

    def episodes(self, spec: EnvSpec) -> Iterator[dict[str, np.ndarray]]:
        """Each episode as rows by path, its last observation in a row of its own."""
        (group,) = spec.groups.values()
        see = self.seer(group.observation, ())
        act = self.numbers(group.action, "action", "this environment takes as actions")
        found = 0
        for number, rows in self.tables():
            found += 1
            with self.reading(f"episode {number}"):
                obs, action = see(number, rows), observer(group.action, axis=None)(act(number, rows))
                done = "next.done" in rows.column_names and bool(array_of(rows["next.done"])[-1])
                reward = array_of(rows["next.reward"]) if "next.reward" in rows.column_names else np.zeros(len(action))
                reward = finite("next.reward", reward.reshape(len(action)))
                # what followed the last action was not kept: where that was the end, nobody looks at it
                obs = after(obs) if done else obs
                action, reward = (action, reward) if done else (action[:-1], reward[:-1])
                if not len(action):
                    continue
                episode = episode_rows(spec, obs, self.within(group.action, action, number), reward, done, not done)
            yield episode
        if found != self.count:
            raise ConfigError(f"{self.where}: {found} of its {self.count} episodes are here; is its download whole?")

    def tables(self) -> Iterator[tuple[int, Any]]:
        """Each episode's frames in their order, file by file."""
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

    # from names to what they hold

    def seer(self, space: spaces.Space[Any], path: tuple[str, ...]) -> Callable[[int, Any], Tree]:
        """A function from an episode's number and rows to its observations [T, …]."""
        if isinstance(space, spaces.Dict):
            parts = {key: self.seer(part, (*path, key)) for key, part in space.spaces.items()}
            return lambda number, rows: {key: see(number, rows) for key, see in parts.items()}
        name = self.observed(space, path)
        if not is_image(space):
            return self.numbers(space, name, f"this environment shows{told(path)}")
        change = image_change(self.config.environment)

        def pictures(number: int, rows: Any) -> np.ndarray:
            seen = [change(picture) for picture in self.pictures(name, number, rows)]
            if seen[0].shape != space.shape:
                raise ConfigError(
                    f"{self.where}: {name} has pictures {by(seen[0].shape)}, this run {by(space.shape or ())}"
                    " [C, H, W]; environment.resize and environment.grayscale change both"
                )
            return np.stack(seen)

        return pictures

    def observed(self, space: spaces.Space[Any], path: tuple[str, ...]) -> str:
        """The feature that holds this part of the observations: by LeRobot's name, by its own, or the only camera."""
        own = ".".join(path) or ("pixels" if is_image(space) else "agent_pos")
        theirs = NAMES.get(own, own.replace("pixels.", "images.", 1))
        cameras = [name for name in self.features if name.startswith("observation.images.")]
        names = [f"observation.{theirs}", f"observation.{own}", *cameras * (is_image(space) and len(cameras) == 1)]
        for name in names:
            if name in self.features:
                return name
        there = ", ".join(name for name in self.features if name.startswith("observation.")) or "no observations"
        raise ConfigError(f"{self.where}: has no {names[0]}, which this environment shows{told(path)}; it has {there}")

    def numbers(self, space: spaces.Space[Any], name: str, what: str) -> Callable[[int, Any], np.ndarray]:
        """A function from an episode to the numbers of a feature, which are as many as the space has."""
        if name not in self.features:
            raise ConfigError(f"{self.where}: has no {name}")
        wanted = space.shape or ()
        with self.reading(f"the shape of {name}"):
            shape = tuple(int(size) for size in self.features[name]["shape"])
        if shape != wanted and (shape, wanted) != ((1,), ()):
            raise ConfigError(f"{self.where}: {name} has shape {list(shape)}, what {what} has {list(wanted)}")

        def read(number: int, rows: Any) -> np.ndarray:
            return finite(name, array_of(rows[name]).reshape(len(rows), *wanted))

        return read

    def within(self, space: spaces.Space[Any], action: np.ndarray, number: int) -> np.ndarray:
        """Actions as the environment would have done them."""
        if isinstance(space, spaces.Box):
            return np.clip(action, space.low, space.high) if self.config.environment.clip_actions else action
        if not all(space.contains(one) for one in action):
            raise ConfigError(f"{self.where}: episode {number} has actions that are not in {space}")
        return action

    def pictures(self, name: str, number: int, rows: Any) -> Iterator[np.ndarray]:
        """The pictures [H, W, C] of one episode."""
        if self.features[name]["dtype"] != "video":
            from PIL import Image

            for kept in rows[name].to_pylist():
                if kept["bytes"] is None:
                    raise ValueError(f"{name} names files of pictures instead of holding them")
                yield np.asarray(Image.open(io.BytesIO(kept["bytes"])).convert("RGB"))
        else:
            if name not in self.films:
                self.films[name] = Film(self.extra("av", "video"), self.fps, self.places(name), self.file)
            yield from self.films[name].frames(number, len(rows))

    def places(self, name: str) -> dict[int, tuple[Path, float]]:
        """By episode, the file that its pictures are in, and the second they begin at."""
        videos = self.folder / "videos"
        if not self.version.startswith("v3"):
            chunks = ((one, videos / f"chunk-{one // self.chunk:03d}" / name) for one in range(self.count))
            return {one: (chunk / f"episode_{one:06d}.mp4", 0.0) for one, chunk in chunks}
        found: dict[int, tuple[Path, float]] = {}
        read_table = self.extra("pyarrow.parquet", "parquet").read_table
        keys = [f"videos/{name}/{key}" for key in ("chunk_index", "file_index", "from_timestamp")]
        for file in sorted(self.folder.glob("meta/episodes/*/*.parquet")):
            rows = read_table(self.file(file), columns=["episode_index", *keys])
            for one, chunk, part, start in zip(*(array_of(column) for column in rows.columns), strict=True):
                found[int(one)] = (videos / name / f"chunk-{chunk:03d}/file-{part:03d}.mp4", float(start))
        return found


@dataclass
class Film:
    """One feature's pictures; episodes that lie one after the other in a file are read in one go."""

    av: Any
    fps: float
    places: dict[int, tuple[Path, float]]
    file: Callable[[Path], Path]  # checks one before it is opened
    path: Path | None = None
    running: Iterator[Any] = field(default_factory=lambda: iter(()))

    def frames(self, number: int, count: int) -> Iterator[np.ndarray]:
        path, start = self.places[number]
        if path != self.path:
            self.path, self.running = path, self.played(path)
        for index in range(count):
            due = start + index / self.fps
            frame = next((one for one in self.running if one.time > due - 0.5 / self.fps), None)
            if frame is None or frame.time > due + 0.5 / self.fps:
                raise ValueError(f"{path.name} has no picture at {due:.3f} s")
            yield frame.to_ndarray(format="rgb24")

    def played(self, path: Path) -> Iterator[Any]:
        with self.av.open(str(self.file(path))) as film:
            yield from film.decode(video=0)


def array_of(column: Any) -> np.ndarray:
    """A column of numbers, or of lists of them, as a flat array."""
    array = column.combine_chunks()
    array = getattr(array, "storage", array)
    while hasattr(array, "flatten") and "list" in str(array.type):
        array = array.flatten()
    return np.asarray(array.to_numpy(zero_copy_only=False))


def finite(name: str, values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return values


def after(obs: Tree) -> Tree:
    """Observations with the last one once more."""
    if isinstance(obs, dict):
        return {key: after(part) for key, part in obs.items()}
    return np.concatenate([obs, obs[-1:]])


def told(path: tuple[str, ...]) -> str:
    return f" as {'.'.join(path)}" if path else ""


def by(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)
