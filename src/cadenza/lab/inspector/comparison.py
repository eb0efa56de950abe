"""Runs beside each other for the page, as `cadenza compare` has them; of long runs as many rows as a picture shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cadenza.base.files import SafePath
from cadenza.errors import ConfigError
from cadenza.lab.compare import AXES, RETURN, compare_members
from cadenza.lab.comparison_page import content
from cadenza.lab.series import Member
from cadenza.records import metrics
from cadenza.records.folder import RunFolder
from cadenza.records.metric_rows import Row, Rows

BIG = 16 << 20  # bytes of metrics that are read whole


def comparison(folders: Sequence[RunFolder], wanted: Sequence[str], axis: str) -> dict[str, Any]:
    if axis not in AXES:
        raise ConfigError(f"axis '{axis}': there are {', '.join(AXES)}")
    members = [_member(folder, [*wanted, RETURN]) for folder in folders]
    result = compare_members(members, wanted)
    known = sorted({name for member in members for name in metrics.numeric(member.rows) if "/" in name})
    return content(result, axis) | {"known": known}


def _member(folder: RunFolder, wanted: Sequence[str]) -> Member:
    if _size(folder.metrics) <= BIG:
        return Member.read(folder)
    with Rows(folder.metrics) as reader:
        stretch = reader.part()
        found: dict[Any, Row] = {}
        for rows in [reader.sampled(stretch), *(reader.having(name, stretch) for name in dict.fromkeys(wanted))]:
            found |= {(row.get("env_steps") or 0, row.get("updates") or 0): row for row in rows}
    return replace(Member.read(folder, rows=False), rows=[found[at] for at in sorted(found)])


def _size(path: SafePath) -> int:
    return path.stat().st_size if path.exists() else 0
