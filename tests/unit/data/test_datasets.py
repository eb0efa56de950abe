"""Experience as a dataset: it is read as it was written, and refused in one line if it does not match a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.base.json_text import with_digest
from cadenza.config.load import load
from cadenza.config.schema import RunConfig
from cadenza.data.batches import Past
from cadenza.data.datasets import (
    Dataset,
    brief,
    dealt,
    described_space,
    first_difference,
    open_dataset,
    write_dataset,
)
from cadenza.data.replay import ReplayStore
from cadenza.data.ring_steps import FIRST, LAST, TRUNCATED
from cadenza.engine.launch import check, with_absolute_path
from cadenza.errors import ConfigError
from cadenza.records.metrics import read
from cadenza.types import EnvSpec, GroupSpec
from harness.command import cadenza, last, train
from harness.datasets import OFFLINE, ONLINE, SMALL_DQN, phases, replay_of_a_run
from harness.experience import Experience

TEAM = EnvSpec(
    "made-up",
    {
        "runner": GroupSpec(("a", "b"), spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3)),
        "shooter": GroupSpec(("c",), spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-9, 9, (2,), np.float32)),
    },
    state=spaces.Box(0, 1e6, (1,), np.float32),
)
CONFIG = load("toy/pair:ppo", [])


def written(store: ReplayStore, out: Path, config: RunConfig = CONFIG) -> Dataset:
    write_dataset(out, store.past(), config, TEAM, {"what": "a test"})
    return open_dataset(str(out))


def rows_of(dataset: Dataset) -> dict[str, np.ndarray]:
    pieces = list(dataset.pieces())
    return {path: np.concatenate([piece[path] for piece in pieces]) for path in pieces[0]}


def stretches(dataset: Dataset) -> list[list[bytes]]:
    """Return every stretch as the bytes of its fields, in an order that does not depend on streams."""
    rows = rows_of(dataset)
    ends = dataset.lengths.cumsum()
    return sorted(
        [rows[path][end - n : end].tobytes() for path in sorted(rows)]
        for n, end in zip(dataset.lengths, ends, strict=True)
    )


@pytest.mark.parametrize("steps", [7, 40, 400])  # the last much longer than the store
def test_what_was_written_is_read_back_exactly(steps: int, tmp_path: Path) -> None:
    store = ReplayStore(300, 3)
    Experience(3, seed=steps).into(store, steps=steps)
    dataset = written(store, tmp_path / "a")
    assert dataset.facts["transitions"] == min(3 * steps, dataset.facts["transitions"]) > 0
    assert "groups.runner.belief" not in rows_of(dataset)  # what a policy noted is nobody else's
    for num_envs in (1, 2, 5):
        other = ReplayStore(dataset.rows_for(num_envs, 1), num_envs, alpha=0.6)
        dataset.fill(other, TEAM)
        again = written(other, tmp_path / str(num_envs))
        assert stretches(again) == stretches(dataset)
        assert again.facts["transitions"] == dataset.facts["transitions"]
    one = open_dataset(str(tmp_path / "1"))
    assert {path: array.tobytes() for path, array in rows_of(one).items()} == {
        path: array.tobytes() for path, array in rows_of(dataset).items()
    }


def test_every_transition_is_stored_with_its_next_observation(tmp_path: Path) -> None:
    experience, store = Experience(2), ReplayStore(400, 2)
    experience.into(store, steps=100)
    rows = rows_of(written(store, tmp_path / "a"))
    numbers, flags = rows["groups.shooter.obs"][:, 0, 0].astype(int), rows["flags"]
    count = 0
    for index in np.flatnonzero(flags & LAST == 0):
        env, place = experience.find(int(numbers[index]))
        happened = experience.account[env][place]
        assert numbers[index + 1] == happened.next_obs
        assert rows["groups.runner.reward"][index].tolist() == happened.reward["runner"].tolist()
        assert rows["groups.runner.action"][index].tolist() == happened.action["runner"].tolist()
        count += 1
    assert count == 200


def test_running_episodes_are_truncated_and_counted_as_partial(tmp_path: Path) -> None:
    experience, store = Experience(3, seed=1), ReplayStore(90, 3)
    experience.into(store, steps=200)
    dataset = written(store, tmp_path / "a")
    rows, starts = rows_of(dataset), dataset.lengths.cumsum() - dataset.lengths
    numbers, returns = rows["groups.shooter.obs"][:, 0, 0].astype(int), []
    running = 0
    for start, length in zip(starts, dataset.lengths, strict=True):
        assert rows["flags"][start] & FIRST
        env, place = experience.find(int(numbers[start]))
        happened = experience.account[env][place : place + length - 1]
        ended = happened[-1].terminated or happened[-1].truncated
        if not ended:
            running += 1
            assert happened[-1] is experience.account[env][-1]
            assert rows["flags"][start + length - 1] == LAST | TRUNCATED
        if ended and happened[0].is_first:
            returns.append(sum(float(values.sum()) for one in happened for values in one.reward.values()))
    assert running > 0
    assert 0 < dataset.facts["unfinished"] == dataset.facts["episodes"] - len(returns) < 6
    stored = [dataset.facts[f"return_{what}"] for what in ("mean", "min", "max")]
    assert stored == pytest.approx([np.mean(returns), min(returns), max(returns)], rel=1e-5)


def test_collection_continues_after_the_rows_of_a_dataset(tmp_path: Path) -> None:
    store = ReplayStore(100, 2)
    Experience(2).into(store, steps=20)
    dataset = written(store, tmp_path / "a")
    other = ReplayStore(200, 2, alpha=0.6)
    dataset.fill(other, TEAM)
    assert other.ready()
    drawn = other.sample(64, np.random.default_rng(0), n_step=3, gamma=0.9)
    assert set(drawn.groups["shooter"]["obs"][:, 0, 0]) <= set(rows_of(dataset)["groups.shooter.obs"][:, 0, 0])
    with pytest.raises(ConfigError, match="the policy stores 'belief' beside its actions, which the rows of training"):
        Experience(2).into(other, steps=1)


def test_rows_without_masks_are_refused_where_masks_are_needed(tmp_path: Path) -> None:
    spec = ("toy/masked:dqn", "environment.kwargs={allowed: 2}", *SMALL_DQN)
    folder = replay_of_a_run(tmp_path, *spec)
    whole = open_dataset(str(folder))
    assert whole.knows("mask")
    config = load(spec[0], list(spec[1:]))
    bare = ({path: array for path, array in piece.items() if ".mask" not in path} for piece in whole.pieces())
    write_dataset(tmp_path / "bare", Past(bare, np.zeros(0, np.int64)), config, check(config), {"what": "a test"})
    runs = tmp_path / "others"
    refused = train(runs, *spec, f"training.dataset={tmp_path / 'bare'}", "--max-timesteps", 500)
    refused.refused(2, "does not say which actions were allowed")
    assert not list(runs.glob("toy*"))
    train(runs, *spec, f"training.dataset={folder}", "--max-timesteps", 500).succeeded()


def test_the_relative_path_of_a_dataset_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_absolute_path(load("toy/pair:ppo", ["training.dataset=mine"]))
    assert config.training.dataset == str(tmp_path / "mine")
    config = with_absolute_path(load("toy/pair:ppo", ["training.dataset=minari:a/b-v0"]))
    assert config.training.dataset == "minari:a/b-v0"


def test_episodes_are_distributed_evenly_over_streams() -> None:
    lengths = np.array([10, 1, 1, 1, 7, 2])
    assert dealt(lengths, 2).tolist() == [0, 1, 1, 1, 1, 0]
    assert dealt(lengths, 1).tolist() == [0] * 6


def test_an_existing_target_is_not_overwritten(tmp_path: Path) -> None:
    store = ReplayStore(100, 2)
    Experience(2).into(store, steps=20)
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        written(store, tmp_path / "mine")
    with pytest.raises(ConfigError, match="no experience"):
        written(ReplayStore(100, 2), tmp_path / "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("space", "other"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, np.inf, (2,), np.float32)),
        (spaces.Box(0, 255, (1, 8, 8), np.uint8), spaces.Box(0, 255, (1, 8, 8), np.float32)),
        (
            spaces.Box(np.array([0.0, 1.0], np.float32), np.array([2.0, 3.0], np.float32)),
            spaces.Box(np.array([0.0, 1.0], np.float32), np.array([2.0, 4.0], np.float32)),
        ),
        (spaces.Discrete(3), spaces.Discrete(3, start=1)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2])),
        (spaces.MultiBinary(3), spaces.MultiBinary(4)),
        (spaces.Dict({"a": spaces.Discrete(2)}), spaces.Dict({"b": spaces.Discrete(2)})),
    ],
)
def test_different_spaces_have_different_descriptions(space: Any, other: Any) -> None:
    assert described_space(space) != described_space(other)
    assert json.loads(json.dumps(described_space(space), allow_nan=False)) == described_space(space)


# in runs


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the dataset of a DQN that learned from random actions on."""
    return replay_of_a_run(tmp_path_factory.mktemp("identity"), "toy/identity:dqn", *SMALL_DQN)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_facts(folder: Path) -> None:
    facts = json.loads((folder / "dataset.json").read_text())
    facts["transitions"] += 1
    (folder / "dataset.json").write_text(json.dumps(facts))


