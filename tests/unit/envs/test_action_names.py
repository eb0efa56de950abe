"""Names of actions, through wrappers and groups; numbers if there are none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.action_names import name_of
from cadenza.envs.catalog import make
from cadenza.envs.families.gym import Gym
from cadenza.lab.view.play import play_episode
from cadenza.lab.view.video import Gif
from cadenza.types import GroupSpec

GRID = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
MOVES = ("nothing", "left", "right", "down", "up")


def named(id: str, **settings: Any) -> dict[str, tuple[str, ...]]:
    env = make(EnvironmentConfig(id=id, **settings))
    env.close()
    return {name: group.action_names for name, group in env.spec.groups.items()}


def test_core_families_have_action_names() -> None:
    assert named("CartPole-v1") == {"agent": ("left", "right")}
    assert named("Pendulum-v1") == {"agent": ("torque",)}
    assert named("toy/identity") == {"agent": ()}
    names = named("skirmish/2m1x1h")
    assert names["marine"][:3] == ("hold", "north", "south")
    assert names["healer"][-1] == "heal bruiser_0"
    assert "heal" in named("skirmish/2m2h")["healer"]  # whom depends on who it is


@pytest.mark.parametrize(
    ("id", "package", "names"),
    [
        ("ALE/Pong-v5", "ale_py", {"agent": ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")}),
        (
            "MiniGrid-Empty-5x5-v0",
            "minigrid",
            {"agent": GRID},
        ),
        ("HalfCheetah-v5", "mujoco", {"agent": ("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")}),
        ("dmc/cartpole-balance", "dm_control", {"agent": ("slide",)}),
        ("mpe/simple_speaker_listener_v4", "mpe2", {"speaker": (), "listener": MOVES}),
    ],
)
def test_extra_families_have_action_names(id: str, package: str, names: dict[str, Any]) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    assert named(id) == names


def test_action_names_survive_wrappers_that_keep_the_meaning_of_actions() -> None:
    sticky = {"id": "StickyAction", "repeat_action_probability": 0.1}
    assert named("CartPole-v1", wrappers=(sticky, {"id": "HideVelocity"})) == {"agent": ("left", "right")}
    assert named("Pendulum-v1", rescale_actions=True) == {"agent": ("torque",)}


class Turned(gymnasium.ActionWrapper[Any, Any, Any]):
    def action(self, action: int) -> int:
        return 1 - action


class Delayed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that may change actions in `step`."""

    def step(self, action: int) -> Any:
        return self.env.step(1 - action)


class Talking(gymnasium.Env[Any, Any]):
    """A user's environment with names of its actions."""

    def __init__(self, names: tuple[str, ...], count: int = 2) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space, self.names = spaces.Discrete(count), names

    def get_action_meanings(self) -> tuple[str, ...]:
        return self.names


def of(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    return Gym(env, EnvironmentConfig(id="own")).spec.groups["agent"].action_names


def test_a_users_environment_has_its_own_action_names_where_their_number_fits() -> None:
    assert of(Talking(("yes", "no"))) == ("yes", "no")
    assert of(Talking(("yes", "no"), count=3)) == ()
    assert of(Turned(Talking(("yes", "no")))) == ()
    assert of(Delayed(Talking(("yes", "no")))) == ()


class Broken(Talking):
    def get_action_meanings(self) -> tuple[str, ...]:
        raise RuntimeError("not before the first reset")


def test_an_environment_that_fails_to_name_actions_has_none() -> None:
    assert of(Broken(())) == ()
    assert of(Talking(None)) == ()


def test_joined_groups_keep_action_names_that_are_equal() -> None:
    if find_spec("mpe2") is None:
        pytest.skip("needs mpe2")
    assert named("mpe/simple_spread_v3", groups="agent") == dict.fromkeys(("agent_0", "agent_1", "agent_2"), MOVES)
    assert named("mpe/simple_spread_v3", groups={"both": ("agent_0", "agent_1"), "one": ("agent_2",)})["both"] == MOVES


def test_a_choice_without_a_name_is_its_number() -> None:
    group = GroupSpec(("one",), spaces.Box(0, 1, (1,)), spaces.Discrete(3, start=1), action_names=("hit", "stick"))
    assert [name_of(group, choice) for choice in (1, 2, 3)] == ["hit", "stick", "3"]


class Captions(Gif):
    def __init__(self, path: Path) -> None:
        super().__init__(path, 25)
        self.captions: list[str] = []

    def show(self, picture: np.ndarray, caption: str) -> None:
        self.captions.append(caption)


def test_captions_show_action_names(tmp_path: Path) -> None:
    env = make(EnvironmentConfig(id="CartPole-v1"), render=True)
    screen = Captions(tmp_path / "film.gif")
    play_episode(env, 0, 1, lambda step, _: {"agent": np.array([step % 2])}, screen, limit=2)
    env.close()
    assert [caption.split()[-1] for caption in screen.captions] == ["0.00", "left", "right"]
