"""Replayed episodes and the judgement of every kind of policy, in batches and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cadenza
from cadenza.base.streams import EVALUATION, Streams
from cadenza.config.load import load
from cadenza.config.schema import RunConfig
from cadenza.engine.build import build_workflow
from cadenza.engine.launch import check
from cadenza.engine.runtime import decide_runtime
from cadenza.envs.catalog import make
from cadenza.lab.inspector import player
from cadenza.lab.inspector.frames import copied
from cadenza.lab.inspector.messages import Advantages, Picture
from cadenza.lab.inspector.player import EpisodePlayer, columns
from cadenza.lab.playback import PLAYING, as_step
from cadenza.records.folder import RunFolder
from cadenza.types import Credit, Explained, Frame, Mode, Opinion, Step, Tree
from harness.command import last, train
from harness.inspecting import Sent
from harness.memory import Memory, MemoryConfig

SMALL_DREAM = [
    f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8", "depth=2")
]
SMALL_MODEL = [f"algorithm.model.{key}" for key in ("latent=16", "units=16", "encoder_units=16")]
SMALL_DIFFUSION = ["algorithm.unet.widths=[8,16]", "algorithm.sampling_steps=2", "algorithm.executed=3"]
CASES: list[tuple[str, Sequence[str]]] = [
    ("toy/masked:ppo", ["algorithm.normalize_obs=true"]),
    ("toy/recall:ppo", ["algorithm.torso.memory.type=lstm", "algorithm.torso.shared=false", "algorithm.batch_size=1"]),
    ("toy/trio:mappo", []),
    ("toy/identity_box:sac", []),
    ("toy/image:dqn", []),
    ("toy/identity:qlearning", []),
    ("toy/identity:dreamer_v3", SMALL_DREAM),
    ("toy/identity_box:planet", SMALL_DREAM),
    ("toy/trio:reinforce", []),
    ("toy/identity_box:tdmpc2", SMALL_MODEL),
    ("toy/masked:world_models", ["algorithm.memory.hidden=8"]),
    ("toy/identity_box:world_models", ["algorithm.memory.hidden=8"]),
    ("toy/masked:diffusion_policy", SMALL_DIFFUSION),
    ("toy/identity_box:diffusion_policy", SMALL_DIFFUSION),
    ("toy/identity_box:diffusion_policy", ["algorithm.baseline=cloning"]),
]


@pytest.mark.parametrize(("spec", "settings"), CASES, ids=[spec for spec, _ in CASES])
def test_batched_judgement_equals_judgement_step_by_step(spec: str, settings: Sequence[str]) -> None:
    config = load(spec, ["environment.num_envs=1", *settings])
    workflow = untrained(config)
    frames, actions = played(config)
    at_once = judged(workflow, [(frames, actions)])
    one_by_one = judged(workflow, [([frame], [done]) for frame, done in zip(frames, actions, strict=True)])
    assert at_once
    assert at_once.keys() == one_by_one.keys()
    for key, found in at_once.items():
        assert len(found) == len(frames)
        np.testing.assert_allclose(found, one_by_one[key], rtol=1e-4, atol=1e-6, err_msg=key)


def untrained(config: RunConfig) -> Any:
    """Return an untrained workflow without a run."""
    spec, decisions = check(config), {"device": "cpu"}
    decide_runtime(config, spec, decisions)
    return build_workflow(config, spec, Streams(config.seed), decisions)


def played(config: Any) -> tuple[list[Frame], list[dict[str, np.ndarray]]]:
    """Play some steps of an episode; return the frames and the actions."""
    env, frames, actions = make(config.environment), [], []
    for group in env.spec.groups.values():
        group.action.seed(3)
    frame = env.reset(7)
    while True:
        frames.append(copied(frame))
        done = {
            name: np.stack([group.action.sample(mask=_mask(frame, name, agent)) for agent in range(len(group.agents))])
            for name, group in env.spec.groups.items()
        }
        actions.append(done)
        if frame.terminated or frame.truncated or len(frames) == 9:
            env.close()
            return frames, actions
        frame = env.step(done)


def _mask(frame: Frame, name: str, agent: int) -> np.ndarray | None:
    masks = frame.mask or {}
    return masks[name][agent].astype(np.int8) if name in masks else None


def judged(workflow: Any, pieces: list[tuple[list[Frame], list[dict[str, np.ndarray]]]]) -> dict[str, np.ndarray]:
    carry, told = workflow.initial_carry(1), []
    mode = Mode(False, PLAYING, Streams(0, branch=(EVALUATION,)))
    for number, (frames, actions) in enumerate(pieces):
        done = {name: np.stack([one[name] for one in actions]) for name in actions[0]}
        explained = workflow.explain(as_step(frames, number == 0), carry, replace(mode, forced=done))
        carry = explained.carry
        row: dict[str, np.ndarray] = {}
        for group, opinion in explained.opinions.items():
            row |= {f"{group} {key}": x for key, x in columns(opinion, group, done[group].shape[:2]).items()}
        told.append(row)
    return {key: np.concatenate([one[key] for one in told]) for key in told[0]}


@pytest.mark.parametrize("held", [0, 1 << 20])
def test_an_episode_sent_in_pieces_is_the_same(whole: RunFolder, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames were stored for the policy, or played once more."""
    in_one = play_and_judge(whole)
    monkeypatch.setattr(player, "PIECE", 5)
    monkeypatch.setattr(player, "CACHE_BYTES", held)
    in_pieces = play_and_judge(whole)
    for table in ("steps", "opinions"):
        assert [len(piece) for piece in in_one.pieces(table)] == [17]
        assert [len(piece) for piece in in_pieces.pieces(table)] == [5, 5, 5, 2]
        for step, other in zip(in_one.rows(table), in_pieces.rows(table), strict=True):
            assert step["agent"].keys() == other["agent"].keys()
            for key, values in step["agent"].items():
                np.testing.assert_allclose(values, other["agent"][key], rtol=1e-4)
    assert in_pieces.state["identical"]