def of_another_format(folder: Path) -> None:
    facts = json.loads((folder / "dataset.json").read_text())
    facts["format"] = 99
    (folder / "dataset.json").write_text(json.dumps(with_digest(facts)))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda folder: flip_a_byte(next(folder.glob("*.safetensors"))), "is damaged"),
    "lost": (lambda folder: next(folder.glob("*.safetensors")).unlink(), "is missing"),
    "changed": (damage_facts, "dataset.json is damaged"),
    "no JSON": (lambda folder: (folder / "dataset.json").write_text("{"), "dataset.json is damaged"),
    "from the future": (of_another_format, "format 99"),
    "emptied": (lambda folder: (folder / "dataset.json").unlink(), "has neither dataset.json nor"),
    "gone": (shutil.rmtree, "no such folder"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_datasets_are_refused_in_one_line(damage: str, identity: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(identity, tmp_path / "copy"))
    do, words = DAMAGE[damage]
    do(folder)
    train(tmp_path / "runs", "toy/identity:dqn", f"training.dataset={folder}").refused(2, "training.dataset", words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("spec", "overrides", "words"),
    [
        ("toy/chain:dqn", [], ("environment.id", "toy/identity", "toy/chain")),
        (
            "toy/identity:dqn",
            ["environment.kwargs.n=3"],
            ("environment.kwargs.n", "absent in the dataset", "3 in this"),
        ),
        ("toy/identity:dqn", ["environment.wrappers=[SignReward]"], ("environment.wrappers", "SignReward")),
        ("toy/identity:ppo", [], ("ppo has no replay",)),
        ("toy/identity:dqn", ["algorithm.buffer_size=200"], ("does not fit", "algorithm.buffer_size=")),
    ],
)
def test_datasets_that_do_not_match_the_run_are_refused_in_one_line(
    spec: str, overrides: list[str], words: tuple[str, ...], identity: Path, tmp_path: Path
) -> None:
    train(tmp_path, spec, *overrides, f"training.dataset={identity}").refused(2, "training.dataset", *words)
    assert list(tmp_path.iterdir()) == []


def test_null_and_absent_settings_are_distinguished() -> None:
    for theirs, word in (({"frame_stack": None}, "null"), ({}, "absent")):
        message = first_difference({"environment": theirs}, {"environment": {"frame_stack": 2}})
        assert message is not None
        assert (message[0], brief(message[1]), brief(message[2])) == ("environment.frame_stack", word, "2")


def test_other_spaces_are_refused_whatever_the_settings_say(identity: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(identity, tmp_path / "copy"))
    facts = json.loads((folder / "dataset.json").read_text())
    facts["groups"]["agent"]["action"]["n"] = 7
    (folder / "dataset.json").write_text(json.dumps(with_digest(facts)))
    outcome = train(tmp_path / "runs", "toy/identity:dqn", f"training.dataset={folder}")
    outcome.refused(2, "groups.agent.action.n is 7 in the dataset, 2 in this run")


def test_the_suggested_buffer_size_is_the_smallest_that_fits(identity: Path, tmp_path: Path) -> None:
    settings = ["toy/identity:dqn", *SMALL_DQN, f"training.dataset={identity}", "--max-timesteps", "8"]
    line = train(tmp_path, *settings, "algorithm.buffer_size=200").refused(2, "algorithm.buffer_size=")
    needed = int(line.partition("algorithm.buffer_size=")[2].split()[0])
    train(tmp_path, *settings, f"algorithm.buffer_size={needed - 1}").refused(2, "does not fit")
    train(tmp_path, *settings, f"algorithm.buffer_size={needed}").succeeded()


def test_an_offline_phase_with_nothing_to_learn_from_is_refused(tmp_path: Path) -> None:
    setting = phases(OFFLINE % 100, ONLINE)
    train(tmp_path, "toy/identity:dqn", *SMALL_DQN, setting).refused(2, "phase offline", "'replay'", "training.dataset")
    assert list(tmp_path.iterdir()) == []


def test_plan_reports_offline_phases(identity: Path) -> None:
    settings = [*SMALL_DQN, f"training.dataset={identity}", "--seconds", "0.1", "--json"]
    plan = ("plan", "toy/identity:dqn", "training.max_timesteps=1000", *settings)
    alone = json.loads(cadenza(*plan, phases(OFFLINE % 400)).succeeded().out)
    assert (alone["run"]["env_steps"], alone["run"]["updates"], alone["environments"]["count"]) == (0, 400, 0)
    assert alone["memory"]["stores"]["replay"] == 4000 * (8 + 8 + 4 + 1 + 1 + 1)
    both = json.loads(cadenza(*plan, phases(OFFLINE % 400, ONLINE)).succeeded().out)
    assert (both["run"]["env_steps"], both["run"]["updates"]) == (1000, 400 + 250)
    assert both["run"]["offline_updates"] == 400
    assert both["memory"]["stores"] == alone["memory"]["stores"]


def test_a_fresh_network_learns_from_a_dataset_alone(identity: Path, tmp_path: Path) -> None:
    settings = [*SMALL_DQN, f"training.dataset={identity}", phases(OFFLINE % 600), "logging.every_updates=100"]
    train(tmp_path, "toy/identity:dqn", *settings, "--seed", "5").succeeded()
    run = last(tmp_path)
    status = run.read_status()
    assert (status["env_steps"], status["updates"]) == (0, 600)
    assert status["eval/return_mean"] >= 15  # of 16; at random 8
    assert [row["updates"] for row in read(run.metrics)][:6] == [100, 200, 300, 400, 500, 600]
    assert run.read_decisions()["training.dataset"]["digest"] == open_dataset(str(identity)).digest


def test_online_fine_tuning_adds_to_the_dataset(identity: Path, tmp_path: Path) -> None:
    settings = [*SMALL_DQN, f"training.dataset={identity}", phases(OFFLINE % 40, ONLINE)]
    train(tmp_path, "toy/identity:dqn", *settings, "--max-timesteps", "200").succeeded()
    status = last(tmp_path).read_status()
    assert (status["env_steps"], status["updates"]) == (200, 40 + 50)
    phase = [row["phase"] for row in read(last(tmp_path).metrics)]
    assert phase[-1] == "online"


def test_stacks_of_frames_are_written_frame_by_frame(tmp_path: Path) -> None:
    stacked = [*SMALL_DQN, "environment.frame_stack=3", "algorithm.torso.cnn.features=16", "algorithm.warmup_steps=40"]
    dataset = replay_of_a_run(tmp_path, "toy/image:dqn", *stacked, steps=80)
    assert rows_of(open_dataset(str(dataset)))["groups.agent.obs"].shape[1:] == (1, 1, 8, 8)
    settings = ["toy/image:dqn", *stacked, f"training.dataset={dataset}", phases(OFFLINE % 20, ONLINE)]
    train(tmp_path / "runs", *settings, "--max-timesteps", "8").succeeded()
    line = train(tmp_path / "none", *settings, "environment.frame_stack=2").refused(2, "environment.frame_stack")
    assert "3 in the dataset, 2 in this run" in line
    out, runs = tmp_path / "played", tmp_path / "runs"
    cadenza("export", "@last", "--runs-dir", runs, "--format", "dataset", "--out", out, "--episodes", 2).succeeded()
    assert rows_of(open_dataset(str(out)))["groups.agent.obs"].shape == (34, 1, 1, 8, 8)
