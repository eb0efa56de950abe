"""Values of a run's files that have the right kind: what is wrong is left out, or named as damage.

A run may come from a disk that failed or from a stranger. Readers rely on these checks instead of making their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.text import printable
from cadenza.errors import CheckpointError

REMEDY = "put it back from a copy of the run"
LONGEST_POINTER = 4096  # bytes of a file that names a run or a checkpoint
LARGEST = 2**63  # below it a number fits the index, an array and a checkpoint
DEEPEST, MOST = 32, 20_000  # levels and values of a config that is only shown: YAML can refer to itself
SECTIONS = ("algorithm", "environment", "training", "evaluation", "checkpoint", "logging", "runtime", "debug")

Check = Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Return whether the value is a finite number that fits 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST if isinstance(value, int) else math.isfinite(value)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def is_range(value: Any) -> bool:
    return list_of(is_number)(value) and len(value) == 2


def dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def record(**fields: Check) -> Check:
    """Return a check for a dict that has at least these keys, with sound values."""
    return lambda value: (
        isinstance(value, dict) and all(key in value and check(value[key]) for key, check in fields.items())
    )


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or is_number(value)


STATUS: dict[str, Check] = {
    **dict.fromkeys(("run", "dir", "host", "started", "updated", "message"), is_text),
    **dict.fromkeys(("pid", "env_steps", "updates", "episodes"), is_count),
    **dict.fromkeys(("eval/return_mean", "best_return", "return_threshold"), optional(is_number)),
    "seconds": lambda value: is_number(value) and 0 <= value < 1e12,
    "cleaned": optional(is_text),
    "reward_range": optional(is_range),
    "phase": record(name=optional(is_text), last=is_bool, unit=is_text, end=optional(is_count)),
}
MANIFEST: dict[str, Check] = {
    **dict.fromkeys(("spec", "environment", "algorithm", "created", "config_hash"), is_text),
    **dict.fromkeys(("command", "tags", "configs"), list_of(is_text)),
    **dict.fromkeys(("versions", "variables"), dict_of(optional(is_text))),
    "name": optional(is_text),
    "seed": is_count,
    "machine": dict_of(_is_scalar),
    "facts": record(
        **dict.fromkeys(("observation", "action"), optional(is_text)),
        **dict.fromkeys(("max_episode_steps", "threshold"), optional(is_number)),
        reward_range=optional(is_range),
    ),
    "git": lambda value: value is None or (isinstance(value, dict) and is_text(value.get("commit", ""))),
}
FACTS: dict[str, Check] = {  # of a run in an index, which others may have written
    **dict.fromkeys(("run", "dir", "spec"), is_text),
    **dict.fromkeys(("environment", "algorithm", "status", "created", "config_hash", "git", "name"), optional(is_text)),
    **dict.fromkeys(("unreadable", "cleaned"), optional(is_text)),
    **dict.fromkeys(("env_steps", "return", "seconds", "updates", "best_return"), optional(is_number)),
    **dict.fromkeys(("seed", "host"), _is_scalar),
    **dict.fromkeys(("tags", "auto_tags", "changes"), list_of(_is_scalar)),
}
SETTINGS: dict[str, Check] = {
    **dict.fromkeys(("environment.id", "algorithm.name"), is_text),
    **dict.fromkeys(("name", "experiment"), optional(is_text)),
    "tags": lambda value: _is_scalar(value) or list_of(_is_scalar)(value),  # one that somebody wrote as a text
    "seed": is_number,
    **dict.fromkeys(("training.max_timesteps", "training.max_updates"), optional(is_count)),
}


def damage(path: SafePath, reason: str) -> CheckpointError:
    """Return the error about a file of a run that is not as cadenza wrote it."""
    return CheckpointError(f"{path} is damaged ({reason}): {REMEDY}")


def lenient(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Read a file, or return nothing if it is damaged or missing: one damaged folder must not hide the others."""
    try:
        return read()
    except (CheckpointError, OSError):
        return {}


def status(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of status.json without unsound values; the next save writes them again."""
    return {key: value for key, value in content.items() if STATUS.get(key, _is_scalar)(value)}


def fault(content: Mapping[str, Any], checks: Mapping[str, Check]) -> str | None:
    """Return `key=value` of the first unsound value, printable and short, or None."""
    for key, check in checks.items():
        if key in content and not check(content[key]):
            return printable(f"{key}={str(content[key])[:40]!r}")
    return None


def row_fault(row: Any) -> str | None:
    """Return what is wrong with a row of metrics.jsonl, or None."""
    if not isinstance(row, dict):
        return "is not a row of metrics"
    for key in ("env_steps", "updates", "cycles"):
        if key in row and not is_count(row[key]):
            return printable(f"has {key}={str(row[key])[:40]!r}, which is no count")
    if "env_steps" not in row:
        return "is not a row of metrics"
    for key, value in row.items():
        if "/" in key and not _is_measured(key, value):
            return printable(f"has {key[:80]}={str(value)[:40]!r}, which is no number")
    return None


def _is_measured(key: str, value: Any) -> bool:
    if value is None or type(value) is float or type(value) is bool:  # NaN and infinities are gaps
        return True
    return abs(value) < LARGEST if type(value) is int else type(value) is str and key.startswith("digest/")


def alert(row: Any) -> dict[str, Any] | None:
    """Return a row of alerts.jsonl with everything that a reader shows, or None if it is no alert."""
    if not record(rule=is_text, what=is_text, env_steps=is_count)(row):
        return None
    defaults = {"explanation": "", "hint": "", "metric": "", "severity": "warn"}
    texts = {key: row[key] if is_text(row.get(key)) else default for key, default in defaults.items()}
    numbers = {key: row[key] if is_number(row[key]) else None for key in ("updates", "seconds", "value") if key in row}
    return {**row, **numbers, **texts}


def settings(content: Any) -> dict[str, Any]:
    """Return a config for showing: its sections are dicts of names, and what cannot be shown is left out."""
    tree = _tree(content, DEEPEST, [MOST])
    if not isinstance(tree, dict):
        return {}
    for section in SECTIONS:
        if not isinstance(tree.get(section, {}), dict):
            del tree[section]
    for key, check in SETTINGS.items():
        *parents, leaf = key.split(".")
        place = tree
        for parent in parents:
            place = place.get(parent, {})
        if leaf in place and not check(place[leaf]):
            del place[leaf]
    return tree


def _tree(value: Any, depth: int, room: list[int]) -> Any:
    """Return a copy of plain data, of at most `room` values; what is too deep, too much or of another kind is None."""
    room[0] -= 1
    if room[0] < 0 or depth < 0:
        return None
    if isinstance(value, dict):
        return {str(key): _tree(item, depth - 1, room) for key, item in value.items() if room[0] > 0}
    if isinstance(value, list | tuple):
        return [_tree(item, depth - 1, room) for item in value if room[0] > 0]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGEST:
        return float(value) if abs(value) < 10**300 else None
    return value if value is None or isinstance(value, str | bool | int | float) else None


def pointer(path: SafePath) -> str | None:
    """Return the name in a pointer file (`checkpoints/last`), or None where there is no such file."""
    try:
        return path.read_bytes(LONGEST_POINTER).decode(errors="replace").strip()
    except OSError:
        return None
