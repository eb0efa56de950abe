"""Atari: equality with Gymnasium's preprocessing, single and vectorised games, restore."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from typing import Any

import numpy as np
import pytest

from cadenza.cli.main import run
from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families import atari
from cadenza.envs.families.gym import Gym
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import decide_vectorize, make_vector
from cadenza.errors import ConfigError, MissingExtraError

pytest.importorskip("ale_py", reason="the extra atari is not installed")
PLAIN: dict[str, Any] = {"repeat_action_probability": 0.0}


def made(game: str = "Pong", **kwargs: Any) -> Gym:
    env = catalog.make(EnvironmentConfig(id=f"ALE/{game}-v5", kwargs=kwargs))
    assert isinstance(env, Gym)
    return env


def vector(way: str, frame_stack: int | None = None, game: str = "Breakout", **kwargs: Any) -> Any:
    config = EnvironmentConfig(id=f"ALE/{game}-v5", kwargs=kwargs, frame_stack=frame_stack, vectorize=way)  # type: ignore[arg-type]
    return make_vector(config, EpisodeSeeds(5, TRAIN), num_envs=2)


def walked(env: Any, steps: int, rng: np.random.Generator) -> list[tuple[bytes, ...]]:
    frames = []
    for _ in range(steps):
        step = env.step(random_actions(env.spec.groups, env.current, rng))
        raw = step.raw_reward.get("agent", step.reward["agent"])
        fields = (step.obs["agent"], step.final_obs["agent"], step.reward["agent"], raw, step.terminated, step.is_first)
        frames.append(tuple(field.tobytes() for field in fields))
    return frames


def test_every_game_has_an_id_and_its_rom() -> None:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    theirs = {id: spec.kwargs["game"] for id, spec in gymnasium.registry.items() if id.startswith("ALE/")}
    assert {id: atari.rom_of(id) for id in atari.ids("ALE")} == theirs
    assert environments.resolve("ALE/Pong") == "ALE/Pong-v5"


# sha256 of 60 observations and rewards under AtariPreprocessing(noop_max=0, …); the next test makes them anew
REFERENCE = {
    ("Breakout", "grayscale", True): "6a1a8d2ee922e3d6",
    ("Pong", "rgb", False): "fd0b73d1d07f8817",
}


def digest(pictures: list[Any], rewards: list[float]) -> str:
    whole = b"".join(np.ascontiguousarray(picture).tobytes() for picture in pictures)
    return hashlib.sha256(whole + np.array(rewards, np.float32).tobytes()).hexdigest()[:16]


def ours(game: str, obs_type: str, life: bool) -> tuple[list[Any], list[float]]:
    env = made(game, obs_type=obs_type, noop_max=0, terminal_on_life_loss=life, **PLAIN)
    frame, rng = env.reset(0), np.random.default_rng(3)
    pictures, rewards = [frame.obs["agent"][0]], []
    while len(pictures) < 60 and not frame.terminated:
        frame = env.step({"agent": rng.integers(0, 4, 1)})
        pictures.append(frame.obs["agent"][0].copy())
        rewards.append(float(frame.reward["agent"][0]))
    return pictures, rewards


@pytest.mark.parametrize(("game", "obs_type", "life"), REFERENCE)
def test_observations_equal_those_of_gymnasiums_preprocessing(game: str, obs_type: str, life: bool) -> None:
    assert digest(*ours(game, obs_type, life)) == REFERENCE[game, obs_type, life]


@pytest.mark.parametrize(("game", "obs_type", "life"), REFERENCE)
def test_the_reference_preprocessing_equals_gymnasiums(game: str, obs_type: str, life: bool) -> None:
    how = "AtariPreprocessing needs OpenCV (61 MB, for this alone): pip install opencv-python-headless, then run again"
    pytest.importorskip("cv2", reason=how)
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing

    gymnasium.register_envs(ale_py)
    plain = gymnasium.make(f"ALE/{game}-v5", frameskip=1, **PLAIN)
    gray = obs_type == "grayscale"
    env = AtariPreprocessing(plain, noop_max=0, terminal_on_life_loss=life, grayscale_obs=gray)
    rng, over = np.random.default_rng(3), False
    frames = [env.reset(seed=0)[0]]
    rewards = []
    while len(frames) < 60 and not over:
        picture, reward, over, _, _ = env.step(int(rng.integers(0, 4, 1)[0]))
        frames.append(picture)
        rewards.append(float(reward))
    pictures = [picture[None] if gray else np.moveaxis(picture, -1, 0) for picture in frames]
    assert digest(pictures, rewards) == REFERENCE[game, obs_type, life]


@pytest.mark.parametrize("kwargs", [PLAIN | {"clip_rewards": True}, {"obs_type": "rgb", "screen_size": 42}])
def test_vectorised_games_equal_single_games_bit_for_bit_and_are_restored(kwargs: dict[str, Any]) -> None:
    """Without sticky actions, where this game is not loaded again, and with them."""
    together, alone = vector("native", 3, **kwargs), vector("in_process", 3, **kwargs)
    assert together.spec == alone.spec
    assert together.spec.frame_stack == 3
    for env in (together, alone):
        assert env.spec.restore == "replay"
    steps = 160 if "clip_rewards" in kwargs else 40
    one, two = (walked(env, steps, np.random.default_rng(0)) for env in (together, alone))
    assert one == two
    episodes, others = together.episodes(), alone.episodes()
    assert len(episodes) > 0 or steps < 160
    assert [(e.seed, e.length, e.returns["agent"].tolist()) for e in episodes] == [
        (e.seed, e.length, e.returns["agent"].tolist()) for e in others
    ]
    fresh = vector("native", 3, **kwargs)
    fresh.load_state_dict(alone.state_dict())
    assert fresh.current.obs["agent"].tobytes() == alone.current.obs["agent"].tobytes()
    assert walked(fresh, 20, np.random.default_rng(1)) == walked(alone, 20, np.random.default_rng(1))


def test_games_of_a_shared_console_are_restored_from_episodes_of_unequal_lengths() -> None:
    kwargs: dict[str, Any] = {"terminal_on_life_loss": True, "noop_max": 0, "screen_size": 42, **PLAIN}
    old = vector("native", frame_stack=2, **kwargs)
    walked(old, 80, np.random.default_rng(0))
    saved = old.state_dict()
    assert isinstance(old._games, atari.SharedConsole)
    assert len(set(saved["lengths"].tolist())) == 2
    images = old.current.obs["agent"].copy()
    new = vector("native", frame_stack=2, **kwargs)
    new.load_state_dict(saved)
    np.testing.assert_array_equal(new.current.obs["agent"], images)
    assert walked(new, 20, np.random.default_rng(1)) == walked(old, 20, np.random.default_rng(1))


def test_a_game_that_keeps_state_over_a_reset_is_loaded_again() -> None:
    used, fresh = made("Assault", **PLAIN), made("Assault", **PLAIN)
    for seed in range(3):
        used.reset(seed)
    images = []
    for env in (used, fresh):
        rng, first = np.random.default_rng(0), env.reset(7)
        pictures = [env.step({"agent": rng.integers(0, 7, 1)}).obs["agent"].tobytes() for _ in range(20)]
        images.append([first.obs["agent"].tobytes(), *pictures])
    assert images[0] == images[1]


def test_games_that_are_not_loaded_again_start_after_any_number_of_noops() -> None:
    """With no-ops in whole steps of 4 frames all of Pong's episodes would be equal."""
    groups: list[Any] = []
    env = made(fire_reset=True, **PLAIN)
    for seed in range(24):
        env.reset(seed)
        images = {env.step({"agent": np.zeros(1, np.int64)}).obs["agent"].tobytes() for _ in range(60)}
        alike = [group for group in groups if len(group & images) > 20]
        groups = [group for group in groups if group not in alike] + [set.union(images, *alike)]
    assert len(groups) == 4


