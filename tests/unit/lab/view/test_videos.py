"""Films of evaluations, training episodes of teams shown again, and what a world model imagines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.records import episodes
from cadenza.records.folder import evaluation_video
from cadenza.records.metrics import read
from harness.command import SMALL, cadenza, last, train
from harness.dream_runs import SMALL as DREAMING

RUN = ["CartPole-v1:ppo", *SMALL]


def test_films_of_evaluations_change_nothing_and_reach_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for name, more in (("plain", []), ("filmed", ["evaluation.video_every=2", "logging.tensorboard=true"])):
        train(tmp_path / name, *RUN, *more).succeeded()
    plain, filmed = last(tmp_path / "plain"), last(tmp_path / "filmed")
    rows = read(filmed.metrics)
    assert [row["digest/weights"] for row in rows] == [row["digest/weights"] for row in read(plain.metrics)]
    evaluated = [row["env_steps"] for row in rows if "eval/return_mean" in row]
    films = {step for step in evaluated if evaluation_video(filmed, step) is not None}
    assert films == set(evaluated[1::2])
    accumulator = EventAccumulator(str(filmed.path / "tensorboard"), size_guidance={"images": 0})
    accumulator.Reload()
    shown = accumulator.Images("eval/video")
    assert [image.step for image in shown] == evaluated[1::2]
    assert (shown[0].width, shown[0].height) == (320, 233)
    assert shown[0].encoded_image_string.startswith(b"GIF89a")


def test_a_renderer_that_fails_ends_the_filming_and_not_the_run(tmp_path: Path) -> None:
    (warning,) = train(tmp_path, "toy/identity:ppo", *SMALL, "evaluation.video_every=1").succeeded().warnings
    assert "no more videos of evaluations: toy/identity has nothing to show" in warning
    cadenza("train", *RUN, "evaluation.video_every=-1", "--runs-dir", tmp_path).refused(2, "evaluation.video_every")


@pytest.mark.parametrize("spec", ["skirmish/2m1x1h:mappo", "ALE/Pong-v5:ppo"])
def test_training_episodes_of_teams_and_atari_are_shown_again(
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
    told = json.loads(cadenza("play", folder.path, "--episode", k, "--json").succeeded().out)
    assert told["identical"] is True
    assert told["episodes"][0]["return"] == recorded[k].total


def test_a_world_models_imagination_is_shown_beside_what_happened(tmp_path: Path) -> None:
    train(tmp_path, "CartPole-v1:dreamer_v3", *DREAMING, "--max-timesteps", "260").succeeded()
    told = json.loads(cadenza("play", last(tmp_path).path, "--imagine", "--json").succeeded().out)
    (file,) = map(Path, told["files"])  # of images there would be a film, too
    assert file.name.startswith("imagination-step-")
    assert file.read_bytes().startswith(b"\x89PNG")
    train(tmp_path / "x", "toy/identity:ppo", *SMALL).succeeded()
    cadenza("play", last(tmp_path / "x").path, "--imagine").refused(2, "ppo learns no model")
