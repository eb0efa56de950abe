"""The summary of a run for the index, read from its folder: facts to show, settings to search, a stamp."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.json_text import dumps
from cadenza.base.parsing import ParseError, json_object, yaml_blocks, yaml_data, yaml_settings
from cadenza.errors import CheckpointError
from cadenza.records import validity
from cadenza.records.folder import LONGEST_CONFIG, RunFolder
from cadenza.records.metric_rows import MetricRows
from cadenza.trees import leaves

Row = dict[str, Any]

COLUMNS = (
    "run", "dir", "spec", "environment", "algorithm", "seed", "status", "env_steps", "return", "seconds",
    "created", "name", "tags", "auto_tags", "changes", "config_hash", "git", "host",
)  # fmt: skip
STATUS_FACTS = ("best_return", "updates", "cleaned")  # facts from status.json, besides metrics
UNREADABLE = "unreadable"
SETTING = re.compile(r"[\w.]+=.*", re.DOTALL)
NO_SETTINGS: tuple[Row, str] = ({}, "{}")
COLUMN_SETTINGS = ("seed=", "name=", "tags=")  # settings that have a column of their own


def stamp(run: str) -> str:
    """Return a text that changes whenever status.json is replaced, even within one tick of the clock."""
    try:
        status = os.stat(f"{run}/status.json", follow_symlinks=False)
    except OSError:
        return "none"
    return f"{status.st_mtime_ns}-{status.st_ino}-{status.st_size}"


def version(stamped: str) -> int:
    """Return from a stamp when the run's status was last written, in nanoseconds; later summaries are newer."""
    at, _, _ = stamped.partition("-")
    return int(at) if at.isdigit() else 0


def describe(path: Path) -> tuple[Row, str, Row]:
    """Return COLUMNS with the metrics in status.json; other settings by dotted key, as JSON; the last other metrics."""
    from cadenza.config.schema import variant

    folder = RunFolder(path)
    reason = unreadable(folder)
    settings, searchable = _settings(folder) if reason is None else NO_SETTINGS
    status, manifest = validity.lenient(folder.read_status), validity.lenient(folder.read_manifest)
    if reason is None and not (settings and manifest):
        reason = damaged(folder)
    environment = _setting(settings, "environment", "id") or manifest.get("environment")
    algorithm = _setting(settings, "algorithm", "name") or manifest.get("algorithm")
    git, tags = manifest.get("git") or {}, settings.get("tags")
    row = {
        "run": folder.id,
        "dir": str(path.absolute()),
        "spec": f"{environment}:{variant(str(environment), str(algorithm), settings.get('experiment'))}",
        "environment": environment,
        "algorithm": algorithm,
        "seed": settings.get("seed"),
        "status": status.get("status"),
        "env_steps": status.get("env_steps"),
        "return": status.get("eval/return_mean"),
        "seconds": status.get("seconds"),
        "created": manifest.get("created"),
        "name": settings.get("name", ""),
        "tags": tags if isinstance(tags, list) else [tags] if tags else [],
        "auto_tags": automatic_tags(settings, bool(git.get("dirty"))),
        "changes": changes(manifest.get("command", [])),
        "config_hash": manifest.get("config_hash"),
        "git": git.get("commit"),
        "host": manifest.get("machine", {}).get("host"),
    }
    measured = {key: value for key, value in status.items() if "/" in key or key in STATUS_FACTS}
    row |= measured
    if reason is not None:
        row |= {"status": UNREADABLE, "unreadable": reason}
    others = {key: value for key, value in last_row(folder.metrics).items() if "/" in key and key not in row}
    return row, searchable, others


def _settings(folder: RunFolder) -> tuple[Row, str]:
    """Return the settings of a run, and as JSON those without a column, by dotted key.

    Seeds of one config share all work but that on the seed, and the values: do not change these.
    """
    try:
        content = folder.config.read_bytes(LONGEST_CONFIG)
    except OSError:
        return NO_SETTINGS
    blocks = yaml_blocks(content)
    seeds = [block for block in blocks if block.startswith(b"seed:")]
    if len(seeds) != 1:
        return _parsed(content)
    shared, seed = _parsed(b"".join(block for block in blocks if block is not seeds[0])), _parsed(seeds[0])
    if NO_SETTINGS in (shared, seed):  # the line is a part of another value
        return _parsed(content)
    return {**shared[0], **seed[0]}, shared[1]


@lru_cache(256)
def _parsed(content: bytes) -> tuple[Row, str]:
    try:
        settings = validity.settings(yaml_settings(content))
        return settings, dumps({key: value for key, value in leaves(settings) if key not in COLUMNS})
    except (ParseError, RecursionError, TypeError, ValueError):  # anything may be written there
        return NO_SETTINGS


def sound_facts(text: str) -> Row | None:
    """Return the facts in a row of an index, which anybody may have written; None where one cannot be."""
    try:
        facts = json_object(text)
    except ParseError:
        return None
    return None if validity.fault(facts, validity.FACTS) else facts


def unreadable(folder: RunFolder) -> str | None:
    """Return why a run cannot be opened, from the kind and size of its main files, or None."""
    try:
        with folder.files.inside() as opened:
            for file in (folder.config, folder.manifest, folder.status, folder.decisions, folder.metrics):
                try:
                    if opened.readable(file.name) > LONGEST_CONFIG and file.name != folder.metrics.name:
                        return f"{file.name} has more than {LONGEST_CONFIG:,} bytes"
                except FileNotFoundError:
                    continue
                except OSError as problem:
                    return f"{file.name}: {problem.strerror or problem}"
    except FileNotFoundError:
        return None
    except OSError as problem:
        return f"{folder.id}: {problem.strerror or problem}"
    return None


def damaged(folder: RunFolder) -> str | None:
    """Return why the config or the manifest cannot be used, or None where it is only missing."""
    try:
        if folder.config.exists():
            yaml_data(folder.config.read_bytes(LONGEST_CONFIG), unique=False, texts=True)
        if folder.manifest.exists():
            folder.read_manifest()
    except (ParseError, CheckpointError, OSError) as problem:
        return f"{folder.config.name}: {problem}" if isinstance(problem, ParseError) else str(problem)
    return None


def last_row(path: SafePath) -> Row:
    """Return the last whole row of metrics.jsonl, or {} where it cannot be read."""
    try:
        with MetricRows(path) as rows:
            return next(iter(rows.last(1)), {})
    except OSError:
        return {}


def automatic_tags(settings: Row, dirty: bool) -> list[str]:
    """Return tags that follow from the settings: family, algorithm, tuned or not, and how the run was started."""
    family, slash, _ = str(_setting(settings, "environment", "id") or "").partition("/")
    tags = {
        family: bool(slash),
        str(_setting(settings, "algorithm", "name")): True,
        "tuned" if settings.get("experiment") else "untuned": True,
        "debug": _setting(settings, "debug", "enabled") is True,
        "warm-start": _setting(settings, "training", "init_from") is not None,
        "dataset": _setting(settings, "training", "dataset") is not None,
        "local-changes": dirty,
    }
    return [tag for tag, applies in tags.items() if applies]


def changes(command: list[str]) -> list[str]:
    """Return the settings on the command line, which are shown for a run without a name."""
    return [text for text in command[2:] if SETTING.fullmatch(text) and not text.startswith(COLUMN_SETTINGS)]


def _setting(settings: Row, section: str, key: str) -> Any:
    return settings.get(section, {}).get(key)
