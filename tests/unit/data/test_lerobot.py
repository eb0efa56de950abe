"""LeRobot's folders in the layouts of versions 0.3 and 0.4: every frame is read; what does not match is refused."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.config.load import load
from cadenza.config.schema import RunConfig
from cadenza.data import lerobot
from cadenza.data.datasets import Dataset, converted
from cadenza.data.ring_steps import FIRST, LAST, TERMINATED, TRUNCATED
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec, GroupSpec
from harness.command import cadenza, last, train

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

FPS = 10
LENGTHS = (5, 3, 8)
CONFIG = load("toy/fork:diffusion_policy", [])
PLACE, CORNERS = spaces.Box(0, 512, (2,), np.float64), spaces.Box(0, 512, (16,), np.float64)
MOVE = spaces.Box(-1, 1, (2,), np.float32)
Frames = dict[str, np.ndarray]


def environment(action: spaces.Space[Any] = MOVE, **parts: spaces.Space[Any]) -> EnvSpec:
    return EnvSpec("made-up", {"agent": GroupSpec(("agent",), spaces.Dict(parts), action)})


PUSHING = environment(agent_pos=PLACE, environment_state=CORNERS)


def recorded(with_done: bool = True) -> list[Frames]:
    random = np.random.default_rng(0)
    return [
        {
            "observation.state": random.uniform(0, 512, (length, 2)).astype(np.float32),
            "observation.environment_state": random.uniform(0, 512, (length, 16)).astype(np.float32),
            "action": random.uniform(-1, 1, (length, 2)).astype(np.float32),
            "next.reward": random.uniform(0, 1, length).astype(np.float32),
            "next.done": np.arange(length) == (length - 1 if with_done else length),
        }
        for length in LENGTHS
    ]


def column(values: np.ndarray) -> Any:
    if values.ndim == 4:  # pictures, as PNG
        return pa.array([{"bytes": png(picture), "path": None} for picture in values])
    flat = pa.array(values.ravel())
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def png(picture: np.ndarray) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return out.getvalue()


def write(
    folder: Path, episodes: list[Frames], version: str = "v3.0", films: tuple[str, ...] = (), **facts: Any
) -> Path:
    """Write frames as the library does: v2 in a file per episode, v3 with many episodes in a file."""
    tables = []
    for number, frames in enumerate(episodes):
        count = len(frames["action"])
        rows = {name: column(values) for name, values in frames.items() if name not in films}
        rows |= {"frame_index": pa.array(np.arange(count)), "episode_index": pa.array(np.full(count, number))}
        tables.append(pa.table(rows))
    (folder / "data/chunk-000").mkdir(parents=True)
    if version == "v3.0":
        tables, name = [pa.concat_tables(tables)], "file-{:03d}.parquet"
    else:
        name = "episode_{:06d}.parquet"
    for number, table in enumerate(tables):
        parquet.write_table(table, folder / "data/chunk-000" / name.format(number))
    shapes = {name: list(values.shape[1:]) or [1] for name, values in episodes[0].items()}
    kinds = {
        name: "video" if name in films else "image" if len(shape) == 3 else "any" for name, shape in shapes.items()
    }
    info = {
        "codebase_version": version,
        "total_episodes": len(episodes),
        "fps": FPS,
        "chunks_size": 1000,
        "features": {name: {"dtype": kinds[name], "shape": shape} for name, shape in shapes.items()},
    }
    (folder / "meta").mkdir()
    (folder / "meta/info.json").write_text(json.dumps(info | facts))
    for name in films:
        write_films(folder, name, [frames[name] for frames in episodes], version)
    return folder


def write_films(folder: Path, name: str, pictures: list[np.ndarray], version: str) -> None:
    if version != "v3.0":
        for number, frames in enumerate(pictures):
            film(folder / "videos/chunk-000" / name / f"episode_{number:06d}.mp4", frames)
        return
    # the first two in one file, the last in another
    film(folder / "videos" / name / "chunk-000/file-000.mp4", np.concatenate(pictures[:2]))
    film(folder / "videos" / name / "chunk-000/file-001.mp4", pictures[2])
    starts = {"chunk_index": [0, 0, 0], "file_index": [0, 0, 1], "from_timestamp": [0.0, len(pictures[0]) / FPS, 0.0]}
    rows = {"episode_index": [0, 1, 2], **{f"videos/{name}/{key}": values for key, values in starts.items()}}
    (folder / "meta/episodes/chunk-000").mkdir(parents=True)
    parquet.write_table(pa.table(rows), folder / "meta/episodes/chunk-000/file-000.parquet")


def film(path: Path, frames: np.ndarray) -> None:
    av = pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode())


def opened(folder: Path, spec: EnvSpec = PUSHING, config: RunConfig = CONFIG) -> Dataset:
    assert lerobot.recognised(str(folder))
    return converted(lambda out: lerobot.convert(str(folder), out, config, spec))


def episodes_of(dataset: Dataset) -> list[Frames]:
    pieces = list(dataset.pieces())
    rows = {path: np.concatenate([piece[path] for piece in pieces]) for path in pieces[0]}
    cuts = dataset.lengths.cumsum()[:-1]
    split = {path: np.split(array, cuts) for path, array in rows.items()}
    return [{path: parts[index] for path, parts in split.items()} for index in range(len(dataset.lengths))]


def images_of(rows: Frames, part: str = "") -> np.ndarray:
    return rows[f"groups.agent.obs.{part}" if part else "groups.agent.obs"][:, 0]


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_every_frame_arrives(version: str, tmp_path: Path) -> None:
    frames = recorded()
    dataset = opened(write(tmp_path / "them", frames, version))
    assert dataset.facts["episodes"] == 3
    assert dataset.facts["unfinished"] == 0
    assert dataset.facts["return_max"] == pytest.approx(max(one["next.reward"].sum() for one in frames))
    for theirs, mine in zip(frames, episodes_of(dataset), strict=True):
        count = len(theirs["action"])
        assert np.array_equal(images_of(mine, "agent_pos")[:count], theirs["observation.state"])
        assert np.array_equal(images_of(mine, "environment_state")[:count], theirs["observation.environment_state"])
        assert np.array_equal(mine["groups.agent.action"][:-1, 0], theirs["action"])
        assert np.array_equal(mine["groups.agent.reward"][:-1, 0], theirs["next.reward"])
        assert mine["flags"][0] == FIRST
        assert mine["flags"].tolist()[-2:] == [TERMINATED, LAST | TERMINATED]


def test_an_episode_without_an_end_is_truncated_at_its_last_observation(tmp_path: Path) -> None:
    frames = recorded(with_done=False)
    for theirs, mine in zip(frames, episodes_of(opened(write(tmp_path / "them", frames))), strict=True):
        assert np.array_equal(images_of(mine, "agent_pos"), theirs["observation.state"])
        assert np.array_equal(mine["groups.agent.action"][:-1, 0], theirs["action"][:-1])
        assert mine["flags"].tolist()[-2:] == [TRUNCATED, LAST | TRUNCATED]


def test_missing_rewards_are_zero(tmp_path: Path) -> None:
    frames = [{name: one[name] for name in one if not name.startswith("next.")} for one in recorded()]
    dataset = opened(write(tmp_path / "them", frames))
    assert dataset.facts["return_max"] == 0.0
    assert dataset.facts["transitions"] == sum(LENGTHS) - len(LENGTHS)


def test_actions_beyond_their_bounds_are_clipped_as_in_the_environment(tmp_path: Path) -> None:
    frames = recorded()
    frames[0]["action"][0] = [3, -3]
    first = episodes_of(opened(write(tmp_path / "them", frames)))[0]
    assert first["groups.agent.action"][0, 0].tolist() == [1, -1]


def test_discrete_actions_are_read(tmp_path: Path) -> None:
    frames = [{**one, "action": np.arange(len(one["action"])) % 3} for one in recorded()]
    folder = write(tmp_path / "them", frames)
    choosing = environment(spaces.Discrete(3), agent_pos=PLACE)
    for theirs, mine in zip(frames, episodes_of(opened(folder, choosing)), strict=True):
        assert np.array_equal(mine["groups.agent.action"][:-1, 0], theirs["action"])
    with pytest.raises(ConfigError, match=r"episode 0 has actions that are not in Discrete\(2\)"):
        opened(folder, environment(spaces.Discrete(2), agent_pos=PLACE))


def filmed(name: str) -> list[Frames]:
    """Images of one brightness each, different in every frame, are distinguishable after any compression."""
    shades = iter(range(8, 256, 14))
    made = recorded()
    for frames in made:
        frames[name] = np.stack([np.full((32, 48, 3), next(shades), np.uint8) for _ in frames["action"]])
    return made


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("observation.image", environment(pixels=spaces.Box(0, 255, (3, 32, 48), np.uint8))),
        ("observation.images.top", environment(pixels=spaces.Dict(top=spaces.Box(0, 255, (3, 32, 48), np.uint8)))),
        ("observation.images.front", environment(pixels=spaces.Box(0, 255, (3, 32, 48), np.uint8))),
    ],
)
@pytest.mark.parametrize(("version", "film"), [("v2.1", True), ("v3.0", True), ("v2.1", False), ("v3.0", False)])
def test_images_arrive_in_order(name: str, spec: EnvSpec, version: str, film: bool, tmp_path: Path) -> None:
    frames = filmed(name)
    dataset = opened(write(tmp_path / "them", frames, version, films=(name,) * film), spec)
    part = "pixels.top" if name.endswith("top") else "pixels"
    for theirs, mine in zip(frames, episodes_of(dataset), strict=True):
        images = images_of(mine, part)[:-1]
        assert images.shape[1:] == (3, 32, 48)
        assert (
            np.abs(images.mean(axis=(1, 2, 3)) - theirs[name].mean(axis=(1, 2, 3))).max() < 4
        )  # 14 from one to the next


def test_images_are_preprocessed_like_those_of_the_run(tmp_path: Path) -> None:
    frames = recorded()
    random = np.random.default_rng(1)
    for one in frames:
        one["observation.image"] = random.integers(0, 256, (len(one["action"]), 32, 48, 3), np.uint8)
    folder = write(tmp_path / "them", frames)
    whole = opened(folder, environment(pixels=spaces.Box(0, 255, (3, 32, 48), np.uint8)))
    for theirs, mine in zip(frames, episodes_of(whole), strict=True):
        assert np.array_equal(images_of(mine, "pixels")[:-1], np.moveaxis(theirs["observation.image"], -1, 1))
    small = load("toy/dot:diffusion_policy", ["environment.resize=16", "environment.grayscale=true"])
    images = images_of(
        episodes_of(opened(folder, environment(pixels=spaces.Box(0, 255, (1, 16, 16), np.uint8)), small))[0], "pixels"
    )
    assert images.shape == (LENGTHS[0] + 1, 1, 16, 16)
    with pytest.raises(ConfigError, match=r"images 3 x 32 x 48, this run 3 x 16 x 16.*environment.resize"):
        opened(folder, environment(pixels=spaces.Box(0, 255, (3, 16, 16), np.uint8)))


def one_column(name: str, values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (file,) = folder.glob("data/*/*.parquet")
        table = parquet.read_table(file)
        parquet.write_table(table.set_column(table.column_names.index(name), name, values), file)

    return change


def info(**facts: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / lerobot.INFO
        path.write_text(json.dumps(json.loads(path.read_text()) | facts))

    return change


NO_REWARD = pa.array(np.full(sum(LENGTHS), np.nan, np.float32))
NOT_FINITE = column(np.full((sum(LENGTHS), 2), np.nan, np.float32))
BACKWARDS = pa.array(np.arange(sum(LENGTHS))[::-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (info(total_episodes=7), "3 of its 7 episodes are here"),
        (info(codebase_version="v4.1"), "LeRobot's format v4.1; this version reads v2.0, v2.1, v3.0"),
        (info(features=None), "meta/info.json cannot be read"),
        (lambda folder: (folder / lerobot.INFO).write_text("{}"), "cannot be read .there is no 'codebase_version'"),
        (info(features={}), "has no observation.state, which this environment shows as agent_pos"),
        (one_column("action", NOT_FINITE), "episode 0 cannot be read .action holds numbers that are not finite"),
        (
            one_column("next.reward", NO_REWARD),
            "episode 0 cannot be read .next.reward holds numbers that are not finite",
        ),
        (one_column("frame_index", BACKWARDS), "file-000.parquet cannot be read .its frames are not in their order"),
        (
            lambda folder: (folder / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1"),
            "file-000.parquet cannot be",
        ),
        (lambda folder: (folder / lerobot.INFO).write_text("{"), "meta/info.json cannot be read"),
    ],
)
def test_damaged_and_missing_files_are_refused_in_one_line(
    change: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "them", recorded())
    change(folder)
    with pytest.raises(ConfigError, match=words):
        opened(folder)


def test_links_outside_the_cache_of_the_hub_are_refused(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    write(tmp_path / "them", recorded()).rename(snapshot)
    file = next(snapshot.glob("data/*/*.parquet"))
    for place, problem in ((tmp_path / "hub" / "blobs" / "1", ""), (tmp_path / "secret", "leads out of the dataset")):
        place.parent.mkdir(exist_ok=True)
        file.rename(place)
        file.symlink_to(place)
        if problem:
            with pytest.raises(ConfigError, match=problem):
                opened(snapshot)
        else:
            opened(snapshot)
        file.unlink()
        place.rename(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="is no file"):
        opened(snapshot)


def test_features_that_do_not_match_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "them", recorded())
    three = spaces.Box(-1, 1, (3,), np.float32)
    with pytest.raises(ConfigError, match=r"action has shape \[2\], what this environment takes as actions has \[3\]"):
        opened(folder, environment(three, agent_pos=PLACE))
    with pytest.raises(ConfigError, match=r"observation.state has shape \[2\], .* shows as agent_pos has \[3\]"):
        opened(folder, environment(agent_pos=three))
    with pytest.raises(ConfigError, match=r"has no observation.speed, .* it has observation.state, observation.env"):
        opened(folder, environment(speed=three))
    codes = spaces.MultiDiscrete([600, 600])
    with pytest.raises(ConfigError, match=r"episode 0 cannot be read .Cannot cast"):
        opened(folder, environment(agent_pos=codes))
    with pytest.raises(ConfigError, match="rescale_actions must be false"):
        opened(folder, PUSHING, load("toy/fork:diffusion_policy", ["environment.rescale_actions=true"]))


def test_a_video_with_too_few_frames_is_refused(tmp_path: Path) -> None:
    name = "observation.image"
    frames = filmed(name)
    folder = write(tmp_path / "them", frames, "v2.1", films=(name,))
    film(folder / "videos/chunk-000" / name / "episode_000001.mp4", frames[1][name][:-1])
    with pytest.raises(ConfigError, match=r"episode 1 cannot be read .episode_000001.mp4 has no image at 0.200 s"):
        opened(folder, environment(pixels=spaces.Box(0, 255, (3, 32, 48), np.uint8)))


def test_a_run_learns_from_lerobot_as_from_its_own_dataset(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    cadenza("demonstrate", "toy/fork", "fork", "--episodes", 3, "--out", ours).succeeded()
    dataset = converted_back(ours, theirs)
    small = [
        "algorithm.unet.widths=[8]",
        "algorithm.batch_size=16",
        "algorithm.buffer_size=500",
        "evaluation.at_end=false",
    ]
    train(
        tmp_path / "runs", "toy/fork:diffusion_policy", f"training.dataset={theirs}", *small, "--max-updates", 100
    ).succeeded()
    run = last(tmp_path / "runs")
    assert run.read_status()["updates"] == 100
    decision = run.read_decisions()["training.dataset"]
    assert decision["transitions"] == dataset.facts["transitions"]
    verdict = cadenza("verify", "@last", "--runs-dir", tmp_path / "runs", "--json").succeeded()
    assert json.loads(verdict.out.splitlines()[-1])["identical"] is True


def converted_back(ours: Path, theirs: Path) -> Dataset:
    """Write a dataset as LeRobot would have recorded it: equal except for the final observation."""
    from cadenza.data.datasets import open_dataset
    from cadenza.engine.launch import check

    dataset = open_dataset(str(ours))
    frames = [
        {
            "observation.state": images_of(rows)[:-1],
            "action": rows["groups.agent.action"][:-1, 0],
            "next.reward": rows["groups.agent.reward"][:-1, 0],
            "next.done": rows["flags"][:-1] & TERMINATED > 0,
        }
        for rows in episodes_of(dataset)
    ]
    again = opened(write(theirs, frames), check(CONFIG))
    for before, after in zip(episodes_of(dataset), episodes_of(again), strict=True):
        assert all(np.array_equal(before[path][:-1], after[path][:-1]) for path in before)
        assert np.array_equal(before["flags"], after["flags"])
    return dataset
