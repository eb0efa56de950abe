"""Rules for metrics in tables: how many digits are printed, and which of compared values is marked as the best."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from cadenza.base.formatting import number
from cadenza.config.convert import build
from cadenza.config.setting import setting
from cadenza.config.spec import read_file
from cadenza.errors import ConfigError, NotFoundError

SHIPPED = Path(__file__).parents[1] / "conf" / "tables.yaml"
VARIABLE = "CADENZA_TABLES"  # names a file of the user's
MARK = " *"  # after the best value


@dataclass(frozen=True)
class TableRule:
    """How the metrics of a pattern are printed."""

    digits: int = setting(4, "significant digits; thousands are separated", least=1)
    decimals: int | None = setting(None, "digits after the point, instead", least=0)
    best: Literal["highest", "lowest", "none"] = setting("none", "which of compared values is marked")

    def text(self, value: float | int | None) -> str:
        """Return a value as text; `-` for None and for one that is not finite."""
        if value is None or not math.isfinite(value):
            return "-"
        if self.decimals is not None:
            return f"{value:,.{self.decimals}f}"
        return number(value) if self.digits == TableRule.digits or abs(value) >= 1000 else f"{value:.{self.digits}g}"

    def is_best(self, value: float, values: Sequence[float]) -> bool:
        """Return whether a value is the best of several that differ."""
        finite = [one for one in values if math.isfinite(one)]
        if self.best == "none" or len(set(finite)) < 2:
            return False
        return value == (max(finite) if self.best == "highest" else min(finite))


def rule_for(metric: str) -> TableRule:
    """Return the rule of a metric: the first whose pattern it matches, the user's rules first."""
    file = os.environ.get(VARIABLE)
    try:
        users_rules = _rules(Path(file)) if file else {}
    except NotFoundError as problem:
        raise NotFoundError(f"{VARIABLE}: {problem}") from None
    rules = [*users_rules.items(), *_rules(SHIPPED).items()]
    return next((rule for pattern, rule in rules if fnmatchcase(metric, pattern)), TableRule())


@cache
def _rules(path: Path) -> Mapping[str, TableRule]:
    try:
        return {str(pattern): build(TableRule, rule, f"'{pattern}'") for pattern, rule in read_file(path).items()}
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
