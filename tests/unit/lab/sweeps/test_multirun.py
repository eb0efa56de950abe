"""`cadenza train SPEC -m key=a,b`: a sweep over every combination."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.cli import sweep
from cadenza.config.load import load
from cadenza.errors import ConfigError
from cadenza.lab.sweeps.sweep_file import of_overrides
from cadenza.lab.sweeps.sweep_plan import plan
from harness import command

SPEC = "toy/identity:ppo"


def grid(*overrides: str, seeds: tuple[int, ...] = ()) -> list[tuple[object, ...]]:
    file, others = of_overrides(SPEC, overrides, seeds=seeds, name="grid")
    planned = plan(file, others)
    configs = [
        planned.config(number, params, seed)
        for number, params in enumerate(planned.predetermined, 1)
        for seed in planned.seeds
    ]
    return [
        (one.algorithm.gamma, one.algorithm.actor.hidden_sizes, one.environment.num_envs, one.seed) for one in configs
    ]


def test_every_combination_is_trained_with_the_other_settings() -> None:
    assert grid("algorithm.gamma=0.9,0.99", "environment.num_envs=2") == [(0.9, (64, 64), 2, 0), (0.99, (64, 64), 2, 0)]
    assert grid("algorithm.actor.hidden_sizes=[8],[4,4]", "seed=range(1,3)") == [
        (0.99, (8,), 8, 1),
        (0.99, (8,), 8, 2),
        (0.99, (4, 4), 8, 1),
        (0.99, (4, 4), 8, 2),
    ]
    assert grid("networks=small,medium", seeds=(5,)) == [(0.99, (64, 64), 8, 5), (0.99, (256, 256), 8, 5)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("algorithm.gamma=0.9",), "-m: no setting has several values"),
        (("seed=1,2",), "-m: no setting has several values"),
        (("algorithm.gamma=interval(0,1)",), "a search over ranges is a sweep file"),
        (("algorithm.gama=0.9,0.8",), "unknown key 'algorithm.gama'; did you mean 'algorithm.gamma'?"),
        (("algorithm.gamma=0.9,2",), "algorithm.gamma=2: must be in"),
        (("name=a,b",), "sweep.name: set by the sweep itself"),
        (("~algorithm.gamma=1,2",), "removes a key, which has one value: write ~algorithm.gamma"),
        (("algorithm.gamma=0.9,0.8", "algorithm.gamma=0.7"), "algorithm.gamma has several values already"),
        (("algorithm.gamma=0.9,0.8", "~algorithm.gamma"), "algorithm.gamma has several values already"),
        (("algorithm.gamma=0.9,0.8", "+algorithm.gamma=0.7,0.6"), "algorithm.gamma has several values already"),
    ],
)
def test_what_is_no_grid_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grid(*overrides)
    assert message in str(caught.value)


def test_seeds_are_named_once() -> None:
    with pytest.raises(ConfigError, match="both give the seeds"):
        grid("algorithm.gamma=0.9,0.99", "seed=1,2", seeds=(3,))
    with pytest.raises(ConfigError, match="both give the seeds"):
        grid("algorithm.gamma=0.9,0.99", "seed=3", seeds=(1, 2))


def test_settings_that_refer_to_the_seed_follow_it() -> None:
    fixed = grid("algorithm.gamma=0.9,0.99", "environment.num_envs='${add:${seed},1}'", seeds=(1, 2))
    assert [(gamma, envs, seed) for gamma, _, envs, seed in fixed] == [
        (0.9, 2, 1),
        (0.9, 3, 2),
        (0.99, 2, 1),
        (0.99, 3, 2),
    ]
    varied = grid("environment.num_envs=4,'${add:${seed},1}'", seeds=(1, 2))
    assert [(envs, seed) for _, _, envs, seed in varied] == [(4, 1), (4, 2), (2, 1), (3, 2)]


def test_without_the_option_several_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gives several values: .* or `train -m`"):
        load(SPEC, ["algorithm.gamma=0.9,0.99"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("~algorithm.gamma=0.9,0.8", "removes a key, which has one value: write ~algorithm.gamma"),
        ("~algorithm.gamma=0.9", "removes what is not there: algorithm.gamma is 0.98; write ~algorithm.gamma"),
    ],
)
def test_a_key_is_removed_with_its_own_value_or_without_one(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("CartPole-v1:ppo", [override])
    assert load("CartPole-v1:ppo", ["~algorithm.gamma=0.98"]).algorithm.gamma == 0.99


def test_the_command_line_runs_the_grid(tmp_path: Path) -> None:
    short = ("algorithm.n_steps=8", "environment.num_envs=2", "evaluation.episodes=2", "--max-timesteps", "16")
    runs = ("--runs-dir", str(tmp_path))
    ran = command.cadenza("train", SPEC, "-m", "algorithm.gamma=0.9,0.99", *short, *runs, "-q", "--json")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["trials"]) == 2
    for gamma in ("0.9", "0.99"):
        listed = command.cadenza("list", "--json", "--filter", f"algorithm.gamma={gamma}", *runs)
        assert [run["status"] for run in json.loads(listed.out)["runs"]] == ["finished"]


def test_debugging_shortens_every_run_of_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(sweep, "begin", lambda file, overrides, options: begun.append(overrides))
    command.cadenza("train", SPEC, "-m", "algorithm.gamma=0.9,0.99", "--debug").succeeded()
    command.cadenza("train", SPEC, "-m", "algorithm.gamma=0.9,0.99", "--debug", "--max-timesteps", "7").succeeded()
    assert [load(SPEC, overrides).training.max_timesteps for overrides in begun] == [5000, 7]
    assert [load(SPEC, overrides).training.horizon for overrides in begun] == [100_000, None]
