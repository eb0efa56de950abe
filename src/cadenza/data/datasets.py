"""Datasets: experience in a folder of its own, written from one run and used by others. Nothing is unpickled.

DIR/dataset.json                    environment, spaces, counts, returns, source, sha256 of the other files
DIR/<from>-<to>.safetensors …       rows as in a replay, in stretches from a first row to a last one
"""

from __future__ import annotations

import heapq
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.json_text import DIGEST, is_intact, plain, with_digest
from cadenza.base.parsing import json_object
from cadenza.config.convert import to_dict
from cadenza.config.schema import MINARI, RunConfig
from cadenza.data.batches import Past
from cadenza.data.replay import ReplayStore
from cadenza.data.ring_steps import FIRST, LAST, TERMINATED, TRUNCATED
from cadenza.data.segments import SEGMENT_BYTES, Segment, read_segment, verify_file, write_segment
from cadenza.envs.families.gym import observer
from cadenza.errors import CheckpointError, ConfigError
from cadenza.trees import leaves, map_tree
from cadenza.types import EnvSpec, Tree

FORMAT = 1
FACTS = "dataset.json"
ABSENT = object()  # not the same as null
# Settings of the environment that change observations or actions.
SHAPING = ("kwargs", "wrappers", "clip_actions", "rescale_actions", "grayscale", "resize", "frame_stack")


def refuse_existing(out: Path) -> None:
    """Refuse to write a dataset to a path that exists."""
    if out.exists():
        raise ConfigError(f"{out} exists: a dataset is never written over; give a new name")


