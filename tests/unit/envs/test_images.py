from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.config.convert import build
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families.gym import as_declared_tree, as_dict_space, observer
from cadenza.envs.images import channels_first, grayscale, has_images, is_image, resize
from cadenza.errors import ConfigError


def made(**settings: Any) -> Any:
    return catalog.make(EnvironmentConfig(**settings))


def shape(env: Any) -> Any:
    return env.spec.groups["agent"].observation.shape


@pytest.mark.parametrize(
    ("declared", "converted"),
    [
        ((96, 90, 3), (3, 96, 90)),
        ((3, 96, 90), (3, 96, 90)),
        ((84, 84), (1, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 12), (12, 84, 84)),
        ((4, 96, 90, 3), (12, 96, 90)),
        ((4, 3, 96, 90), (12, 96, 90)),
        ((8, 8, 8), (8, 8, 8)),
    ],
)
def test_images_of_every_layout_become_channels_first(declared: tuple[int, ...], converted: tuple[int, ...]) -> None:
    assert channels_first(np.zeros(declared, np.uint8)).shape == converted


def test_stacked_images_keep_their_frames_together() -> None:
    frames = np.arange(2 * 5 * 4 * 3, dtype=np.uint8).reshape(2, 5, 4, 3)
    together = channels_first(frames)
    for index in range(6):
        assert np.array_equal(together[index], frames[index // 3, :, :, index % 3])


def test_only_bytes_from_0_to_255_are_images() -> None:
    assert is_image(spaces.Box(0, 255, (8, 8, 3), np.uint8))
    assert not is_image(spaces.Box(0, 255, (128,), np.uint8))
    assert not is_image(spaces.Box(0, 1, (8, 8, 3), np.uint8))
    assert not is_image(spaces.Box(0, 255, (8, 8, 3), np.float32))
    assert has_images(spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (8, 8, 3), np.uint8)]))
    assert not has_images(spaces.Dict(a=spaces.Discrete(2)))


def test_grayscale_weights_the_colours_by_bt601() -> None:
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [9, 9, 9]], np.uint8)
    picture = colours.T.reshape(3, 1, 5)
    gray = grayscale(picture)
    assert gray.shape == (1, 1, 5)
    assert gray.dtype == np.uint8
    exact = colours @ np.array([0.299, 0.587, 0.114])
    assert np.abs(gray[0, 0] - exact).max() < 1
    assert gray[0, 0, 3:].tolist() == [255, 9]


def area_mean(picture: Any, height: int, width: int) -> Any:
    """Resize slowly, by cutting every pixel into so many parts that new pixels consist of whole ones."""
    rows, columns = picture.shape[1:]
    fine = np.repeat(np.repeat(picture.astype(np.int64), height, axis=1), width, axis=2)
    sums = fine.reshape(len(picture), height, rows, width, columns).sum(axis=(2, 4))
    return (2 * sums + rows * columns) // (2 * rows * columns)


@pytest.mark.parametrize(
    ("rows", "columns", "height", "width"), [(10, 12, 7, 5), (6, 6, 3, 2), (4, 5, 8, 9), (7, 7, 7, 7)]
)
def test_resize_averages_over_the_area_of_each_pixel(rows: int, columns: int, height: int, width: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (2, rows, columns)).astype(np.uint8)
    small = resize(picture, height, width)
    assert small.dtype == np.uint8
    assert np.array_equal(small, area_mean(picture, height, width))


def test_large_pictures_are_resized_exactly_too() -> None:
    picture = np.full((1, 400, 600), 255, np.uint8)
    assert (resize(picture, 84, 84) == 255).all()


def test_pictures_of_car_racing_are_channels_first_and_the_environments_own() -> None:
    env = made(id="CarRacing-v3")
    picture = env.reset(3).obs["agent"]
    assert picture.shape == (1, 3, 96, 96)
    assert np.array_equal(picture[0], np.moveaxis(env.bare.unwrapped.state, -1, 0))
    env.close()


def test_grayscale_resize_and_frame_stack_act_in_this_order() -> None:
    env = made(id="CarRacing-v3", grayscale=True, resize=True, frame_stack=3)
    assert shape(env) == (3, 84, 84)
    first = env.reset(3).obs["agent"][0]
    plain = env.bare.unwrapped.state
    expected = resize(grayscale(np.moveaxis(plain, -1, 0)), 84, 84)[0]
    assert all(np.array_equal(frame, expected) for frame in first)
    after = env.step({"agent": np.array([[0.0, 1.0, 0.0]], np.float32)}).obs["agent"][0]
    assert np.array_equal(after[:2], first[1:])
    assert np.array_equal(after[2], resize(grayscale(np.moveaxis(env.bare.unwrapped.state, -1, 0)), 84, 84)[0])
    env.close()


