"""Play by a person: the meaning of keys, the terminal screen, and the dataset of the episodes."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.config.load import load
from cadenza.data.datasets import open_dataset
from cadenza.data.ring_steps import LAST, TRUNCATED
from cadenza.errors import ConfigError
from cadenza.lab.view import human
from cadenza.lab.view.keyboard import keymap
from cadenza.lab.view.play import make_visible
from cadenza.lab.view.terminal import UNFINISHED, Terminal, half_blocks, key_names
from cadenza.lab.view.window import ClosedByUserError
from cadenza.types import Frame, GroupSpec
from harness.command import cadenza

PIXEL = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m(▀+)")


@pytest.fixture
def keyboard() -> Iterator[tuple[int, int]]:
    """Return the reading and the writing end of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_half_blocks_reproduce_every_pixel() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    picture[2:4] = 7  # a line of one colour is one change of colours
    lines = half_blocks(picture).split("\n")
    for index, line in enumerate(lines):
        runs = [(np.array(one[:6], int), len(one[6])) for one in PIXEL.findall(line)]
        pixels = np.concatenate([np.tile(colours, (count, 1)) for colours, count in runs])
        assert np.array_equal(pixels[:, :3], picture[2 * index])
        assert np.array_equal(pixels[:, 3:], picture[2 * index + 1])
    assert lines[1].count("\x1b[38") == 1


def test_space_pauses_a_terminal_and_q_closes_it(keyboard: tuple[int, int]) -> None:
    out, picture = io.StringIO(), np.full((40, 60, 3), 200, np.uint8)
    with Terminal(1000.0, "a title", out=out, keyboard=keyboard[0]) as terminal:
        os.write(keyboard[1], b" ")
        showing = threading.Thread(target=terminal.show, args=(picture, "step 0"))
        showing.start()
        showing.join(0.2)
        assert showing.is_alive()  # paused
        os.write(keyboard[1], b" ")
        showing.join(30)
        assert not showing.is_alive()
        os.write(keyboard[1], b"q")
        with pytest.raises(ClosedByUserError):
            terminal.show(picture, "step 1")
    text = out.getvalue()
    assert text.startswith("\x1b[?1049h")
    assert text.endswith("\x1b[?1049l")
    assert "200;200;200" in text
    assert "a title" in text


def test_letters_arrows_and_escape_get_their_names() -> None:
    assert key_names("\x1b[A\x1bOD Zq\x1b") == ["up", "left", "space", "z", "q", "escape"]


@pytest.mark.parametrize("sent", ["\x1b[3~", "\x1b[1;2A", "\x1bOP", "\x1b[[A", "\x1b[15~", "\x1b[1;5", "\x1bO"])
def test_escape_sequences_without_a_name_are_dropped(sent: str) -> None:
    assert key_names(f"{sent}") == []
    if not UNFINISHED.search(sent):
        assert key_names(f"x{sent}\x1b[Aq") == ["x", "up", "q"]


def test_an_arrow_read_in_two_parts_is_an_arrow_and_escape_alone_closes(keyboard: tuple[int, int]) -> None:
    terminal = Terminal(1000.0, "", interactive=True, out=io.StringIO(), keyboard=keyboard[0])
    os.write(keyboard[1], b"\x1b")
    later = threading.Timer(0.005, os.write, (keyboard[1], b"[C"))
    later.start()
    assert terminal.pressed(wait=True) == {"right"}
    later.join()
    os.write(keyboard[1], b"\x1b")
    with pytest.raises(ClosedByUserError):
        terminal.pressed()


def test_keys_beyond_the_number_of_actions_are_left_out() -> None:
    """The speaker of an environment whose listed keys are for agents that move."""
    spec = SimpleNamespace(id="mpe/simple_speaker_listener_v4")
    group = GroupSpec(("speaker_0",), spaces.Box(0, 1, (3,)), spaces.Discrete(3))
    keys = keymap(SimpleNamespace(spec=spec), group)
    assert [keys.choose(frozenset([key])) for key in ("left", "right", "up", "down")] == [1, 2, None, None]
    assert "up" not in keys.legend


@pytest.mark.parametrize(
    ("id", "keys", "action"),
    [
        ("CartPole-v1", {"right"}, 1),
        ("LunarLander-v3", {"up", "x"}, 2),
        ("MountainCar-v0", {"left"}, 0),
        ("CartPole-v1", {"1"}, 1),
        ("Pendulum-v1", {"left"}, [-2.0]),
        ("Pendulum-v1", {"left", "right"}, [0.0]),
    ],
)
def test_keys_select_the_environment_s_actions(id: str, keys: set[str], action: Any) -> None:
    env = make_visible(load(f"{id}:ppo").environment)
    chosen_action = keymap(env, env.spec.groups["agent"]).choose(frozenset(keys))
    env.close()
    assert np.array_equal(chosen_action, action)


def test_the_legend_names_the_actions() -> None:
    for id, legend in (
        ("CartPole-v1", "left, right"),
        ("LunarLander-v3", "left left engine, up main engine, right right engine"),
        ("Acrobot-v1", "left torque -1, right torque +1"),
    ):
        env = make_visible(load(f"{id}:ppo").environment)
        assert keymap(env, env.spec.groups["agent"]).legend == legend
        env.close()


