from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from cadenza.cli.config import app
from cadenza.config.convert import to_dict, walk
from cadenza.config.explain import NOBODY, explain, reference
from cadenza.config.load import compose, dump, finish, load
from cadenza.config.schema import RunConfig
from cadenza.errors import CadenzaError, ConfigError

ROOT = Path(__file__).parents[3]
EXPERIMENT = "cadenza/conf/experiment/CartPole-v1/ppo.yaml"


def cli(*arguments: str) -> str:
    ran = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.parametrize(
    ("key", "overrides", "value", "source"),
    [
        ("algorithm.gamma", [], 0.98, EXPERIMENT),
        ("algorithm.gamma", ["algorithm.gamma=0.5"], 0.5, "override algorithm.gamma=0.5"),
        ("algorithm.gamma", ["algorithm={gamma: 0.5}"], 0.5, "override algorithm={gamma: 0.5}"),
        ("algorithm.gamma", ["seed=1", "~algorithm.gamma"], 0.99, "override ~algorithm.gamma (back to the default)"),
        ("algorithm.optimizer.eps", ["algorithm.gamma=0.5"], 1e-5, NOBODY),
        ("algorithm.name", [], "ppo", "cadenza/conf/algorithm/ppo.yaml"),
        ("environment.id", [], "CartPole-v1", "spec CartPole-v1:ppo"),
        ("experiment", [], "CartPole-v1/ppo", "the choice of experiment"),
        ("algorithm.learning_rate.start_value", [], 0.001, EXPERIMENT),
        ("environment.kwargs.x", ["environment.kwargs={x: 3}"], 3, "override environment.kwargs={x: 3}"),
        ("training.early_stop.at_least", [], None, NOBODY),
        ("algorithm.actor.hidden_sizes", [], [64, 64], NOBODY),
    ],
)
def test_explanation_has_the_value_and_its_origin(key: str, overrides: list[str], value: Any, source: str) -> None:
    explanation = explain(key, "CartPole-v1:ppo", overrides)
    assert (explanation.value, explanation.source) == (value, source)


def test_meaning_type_unit_and_default_come_from_the_schema() -> None:
    explanation = explain("checkpoint.every_steps", "CartPole-v1:ppo", ["checkpoint.every_steps=5"])
    assert (explanation.value, explanation.default, explanation.type, explanation.unit) == (
        5,
        10_000,
        "a whole number, at least 0",
        "env_steps",
    )
    assert explanation.doc.startswith("distance between checkpoints")


def test_the_default_of_a_key_in_a_block_is_the_algorithms() -> None:
    """SAC's networks are relu, where MLPConfig's own default is tanh."""
    assert explain("algorithm.actor.activation", "Pendulum-v1:sac").default == "relu"
    assert "| `algorithm.hidden.activation` | one of tanh, relu, elu, silu, gelu | `relu` |" in reference()


def test_bounds_and_needs_are_shown() -> None:
    told = explain("algorithm.kl_balance", "Pendulum-v1:dreamer_v2")
    assert told.type == "a number or a schedule such as lin_0.001, in [0, 1]"
    assert told.doc.endswith("(with kl=v2)")
    assert "(with behaviour=v1 or v2 or v3)" in reference()


