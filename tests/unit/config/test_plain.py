"""Composition without Hydra gives what Hydra gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cadenza.config import plain
from cadenza.config.load import compose
from cadenza.config.spec import base_of
from cadenza.errors import CadenzaError

PLAIN = (
    *("seed=3", "seed=-1", "name=a1", "name='a b: {c} é'", "name='5'", "name=''", "device=null", "name=a.b.1"),
    *("algorithm.gamma=0.5", "algorithm.gamma=-0.0", "algorithm.learning_rate=lin_0.001", "evaluation.at_end=false"),
    *("training.early_stop=null", "algorithm.gama=1", "name=true1", "name=a_"),
)
HYDRA = (
    *("seed=010", "algorithm.gamma=1e-3", "algorithm.gamma=1.", "name=True", "name=nan", "name=a-b", "name='${seed}'"),
    *("++seed=1", "~seed", "algorithm=dqn", "pace=debug", "networks=large", "tags=[a]", "name='a\\'b'", "seed="),
    *(
        "algorithm.name=dqn",
        "environment.id.x=1",
        "a.b=1",
        "algorithm.actor.hidden_sizes.0=3",
        "name='???'",
        "algorithm.gamma.start_value=1.0",
    ),
)


def outcome(*overrides: str, spec: str = "CartPole-v1:ppo") -> Any:
    try:
        result = compose(spec, overrides, trace=True)
    except CadenzaError as problem:
        return str(problem)
    return repr(result.data), [(layer.source, repr(dict(layer.data))) for layer in result.layers]


@pytest.fixture
def by_hydra(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(*overrides: str, spec: str = "CartPole-v1:ppo") -> Any:
        with monkeypatch.context() as context:
            context.setattr(plain, "composed", lambda *arguments: None)
            return outcome(*overrides, spec=spec)

    return of


@pytest.mark.parametrize(
    "spec",
    # one file alone, files that build on others, a file for another package, an algorithm without tuned settings
    ["CartPole-v1:ppo", "CliffWalking-v1:sarsa", "CartPole-v1:dreamer_v3", "FrozenLake-v1/qlearning", "toy/pair:mappo"],
)
def test_names_compose_as_with_hydra(spec: str, by_hydra: Any) -> None:
    assert outcome("seed=1", spec=spec) == by_hydra("seed=1", spec=spec)


def test_plain_values_compose_as_with_hydra(by_hydra: Any) -> None:
    base = base_of("CartPole-v1:ppo", None)
    assert [text for text in PLAIN if plain.composed(base, [text]) is None] == []
    assert outcome(*PLAIN) == by_hydra(*PLAIN)
    assert [text for text in PLAIN if text.startswith("name") and outcome(text) != by_hydra(text)] == []


def test_a_file_of_plain_settings_composes_as_with_hydra(tmp_path: Path, by_hydra: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("spec: CartPole-v1:ppo\nalgorithm: {gamma: 0.5, actor: {hidden_sizes: [8, 8]}}\n")
    assert plain.composed(base_of(str(path), None), ["seed=1"]) is not None
    assert outcome("seed=1", spec=str(path)) == by_hydra("seed=1", spec=str(path))
    for line in ("seed: ${oc.env:HOME}", "algorithm.gamma: 0.9", "networks: large", "vars: {a: 1}", "seed: ???"):
        path.write_text(f"spec: CartPole-v1:ppo\n{line}\n")
        assert plain.composed(base_of(str(path), None), []) is None


@pytest.mark.parametrize("text", HYDRA)
def test_what_takes_hydra_is_left_to_it(text: str) -> None:
    assert plain.composed(base_of("CartPole-v1:ppo", None), [text]) is None


def test_a_number_of_thousands_of_digits_is_left_to_hydra() -> None:
    with pytest.raises(CadenzaError, match="Exceeds the limit"):
        compose("CartPole-v1:ppo", ["seed=" + 5000 * "9"])
