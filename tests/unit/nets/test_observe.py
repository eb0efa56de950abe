from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.config.networks import TorsoConfig
from cadenza.errors import ConfigError
from cadenza.nets.observe import VECTOR, Observer, bounds, flatten, images, vector_size
from cadenza.nets.torso import Torso
from cadenza.trees import map_tree

CPU = torch.device("cpu")
MIXED = spaces.Dict(
    {
        "box": spaces.Box(-1, 1, (2, 2), np.float32),
        "number": spaces.Discrete(3, start=1),
        "bits": spaces.MultiBinary(2),
        "dials": spaces.MultiDiscrete([2, 3]),
    }
)


def batch_of(space: spaces.Dict, count: int) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    space.seed(0)
    samples = [space.sample() for _ in range(count)]
    return {key: np.stack([np.asarray(sample[key]) for sample in samples]) for key in space.spaces}, samples


def test_vector_of_any_space_equals_gymnasiums_flattening() -> None:
    batch, samples = batch_of(MIXED, 4)
    expected = np.stack([np.asarray(spaces.flatten(MIXED, sample)) for sample in samples])
    assert vector_size(MIXED) == expected.shape[1]
    np.testing.assert_array_equal(Observer(MIXED, CPU)(batch)[VECTOR], expected)


def test_images_are_separate_and_stay_bytes() -> None:
    space = spaces.Dict({"eye": spaces.Box(0, 255, (3, 8, 9), np.uint8), "arm": spaces.Box(-1, 1, (2,), np.float32)})
    batch, _ = batch_of(space, 5)
    observed = Observer(space, CPU)(batch)
    assert images(space) == {"image.eye": (3, 8, 9)}
    assert observed["image.eye"].dtype == torch.uint8
    np.testing.assert_array_equal(observed["image.eye"], batch["eye"])
    np.testing.assert_array_equal(observed[VECTOR], batch["arm"])


def test_image_named_vector_does_not_collide_with_the_vector() -> None:
    space = spaces.Dict({"vector": spaces.Box(0, 255, (3, 8, 8), np.uint8), "arm": spaces.Box(-1, 1, (2,), np.float32)})
    batch, _ = batch_of(space, 5)
    observed = Observer(space, CPU)(batch)
    assert {key: tuple(value.shape) for key, value in observed.items()} == {
        "image.vector": (5, 3, 8, 8),
        VECTOR: (5, 2),
    }


def test_bytes_too_small_for_convolutions_are_part_of_the_vector() -> None:
    image = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    space = spaces.Box(0, 255, (1, 1, 2), np.uint8)
    assert not images(space)
    assert flatten(space, image).tolist() == [[0.0, 1.0]]


def test_bytes_with_a_maximum_below_255_are_not_scaled() -> None:
    space = spaces.Box(0, 10, (3,), np.uint8)
    assert flatten(space, torch.tensor([[0, 5, 10]], dtype=torch.uint8)).tolist() == [[0, 5, 10]]
    assert [edge.tolist() for edge in bounds(space)] == [[0, 0, 0], [10, 10, 10]]


def test_static_normalisation_scales_bounds_to_one_and_leaves_unbounded_numbers() -> None:
    space = spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([2, 10, np.inf], np.float32))
    observer = Observer(space, CPU, "static")
    vector = observer(np.array([[2, 0, 7], [0, 10, -7]], np.float32))[VECTOR]
    assert vector.tolist() == [[1, -1, 7], [0, 1, -7]]
    assert observer.state_dict() == {}
    low, high = bounds(MIXED)
    assert len(low) == len(high) == vector_size(MIXED)


def test_rolling_statistics_count_agents_that_acted_only() -> None:
    space = spaces.Box(-10, 10, (2,), np.float32)
    observer = Observer(space, CPU, normalize=True)
    obs = np.random.default_rng(0).normal(3, 2, (50, 2)).astype(np.float32)
    acted = torch.arange(50) < 40
    observer.learn(obs[:20], acted[:20])
    observer.learn(obs[20:], acted[20:])
    expected = (obs - obs[:40].mean(0)) / obs[:40].std(0)
    np.testing.assert_allclose(observer(obs)[VECTOR], expected, atol=1e-4)
    again = Observer(space, CPU, normalize="rolling")
    again.load_state_dict(observer.state_dict())
    assert torch.equal(again(obs)[VECTOR], observer(obs)[VECTOR])


def test_loading_statistics_that_do_not_match_the_setting_is_refused() -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    rolling, plain = Observer(space, CPU, normalize=True), Observer(space, CPU)
    with pytest.raises(ConfigError, match=r"algorithm\.normalize_obs: these weights were trained"):
        plain.load_state_dict(rolling.state_dict())
    with pytest.raises(ConfigError, match=r"algorithm\.normalize_obs: these weights were not trained"):
        rolling.load_state_dict(plain.state_dict())


def test_raw_observer_passes_observations_unchanged() -> None:
    batch, _ = batch_of(MIXED, 2)
    observed = Observer(MIXED, CPU, raw=True)(batch)
    assert all(np.array_equal(observed[key], batch[key]) for key in batch)


VECTORS: dict[str, spaces.Space[Any]] = {
    "numbers": spaces.Box(-2, 3, (3,)),
    "float64": spaces.Box(-2, 3, (2, 2), np.float64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "discrete": spaces.Discrete(4),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(2)}),
}


@pytest.mark.parametrize("normalize", [False, "rolling", "static"])
@pytest.mark.parametrize("space", VECTORS)
def test_vector_as_array_equals_the_tensor(space: str, normalize: Any) -> None:
    observer = Observer(VECTORS[space], torch.device("cpu"), normalize)
    VECTORS[space].seed(0)
    drawn = [[VECTORS[space].sample() for _ in range(3)] for _ in range(5)]  # [N, A]
    obs = map_tree(lambda *x: np.stack(x).reshape(5, 3, *np.shape(x[0])), *[one for row in drawn for one in row])
    observer.learn(obs, torch.ones(5, 3, dtype=torch.bool))
    vector = observer.vector(obs)
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, observer(obs)[VECTOR].numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("raises", r"cannot be called \(KeyError: 'pixels'\)"),
        ("nothing", "must return a tensor of float32, not NoneType"),
        ("double", r"must return a tensor of float32, not torch\.float64"),
        ("dropout", "has dropout, batch norm or other randomness in it"),
        ("norm", "has dropout, batch norm or other randomness in it"),
    ],
)
def test_invalid_user_encoder_is_refused(wrong: str, message: str) -> None:
    space = spaces.Box(-1, 1, (3,), np.float32)
    config = TorsoConfig(encoder="harness.encoders:Odd", kwargs={"wrong": wrong})
    with pytest.raises(ConfigError, match=f"^algorithm.torso.encoder=harness.encoders:Odd {message}"):
        Torso(space, config)
    Torso(space, TorsoConfig(encoder="harness.encoders:Odd", kwargs={"wrong": "no"}))
