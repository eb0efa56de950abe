from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.convert import build
from cadenza.tools.bench import rounds
from cadenza.tools.bench.contestants import CADENZA, PEERS, Contestant, Installed, find_installed, measure
from cadenza.tools.bench.tasks import BenchTask
from harness.command import cadenza

SMALL = {"env": "CartPole-v1", "num_envs": 2, "timesteps": 96, "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1}}


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL | {"solved_at": 1.0}))
    return str(file)


def test_cadenza_is_measured_in_a_fresh_process(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "absent", Contestant("absent", "no_such_package_anywhere", ("absent-rl",), {}))
    out, picture = tmp_path / "result.json", tmp_path / "result.png"
    arguments = [small, "--peers", "absent", "--rounds", "1", "--timesteps", "1000", "--out", str(out)]
    outcome = cadenza("bench", *arguments, "--picture", str(picture)).succeeded()
    assert "absent is not installed: pip install absent-rl" in outcome.err
    assert "small: PPO on CartPole-v1, 2 x 16 steps" in outcome.out
    result = json.loads(out.read_text())
    assert result["missing"] == {"absent": "pip install absent-rl"}
    (measured,) = result["tasks"]["small"]["measurements"]
    assert measured["updates"] == 1024 // 16
    assert measured["parameters"] == 9155
    assert measured["env_steps_per_s"] > 0
    assert measured["steady_env_steps_per_s"] > 0
    assert 0 < measured["start_s"] < measured["process_s"]
    assert measured["peak_mb"] > 50
    assert {"cadenza", "torch", "python"} <= measured["versions"].keys()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "result.png", "small.json"]


@pytest.mark.parametrize(
    ("name", "timesteps", "updates", "parameters"),
    [
        ("dqn-cartpole", 1200, 2 * 128, 256 * 5 + 256 * 257 + 2 * 257),
        ("sac-pendulum", 100, 80, 2 * (32 * 5 + 32 * 33 + 33) + 32 * 4 + 32 * 33 + 2 * 33 + 1),
    ],
)
def test_cadenza_is_measured_with_a_replay(
    name: str, timesteps: int, updates: int, parameters: int, tmp_path: Path
) -> None:
    settings = {"warmup_steps": 20, "batch_size": 16, "hidden_sizes": [32, 32]}
    file = tmp_path / "sac-pendulum.json"
    file.write_text(json.dumps({"env": "Pendulum-v1", "num_envs": 1, "timesteps": 1, "sac": settings}))
    arguments = ["--peers", "none", "--rounds", "1", "--timesteps", str(timesteps), "--json"]
    task = str(file) if name == file.stem else name
    result = json.loads(cadenza("bench", task, *arguments).succeeded().out)
    (measured,) = result["tasks"][name]["measurements"]
    assert (measured["updates"], measured["parameters"]) == (updates, parameters)
    assert measured["env_steps_per_s"] > 0


REPLAYS = {
    "dqn": {"warmup_steps": 24, "train_every": 12, "gradient_steps": 5, "target_every": 24},
    "sac": {"warmup_steps": 24, "train_every": 6, "gradient_steps": 2, "hidden_sizes": [16, 16]},
}


@pytest.mark.parametrize("name", ["sb3", "sbx"])
@pytest.mark.parametrize("algorithm", REPLAYS)
def test_peers_do_the_same_work(name: str, algorithm: str) -> None:
    installed, _ = find_installed([PEERS[name]], [sys.executable])
    if not installed:
        pytest.skip(f"{name} is not installed")
    env = {"dqn": "CartPole-v1", "sac": "Pendulum-v1"}[algorithm]
    task = build(BenchTask, {"env": env, "num_envs": 2, "timesteps": 96, algorithm: REPLAYS[algorithm]})
    own, theirs = (measure(one, task) for one in (Installed(CADENZA, sys.executable), *installed))
    assert own["updates"] == theirs["updates"] == task.order()["updates"]
    assert own["parameters"] == theirs["parameters"]


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.json" for folder in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps(SMALL))
    outcome = cadenza("bench", *map(str, files), "--peers", "none")
    assert outcome.code == 2
    assert "error: two tasks are named mine" in outcome.err


def test_a_failing_contestant_is_reported_with_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(SMALL | {"env": "NoSuchThing-v0"}))
    outcome = cadenza("bench", str(file), "--peers", "none", "--rounds", "1", "--json")
    assert outcome.code == 1
    assert (
        "unknown environment 'NoSuchThing-v0'" in json.loads(outcome.out)["tasks"]["wrong"]["measurements"][0]["error"]
    )