def play_and_judge(folder: RunFolder) -> Sent:
    sent = Sent()
    playing = EpisodePlayer(folder, 1, False, sent)
    playing.play(cache=True)
    playing.judge("last")
    playing.env.close()
    return sent


TEAM = ["skirmish/3m:mappo", "environment.num_envs=2", "algorithm.n_steps=64", "algorithm.n_epochs=1"]
GAME = ["ALE/Pong-v5:ppo", "environment.num_envs=1", "algorithm.n_steps=32", "algorithm.n_epochs=1"]


@pytest.mark.parametrize(
    ("command", "pictures"),
    [
        pytest.param([*TEAM, "algorithm.batch_size=1", "--max-timesteps", "512"], {"frame"}, id="team"),
        pytest.param(
            [*GAME, "algorithm.batch_size=32", "environment.max_episode_steps=12", "--max-timesteps", "32"],
            {"frame", "seen"},
            id="atari",
            marks=pytest.mark.skipif(find_spec("ale_py") is None, reason="needs the extra atari"),
        ),
    ],
)
def test_every_step_of_a_rendered_run_gets_its_pictures(command: list[str], pictures: set[str], tmp_path: Path) -> None:
    """The return equals the recorded one; some steps have pictures at once, the others later."""
    quick = ["evaluation.every_steps=null", "evaluation.at_end=false", "--quiet"]
    train(tmp_path, *command, *quick).succeeded()
    sent = Sent()
    playing = EpisodePlayer(last(tmp_path), 1, False, sent)
    playing.play(cache=True)
    playing.judge("last")
    assert sent.state["identical"]
    length = playing.episode.length
    assert len(sent.of(Picture)) < length
    while playing.missing:
        playing.send_missing(lambda: False)
    shown = {what: sorted(one.step for one in sent.of(Picture) if one.what == what) for what in pictures}
    assert {one.what for one in sent.of(Picture)} == pictures
    assert all(steps == list(range(length + 1)) for steps in shown.values())
    for group, spec in playing.env.spec.groups.items():
        for one in [step[group] for step in sent.rows("opinions")]:
            assert len(one["value"]) == len(one["probs"]) == len(spec.agents)
            assert np.sum(one["probs"], -1) == pytest.approx(1, abs=1e-3)
    playing.env.close()


