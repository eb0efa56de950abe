"""Every training episode's seed, actions and return, in segments that never change once written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from cadenza.base import atomic, owned_files
from cadenza.base.failpoints import failpoint
from cadenza.base.files import SafePath
from cadenza.base.text import printable
from cadenza.errors import NotFoundError, StorageError
from cadenza.types import Episode

if TYPE_CHECKING:
    from cadenza.records.folder import RunFolder

FIELDS = ("env", "number", "seed", "length")
RETURNS, ACTIONS = "returns.", "actions."  # followed by the group
KIND = ".safetensors"
LONGEST_HEADER = 1 << 20  # bytes: some tensors for each group of agents
WON = "won"  # only in segments of environments with winners


class EpisodeLog:
    """A log of finished episodes. It is sealed before each checkpoint, which then has no half-written episodes."""

    def __init__(self, folder: RunFolder, enabled: bool = True) -> None:
        self._directory = folder.episodes
        self._enabled = enabled
        self._pending: list[Episode] = []

    def add(self, episodes: Sequence[Episode]) -> None:
        if self._enabled:
            self._pending.extend(episodes)

    def seal(self, env_steps: int) -> None:
        """Write the episodes since the last seal as the segment that ends at this point of the run."""
        if not self._pending:
            return
        from safetensors.numpy import save

        self._directory.mkdir()
        failpoint("episodes:seal")
        path, content = self._directory / f"{env_steps:012d}{KIND}", save(_arrays(self._pending))
        owned_files.note(self._directory, path.name, sha256(content).hexdigest())
        atomic.write_bytes(path, content)
        self._pending = []

    def drop_after(self, env_steps: int) -> None:
        """Delete what was recorded after the checkpoint that a run is resumed from."""
        self._pending = []
        segments, ours = _segments(self._directory), owned_files.listed(self._directory)
        if not ours:
            ours = owned_files.adopt(path for path in segments if _is_segment(path))
        for path in segments:
            if int(path.stem) > env_steps and path.name in ours:
                path.unlink()
        owned_files.tidy(self._directory)


def load(folder: RunFolder) -> Iterator[Episode]:
    """Yield all recorded episodes in the order they ended, with one segment in memory at a time."""
    for path in _segments(folder.episodes):
        yield from _read(path)


def count(folder: RunFolder) -> int:
    return sum(_size(path) for path in _segments(folder.episodes))


def outline(folder: RunFolder) -> dict[str, Any]:
    """Return all episodes without actions: FIELDS and WON (None if nobody can win) as arrays, returns by group."""
    import numpy as np

    parts: list[dict[str, Any]] = []
    for path in _segments(folder.episodes):
        with _opened(path) as file:
            names = [name for name in file.keys() if not name.startswith(ACTIONS)]  # noqa: SIM118
            parts.append({name: file.get_tensor(name) for name in names})
    names = list(parts[0]) if parts else [*FIELDS]
    joined = {name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, int) for name in names}
    returns = {name.removeprefix(RETURNS): x.sum(-1) for name, x in joined.items() if name.startswith(RETURNS)}
    return {**{name: joined[name] for name in FIELDS}, WON: joined.get(WON), "returns": returns}


def find(folder: RunFolder, k: int) -> Episode:
    """Return the k-th recorded episode of the run, counting from 0; only its segment is read."""
    before = 0
    for path in _segments(folder.episodes):
        size = _size(path)
        if before <= k < before + size:
            return list(_read(path))[k - before]
        before += size
    allowed = f"it has episodes 0 to {before - 1}" if before else "it has none (logging.episodes=true keeps them)"
    raise NotFoundError(f"run {folder.id} has no episode {k}: {allowed}")


def _segments(directory: SafePath) -> list[SafePath]:
    return [path for path in directory.glob(f"*{KIND}") if path.stem.isascii() and path.stem.isdigit()]


def _is_segment(path: SafePath) -> bool:
    """Return whether a file holds episodes, in a run that is too old to have a list of its files."""
    try:
        return _size(path) > 0
    except StorageError:
        return False


def _arrays(episodes: list[Episode]) -> dict[str, Any]:
    import numpy as np

    arrays = {name: np.array([getattr(episode, name) for episode in episodes], np.int64) for name in FIELDS}
    if episodes[0].won is not None:
        arrays[WON] = np.array([episode.won for episode in episodes], bool)
    for group in episodes[0].returns:
        arrays[RETURNS + group] = np.stack([episode.returns[group] for episode in episodes])
    for group in episodes[0].actions:
        arrays[ACTIONS + group] = np.concatenate([episode.actions[group] for episode in episodes])
    return arrays


def _size(path: SafePath) -> int:
    """Return the number of episodes in a segment, from its header alone."""
    with _opened(path) as file:
        return int(file.get_slice("length").get_shape()[0])


@contextmanager
def _opened(path: SafePath) -> Iterator[Any]:
    """Open a segment to read its arrays; refuse a damaged one, and one whose header takes long to parse."""
    from safetensors import SafetensorError, safe_open

    with path.reading() as content:
        header = int.from_bytes(content.read(8), "little")
    if header > LONGEST_HEADER:
        raise StorageError(f"{path} is damaged: its header has more than {LONGEST_HEADER:,} bytes")
    try:
        with path.named() as place, safe_open(place, framework="numpy") as file:
            yield file
    except (SafetensorError, IndexError) as problem:  # IndexError: a tensor without axes
        raise StorageError(f"{path} is damaged: {problem}") from problem


def _fault(arrays: dict[str, Any], groups: list[str]) -> str | None:
    """Return what in the arrays of a segment cannot be, or None: it may be anybody's."""
    columns = [*FIELDS, *([WON] if WON in arrays else []), *(RETURNS + group for group in groups)]
    steps = [ACTIONS + group for group in groups]
    if missing := [name for name in (*columns, *steps) if name not in arrays]:
        return f"it has no {printable(missing[0])}"
    for name in FIELDS:
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu" or (arrays[name] < 0).any():
            return f"{name} holds something else than counts"
    count, total = len(arrays["length"]), sum(map(int, arrays["length"]))
    for name, rows in [*((name, count) for name in columns), *((name, total) for name in steps)]:
        if arrays[name].ndim == 0 or len(arrays[name]) != rows:
            return f"{printable(name)} has not {rows} rows"
    return None


def _read(path: SafePath) -> Iterator[Episode]:
    """Yield the episodes of a segment."""
    with _opened(path) as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    groups = sorted(name.removeprefix(RETURNS) for name in arrays if name.startswith(RETURNS))
    if fault := _fault(arrays, groups):
        raise StorageError(f"{path} is damaged: {fault}")
    ends = list(accumulate(int(length) for length in arrays["length"]))
    for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        env, number, seed, length = (int(arrays[name][row]) for name in FIELDS)
        yield Episode(
            env=env,
            number=number,
            seed=seed,
            length=length,
            returns={group: arrays[RETURNS + group][row] for group in groups},
            actions={group: arrays[ACTIONS + group][start:end] for group in groups},
            won=bool(arrays[WON][row]) if WON in arrays else None,
        )