def test_images_inside_dicts_change_and_the_rest_is_stacked() -> None:
    env = made(id="harness.user_wrappers:Camera", grayscale=True, resize=(3, 4), frame_stack=2)
    space = env.spec.groups["agent"].observation
    assert space["camera"].shape == (2, 3, 4)
    assert space["speed"].shape == (2, 2)
    env.reset(0)
    obs = env.step({"agent": np.zeros((1, 2), np.float32)}).obs["agent"]
    assert obs["speed"].tolist() == [[[0, 0], [1, 1]]]
    assert obs["camera"].shape == (1, 2, 3, 4)
    obs = env.reset(0).obs["agent"]
    assert obs["speed"].tolist() == [[[0, 0], [0, 0]]]


def test_vectors_are_stacked_along_a_new_axis() -> None:
    env = made(id="CartPole-v1", frame_stack=4)
    assert shape(env) == (4, 4)
    first = env.reset(1).obs["agent"][0]
    after = env.step({"agent": np.array([1])}).obs["agent"][0]
    assert np.array_equal(after[:3], first[1:])
    assert not np.array_equal(after[3], first[3])


def test_fields_that_need_images_refuse_other_observations() -> None:
    with pytest.raises(ConfigError, match=r"environment\.grayscale: CartPole-v1 shows no images"):
        made(id="CartPole-v1", grayscale=True)
    with pytest.raises(ConfigError, match=r"environment\.resize: Taxi-v4 shows no images"):
        made(id="Taxi-v4", resize=True)
    with pytest.raises(ConfigError, match=r"environment\.frame_stack: Discrete observations cannot be stacked"):
        made(id="Taxi-v4", frame_stack=2)


@pytest.mark.parametrize("resize", [0, -3, (84,), (84, 0), (1, 2, 3)])
def test_impossible_sizes_are_refused(resize: Any) -> None:
    words = r"environment\.resize(\[1\])?=.*: must be (at least 1|true, a number of pixels or \[height)"
    with pytest.raises(ConfigError, match=words):
        build(EnvironmentConfig, {"id": "CarRacing-v3", "resize": resize}, "environment")


@pytest.mark.parametrize(
    "see", [lambda space: observer(space, axis=None), lambda space: lambda obs: as_declared_tree(space, obs)]
)
def test_dict_and_tuple_observations_are_read_alike_in_training_and_by_a_policy(see: Any) -> None:
    pair = see(as_dict_space(spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)])))
    for value_pair in ((2, 3), [2, 3], np.array([2, 3])):  # what Gymnasium's Tuple contains
        assert {key: int(part) for key, part in pair(value_pair).items()} == {"0": 2, "1": 3}
    named = see(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(4)}))
    assert list(named({"c": 1, "b": 3, "a": 2})) == ["a", "b"]
    wrong: tuple[tuple[Any, str], ...] = (({"a": 2}, r"\['a'\]"), (np.zeros(2), "ndarray"), (None, "NoneType"))
    for value, message in wrong:
        with pytest.raises(ValueError, match=rf"an observation has the parts \['a', 'b'\], not {message}$"):
            named(value)


def test_as_declared_tree_accepts_images_in_the_bare_environments_layout() -> None:
    picture, frame = spaces.Box(0, 255, (9, 8, 3), np.uint8), np.arange(9 * 8 * 3, dtype=np.uint8).reshape(9, 8, 3)
    declared = made(id="harness.user_wrappers:Pixels").spec.groups["agent"].observation
    assert declared.shape == (3, 6, 8)
    first = spaces.Box(0, 255, (3, 9, 8), np.uint8)
    assert np.array_equal(as_declared_tree(first, frame), np.moveaxis(frame, -1, 0))
    assert np.array_equal(as_declared_tree(first, np.moveaxis(frame, -1, 0)), np.moveaxis(frame, -1, 0))
    pair = as_dict_space(spaces.Tuple([spaces.Discrete(3), first]))
    tree = as_declared_tree(pair, (2, frame))
    assert tree["0"] == 2
    assert tree["1"].shape == (3, 9, 8)
    assert picture.contains(frame)
    with pytest.raises(ValueError, match=r"an observation \[1\] has the shape \(3, 9, 8\), not \(4,\)"):
        as_declared_tree(pair, (2, np.zeros(4)))
    with pytest.raises(ValueError, match=r"has the parts \['0', '1'\], not \['0'\]"):
        as_declared_tree(pair, (2,))
