"""The identity of a run: its config, phases and decisions, as each checkpoint records them, and how two differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadenza.base.json_text import dumps
from cadenza.config.convert import build, to_dict
from cadenza.config.migrate import migrate
from cadenza.config.schema import Phase, RunConfig
from cadenza.errors import ConfigError
from cadenza.records.decisions import ACCEPTED, BUDGETS, DECISIONS, DEVICES, LOSS, binding
from cadenza.records.validity import is_number

ABSENT = object()
UNSET = "(not set)"
CODE = f"decisions.{LOSS}."  # in decisions.json, but it changes with the code
FILES = {"config": "config.yaml", "decisions": "decisions.json"}
BUDGET = ("config.training.max_timesteps", "config.training.max_updates")
BY_COMMAND = (*BUDGET, "config.device")  # what `resume --max-timesteps --max-updates --device` replaces
LONGEST = 60  # characters of a value in a message


@dataclass(frozen=True)
class Change:
    """A value that differs from the one the checkpoint was saved with; `key` is its dotted key in the identity."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        part, _, key = self.key.partition(".")
        where = f"{FILES[part]}: {key}" if part in FILES else self.key
        texts = [value_text(value) for value in (self.before, self.now)]
        if self.key.startswith(CODE):
            where = f"the loss of group {self.key.removeprefix(CODE)}, as computed on a made-up batch"
            texts = ["(cannot be computed)" if text == "[]" else text for text in texts]
        return f"{where}: {' → '.join(texts)}"

    @property
    def pair(self) -> list[Any]:
        """The values before and now as JSON holds them; a text stands for a missing one."""
        return [UNSET if value is ABSENT else value for value in (self.before, self.now)]


def identity_of(config: RunConfig, phases: Sequence[Phase], decisions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what training depends on as plain data."""
    logs = {key: decisions[key] for key in (BUDGETS, DEVICES) if key in decisions}
    identity = {"config": to_dict(config), "phases": to_dict(phases), "decisions": binding(decisions) | logs}
    plain: dict[str, Any] = json.loads(dumps(identity))
    return plain


def is_identity(stored: Any) -> bool:
    """Return whether a checkpoint's manifest, which anybody may have written, holds an identity."""
    parts = {"config": dict, "phases": list, "decisions": dict}
    return (
        isinstance(stored, dict)
        and all(isinstance(stored.get(part), kind) for part, kind in parts.items())
        and all(DECISIONS[key].fits(stored["decisions"].get(key, [])) for key in (BUDGETS, DEVICES))
    )


def differences(stored: Mapping[str, Any], config: RunConfig, now: Mapping[str, Any], edited: bool) -> list[Change]:
    """Return how `now`, the identity of this process, differs from the `stored` one of a checkpoint.

    Budgets and devices that `resume` replaced and recorded are no differences, nor are decisions and settings (at
    their defaults) that the checkpoint's version of the program did not have. Where config.yaml was `edited`, its
    budget counts.
    """
    before = flat({**stored, "config": migrate(dict(stored["config"]))})
    after = flat(now)
    changes = [
        Change(key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in dict.fromkeys([*before, *after])
        if not are_equal(before.get(key, ABSENT), after.get(key, ABSENT))
    ]
    return [change for change in changes if not is_regular(change, stored, config, now, edited)]


def is_regular(
    change: Change, stored: Mapping[str, Any], config: RunConfig, now: Mapping[str, Any], edited: bool
) -> bool:
    """Return whether the program itself made the change, or an older version had no such setting."""
    part, _, key = change.key.partition(".")
    if change.key in BY_COMMAND:
        return not edited
    if part == "config":
        return change.before is ABSENT and is_default(config, key)
    if part == "decisions" and key in (BUDGETS, DEVICES):
        earlier = stored["decisions"].get(key, [])
        return bool(now["decisions"].get(key, [])[: len(earlier)] == earlier)
    if change.key.startswith(CODE):
        return change.before is ABSENT
    if part == "decisions" and key in ("device", "runtime.kernels"):
        return moved(stored["decisions"], now["decisions"])
    return part == "decisions" and not any(f"{key}.".startswith(f"{name}.") for name in stored["decisions"])


def moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a change to the present device was recorded since; it may have changed the kernels, too."""
    earlier, later = before.get(DEVICES, []), now.get(DEVICES, [])
    return len(later) > len(earlier) and bool(later[-1]["now"] == now["device"])


def is_default(config: RunConfig, key: str) -> bool:
    """Return whether the config is the same without this setting."""
    data = to_dict(config)
    *path, leaf = key.split(".")
    block = data
    for name in path:
        block = block.get(name) if isinstance(block, dict) else None
    if not isinstance(block, dict) or leaf not in block:
        return False
    del block[leaf]
    try:
        return build(RunConfig, data) == config
    except ConfigError:
        return False


def unaccepted(changes: Sequence[Change], decisions: Mapping[str, Any]) -> list[Change]:
    """Return the changes that `resume --accept-changes` has not accepted before."""
    accepted: dict[str, Any] = {}
    for entry in decisions.get(ACCEPTED, []):
        accepted |= {key: pair[1] for key, pair in entry["changes"].items()}
    return [change for change in changes if not are_equal(change.pair[1], accepted.get(change.key, ABSENT))]


def are_equal(before: Any, now: Any) -> bool:
    """Return whether two leaves of plain data are equal: 16 and 16.0 are, 1 and true are not."""
    if before is ABSENT or now is ABSENT:
        return before is now
    if is_number(before) and is_number(now):
        return bool(before == now)
    return dumps(before) == dumps(now)


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of plain data by dotted key. Lists of numbers and text, and the logs, are leaves."""
    return dict(_leaves(tree, path))


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    listed = isinstance(tree, list) and any(isinstance(item, dict) for item in tree)
    if listed and not path.endswith((BUDGETS, DEVICES)):
        tree = {str(index): item for index, item in enumerate(tree)}
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif not path.endswith(".reason"):  # words about a decision
        yield path, tree


def value_text(value: Any) -> str:
    """Return a value for a message of one line."""
    text = UNSET if value is ABSENT else dumps(value, ascii=True)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
