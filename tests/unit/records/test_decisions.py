"""decisions.json and manifest.json: what they may hold, and that a changed bit is noticed."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from cadenza.base.files import SafePath
from cadenza.base.json_text import is_intact, with_digest
from cadenza.errors import CheckpointError
from cadenza.records.decisions import DECISIONS, binding, checked
from cadenza.records.folder import RunFolder

GOOD: dict[str, Any] = {
    "device": "cuda:1",
    "runtime.threads": 2,
    "runtime.kernels": "numpy",
    "runtime.kernels.reason": "the loss was edited",
    "runtime.loss": {"agent": [0.5, 2, None]},
    "runtime.compile": False,
    "runtime.tf32": True,
    "runtime.blas": "SkylakeX",
    "environment.vectorize": {"value": "native", "reason": "fastest"},
    "environment.workers": 3,
    "evaluation": {"environment.vectorize": {"value": "workers", "reason": ""}, "environment.workers": 1},
    "training.unit": "updates",
    "training.horizon": 1000,
    "training.collect": {"steps": 128, "episodes": None},
    "training.init_from": "step-000000000128-000000000004",
    "training.dataset": {"digest": "ab", "transitions": 10, "episodes": 0},
    "training.budgets": [{"max_timesteps": 5, "max_updates": None, "from_cycle": 0, "concluded": False}],
    "device.changes": [{"before": "cpu", "now": "cuda:1", "from_cycle": 2}],
    "runtime.blas_changes": [{"before": "Haswell", "now": "", "from_cycle": 2}],
    "accepted": [{"when": "now", "env_steps": 4, "from_cycle": 2, "changes": {"config.seed": [1, 2]}}],
    "debugger": {"value": "pdb", "reason": ""},
}
BAD: list[tuple[str, Any, str]] = [
    ("device", "cqu98:", "a device such as cpu"),
    ("runtime.threads", 0, "a whole number from 1"),
    ("runtime.threads", True, "a whole number from 1"),
    ("runtime.kernels", "nump9", "numpy or torch"),
    ("runtime.compile", 1, "true or false"),
    ("runtime.loss", {"agent": ["0.5"]}, "lists of numbers"),
    ("runtime.loss", [0.5], "lists of numbers"),
    ("environment.vectorize", "native", "an object of value, reason"),
    ("environment.vectorize", {"value": "natve", "reason": ""}, "an object of value, reason"),
    ("evaluation", {"environment.worker": 1}, "environment.vectorize, environment.workers"),
    ("training.unit", "env_stepr", "env_steps or updates"),
    ("training.horizon", 10.0, "a whole number from 1"),
    ("training.init_from", "last", "the name of a checkpoint"),
    ("training.budgets", [{"max_timesteps": 5}], "max_timesteps, max_updates, from_cycle, concluded"),
    ("accepted", {}, "a list"),
]


def test_every_decision_has_an_allowed_value() -> None:
    assert GOOD.keys() == DECISIONS.keys()
    assert checked(with_digest(GOOD), SafePath(Path("decisions.json"))) == GOOD
    assert checked(GOOD, SafePath(Path("decisions.json"))) == GOOD  # of a run from before there were digests


@pytest.mark.parametrize(("key", "value", "allowed"), BAD)
def test_impossible_value_is_refused_with_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(CheckpointError, match=rf"{key}=.*{allowed}"):
        checked(GOOD | {key: value}, SafePath(Path("decisions.json")), changed=True)


def test_unknown_decision_is_refused_with_nearest_name() -> None:
    with pytest.raises(CheckpointError, match=r"'runtime.kernals'; did you mean 'runtime.kernels'\?"):
        checked(GOOD | {"runtime.kernals": "torch"}, SafePath(Path("decisions.json")))


def test_changed_value_is_refused_unless_changes_are_accepted() -> None:
    changed = with_digest(GOOD) | {"runtime.threads": 3}
    assert not is_intact(changed)
    with pytest.raises(CheckpointError, match=r"does not match its digest.*--accept-changes"):
        checked(changed, SafePath(Path("decisions.json")))
    assert checked(changed, SafePath(Path("decisions.json")), changed=True)["runtime.threads"] == 3


@pytest.mark.parametrize("name", ["decisions.json", "manifest.json"])
def test_1000_bit_flips_are_noticed_or_change_nothing(name: str, make_run: Any) -> None:
    folder: RunFolder = make_run()
    folder.write_decisions(GOOD)
    path, rng = folder.path / name, random.Random(0)
    read = folder.read_decisions if name == "decisions.json" else folder.read_manifest
    whole, before = path.read_bytes(), read()
    for _ in range(1000):
        content, bit = bytearray(whole), rng.randrange(8 * len(whole))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with contextlib.suppress(CheckpointError):
            assert read() == before or "digest" not in json.loads(content), content  # no digest: of an older version


def test_words_and_logs_do_not_bind() -> None:
    logs = {"training.budgets", "device.changes", "runtime.blas_changes", "accepted"}
    assert GOOD.keys() - binding(GOOD).keys() == {*logs, "runtime.kernels.reason", "debugger"}
