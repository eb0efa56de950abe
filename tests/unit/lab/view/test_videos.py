"""Videos of evaluations, replays of training episodes, and predictions of a world model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.records import episodes
from cadenza.records.folder import evaluation_video
from cadenza.records.metrics import read
from harness.command import SMALL, cadenza, last, train
from harness.dreamer_runs import SMALL as DREAMING

RUN = ["CartPole-v1:ppo", *SMALL]


def test_evaluation_videos_reach_tensorboard_and_leave_the_weights_unchanged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for name, more in (("plain", []), ("recorded", ["evaluation.video_every=2", "logging.tensorboard=true"])):
        train(tmp_path / name, *RUN, *more).succeeded()
    plain, recorded_run = last(tmp_path / "plain"), last(tmp_path / "recorded")
    rows = read(recorded_run.metrics)
    assert [row["digest/weights"] for row in rows] == [row["digest/weights"] for row in read(plain.metrics)]
    evaluated = [row["env_steps"] for row in rows if "eval/return_mean" in row]
    videos = {step for step in evaluated if evaluation_video(recorded_run, step) is not None}
    assert videos == set(evaluated[1::2])
    accumulator = EventAccumulator(str(recorded_run.path / "tensorboard"), size_guidance={"images": 0})
    accumulator.Reload()
    images = accumulator.Images("eval/video")
    assert [image.step for image in images] == evaluated[1::2]
    assert (images[0].width, images[0].height) == (320, 233)
    assert images[0].encoded_image_string.startswith(b"GIF89a")


def test_a_failing_renderer_ends_the_videos_with_a_warning(tmp_path: Path) -> None:
    (warning,) = train(tmp_path, "toy/identity:ppo", *SMALL, "evaluation.video_every=1").succeeded().warnings
    assert "no more videos of evaluations: toy/identity renders no pictures" in warning
    cadenza("train", *RUN, "evaluation.video_every=-1", "--runs-dir", tmp_path).refused(2, "evaluation.video_every")


@pytest.mark.parametrize("spec", ["skirmish/2m1x1h:mappo", "ALE/Pong-v5:ppo"])
def test_training_episodes_of_teams_and_atari_repeat_exactly(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spec.startswith("ALE"):
        pytest.importorskip("ale_py")
    monkeypatch.delenv("DISPLAY", raising=False)
    small = ["algorithm.n_steps=32", "environment.num_envs=2", "environment.max_episode_steps=30"]
    small += ["algorithm.n_epochs=1", "algorithm.batch_size=1.0", "evaluation.episodes=1", "--max-timesteps", "128"]
    train(tmp_path, spec, *small).succeeded()
    folder = last(tmp_path)
    recorded = list(episodes.load(folder))
    k = len(recorded) - 1
    result = json.loads(cadenza("play", folder.path, "--episode", k, "--json").succeeded().out)
    assert result["identical"] is True
    assert result["episodes"][0]["return"] == recorded[k].total


def test_imagine_writes_the_predictions_of_a_world_model(tmp_path: Path) -> None:
    train(tmp_path, "CartPole-v1:dreamer_v3", *DREAMING, "--max-timesteps", "260").succeeded()
    result = json.loads(cadenza("play", last(tmp_path).path, "--imagine", "--json").succeeded().out)
    (file,) = map(Path, result["files"])  # with image observations there would be a video, too
    assert file.name.startswith("imagination-step-")
    assert file.read_bytes().startswith(b"\x89PNG")
    train(tmp_path / "x", "toy/identity:ppo", *SMALL).succeeded()
    cadenza("play", last(tmp_path / "x").path, "--imagine").refused(2, "ppo learns no model")
