"""Processes that replay episodes: their number, their start, and kills."""

from __future__ import annotations

import contextlib
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.config.load import load
from cadenza.engine.build import assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.lab.inspector import player, sessions
from cadenza.lab.inspector.messages import Advantages, Message, Picture, Request, Requests, State, receive, send
from cadenza.lab.inspector.player import EpisodePlayer, advantages, columns
from cadenza.lab.inspector.sessions import Sessions
from cadenza.lab.playback import PLAYING
from cadenza.ops.returns import gae, monte_carlo, n_step, vtrace
from cadenza.records.folder import RunFolder
from cadenza.types import Credit, Mode, Opinion
from harness.command import last, train
from harness.inspecting import Sent, inspecting


@pytest.fixture
def open_ones() -> Iterator[Sessions]:
    found = Sessions(trust=False)
    yield found
    found.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_episode_that_a_page_waits_for_is_not_closed_for_another(whole: RunFolder, open_ones: Sessions) -> None:
    first, second = (open_ones.open(whole.path, number, "") for number in (0, 1))
    assert first is not None
    assert second is not None
    first.state["stage"] = second.state["stage"] = "playing"
    assert open_ones.open(whole.path, 2, "") is None
    assert open_ones.open(whole.path, 1, "") is second
    first.last_look -= sessions.IN_USE_SECONDS  # its page was closed
    third = open_ones.open(whole.path, 2, "")
    assert third is not None
    assert first._child.returncode is not None, "its process was not taken leave of"
    assert open_ones.find(whole.path, 0, "") is None
    assert open_ones.find(whole.path, 1, "") is second


def test_an_episode_whose_process_was_killed_reports_it_and_can_be_reopened(
    whole: RunFolder, open_ones: Sessions
) -> None:
    first = open_ones.open(whole.path, 0, "")
    assert first is not None
    first._child.kill()
    until(lambda: first.over and first._child.returncode is not None)
    assert first.outline()["failed"] == "the process that plays the episode again ended"
    assert open_ones.find(whole.path, 0, "") is first
    assert open_ones.open(whole.path, 0, "") is not first


MESSAGES: list[Message] = [
    State({"stage": "ready", "notes": ["one"]}),
    Picture("frame", 3, b"12345"),
    Request("show", 3, 9),
    Advantages("agent", [[1.0], [float("nan")]]),
]


def test_messages_arrive_as_they_were_sent() -> None:
    stream = io.BytesIO()
    for message in MESSAGES:
        send(stream, message)
    stream.seek(0)
    assert list(receive(stream)) == [*MESSAGES[:-1], Advantages("agent", [[1.0], [None]])]


@pytest.mark.parametrize("left", [2, 9, -3])
def test_an_unfinished_message_is_dropped(left: int) -> None:
    stream = io.BytesIO()
    send(stream, MESSAGES[0])
    finished = stream.tell()
    send(stream, MESSAGES[1])
    text = stream.getvalue()
    cut = text[: finished + left] if left > 0 else text[:left]
    assert list(receive(io.BytesIO(cut))) == MESSAGES[:1]


def test_asking_for_the_progress_of_an_episode_starts_no_process(whole: RunFolder) -> None:
    with inspecting(whole.path.parent) as client:
        query = f"run={whole.id}&episode=0&checkpoint="
        assert client.ask("episode", run=whole.id, episode=0, checkpoint="", progress=1) == {"stage": "closed"}
        for what in ("steps?begin=0", "picture?what=frame&step=0", "dream?step=0"):
            assert client.send(f"/api/{what}&{query}")[0] == 410
        assert client.server.sessions.find(whole.path, 0, "") is None


# work that is left when somebody is elsewhere


def test_an_interrupted_seek_continues_where_it_stopped(whole: RunFolder) -> None:
    playing = EpisodePlayer(whole, 1, False, Sent())
    calls = itertools.count()
    assert not playing.seek(12, lambda: next(calls) == 5)
    assert playing.at == 5
    assert playing.seek(12)
    assert playing.at == 12
    assert not playing.seek(3, lambda: True)
    assert playing.at == 12, "it went to the beginning for nothing"
    playing.missing = {3}
    playing.send_missing(lambda: True)
    assert playing.missing == {3}
    playing.env.close()


def test_the_memory_of_steps_that_wait_for_judgement_is_bounded(
    whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "PIECE", 4)

    def held(hold: bool) -> list[int]:
        playing = EpisodePlayer(whole, 1, False, Sent())
        playing.play(hold)
        found = list(playing.cache)
        if hold:
            playing.judge("last")
            assert not playing.cache
        playing.env.close()
        return found

    assert held(hold=False) == []
    assert held(hold=True) == [0, 4, 8, 12]
    one = EpisodePlayer(whole, 1, False, Sent()).frame.obs["agent"].nbytes
    monkeypatch.setattr(player, "CACHE_BYTES", 10 * one + 1)  # two pieces of five frames
    assert held(hold=True) == [0, 4]


