"""The comparison of runs as `cadenza compare` computes it, from a sample of the rows of long runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cadenza.errors import ConfigError
from cadenza.lab.compare import AXES, RETURN, compare_members
from cadenza.lab.comparison_page import content
from cadenza.lab.series import Member
from cadenza.records import metrics
from cadenza.records.folder import RunFolder
from cadenza.records.metric_rows import MetricRows, Row

WHOLE = 16 << 20  # bytes: larger files of metrics are sampled


def comparison(folders: Sequence[RunFolder], names: Sequence[str], axis: str) -> dict[str, Any]:
    """Return the content of the page for runs and metrics; `known` lists every metric that a run has."""
    if axis not in AXES:
        raise ConfigError(f"axis '{axis}': unknown (there are: {', '.join(AXES)})")
    members = [_member(folder, [*names, RETURN]) for folder in folders]
    available = sorted({name for member in members for name in metrics.numeric(member.rows) if "/" in name})
    return content(compare_members(members, names), axis) | {"known": available}


def _member(folder: RunFolder, names: Sequence[str]) -> Member:
    """Read a run; of a large file a sample of the rows, and enough rows with each of the metrics."""
    if not folder.metrics.exists() or folder.metrics.stat().st_size <= WHOLE:
        return Member.read(folder)
    with MetricRows(folder.metrics) as reader:
        span = reader.part()
        sample: dict[Any, Row] = {}
        for rows in [reader.sampled(span), *(reader.having(name, span) for name in dict.fromkeys(names))]:
            sample |= {(row.get("env_steps") or 0, row.get("updates") or 0): row for row in rows}
    return replace(Member.read(folder, rows=False), rows=[sample[at] for at in sorted(sample)])