def test_users_files_are_named(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("spec: CartPole-v1:ppo\nalgorithm.gamma: 0.5\nalgorithm: {n_epochs: 3}\n")
    assert explain("algorithm.gamma", str(overlay)).source == str(overlay)
    assert explain("algorithm.n_epochs", str(overlay)).source == str(overlay)
    assert explain("algorithm.n_steps", str(overlay)).source == EXPERIMENT
    group = tmp_path / "network" / "small.yaml"
    group.parent.mkdir()
    group.write_text("# @package algorithm.actor\nhidden_sizes: [8]\n")
    main = tmp_path / "main.yaml"
    main.write_text("defaults:\n  - experiment: CartPole-v1/ppo\n  - network: small\n  - _self_\nseed: 3\n")
    assert explain("seed", str(main)).source == str(main)
    assert explain("algorithm.actor.hidden_sizes", str(main)).source == str(group)
    stored = tmp_path / "stored.yaml"
    stored.write_text(dump(load("CartPole-v1:ppo")))
    assert explain("algorithm.gamma", str(stored)).source == str(stored)


def test_the_project_of_wandb_is_the_one_that_a_run_would_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    file, key = tmp_path / "mine.yaml", "logging.wandb_project"
    file.write_text("spec: toy/identity:ppo\n")

    def of(spec: str, *overrides: str) -> tuple[Any, str]:
        explanation = explain(key, spec, overrides)
        return explanation.value, explanation.source

    assert of(str(file)) == ("mine", f"the name of {file}")
    assert of(str(file), f"{key}=x") == ("x", f"override {key}=x")
    assert of("toy/identity:ppo")[0] == "cadenza"
    monkeypatch.setenv("WANDB_PROJECT", "other")
    assert of(str(file)) == ("other", "the environment variable WANDB_PROJECT")


@pytest.mark.parametrize("spec", ["CartPole-v1:ppo", "Acrobot-v1/ppo", "MountainCar-v0:ppo"])
def test_layers_merged_in_order_are_the_config(spec: str) -> None:
    composed = compose(spec, ["algorithm.gamma=0.5", "algorithm.actor={hidden_sizes: [8]}", "tags=[a]"], trace=True)
    merged = OmegaConf.merge(*(dict(layer.data) for layer in composed.layers))
    assert OmegaConf.to_container(merged) == composed.data
    assert finish(composed.data) == load(
        spec, ["algorithm.gamma=0.5", "algorithm.actor={hidden_sizes: [8]}", "tags=[a]"]
    )


def test_block_lists_its_keys() -> None:
    explanation = explain("algorithm", "CartPole-v1:ppo")
    keys = [part.key.removeprefix("algorithm.") for part in explanation.parts]
    stored = [
        key for key in keys if key not in ("advantage", "accumulate")
    ]  # left out of stored configs at its default
    assert stored == list(explanation.value)
    actor = next(part for part in explanation.parts if part.key == "algorithm.actor")
    names = ("hidden_sizes", "activation", "network", "kwargs")
    assert [part.key for part in actor.parts] == [f"algorithm.actor.{name}" for name in names]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("learning_rate", "algorithm.learning_rate"), ("algorithm.gama", "algorithm.gamma"), ("seed.x", "seed")],
)
def test_unknown_key_is_told_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(key, "CartPole-v1:ppo")
    assert str(caught.value) == f"unknown key '{key}'; did you mean '{nearest}'?"


def all_parts(explanation: Any) -> list[Any]:
    return [explanation, *(one for part in explanation.parts for one in all_parts(part))]


def test_every_key_can_be_explained_and_says_something() -> None:
    config = to_dict(load("CartPole-v1:ppo"))
    blocks = [explain(block.name, "CartPole-v1:ppo") for block in fields(RunConfig)]
    by_key = {part.key: part for block in blocks for part in all_parts(block)}
    for key, _, _ in walk(RunConfig, data=config):
        if not key.startswith("training.early_stop."):
            assert by_key[key].doc, key


def test_reference_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == reference(), "write it again: python -m cadenza.config.explain > docs/configuration.md"


def test_reference_has_every_key() -> None:
    page = reference()
    for key in (
        "`environment.kwargs`",
        "`algorithm.actor.hidden_sizes`",
        "`training.early_stop.metric`",
        "`end_value`",
    ):
        assert f"| {key} |" in page


def test_command_explains_a_key() -> None:
    output = cli("explain", "checkpoint.every_steps", "CartPole-v1:ppo", "checkpoint.every_steps=7")
    assert output.splitlines()[:3] == [
        "checkpoint.every_steps",
        "  value    7",
        "  set by   override checkpoint.every_steps=7",
    ]
    assert "env_steps" in output


def test_command_takes_an_override_without_a_spec_and_prints_json() -> None:
    result = json.loads(cli("explain", "algorithm.gamma", "algorithm.gamma=0.5", "--json").splitlines()[-1])
    assert (result["value"], result["default"], result["source"]) == (0.5, 0.99, "override algorithm.gamma=0.5")
    block = json.loads(cli("explain", "algorithm", "--json"))
    assert block["parts"][0]["key"] == "algorithm.name"


def test_command_lists_a_block() -> None:
    output = cli("explain", "algorithm")
    assert f"0.98  ({EXPERIMENT})" in output
    assert "algorithm.critic" in output


OLD = "algorithm: {name: ppo}\nenvironment: {id: CartPole-v1}\nmax_timesteps: 77\n"


def test_command_migrates_to_stdout_a_file_or_in_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    output = cli("migrate", str(old))
    assert old.read_text() == OLD
    cli("migrate", str(old), "--out", str(new))
    cli("migrate", str(old), "--in-place")
    assert new.read_text() == old.read_text() == output
    assert load(str(new)).training.max_timesteps == 77


def test_command_does_not_change_a_runs_own_config(tmp_path: Path) -> None:
    """Whose digest its manifest has."""
    file = tmp_path / "config.yaml"
    file.write_text(OLD)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="belongs to a run"):
        cli("migrate", str(file), "--in-place")
    assert file.read_text() == OLD


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (OLD, ["--out", "x", "--in-place"], 2),
        (OLD + "sed: 1\n", ["--in-place"], 2),
        (OLD, ["--out", "no/such/file"], 74),
    ],
)
def test_command_refuses_and_leaves_the_file(tmp_path: Path, text: str, options: list[str], code: int) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(text)
    with pytest.raises(CadenzaError) as caught:
        cli("migrate", str(old), *options)
    assert caught.value.exit_code == code
    assert old.read_text() == text