def test_atari_returns_are_unclipped_under_clip_rewards() -> None:
    """Space Invaders gives 5 to 30 at a time."""
    kwargs, none = {"clip_rewards": True}, ({"id": "ClipReward", "min_reward": -99, "max_reward": 99},)
    config = EnvironmentConfig(id="ALE/SpaceInvaders-v5", kwargs=kwargs, vectorize="in_process")
    earned = []
    for wrappers in ((), none):
        env = make_vector(dataclasses.replace(config, wrappers=wrappers), EpisodeSeeds(5, TRAIN), num_envs=1)
        fire = {"agent": np.ones((1, 1), np.int64)}
        earned.append(sum(float(env.step(fire).raw_reward["agent"].sum()) for _ in range(150)))
    assert earned[0] == earned[1] >= 15
    with pytest.raises(ConfigError, match="its own would be lost; use auto"):
        make_vector(dataclasses.replace(config, vectorize="gymnasium"), EpisodeSeeds(5, TRAIN), num_envs=1)


def test_games_can_be_closed_twice() -> None:
    env = vector("native", 2)
    env.close()
    env.close()


def test_auto_takes_the_native_version_also_under_frame_stack_but_not_under_wrappers() -> None:
    config = EnvironmentConfig(id="ALE/Pong-v5", frame_stack=4)
    assert decide_vectorize(config, 8, {}) == "native"
    assert decide_vectorize(EnvironmentConfig(id="ALE/Pong-v5", resize=42), 8, {}) == "in_process"
    assert decide_vectorize(EnvironmentConfig(id="ALE/Pong-v5", kwargs={"obs_type": "ram"}), 8, {}) == "in_process"