def requests(newest: Request) -> Requests:
    stream = io.BytesIO()
    send(stream, newest)
    stream.seek(0)
    queue = Requests(stream)
    until(lambda: len(queue._queue) == 2)
    assert queue._queue.pop() is None  # the end
    return queue


@pytest.mark.parametrize(
    ("newest", "on_the_way", "while_showing"),
    [
        (Request("show", 500, 540), False, True),
        (Request("show", 520, 560), False, True),
        (Request("imagine", 500), False, True),
        (Request("show", 100, 140), True, False),
        (Request("imagine", 100), True, True),
    ],
)
def test_a_newer_request_far_away_supersedes_the_current_one(
    newest: Request, on_the_way: bool, while_showing: bool
) -> None:
    """The player seeks step 500, and shows step 90 and later ones."""
    queue = requests(newest)
    assert queue.superseded(500) == on_the_way
    assert queue.superseded(90, showing=True) == while_showing


@pytest.mark.parametrize(("newest", "dreamt"), [(Request("imagine", 17), True), (Request("show", 0, 4), False)])
def test_imagination_is_cancelled_by_a_request_far_away(
    newest: Request, dreamt: bool, whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During imagination at step 15 a request nearby does not cancel it, and one far away does."""
    monkeypatch.setattr(player, "CONTEXT", 3)
    queue = requests(newest)
    playing = EpisodePlayer(whole, 1, False, Sent())

    class Arrived(Exception):
        pass

    def sequence(begin: int, end: int) -> None:
        raise Arrived

    workflow: Any = SimpleNamespace(imagines=True, imagine=lambda *_: None)
    playing.workflow = workflow
    monkeypatch.setattr(playing, "sequence", sequence)
    with pytest.raises(Arrived) if dreamt else contextlib.nullcontext():
        playing.imagine(15, queue)
    assert playing.at == (12 if dreamt else 0)
    playing.env.close()


def test_a_distant_picture_is_cancelled_for_a_newer_request(tmp_path: Path) -> None:
    """The first request gets the nearest available picture."""
    length = ["environment.num_envs=1", "environment.max_episode_steps=3000", "algorithm.n_steps=3000"]
    quick = ["algorithm.n_epochs=1", "algorithm.batch_size=1", "evaluation.every_steps=null", "evaluation.at_end=false"]
    train(tmp_path, "Pendulum-v1:ppo", *length, *quick, "--max-timesteps", "3000", "--quiet").succeeded()
    open_ones = Sessions(trust=False)
    try:
        found = open_ones.open(last(tmp_path).path, 0, "")
        assert found is not None
        until(lambda: found.state["stage"] == "ready")
        far: list[tuple[int, bytes] | None] = []
        waiting = threading.Thread(target=lambda: far.append(found.picture("frame", 2999, exact=True)))
        waiting.start()
        until(lambda: bool(found._requests) or not waiting.is_alive())
        near = found.picture("frame", 7, exact=True)
        assert near is not None
        assert near[0] == 7
        waiting.join(60)
        assert far[0] is not None
        assert far[0][0] <= 2999
        assert found.picture("frame", 2999, exact=True)[0] == 2999
    finally:
        open_ones.close()


# what a policy makes of an episode


@pytest.mark.parametrize(
    ("spec", "settings", "credit"),
    [
        ("toy/identity:ppo", [], Credit(0.99, 0.95, estimate=gae)),
        ("toy/identity:ppo", ["+algorithm.groups.agent.gae_lambda=0.3"], Credit(0.99, 0.3, estimate=gae)),
        ("toy/identity:ppo", ["algorithm.advantage=n_step"], Credit(0.99, 0.95, estimate=n_step)),
        ("toy/identity:reinforce", [], Credit(0.99, 0.95, estimate=monte_carlo)),
        ("toy/trio:mappo", [], Credit(0.99, 0.95, team=True, estimate=gae)),
        ("toy/identity:dqn", ["algorithm.gamma=0.5"], Credit(0.5)),
        ("toy/identity:dreamer_v3", ["algorithm.return_lambda=0.5"], Credit(0.997, 0.5, estimate=gae)),
        ("toy/identity:dreamer_v2", [], Credit(0.99, 0.95, on_arrival=True, estimate=gae)),
    ],
)
def test_credit_has_the_settings_of_the_run(spec: str, settings: list[str], credit: Credit) -> None:
    config = load(spec, ["environment.num_envs=1", *settings])
    assembly = assemble(config, check(config), {})
    try:
        assert assembly.env is not None
        mode = Mode(False, PLAYING, assembly.streams)
        explained = assembly.workflow.explain(assembly.env.reset(), assembly.workflow.initial_carry(1), mode)  # type: ignore[attr-defined]
        assert set(explained.credit.values()) == {credit}
    finally:
        assembly.close()


def test_advantages_by_hand() -> None:
    value, reward = np.array([[1.0], [2.0], [4.0]]), np.array([[1.0], [1.0]])
    half = Credit(0.5, 0.5)
    found = advantages(value, reward, np.array([[False], [True]]), half)
    assert found.tolist() == [[1 + 0.5 * 2 - 1 + 0.25 * (1 - 2)], [1 - 2]]
    found = advantages(value, reward, np.array([[True], [False]]), half)  # a death
    assert found.tolist() == [[1 - 1], [1 + 0.5 * 4 - 2]]
    found = advantages(value, 8 * reward, np.array([[False], [True]]), half._replace(reward_scale=2, reward_clip=3.0))
    assert found[-1].tolist() == [3 - 2]
    found = advantages(value, reward, np.array([[False], [True]]), half._replace(estimate=monte_carlo))
    assert found.tolist() == [[1 + 0.5 * 1 - 1], [1 - 2]]
    found = advantages(value, reward, np.array([[False], [False]]), half._replace(trace=1.0, estimate=vtrace))
    assert found[-1].tolist() == [1 + 0.5 * 4 - 2]

    earned = np.array([[1.0], [3.0], [7.0]])
    right = np.array([[0 + 0.5 * (1 + 0.5 * (3 + 0.5 * 7))], [1 + 0.5 * (3 + 0.5 * 7)], [3 + 0.5 * 7], [-1.0]])
    over = np.array([[False], [False], [True]])
    arriving = half._replace(on_arrival=True)
    assert advantages(right, earned, over, arriving).tolist() == [[0], [0], [0]]  # values that are true
    assert advantages(right * 0, earned, over, arriving._replace(trace=1.0))[0].tolist() == right[0].tolist()


def test_an_opinion_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"explain: value of group agent has the shape \(3,\), not .* = \(3, 1\)"):
        columns(Opinion(value=np.zeros(3)), "agent", (3, 1))
    with pytest.raises(ConfigError, match=r"explain: probs of group agent has the shape \(3, 1\)"):
        columns(Opinion(probs=np.zeros((3, 1))), "agent", (3, 1))


@pytest.mark.parametrize(("variant", "arrival"), [("dreamer_v1", True), ("dreamer_v2", True), ("dreamer_v3", False)])
def test_advantages_count_rewards_where_the_values_do(variant: str, arrival: bool, tmp_path: Path) -> None:
    sizes = [f"algorithm.model.{key}=8" for key in ("deter", "hidden", "units")]
    only_random = ["environment.num_envs=1", "algorithm.warmup_steps=40", "evaluation.at_end=false"]
    train(tmp_path, f"toy/identity_box:{variant}", *sizes, *only_random, "--max-timesteps", "40").succeeded()
    sent = Sent()
    playing = EpisodePlayer(last(tmp_path), 0, False, sent)
    playing.play(cache=True)
    playing.judge("last")
    value = [step["agent"]["value"] for step in sent.rows("opinions")]
    (found,) = (message.values for message in sent.of(Advantages))
    playing.restart()
    reward = np.stack([playing.advance().reward["agent"] for _ in range(playing.episode.length)])
    playing.env.close()
    over, settings = np.zeros(reward.shape, bool), playing.config.algorithm
    over[-1] = playing.terminated
    credit = Credit(settings.gamma, settings.return_lambda, on_arrival=arrival)
    expected = advantages(np.array(value), reward, over, credit)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("variant", ["dreamer_v1", "dreamer_v3"])
def test_the_shown_mean_of_a_world_models_policy_is_its_action(variant: str) -> None:
    sizes = [f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8", "depth=2")]
    config = load(f"toy/identity_box:{variant}", ["environment.num_envs=1", *sizes])
    assembly = assemble(config, check(config), {})
    try:
        workflow: Any = assembly.workflow
        actor = workflow.behaviour.actor
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.add_(0.7)
        assert assembly.env is not None
        step = assembly.env.reset()
        carry = assembly.workflow.initial_carry(1)
        mode = Mode(False, PLAYING, assembly.streams)
        before = assembly.streams.state_dict()
        acted = assembly.workflow.act(step, carry, mode)
        assembly.streams.load_state_dict(before)
        (group,) = step.obs
        found = workflow.explain(step, carry, replace(mode, forced=acted.action)).opinions[group]
        assert found.mean.ravel() == pytest.approx(acted.action[group].ravel(), abs=1e-5)
        assert np.abs(found.mean).max() > 0.1
        space: Any = assembly.env.spec.groups[group].action
        assert (found.std <= (space.high - space.low) / 2 + 1e-6).all() or variant != "dreamer_v1"
    finally:
        assembly.close()
