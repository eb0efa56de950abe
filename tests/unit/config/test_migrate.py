from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from cadenza.config.convert import build
from cadenza.config.load import dump, read
from cadenza.config.migrate import UPGRADES, migrate
from cadenza.config.schema import SCHEMA_VERSION, RunConfig
from cadenza.errors import ConfigError, NotFoundError

OLD: dict[str, Any] = {
    "algorithm": {"name": "ppo", "gamma": 0.9},
    "environment": {"id": "CartPole-v1"},
    "evaluation": {"episodes": 5},
    "max_timesteps": 5000,
    "max_updates": None,
    "eval_every_steps": 700,
    "checkpoint_every_steps": 800,
}


def test_every_older_version_has_a_migration_step() -> None:
    assert sorted(UPGRADES) == list(range(SCHEMA_VERSION))


def test_version_0_moves_its_budget_into_blocks(tmp_path: Path) -> None:
    before = deepcopy(OLD)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(OLD))
    config = read(path)
    assert config.training.max_timesteps == 5000
    assert config.training.max_updates is None
    assert (config.evaluation.every_steps, config.evaluation.episodes) == (700, 5)
    assert config.checkpoint.every_steps == 800
    assert config.algorithm.gamma == 0.9
    migrate(OLD)
    assert before == OLD


def test_version_1_moves_settings_of_networks_into_blocks() -> None:
    old = {"name": "ppo", "adam_eps": 1e-7, "log_std_init": -1.0, "normalize_obs": "none", "gamma": 0.9}
    made = build(RunConfig, migrate({"schema_version": 1, "algorithm": old})).algorithm
    assert (made.optimizer.eps, made.head.log_std_init, made.normalize_obs, made.gamma) == (1e-7, -1.0, False, 0.9)
    migrated = migrate({"schema_version": 1, "algorithm": {"name": "ppo", "normalize_obs": "rolling"}})
    assert migrated["algorithm"] == {"name": "ppo", "normalize_obs": "rolling"}
    with pytest.raises(ConfigError, match=r"algorithm.adam_eps cannot move to algorithm.optimizer.eps"):
        migrate({"schema_version": 1, "algorithm": {**old, "optimizer": {"eps": 1e-8}}})


def test_the_present_version_is_unchanged(tmp_path: Path) -> None:
    data = migrate(OLD)
    assert data["schema_version"] == SCHEMA_VERSION
    assert migrate(data) == data
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    text = dump(read(path))
    path.write_text(text)
    assert dump(read(path)) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, f"schema_version={SCHEMA_VERSION + 1}: written by a newer cadenza"),
        ({"schema_version": -1}, "schema_version=-1: must be"),
        ({"schema_version": "one"}, "schema_version='one': must be"),
        ({"schema_version": True}, "schema_version=True: must be"),
        ({"training": {"max_timesteps": 3}}, "max_timesteps cannot move to training.max_timesteps"),
        ({"training": 3}, "max_timesteps cannot move to training.max_timesteps"),
    ],
)
def test_an_unreadable_file_is_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        migrate({**OLD, **change})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_present_version_refuses_the_old_keys(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for old, new in (("max_timesteps", "training.max_timesteps"), ("checkpoint_every_steps", "checkpoint.every_steps")):
        path.write_text(yaml.safe_dump({"algorithm": {"name": "ppo"}, old: 5, "schema_version": SCHEMA_VERSION}))
        with pytest.raises(ConfigError) as caught:
            read(path)
        assert str(caught.value) == f"unknown key '{old}'; did you mean '{new}'?"


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no file"):
        read(tmp_path / "config.yaml")