def test_memory_is_128_bytes_and_repeats_its_episodes() -> None:
    used, fresh = (made("Breakout", obs_type="ram", fire_reset=True) for _ in range(2))

    def play(env: Gym, seed: int) -> list[bytes]:
        rng, frame = np.random.default_rng(seed), env.reset(seed)
        return [env.step({"agent": rng.integers(0, 4, 1)}).obs["agent"].tobytes() for _ in range(40)] + [
            frame.obs["agent"].tobytes()
        ]

    play(used, 1)
    assert play(used, 2) == play(fresh, 2)
    assert used.spec.groups["agent"].observation.shape == (128,)
    picture = used.render()
    assert picture is not None
    assert picture.shape == (210, 160, 3)


def test_rendered_pictures_show_the_same_game_in_colour() -> None:
    env = catalog.make(EnvironmentConfig(id="ALE/Pong-v5", kwargs={"screen_size": 210}), render=True)
    env.reset(3)
    for action in (2, 2, 3, 3, 2):
        frame = env.step({"agent": np.array([action])})
    picture = env.render()
    assert picture is not None
    assert picture.shape == (210, 160, 3)
    gray = (picture @ np.array([0.299, 0.587, 0.114])).mean(axis=1)  # row by row: widths differ
    assert np.abs(gray - frame.obs["agent"][0, 0].mean(axis=1)).max() < 3


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"obs_type": "rbg"}, "obs_type=rbg: must be one of grayscale, rgb, ram, objects; did you mean 'rgb'"),
        ({"frameskip": 0}, "frameskip=0: must be a whole number, at least 1"),
        ({"repeat_action_probability": 1}, "repeat_action_probability=1: must be at least 0 and below 1"),
        ({"repeat_action_probability": "off"}, "repeat_action_probability=off: must be at least 0 and below 1"),
        ({"fire_reset": "off"}, "fire_reset=off: must be true or false"),
        ({"frame_skip": 4}, "frame_skip: ALE/Pong-v5 takes no such argument; did you mean 'frameskip'"),
    ],
)
def test_invalid_arguments_are_config_errors_with_the_key(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.kwargs\.{message}"):
        made(**kwargs)


def test_objects_without_ocatari_name_the_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ocatari", None)
    with pytest.raises(MissingExtraError, match=r"obs_type=objects needs OCAtari, .*--no-deps ocatari"):
        made(obs_type="objects")


def test_a_game_without_the_extra_names_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert run(["train", "ALE/Pong-v5:ppo"]) == 69
    assert capsys.readouterr().err == "error: ALE environments need an extra: pip install 'cadenza[atari]'\n"