def test_ctrl_c_keeps_the_rounds_so_far(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def measure(installed: Installed, task: BenchTask) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return {"env_steps_per_s": 5.0, "versions": {"cadenza": "1"}}

    monkeypatch.setattr(rounds, "measure", measure)
    out = tmp_path / "result.json"
    outcome = cadenza("bench", small, "--peers", "none", "--out", str(out))
    assert outcome.code == 130
    assert len(json.loads(out.read_text())["tasks"]["small"]["measurements"]) == 1
    assert "cadenza 1" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ppo-cartpol"], ["unknown task 'ppo-cartpol'", "did you mean 'ppo-cartpole'"]),
        (["part"], ["unknown task 'part'"]),
        (["ppo-cartpole", "--peers", "sb4"], ["--peers sb4"]),
        (["ppo-cartpole", "--peers", "sb3", "--python", "/nowhere/python"], ["--python /nowhere/python"]),
        (["ppo-cartpole", "--out", "/nowhere/result.json"], ["/nowhere"]),
        (["parts", "ppo-cartpol"], ["did you mean 'ppo-cartpole'"]),
        (["vector", "CartPol-v1"], ["did you mean 'CartPole-v1'"]),
        (["vector", "CartPole-v1", "--num-envs", "1,none"], ["--num-envs 1,none"]),
        (["collect", "CartPole-v1:ppo", "algorithm.gama=1"], ["algorithm.gamma"]),
    ],
)
def test_invalid_arguments_of_bench_are_refused_in_one_line(arguments: list[str], words: list[str]) -> None:
    cadenza("bench", *arguments).refused(2, *words)


def test_bench_parts_reports_parts_and_the_whole(small: str) -> None:
    arguments = ["--rounds", "1", "--seconds", "0.02", "--timesteps", "3000", "--json"]
    speeds = json.loads(cadenza("bench", "parts", small, *arguments).succeeded().out)["small"]
    costs = speeds["microseconds"]
    assert set(costs) == {"stepping", "acting", "storing", "collecting", "updating"}
    alone = costs["stepping"] + costs["acting"] + costs["updating"]
    assert speeds["ideal_env_steps_per_s"] == pytest.approx(1e6 / alone)
    assert speeds["fraction_of_ideal"] == speeds["whole_env_steps_per_s"] / speeds["ideal_env_steps_per_s"]


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("dqn", {"warmup_steps": 64, "train_every": 32, "gradient_steps": 4, "target_every": 32}),
        ("sac", {"warmup_steps": 64, "train_every": 1, "batch_size": 16, "hidden_sizes": [16]}),
    ],
)
def test_bench_parts_works_with_a_replay(algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    env = {"dqn": "CartPole-v1", "sac": "Pendulum-v1"}[algorithm]
    file.write_text(json.dumps({"env": env, "num_envs": 1, "timesteps": 256, algorithm: settings}))
    arguments = ["--rounds", "1", "--seconds", "0.02", "--json"]
    speeds = json.loads(cadenza("bench", "parts", str(file), *arguments).succeeded().out)["small"]
    costs = speeds["microseconds"]
    assert set(costs) == {"stepping", "acting", "storing", "collecting", "updating", "sampling"}
    assert 0 < costs["sampling"] < costs["updating"]
    alone = costs["stepping"] + costs["acting"] + costs["updating"]
    assert speeds["ideal_env_steps_per_s"] == pytest.approx(1e6 / alone)


def test_bench_vector_measures_every_way_of_stepping() -> None:
    outcome = cadenza("bench", "vector", "CartPole-v1", "--num-envs", "1,4", "--seconds", "0.02", "--json").succeeded()
    speeds = json.loads(outcome.out)["env_steps_per_s"]
    assert set(speeds) == {"in_process", "native", "workers", "gymnasium", "Gymnasium's Sync"}
    assert all(rate > 0 for row in speeds.values() for rate in row.values())
    output = cadenza("bench", "vector", "toy/identity", "--num-envs", "2", "--seconds", "0.02").succeeded().out
    assert "toy/identity has no native version" in output


@pytest.mark.parametrize("part", ["collect", "store"])
@pytest.mark.parametrize("spec", ["toy/identity:ppo", "toy/identity:reinforce", "toy/identity:dqn"])
def test_bench_measures_a_single_part_of_a_spec(part: str, spec: str) -> None:
    outcome = cadenza("bench", part, spec, "environment.num_envs=2", "--seconds", "0.02", "--json").succeeded()
    assert json.loads(outcome.out)["env_steps_per_s"] > 0
