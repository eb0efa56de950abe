from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cadenza.records import episodes
from cadenza.records.folder import RunFolder
from harness.command import SMALL, cadenza, copied, last, train

SPEC = ["CartPole-v1:ppo", *SMALL]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    root = tmp_path_factory.mktemp("runs")
    train(root, *SPEC).succeeded()
    return last(root)


@pytest.fixture
def folder(trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A copy of the run on a machine without a screen."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return copied(trained, tmp_path / "runs")


def told(folder: RunFolder, *arguments: object) -> dict[str, Any]:
    outcome = cadenza("play", folder.path, *arguments, "--json").succeeded()
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def pictures(path: Path) -> list[np.ndarray]:
    film: Any = Image.open(path)
    found = []
    for index in range(film.n_frames):
        film.seek(index)
        found.append(np.asarray(film.convert("RGB")))
    return found


def test_without_a_screen_a_video_is_written(folder: RunFolder) -> None:
    outcome = cadenza("play", folder.path, "--episodes", 2, "--checkpoint", "last").succeeded()
    (path,) = folder.videos.glob("*.gif")
    name = (folder.checkpoints / "last").read_text().strip()
    assert path.name == f"play-{name}-seed0.gif"
    assert str(path) in outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == f"{folder.id} at {name} (last)"  # as `evaluate` says it
    assert cadenza("evaluate", folder.path, "--episodes", 1).succeeded().out.startswith(lines[0] + "\n")
    assert [line.split(":")[0] for line in lines[1:]] == ["episode 0", "episode 1"]
    lengths = [int(line.split()[-1]) for line in lines[1:]]
    assert lines[1] == f"episode 0: return {lengths[0]:.2f}, length {lengths[0]}"  # a reward of 1 for each step
    shown = pictures(path.path)
    # every second of 50 steps a second, the first and the last of each episode always
    assert len(shown) == sum(-(-length // 2) + 1 for length in lengths)
    assert shown[0].shape == (233, 320, 3)
    assert shown[0][:200].std() > 10
    assert len({picture.tobytes() for picture in shown}) > 10


def test_the_same_seed_shows_the_same_and_the_best_policy_is_the_default(folder: RunFolder, tmp_path: Path) -> None:
    a, b, other = (told(folder, "--seed", seed, "--video", tmp_path / f"{seed}.gif") for seed in (3, 3, 4))
    assert a == b
    assert a["source"] == (folder.checkpoints / "best").read_text().strip()
    assert a["episodes"][0]["seed"] != other["episodes"][0]["seed"]
    again = told(folder, "--seed", 3, "--checkpoint", "best", "--video", tmp_path / "x.gif")
    assert again["episodes"] == a["episodes"]
    (folder.checkpoints / "best").unlink()
    assert told(folder, "--video", tmp_path / "y.gif")["source"] == (folder.checkpoints / "last").read_text().strip()


def test_explore_changes_the_played_actions(folder: RunFolder, tmp_path: Path) -> None:
    plain, bold = (
        told(folder, "--episodes", 4, "--video", tmp_path / "x.gif", *more)["episodes"] for more in ((), ("--explore",))
    )
    assert [episode["seed"] for episode in plain] == [episode["seed"] for episode in bold]
    assert [episode["length"] for episode in plain] != [episode["length"] for episode in bold]


def test_an_mp4_can_be_decoded_again(folder: RunFolder, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "new" / "film.mp4"
    length = told(folder, "--video", path)["episodes"][0]["length"]
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 50
    assert len(frames) == length + 1
    assert frames[0].shape == (420, 600, 3)
    assert frames[0].min() < 30 < 230 < frames[0].max()
    assert [entry.name for entry in path.parent.iterdir()] == ["film.mp4"]


def test_an_mp4_without_its_extra_is_one_line(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    cadenza("play", folder.path, "--video", "film.mp4").refused(69, "pip install 'cadenza[video]'")


def test_every_training_episode_can_be_seen_again(folder: RunFolder) -> None:
    recorded = list(episodes.load(folder))
    for k in (0, len(recorded) // 2, len(recorded) - 1):
        found = told(folder, "--episode", k)
        assert found["identical"] is True
        assert found["episodes"][0] == {
            "episode": k,
            "seed": recorded[k].seed,
            "return": recorded[k].total,
            "length": recorded[k].length,
            "ended": True,
        }
        assert len(pictures((folder.videos / f"episode-{k}.gif").path)) == -(-recorded[k].length // 2) + 1


def test_an_episode_that_differs_from_its_record_is_reported(folder: RunFolder) -> None:
    episode, log = episodes.find(folder, 0), episodes.EpisodeLog(folder)
    log.drop_after(-1)
    log.add([replace(episode, returns={"agent": episode.returns["agent"] + 1})])
    log.seal(7)
    outcome = cadenza("play", folder.path, "--episode", 0)
    assert outcome.code == 1
    assert "did not repeat as recorded" in outcome.err


def test_invalid_arguments_of_play_are_refused_in_one_line(folder: RunFolder, tmp_path: Path) -> None:
    cadenza("play", folder.path, "--video", "film.avi").refused(2, "film.avi", ".gif or .mp4")
    cadenza("play", folder.path, "--episode", 10_000).refused(2, "no episode 10000")
    cadenza("play", folder.path, "--episode", 0, "--explore").refused(2, "--episode")
    cadenza("play", folder.path, "--episode", 0, "--seed", 1).refused(2, "--episode")
    cadenza("play", folder.path, "--checkpoint", "3").refused(2, "no checkpoint '3'")
    root = tmp_path / "blind"
    train(root, "toy/identity:ppo", *SMALL).succeeded()
    cadenza("play", "@last", "--runs-dir", root).refused(2, "toy/identity", "renders no pictures")
    assert not last(root).videos.names()


def test_play_opens_a_window_if_there_is_a_screen(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")  # SDL's driver is a dummy
    found = told(folder, "--episode", 0)
    assert found["identical"] is True
    assert found["video"] is None
    assert not list(folder.videos.path.iterdir())


def test_a_window_is_closed_by_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    import pygame

    from cadenza.lab.view.window import ClosedByUserError, Window

    picture = np.full((40, 60, 3), 200, np.uint8)
    with Window(1000.0, "test") as window:
        window.show(picture, "step 0")
        surface = pygame.display.get_surface()
        assert surface.get_size() == (240, 180)  # small pictures are enlarged, and the caption is below
        assert surface.get_at((5, 5))[:3] == (200, 200, 200)
        for key in (pygame.K_SPACE, pygame.K_SPACE):  # pause, and on
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
        window.show(picture, "step 1")
        pygame.display.quit()  # as some renderers do when they are closed
        window.show(picture, "step 2")
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_q))
        with pytest.raises(ClosedByUserError):
            window.show(picture, "step 3")