def write_dataset(out: Path, past: Past, config: RunConfig, spec: EnvSpec, source: Mapping[str, Any]) -> dict[str, Any]:
    """Write the folder, whole or not at all; return its facts. A policy's extras are left out."""
    refuse_existing(out)
    draft = atomic.temporary_beside(out)
    try:
        draft.mkdir(parents=True)
        files: dict[str, str] = {}
        flags, rewards, count = [np.zeros(0, np.uint8)], [np.zeros(0)], 0
        for piece in past.pieces:
            rows = nested(spec, piece)
            numbers = np.arange(count, count + len(rows["flags"]))
            count += len(numbers)
            name = f"{numbers[0]:012d}-{count:012d}.safetensors"
            files[name] = write_segment(SafePath(draft), name, numbers, dict(leaves(rows)))
            flags.append(rows["flags"])
            rewards.append(sum(group["reward"].sum(axis=1, dtype=np.float64) for group in rows["groups"].values()))
        if not count:
            raise ConfigError("there is no experience to write: nothing has been collected")
        facts = with_digest(
            {
                "format": FORMAT,
                **identity(config, spec),
                "frame_stack": past.stack,
                **summary(np.concatenate(flags), np.concatenate(rewards), past.partial),
                "source": source,
                "files": files,
            }
        )
        atomic.write_json(draft / FACTS, facts)
        draft.rename(out)
        atomic.sync_dir(out.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return facts


def merged(pieces: Iterable[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Join many small pieces to few large ones."""
    pending: list[dict[str, np.ndarray]] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += sum(array.nbytes for array in piece.values())
        if size >= SEGMENT_BYTES:
            yield joined(pending)
            pending, size = [], 0
    if pending:
        yield joined(pending)


def joined(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the rows of several pieces as one."""
    return {path: np.concatenate([piece[path] for piece in pieces]) for path in pieces[0]}


def episode_rows(
    spec: EnvSpec, obs: Tree, action: np.ndarray, reward: np.ndarray, terminated: bool, truncated: bool
) -> dict[str, np.ndarray]:
    """Return an episode of one agent, obs [T + 1, …], action and reward [T, …], as T + 1 rows by path.

    The last row holds the final observation alone.
    """
    ((name, group),) = spec.groups.items()
    count = len(reward)
    ending = TERMINATED * terminated + TRUNCATED * truncated
    flags = np.zeros(count + 1, np.uint8)
    flags[0] = FIRST
    flags[-2] |= ending
    flags[-1] = LAST | ending
    action = observer(group.action, axis=1)(action)
    acting = np.arange(count + 1)[:, None] < count
    rows = {
        "obs": observer(group.observation, axis=1)(obs),
        "active": acting,
        "action": np.concatenate([action, np.zeros_like(action[:1])]),
        "reward": np.append(reward, 0).astype(np.float32)[:, None],
        "died": np.zeros_like(acting),
    }
    return dict(leaves({"groups": {name: rows}, "flags": flags}))


def summary(flags: np.ndarray, rewards: np.ndarray, partial: np.ndarray) -> dict[str, Any]:
    """Return the counts of transitions and episodes, and statistics of the returns of whole episodes."""
    starts = np.flatnonzero(flags & FIRST)
    whole = np.ones(len(starts), bool)
    whole[starts.searchsorted(partial, side="right") - 1] = False
    returns = np.add.reduceat(rewards, starts)[whole]
    return {
        "transitions": int(np.count_nonzero(flags & LAST == 0)),
        "episodes": len(starts),
        "unfinished": int(np.count_nonzero(~whole)),
        "return_mean": float(returns.mean()) if len(returns) else None,
        "return_min": float(returns.min()) if len(returns) else None,
        "return_max": float(returns.max()) if len(returns) else None,
    }


@dataclass(frozen=True)
class Dataset:
    """An open dataset, of which every byte was verified."""

    path: SafePath
    facts: dict[str, Any]
    lengths: np.ndarray  # rows of each stretch, its last row included
    scratch: TemporaryDirectory[str] | None = None  # the folder of a converted dataset, deleted with this object

    @property
    def digest(self) -> str:
        return str(self.facts["digest"])

    def rows_for(self, num_envs: int, stack: int) -> int:
        """Return the capacity that a replay of so many streams needs for it."""
        return num_envs * (int(np.bincount(dealt(self.lengths, num_envs), self.lengths).max()) + stack)

    def fill(self, store: ReplayStore, spec: EnvSpec) -> None:
        """Fill an empty replay with all rows; each stretch goes to the stream that has the fewest so far."""
        env = np.repeat(dealt(self.lengths, store.num_envs), self.lengths)
        try:
            like = map_tree(lambda x: x[:1], nested(spec, next(self.pieces())))
            store.fill(like, env, self.pieces())
        except (KeyError, IndexError, ValueError) as problem:
            raise ConfigError(f"training.dataset={self.path}: its rows do not fit the run ({problem})") from problem

    def knows(self, name: str) -> bool:
        """Return whether its rows have a field, such as `mask`."""
        return any(path.startswith("groups.") and path.endswith(f".{name}") for path in next(self.pieces()))

    def close(self) -> None:
        """Delete the folder of a converted dataset."""
        if self.scratch is not None:
            self.scratch.cleanup()

    def pieces(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield all rows in their order, file by file."""
        for name, sha256 in self.facts["files"].items():
            yield read_segment(self.path, Segment(name, sha256, np.zeros(0, np.int64)))[1]


def dealt(lengths: np.ndarray, num_envs: int) -> np.ndarray:
    """Return the stream of each stretch: always the one with the fewest rows so far."""
    streams = [(0, env) for env in range(num_envs)]
    dealt_to = np.empty(len(lengths), np.int64)
    for index, length in enumerate(lengths.tolist()):
        rows, env = streams[0]
        dealt_to[index] = env
        heapq.heapreplace(streams, (rows + length, env))
    return dealt_to


def open_dataset(name: str) -> Dataset:
    """Open a folder, or `minari:ID`, as a dataset, and verify every byte of it."""
    if name.startswith(MINARI):
        from cadenza.data.minari import convert

        return converted(partial(convert, name.removeprefix(MINARI)))
    path, where = SafePath(Path(name).expanduser()), f"training.dataset={name}"
    if not (path / FACTS).is_file():
        reason = f"is no dataset, it has neither {FACTS} nor LeRobot's meta/info.json"
        reason = reason if path.is_dir() else "there is no such folder"
        raise ConfigError(f"{where}: {reason} (`cadenza export RUN --format dataset --out DIR` writes one)")
    try:
        facts = json_object((path / FACTS).read_bytes())
        if DIGEST not in facts or not is_intact(facts):
            raise ValueError("it does not match its own digest")
        if facts["format"] != FORMAT:
            raise ConfigError(f"{where}: has format {facts['format']}, this version reads {FORMAT}")
        flags = np.concatenate([verified_flags(path, name, sha256) for name, sha256 in facts["files"].items()])
    except CheckpointError as problem:
        raise ConfigError(f"{where}: {problem}") from problem
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ConfigError(f"{where}: {FACTS} is damaged ({problem})") from problem
    starts, ends = np.flatnonzero(flags & FIRST), np.flatnonzero(flags & LAST)
    if not len(starts) or not np.array_equal(np.append(starts[1:], len(flags)), ends + 1) or starts[0] != 0:
        raise ConfigError(f"{where}: its rows are not stretches from a first row to a last one")
    return Dataset(path, facts, ends + 1 - starts)


def converted(write: Callable[[Path], None]) -> Dataset:
    """Return the dataset that `write` makes from foreign data in a temporary folder, deleted with the dataset."""
    scratch = TemporaryDirectory(prefix="cadenza-dataset-")
    try:
        folder = Path(scratch.name, "dataset")
        write(folder)
        return replace(open_dataset(str(folder)), scratch=scratch)
    except BaseException:
        scratch.cleanup()
        raise


def verified_flags(folder: SafePath, name: str, sha256: str) -> np.ndarray:
    """Return the flags of the rows in a file, of which every byte is verified."""
    from safetensors import SafetensorError, safe_open

    path = folder / name
    verify_file(path, sha256, FACTS)
    try:
        with path.named() as place, safe_open(place, "np") as file:
            return np.asarray(file.get_tensor("flags"))
    except SafetensorError as problem:
        raise CheckpointError(f"{name} holds no rows ({problem})") from problem


# the identity of the environment, which a run must share with its dataset


def identity(config: RunConfig, spec: EnvSpec) -> dict[str, Any]:
    """Return the environment's id, spaces and the settings that change observations or actions."""
    settings = to_dict(config)["environment"]
    described = {
        "environment": {"id": spec.id, **{key: settings[key] for key in SHAPING}},
        "groups": {
            name: {
                "agents": list(group.agents),
                "observation": described_space(group.observation),
                "action": described_space(group.action),
            }
            for name, group in spec.groups.items()
        },
        "state": None if spec.state is None else described_space(spec.state),
    }
    return dict(plain(described))


def refuse_other(dataset: Dataset, name: str, config: RunConfig, spec: EnvSpec) -> None:
    """Refuse a dataset of another environment; name the first difference."""
    expected = identity(config, spec)
    difference = first_difference({key: dataset.facts.get(key) for key in expected}, expected)
    if difference:
        key, theirs, ours = difference
        raise ConfigError(
            f"training.dataset={name}: {key} is {brief(theirs)} in the dataset, {brief(ours)} in this run"
        )


def first_difference(a: Any, b: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return dotted key and both values of the first difference between two trees of plain data, or None."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return None if a == b else (path, a, b)
    for key in [*a, *(key for key in b if key not in a)]:
        difference = first_difference(a.get(key, ABSENT), b.get(key, ABSENT), f"{path}.{key}" if path else str(key))
        if difference:
            return difference
    return None


def brief(value: Any) -> str:
    """Return a value for a message, at most 60 characters of it."""
    text = "absent" if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"


def described_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a space as plain data, equal for equal spaces."""
    kind = type(space).__name__
    if isinstance(space, spaces.Dict):
        return {"type": kind, "parts": {key: described_space(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Box):
        bounds = {"low": bound(space.low), "high": bound(space.high)}
        return {"type": kind, "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": kind, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": kind, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    return {"type": kind, "what": str(space)}


def bound(values: np.ndarray) -> Any:
    """Return bounds as plain data: one number if all are equal, and texts for infinities, which JSON lacks."""

    def finite(value: Any) -> Any:
        if isinstance(value, list):
            return [finite(one) for one in value]
        return value if np.isfinite(value) else str(value)

    flat = values.ravel()
    return finite(flat[0].item() if len(flat) and (flat == flat[0]).all() else values.tolist())


def nested(spec: EnvSpec, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return rows by path as the tree of a store, without the extras of a policy."""

    def observation(space: spaces.Space[Any], path: str) -> Tree:
        if isinstance(space, spaces.Dict):
            return {key: observation(part, f"{path}.{key}") for key, part in space.spaces.items()}
        return rows[path]

    groups: dict[str, dict[str, Tree]] = {}
    for name, group in spec.groups.items():
        path = f"groups.{name}"
        groups[name] = {"obs": observation(group.observation, f"{path}.obs")}
        names = ("active", "mask", "action", "reward", "died")
        groups[name] |= {key: rows[f"{path}.{key}"] for key in names if key != "mask" or f"{path}.mask" in rows}
    tree: dict[str, Any] = {"groups": groups, "flags": rows["flags"]}
    return tree if spec.state is None else {**tree, "state": rows["state"]}
