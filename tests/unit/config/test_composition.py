"""Configs that build on others: numbers of one's own, arithmetic, config groups and parents of any form."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from cadenza.config.explain import explain
from cadenza.config.interpolation import calls
from cadenza.config.load import dump, load
from cadenza.config.schema import RunConfig
from cadenza.errors import CadenzaError, ConfigError
from cadenza.records.trust import require_trust_of_file


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def loaded(folder: Path, name: str, *overrides: str) -> RunConfig:
    return load(str(folder / name), overrides)


@pytest.mark.parametrize("block", ["vars", "_dims"])
def test_values_refer_to_a_free_block_and_calculate(tmp_path: Path, block: str) -> None:
    text = """
        spec: CartPole-v1:ppo
        BLOCK: {observation: 4, latent: "${add:${BLOCK.observation},12}", rate: 1e-3}
        seed: ${int:${div:7,2}}
        algorithm:
          learning_rate: ${mul:${BLOCK.rate},2}
          gamma: ${sub:1,1e-2}
          actor: {hidden_sizes: ["${BLOCK.latent}", "${div:${BLOCK.latent},2}"]}
    """
    write(tmp_path, {"mine.yaml": text.replace("BLOCK", block)})
    config = loaded(tmp_path, "mine.yaml")
    assert (config.seed, config.algorithm.gamma, config.algorithm.learning_rate) == (3, 0.99, 0.002)
    assert config.algorithm.actor.hidden_sizes == (16, 8)
    assert block not in dump(config)
    assert loaded(tmp_path, "mine.yaml", f"{block}.observation=20").algorithm.actor.hidden_sizes == (32, 16)


def test_a_number_from_a_variable_marks_the_settings_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_TEST_NUMBER", "5")
    config = load(
        "CartPole-v1:ppo", ["vars.a='${oc.decode:${oc.env:CADENZA_TEST_NUMBER}}'", "seed='${add:${vars.a},1}'"]
    )
    assert (config.seed, config.from_environment) == (6, ("seed",))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${div:1,0}", "${div:…}: division by zero (at seed)"),
        ("${add:1}", "${add:…} takes two numbers or more (at seed)"),
        ("${int:1,2}", "${int:…} takes one number (at seed)"),
        ("${add:a,1}", "${add:…} takes numbers below 2**63, not 'a' (at seed)"),
        ("${add:true,1}", "${add:…} takes numbers below 2**63, not True (at seed)"),
        ("${int:nan}", "${int:…} takes numbers below 2**63, not nan (at seed)"),
        (f"${{mul:{'9' * 4000},2}}", "${mul:…} takes numbers below 2**63, not 9"),
        ("${mul:9e18,9e18}", "${mul:…}: the result is too large (at seed)"),
    ],
)
def test_bad_arithmetic_is_refused_in_one_line(value: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("CartPole-v1:ppo", [f"seed='{value}'"])
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arithmetic_reads_nothing() -> None:
    assert not [*calls({"seed": "${add:${vars.a},${int:2.5}}"})]
    for text in ("${add:${oc.env:HOME},1}", "${${name}:1,2}", "${adder:1,2}", "${add.x:1}"):
        assert [*calls({"seed": text})]


def test_a_free_block_must_be_a_mapping() -> None:
    with pytest.raises(ConfigError, match=r"^vars: must be a mapping of names to values"):
        load("CartPole-v1:ppo", ["vars=3"])


@pytest.mark.parametrize(
    ("spec", "blocks"), [("CartPole-v1:ppo", ("actor", "critic")), ("CartPole-v1:dqn", ("hidden",))]
)
def test_a_shipped_group_sets_the_networks_of_an_algorithm(tmp_path: Path, spec: str, blocks: tuple[str, ...]) -> None:
    config = load(spec, ["networks=large"])
    assert [getattr(config.algorithm, block).hidden_sizes for block in blocks] == [(512, 512, 512)] * len(blocks)
    for name, text in {
        "plain.yaml": f"spec: {spec}\nnetworks: large\n",
        "listed.yaml": f"spec: {spec}\ndefaults: [networks: large]\n",
        "beside.yaml": f"spec: {spec}\ndefaults: [_self_]\nnetworks: large\n",
    }.items():
        write(tmp_path, {name: text})
        assert loaded(tmp_path, name).algorithm == config.algorithm
    assert loaded(tmp_path, "plain.yaml", "networks=small") == load(spec, ["networks=small"])
    assert load(spec, ["networks=large", "networks=small"]) == load(spec, ["networks=small"])


def test_a_group_that_sets_nothing_of_an_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^networks=large is not for this algorithm: it sets 'algorithm.hidden'"):
        load("CartPole-v1:dreamer_v3", ["networks=large"])
    with pytest.raises(ConfigError, match=r"^unknown key 'algorithm.hidden'"):
        load("CartPole-v1:ppo", ["networks=large", "algorithm.hidden.hidden_sizes=[3]"])


def test_a_group_beside_a_plain_file(tmp_path: Path) -> None:
    files = {
        "mine.yaml": "spec: CartPole-v1:ppo\nrates: slow\nalgorithm: {gamma: 0.5}\n",
        "rates/slow.yaml": "# @package algorithm\nlearning_rate: 1e-5\ngamma: 0.1\n",
        "config.yaml": "seed: 99\n",  # a file of the user's that is not named
    }
    config = loaded(write(tmp_path, files), "mine.yaml")
    assert (config.algorithm.learning_rate, config.algorithm.gamma, config.seed) == (1e-5, 0.5, 0)
    with pytest.raises(CadenzaError, match=r"^'rates=slw': no such choice; did you mean 'slow'\?"):
        loaded(write(tmp_path, {"mine.yaml": "spec: CartPole-v1:ppo\nrates: slw\n"}), "mine.yaml")


def test_a_group_belongs_where_the_defaults_list_puts_it(tmp_path: Path) -> None:
    main = """
        # @package _global_
        defaults:
          - /experiment: CartPole-v1/ppo
          - /net@algorithm.actor: small
          - _self_
    """
    config = loaded(write(tmp_path, {"main.yaml": main, "net/small.yaml": "hidden_sizes: [8]"}), "main.yaml")
    assert (config.algorithm.actor.hidden_sizes, config.algorithm.critic.hidden_sizes) == ((8,), (64, 64))


PARENTS = {
    "base/parent.yaml": "spec: CartPole-v1:ppo\nalgorithm: {gamma: 0.5}\n",
    "base/child.yaml": "defaults: [parent, _self_]\nseed: 3\n",
    "near.yaml": "defaults: [base/child, _self_]\nseed: 4\n",
    "far/away/up.yaml": "defaults: [../../base/parent, _self_]\nseed: 5\n",
    "far/suffix.yml": "defaults: [../base/parent.yaml, _self_]\nseed: 6\n",
    "spec.yaml": "spec: base/parent.yaml\nseed: 7\n",
    "dotted.json": json.dumps({"spec": "CartPole-v1:ppo", "algorithm.gamma": 0.5, "networks": "large"}),
    "of_json.yaml": "defaults: [dotted.json, _self_]\nnetworks: small\nseed: 8\n",
    "base/config.yaml": "defaults: [../config.yaml, _self_]\n",  # of the same name
    "config.yaml": "spec: CartPole-v1:ppo\nalgorithm: {gamma: 0.5}\nseed: 9\n",
    "experiment.yaml": "experiment: CartPole-v1/ppo\nalgorithm: {gamma: 0.5}\n",
    "of_experiment.yaml": "defaults: [experiment, _self_]\nseed: 10\n",
}


@pytest.mark.parametrize(
    ("child", "seed"),
    [
        ("base/child.yaml", 3),
        ("near.yaml", 4),
        ("far/away/up.yaml", 5),
        ("far/suffix.yml", 6),
        ("spec.yaml", 7),
        ("of_json.yaml", 8),
        ("base/config.yaml", 9),
        ("of_experiment.yaml", 10),
    ],
)
def test_a_child_inherits_from_a_parent_of_any_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, seed: int
) -> None:
    write(tmp_path, PARENTS)
    expected = load("CartPole-v1:ppo", ["algorithm.gamma=0.5", f"seed={seed}"])
    assert loaded(tmp_path, child) == expected
    monkeypatch.chdir(tmp_path / "far")
    assert load(f"../{child}") == expected
    absolute = write(tmp_path, {"elsewhere/absolute.yaml": f"defaults: ['{tmp_path / child}', _self_]\n"})
    assert loaded(absolute, "elsewhere/absolute.yaml") == expected


def test_a_child_of_an_untuned_spec_and_of_a_stored_config(tmp_path: Path) -> None:
    stored = load("CartPole-v1:ppo", ["seed=77"])
    write(
        tmp_path,
        {
            "untuned.yaml": "spec: Acrobot-v1:a2c\n",
            "child.yaml": "defaults: [untuned, _self_]\nseed: 1\n",
            "stored.yaml": dump(stored),
            "heir.yaml": "defaults: [stored, _self_]\nalgorithm: {gamma: 0.1}\n",
        },
    )
    assert loaded(tmp_path, "child.yaml") == load("Acrobot-v1:a2c", ["seed=1"])
    assert loaded(tmp_path, "heir.yaml") == load("CartPole-v1:ppo", ["seed=77", "algorithm.gamma=0.1"])


def test_an_inherited_setting_is_explained_by_the_parents_file(tmp_path: Path) -> None:
    write(tmp_path, PARENTS)
    explanation = explain("algorithm.gamma", str(tmp_path / "far/away/up.yaml"))
    assert explanation.source == str(tmp_path / "base" / "parent.yaml")


def test_parents_that_lead_back_to_the_child_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": "defaults: [b.yaml]\n", "b.yaml": "spec: a.yaml\n"})
    with pytest.raises(ConfigError, match="leads back to itself"):
        loaded(tmp_path, "a.yaml")


def test_a_parent_in_a_strangers_run_needs_trust_if_it_names_code(tmp_path: Path) -> None:
    config = dump(load("CartPole-v1:ppo")).replace("id: CartPole-v1", "id: evil:make")
    write(
        tmp_path,
        {
            "run/config.yaml": config,
            "run/manifest.json": json.dumps({"config_hash": "x"}),
            "mine.yaml": "defaults: [between, _self_]\n",
            "between.yaml": "defaults: [run/config.yaml, _self_]\n",
        },
    )
    with pytest.raises(ConfigError, match=r"run/config\.yaml would import 'evil:make' and was not made here"):
        require_trust_of_file(str(tmp_path / "mine.yaml"))
