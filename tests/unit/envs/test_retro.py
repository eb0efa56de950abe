"""stable-retro: one game per process, restore in mid-episode."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from cadenza.cli.main import run
from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families import retro
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, EnvironmentFault, NotFoundError

pytest.importorskip("stable_retro", reason="the extra retro is not installed")
ID = "Retro/Airstriker-Genesis-v0"


def test_two_retro_games_run_in_two_processes_and_are_restored_exactly() -> None:
    decisions: dict[str, Any] = {}
    config = EnvironmentConfig(id=ID, grayscale=True, resize=42)
    old, new = (make_vector(config, EpisodeSeeds(5, TRAIN), num_envs=2, decisions=decisions) for _ in range(2))
    assert decisions["environment.vectorize"]["value"] == "workers"
    rng = np.random.default_rng(0)
    actions = [random_actions(old.spec.groups, old.current, rng) for _ in range(40)]
    for action in actions[:30]:
        old.step(action)
    new.load_state_dict(old.state_dict())
    for action in actions[30:]:
        one, two = (env.step(action) for env in (old, new))
        assert one.obs["agent"].tobytes() == two.obs["agent"].tobytes()
    assert old.current.obs["agent"].std() > 0
    for env in (old, new):
        env.close()


def test_a_game_without_its_rom_is_an_error_and_one_with_it_is_listed() -> None:
    assert retro.ids("Retro") == [ID]
    with pytest.raises(EnvironmentFault, match=r"needs its ROM: python -m stable_retro\.import"):
        catalog.make(EnvironmentConfig(id="Retro/SonicTheHedgehog-Genesis-v0"))
    with pytest.raises(ConfigError, match=r"kwargs\.actions=button: must be one of discrete, buttons; did you mean"):
        catalog.make(EnvironmentConfig(id=ID, kwargs={"actions": "button"}))
    for none in ("Retro/", "Retro/../stable", "Retro/."):
        with pytest.raises(NotFoundError, match="unknown environment"):
            environments.resolve(none)
    with pytest.raises(ConfigError, match=r"vectorize=in_process: a process can hold one Retro/.*; use workers"):
        make_vector(EnvironmentConfig(id=ID, vectorize="in_process"), EpisodeSeeds(5, TRAIN), num_envs=2)


def test_an_id_without_the_extra_names_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "stable_retro", None)
    assert run(["train", f"{ID}:ppo"]) == 69
    assert capsys.readouterr().err == "error: Retro environments need an extra: pip install 'cadenza[retro]'\n"
