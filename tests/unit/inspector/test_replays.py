"""Children that play episodes: how many there are, when they begin, and what is left when one is killed."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cadenza.config.load import load
from cadenza.data.normalisers import RewardScale
from cadenza.inspector import replays
from cadenza.inspector.messages import teller
from cadenza.inspector.opinions import opinions, reward_scale
from cadenza.inspector.replay import advantages, discounts
from cadenza.inspector.replays import Replays, messages
from cadenza.orchestration.build import assemble
from cadenza.orchestration.launch import check
from cadenza.orchestration.playback import PLAYING
from cadenza.records.folder import RunFolder
from cadenza.types import Mode
from harness.inspecting import inspecting


@pytest.fixture
def open_ones() -> Iterator[Replays]:
    found = Replays(trust=False)
    yield found
    found.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_that_is_waited_for_makes_no_room(whole: RunFolder, open_ones: Replays) -> None:
    first, second = (open_ones.open(whole.path, number, "") for number in (0, 1))
    assert first is not None
    assert second is not None
    first.state["stage"] = second.state["stage"] = "playing"
    assert open_ones.open(whole.path, 2, "") is None
    assert open_ones.open(whole.path, 1, "") is second
    first.asked -= replays.LOOKED_AT  # its page was closed
    third = open_ones.open(whole.path, 2, "")
    assert third is not None
    assert first._child.returncode is not None, "its process was not taken leave of"
    assert open_ones.find(whole.path, 0, "") is None
    assert open_ones.find(whole.path, 1, "") is second


def test_one_whose_child_is_killed_says_so_and_can_be_opened_again(whole: RunFolder, open_ones: Replays) -> None:
    replay = open_ones.open(whole.path, 0, "")
    assert replay is not None
    replay._child.kill()
    until(lambda: replay.over and replay._child.returncode is not None)
    assert replay.outline()["failed"] == "the process that plays the episode again ended"
    assert open_ones.find(whole.path, 0, "") is replay
    assert open_ones.open(whole.path, 0, "") is not replay


@pytest.mark.parametrize("left", [2, 9, -3])
def test_half_a_message_is_the_end(left: int) -> None:
    stream = io.BytesIO()
    tell = teller(stream)
    tell("note", text="one")
    whole_ones = stream.tell()
    tell("picture", b"12345", step=1)
    text = stream.getvalue()
    cut = text[: whole_ones + left] if left > 0 else text[:left]
    assert [head["kind"] for head, _ in messages(io.BytesIO(cut))] == ["note"]


def test_asking_how_far_an_episode_is_begins_nothing(whole: RunFolder) -> None:
    with inspecting(whole.path.parent) as client:
        query = f"run={whole.id}&episode=0&checkpoint="
        assert client.ask("episode", run=whole.id, episode=0, checkpoint="", progress=1) == {"stage": "closed"}
        for what in ("steps?begin=0", "picture?what=frame&step=0", "dream?step=0"):
            assert client.send(f"/api/{what}&{query}")[0] == 410
        assert client.server.replays.find(whole.path, 0, "") is None


# what a policy makes of an episode


def test_advantages_are_those_that_the_algorithm_learns_of() -> None:
    of = {variant: load(f"toy/identity:{variant}").algorithm for variant in ("ppo", "dreamer_v3", "dqn")}
    assert discounts(of["ppo"], "agent") == (of["ppo"].gamma, of["ppo"].gae_lambda)  # type: ignore[attr-defined]
    changed = load("toy/identity:dreamer_v3", ["algorithm.return_lambda=0.5"]).algorithm
    assert discounts(changed, "agent")[1] == 0.5
    assert discounts(of["dqn"], "agent")[1] == 0
    own = load("toy/identity:ppo", ["+algorithm.groups.agent.gae_lambda=0.3"]).algorithm
    assert discounts(own, "agent")[1] == 0.3
    value, reward = np.array([[1.0], [2.0], [4.0]]), np.array([[1.0], [1.0]])
    found = advantages(value, reward, 0.5, 0.5, terminated=True)
    assert found.tolist() == [[1 + 0.5 * 2 - 1 + 0.25 * (1 - 2)], [1 - 2]]

    scaled = SimpleNamespace(reward_scales={"agent": RewardScale(1, 1, 0.99, torch.device("cpu"), clip=3.0)})
    assert reward_scale(scaled, "agent")[1] == 3.0
    assert reward_scale(scaled, "other") == (1.0, float("inf"))


@pytest.mark.parametrize("variant", ["dreamer_v1", "dreamer_v3"])
def test_the_mean_of_a_world_models_policy_is_what_it_does(variant: str) -> None:
    sizes = [f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8", "depth=2")]
    config = load(f"toy/identity_box:{variant}", ["environment.num_envs=1", *sizes])
    assembly = assemble(config, check(config), {})
    try:
        workflow: object = assembly.workflow
        actor = workflow.behaviour.actor  # type: ignore[attr-defined]
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
        found = opinions(workflow, step, carry, replace(mode, forced=acted.action))[0][group]
        assert found["mean"].ravel() == pytest.approx(acted.action[group].ravel(), abs=1e-5)
        assert np.abs(found["mean"]).max() > 0.1
        space = assembly.env.spec.groups[group].action
        assert (found["std"] <= (space.high - space.low) / 2 + 1e-6).all() or variant != "dreamer_v1"
    finally:
        assembly.close()
