from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cadenza.errors import NotFoundError, StorageError
from cadenza.records import episodes
from cadenza.records.episodes import EpisodeLog
from cadenza.records.folder import RunFolder
from cadenza.types import Episode


def episode(number: int, length: int = 3) -> Episode:
    draw = np.random.default_rng(number)
    return Episode(
        env=number % 2,
        number=number,
        seed=2**31 - 1 - number,
        length=length,
        returns={"runner": draw.normal(size=2).astype(np.float32), "shooter": draw.normal(size=1)},
        actions={
            "runner": draw.integers(0, 3, (length, 2)),
            "shooter": draw.normal(size=(length, 1, 2)).astype(np.float32),
        },
    )


def same(a: Episode, b: Episode) -> bool:
    if (a.env, a.number, a.seed, a.length) != (b.env, b.number, b.seed, b.length):
        return False
    pairs = [(a.returns, b.returns), (a.actions, b.actions)]
    return all(
        left.keys() == right.keys()
        and all(left[key].dtype == right[key].dtype and np.array_equal(left[key], right[key]) for key in left)
        for left, right in pairs
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_episodes_come_back_as_they_were(folder: RunFolder) -> None:
    log = EpisodeLog(folder)
    expected = [episode(0, 3), episode(1, 1), episode(2, 8), episode(3, 2)]
    log.add(expected[:3])
    log.seal(100)
    log.seal(150)
    log.add(expected[3:])
    log.seal(200)
    assert folder.episodes.names() == ["000000000100.safetensors", "000000000200.safetensors", "SHA256SUMS"]
    loaded = list(episodes.load(folder))
    assert len(loaded) == episodes.count(folder) == 4
    assert all(same(a, b) for a, b in zip(loaded, expected, strict=True))
    assert all(same(episodes.find(folder, k), expected[k]) for k in range(4))


def test_nothing_is_lost_when_sealing_fails(folder: RunFolder, tmp_path: Path) -> None:
    log = EpisodeLog(folder)
    log.add([episode(0)])
    (tmp_path / "episodes").write_text("in the way")
    with pytest.raises(OSError):
        log.seal(10)
    (tmp_path / "episodes").unlink()
    log.seal(20)
    assert same(episodes.find(folder, 0), episode(0))


def test_dropping_forgets_what_came_after_the_checkpoint(folder: RunFolder) -> None:
    log = EpisodeLog(folder)
    for number, step in enumerate((100, 200, 300)):
        log.add([episode(number)])
        log.seal(step)
    log.add([episode(9)])
    (folder.episodes.path / ".tmp-000000000300.safetensors-1-0123abcd").write_text("half")
    log.drop_after(200)
    log.seal(400)
    assert [one.number for one in episodes.load(folder)] == [0, 1]
    assert folder.episodes.names() == ["000000000100.safetensors", "000000000200.safetensors", "SHA256SUMS"]


def test_switched_off_writes_nothing(folder: RunFolder) -> None:
    log = EpisodeLog(folder, enabled=False)
    log.add([episode(0)])
    log.seal(10)
    log.drop_after(0)
    assert not folder.episodes.exists()
    with pytest.raises(NotFoundError, match=r"has no episode 0.*logging\.episodes=true"):
        episodes.find(folder, 0)


def test_an_episode_that_is_not_there_is_named(folder: RunFolder) -> None:
    log = EpisodeLog(folder)
    log.add([episode(0), episode(1)])
    log.seal(10)
    with pytest.raises(NotFoundError, match="episode 2: it has episodes 0 to 1"):
        episodes.find(folder, 2)
    with pytest.raises(NotFoundError):
        episodes.find(folder, -1)


def test_a_damaged_segment_is_named(folder: RunFolder) -> None:
    log = EpisodeLog(folder)
    log.add([episode(0)])
    log.seal(10)
    path = next(folder.episodes.path.iterdir())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(StorageError, match=r"000000000010\.safetensors is damaged"):
        list(episodes.load(folder))
    with pytest.raises(StorageError, match="damaged"):
        episodes.find(folder, 0)


@pytest.mark.parametrize(
    ("name", "odd", "reason"),
    [
        ("seed", np.array([-1, 2]), "seed holds something else than counts"),
        ("seed", np.array([np.nan, 2.0]), "seed holds something else than counts"),
        ("seed", np.array([1]), "seed has not 2 rows"),
        ("length", np.array([2**62, 3]), "has not 4611686018427387907 rows"),
        ("actions.runner", None, r"it has no actions\.runner"),
        ("number", None, "it has no number"),
    ],
)
def test_segment_of_a_stranger_with_impossible_arrays_is_refused(
    folder: RunFolder, name: str, odd: np.ndarray | None, reason: str
) -> None:
    log = EpisodeLog(folder)
    log.add([episode(0), episode(1)])
    log.seal(10)
    path = next(folder.episodes.path.glob("*.safetensors"))
    arrays = load_file(path)
    if odd is None:
        del arrays[name]
    else:
        arrays[name] = odd
    save_file(arrays, path)
    with pytest.raises(StorageError, match=rf"000000000010\.safetensors is damaged: .*{reason}"):
        list(episodes.load(folder))


def test_segment_with_a_header_that_takes_long_to_parse_is_refused(folder: RunFolder) -> None:
    folder.episodes.mkdir()
    path = folder.episodes.path / "000000000010.safetensors"
    path.write_bytes(struct.pack("<Q", 60_000_000) + b"{")
    for read in (episodes.count, episodes.outline, lambda run: list(episodes.load(run))):
        with pytest.raises(StorageError, match=r"its header has more than 1,048,576 bytes"):
            read(folder)
