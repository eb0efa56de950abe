from __future__ import annotations

from typing import Any

import numpy as np

from cadenza.lab.inspector.frames import NUMBERS, first_numbers, number_names


def test_numbers_of_an_observation_keep_the_keys_of_its_dict_and_their_places() -> None:
    # of one agent: [A, …]
    obs: Any = {
        "arm": {"joints": np.zeros((1, 2)), "grip": np.zeros(1)},
        "camera": np.zeros((1, 8, 8, 3), np.uint8),
        "map": np.zeros((1, 2, 2), np.float32),
    }
    names = ["arm.joints[0]", "arm.joints[1]", "arm.grip", "map[0,0]", "map[0,1]", "map[1,0]", "map[1,1]"]
    assert number_names(obs) == names
    steps = {"arm": {key: x[None] for key, x in obs["arm"].items()}, "camera": obs["camera"][None]}
    assert len(first_numbers({**steps, "map": obs["map"][None]})[0][0]) == len(names)


def test_numbers_of_a_plain_observation_go_by_their_places() -> None:
    assert number_names(np.zeros((3, 2))) == ["0", "1"]
    assert number_names(np.zeros(3)) == ["0"]
    assert len(number_names(np.zeros((1, 1000)))) == NUMBERS
