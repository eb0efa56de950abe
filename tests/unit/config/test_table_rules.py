"""Digits and marks of metrics in tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.table_rules import SHIPPED, TableRule, rule_for
from cadenza.errors import ConfigError, NotFoundError


def test_a_rule_says_how_many_digits_are_printed() -> None:
    assert [TableRule().text(value) for value in (1.23456, 12345.6, None, float("nan"))] == [
        "1.235",
        "12,346",
        "-",
        "-",
    ]
    assert TableRule(digits=2).text(0.0123456) == "0.012"
    assert TableRule(decimals=1).text(1234.56) == "1,234.6"


def test_the_best_of_several_values_is_marked() -> None:
    highest, lowest = TableRule(best="highest"), TableRule(best="lowest")
    assert [highest.is_best(value, (1.0, 3.0)) for value in (1.0, 3.0)] == [False, True]
    assert lowest.is_best(1.0, (1.0, 3.0, float("nan")))
    assert not highest.is_best(3.0, (3.0,))
    assert not highest.is_best(3.0, (3.0, 3.0))
    assert not TableRule().is_best(3.0, (1.0, 3.0))


def test_rules_of_the_user_come_before_those_that_are_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rule_for("eval/return_mean").best == "highest"
    assert rule_for("train/value_loss").best == "lowest"
    own = tmp_path / "tables.yaml"
    own.write_text("'eval/return*': {decimals: 1, best: lowest}\n")
    monkeypatch.setenv("CADENZA_TABLES", str(own))
    assert rule_for("eval/return_mean") == TableRule(decimals=1, best="lowest")
    assert rule_for("train/value_loss").best == "lowest"


def test_a_pattern_that_is_shipped_too_has_the_rule_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tables.yaml"
    own.write_text("'*loss*': {decimals: 1}\n'*': {digits: 2}\n")
    monkeypatch.setenv("CADENZA_TABLES", str(own))
    assert rule_for("train/value_loss") == TableRule(decimals=1)
    assert rule_for("train/entropy") == TableRule(digits=2)


def test_a_missing_file_of_rules_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_TABLES", "nowhere.yaml")
    with pytest.raises(NotFoundError, match=r"^CADENZA_TABLES: no file 'nowhere\.yaml'"):
        rule_for("eval/return_mean")


def test_a_bad_rule_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "tables.yaml"
    own.write_text("'*': {digts: 1}\n")
    monkeypatch.setenv("CADENZA_TABLES", str(own))
    with pytest.raises(ConfigError, match=r"tables\.yaml: unknown key '.*digts'; did you mean"):
        rule_for("eval/return_mean")
    assert SHIPPED.is_file()
