"""Configs that build on others: numbers of one's own, arithmetic, config groups and parents of any form."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from cadenza.config.interpolation import calls
from cadenza.config.load import dump, load
from cadenza.config.schema import RunConfig
from cadenza.errors import ConfigError


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