@pytest.mark.parametrize("algorithm", ["mappo", "ippo"])
def test_advantages_are_of_the_rewards_that_are_learned_from_and_end_with_a_life(
    algorithm: str, tmp_path: Path
) -> None:
    """Rewards are the team's, which a death does not end, or the agent's own."""
    sizes = ["environment.num_envs=2", "algorithm.n_steps=64", "algorithm.n_epochs=1", "algorithm.batch_size=1"]
    quick = ["evaluation.every_steps=null", "evaluation.at_end=false", "--max-timesteps", "512", "--quiet"]
    train(tmp_path, f"skirmish/3m:{algorithm}", *sizes, *quick).succeeded()
    sent = Sent()
    playing = EpisodePlayer(last(tmp_path), 1, False, sent)
    playing.play(cache=True)
    playing.judge("last")
    (group,), episode, config = playing.env.spec.groups, playing.episode, playing.config.algorithm
    env, frames = make(playing.config.environment), []
    env.reset(episode.seed)
    for at in range(episode.length):
        frames.append(copied(env.step({group: episode.actions[group][at]})))
    env.close()
    playing.env.close()
    assert any(frame.died is not None for frame in frames)
    value = [step[group]["value"] for step in sent.rows("opinions")]
    expected = np.zeros((episode.length + 1, 3))
    for t in reversed(range(episode.length)):
        frame = frames[t]
        for agent in range(3):
            alone = algorithm == "ippo"
            reward = frame.reward[group][agent] if alone else frame.reward[group].sum()
            over = frame.terminated or (alone and frame.died is not None and frame.died[group][agent])
            error = reward + config.gamma * (0 if over else value[t + 1][agent]) - value[t][agent]
            expected[t, agent] = error + config.gamma * config.gae_lambda * (0 if over else expected[t + 1, agent])
    (found,) = sent.of(Advantages)
    np.testing.assert_allclose(found.values, expected[:-1], atol=2e-2, rtol=1e-2)


def test_an_algorithm_from_outside_is_shown_what_it_explains(tmp_path: Path, forgotten: None) -> None:
    class Open(Memory):
        """A workflow whose opinion is the number of steps in its memory."""

        def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
            value = float(carry["steps"]) + np.arange(len(steps.is_first), dtype=np.float64)[:, None]
            after = {"steps": carry["steps"] + len(value)}
            return Explained({"agent": Opinion(value=value)}, after, {"agent": Credit(1.0)})

    for name, workflow in (("open", Open), ("silent", Memory)):
        cadenza.register_algorithm(name, config=MemoryConfig)(workflow)
        settings: dict[str, Any] = {"environment.num_envs": 1, "training.max_timesteps": 64, "evaluation.at_end": False}
        folder = cadenza.train(f"toy/identity:{name}", runs_dir=tmp_path, **settings).folder
        sent = play_and_judge(folder)
        if name == "silent":
            assert sent.state["notes"][-1] == "silent explains no steps: only actions and rewards are shown"
            assert sent.rows("opinions") == []
            continue
        assert [step["agent"]["value"] for step in sent.rows("opinions")] == [[float(n)] for n in range(17)]
        reward = [step["agent"]["reward"][0] for step in sent.rows("steps")[:-1]]
        assert sent.of(Advantages)[0].values == [[r + 1.0] for r in reward]  # its end is a time limit


def test_masked_actions_do_not_count_in_the_value() -> None:
    """Outputs of masked actions are never learned: the value is that of the best allowed action."""
    config = load("toy/masked:dqn", ["environment.num_envs=1"])
    frames, actions = played(config)
    found = judged(untrained(config), [(frames, actions)])
    q, value = found["agent q"], found["agent value"]
    masks = np.stack([frame.mask["agent"] for frame in frames if frame.mask])
    assert not masks.all()
    np.testing.assert_allclose(value, np.where(masks, q, -np.inf).max(-1), rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("toy/masked:ppo", []),
        ("toy/masked:dreamer_v3", SMALL_DREAM),
        ("toy/masked:world_models", ["algorithm.memory.hidden=8"]),
        ("toy/masked:diffusion_policy", SMALL_DIFFUSION),
    ],
)
def test_masked_actions_have_probability_zero(spec: str, settings: Sequence[str]) -> None:
    config = load(spec, ["environment.num_envs=1", *settings])
    frames, actions = played(config)
    probs = judged(untrained(config), [(frames, actions)])["agent probs"]
    masks = np.stack([frame.mask["agent"] for frame in frames if frame.mask])
    assert not masks.all()
    assert (probs[~masks] == 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)