class ScriptedScreen:
    """A screen at which the listed keys are pressed, then Escape."""

    def __init__(self, keys: list[str]) -> None:
        self.keys, self.stride, self.path, self.shown = list(keys), 1, None, 0

    def __call__(self, fps: float, title: str, interactive: bool) -> ScriptedScreen:
        return self

    def show(self, picture: np.ndarray, caption: str) -> None:
        self.shown += 1

    def pressed(self, wait: bool = False) -> frozenset[str]:
        if not self.keys:
            raise ClosedByUserError
        return frozenset([self.keys.pop(0)])

    def __enter__(self) -> ScriptedScreen:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_recorded_play_becomes_a_dataset_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = ScriptedScreen(["left"] * 15)  # CartPole falls over in about ten
    monkeypatch.setattr(human, "Window", screen)
    monkeypatch.setattr(human, "has_display", lambda: True)
    out = tmp_path / "mine"
    result = cadenza("play", "CartPole-v1:dqn", "--human", "--episodes", 9, "--record", out, "--json").succeeded()
    played = json.loads(result.out)
    dataset = open_dataset(str(out))
    assert len(played["episodes"]) == 1  # the second was left
    (episode,) = played["episodes"]
    rows = next(dataset.pieces())
    assert dataset.facts["transitions"] == episode["length"] == len(rows["flags"]) - 1
    assert not rows["groups.agent.action"][: episode["length"]].any()
    assert dataset.facts["return_mean"] == episode["return"]
    settings = ["algorithm.warmup_steps=0", "environment.num_envs=1", "evaluation.episodes=1", "--max-timesteps", 50]
    cadenza(
        "train", "CartPole-v1:dqn", f"training.dataset={out}", *settings, "--runs-dir", tmp_path / "runs", "-q"
    ).succeeded()
    cadenza("play", "CartPole-v1:dqn", "--human", "--record", out).refused(2, "exists")


class Policy:
    """A policy that takes the last allowed action and records it."""

    def __init__(self) -> None:
        self.actions: dict[str, list[np.ndarray]] = {}
        self.masks: list[np.ndarray] = []

    def reset(self) -> None: ...

    def act(self, frame: Frame) -> dict[str, np.ndarray]:
        assert frame.mask is not None
        self.masks.append(frame.mask["marine"].copy())
        actions = {
            group: mask.shape[-1] - 1 - mask[:, ::-1].argmax(-1).astype(np.int64) for group, mask in frame.mask.items()
        }
        for group, action in actions.items():
            self.actions.setdefault(group, []).append(action.copy())
        return actions


def test_in_a_team_only_the_person_s_agent_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(human, "has_display", lambda: True)
    monkeypatch.setattr(human, "Window", ScriptedScreen(["0"] * 500))
    config = load("skirmish/2m1x1h:mappo")
    policy = Policy()
    game = human.play_human(config, policy, 1, 0, agent="marine_1", record=tmp_path / "team")  # type: ignore[arg-type]
    assert game.agent == "marine_1"
    rows = next(open_dataset(str(tmp_path / "team")).pieces())
    for group, actions in policy.actions.items():
        stored = rows[f"groups.{group}.action"][: len(actions)].reshape(len(actions), -1)
        expected = np.stack(actions)
        for place in range(stored.shape[1]):
            if (group, place) != ("marine", 1):
                assert np.array_equal(stored[:, place], expected[:, place])
                continue
            free = np.array([mask[place][0] for mask in policy.masks])  # 0 is for the dead
            assert not stored[free, place].any()
            assert not np.array_equal(stored[:, place], expected[:, place])
    monkeypatch.setattr(human, "Window", ScriptedScreen(["0"] * 500))
    with pytest.raises(ConfigError, match="marine_1"):
        human.play_human(config, None, 1, 0, agent="marine_9")


def test_invalid_options_of_play_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(human, "has_display", lambda: False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    cadenza("play", "CartPole-v1:dqn", "--human").refused(2, "--human needs")
    cadenza("play", "@last", "--record", "x").refused(2, "--human")
    cadenza("play", "@last", "--human", "--explore").refused(2, "--human")
    cadenza("play", "@last", "--terminal", "--video", "x.gif").refused(2, "--video")
    cadenza("play", "CartPole-v1:dqn", "--human", "--checkpoint", "best").refused(2, "--checkpoint")
    for option in (["--explore"], ["--episodes", 2], ["--fps", 5], ["--terminal"]):
        cadenza("play", "@last", "--imagine", *option).refused(2, "--imagine")
    for pace in ("inf", "nan"):
        cadenza("play", "@last", "--fps", pace).refused(2, "--fps")


def test_an_episode_cut_at_the_step_limit_is_stored_as_truncated() -> None:
    """Environments without a time limit are cut after some thousand steps."""
    env, played = make_visible(load("CartPole-v1:ppo").environment), human.Demonstrations()
    played.begin()
    before = env.reset(0)
    for _ in range(3):
        action = {"agent": np.zeros(1, np.int64)}
        after = env.step(action)
        played.add(before, action, after)
        before = after
    played.end(1)
    (rows,) = played.pieces
    assert rows["flags"][-1] & LAST
    assert rows["flags"][-2] & TRUNCATED


def test_masked_actions_that_begin_at_one_fall_back_to_the_first_allowed() -> None:
    group = GroupSpec(("agent",), spaces.Discrete(2), spaces.Discrete(3, start=1))
    mask = {"agent": np.array([[True, False, True]])}
    frame = Frame({}, {}, mask=mask)
    keys = keymap(SimpleNamespace(spec=SimpleNamespace(id="own")), group)
    actions = []
    for key in "012":
        pressed = SimpleNamespace(pressed=lambda wait=False, key=key: frozenset([key]))
        person = human.Person(pressed, keys, "agent", 0, False, lambda _: {"agent": np.zeros(1, np.int64)})
        actions.append(int(person(0, frame)["agent"][0]))
    assert actions == [1, 1, 3]
