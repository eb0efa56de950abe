"""Every decision that decisions.json may hold, with the values it may have. Unknown ones are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.json_text import is_intact, without_digest
from cadenza.errors import CheckpointError, nearest
from cadenza.records.validity import REMEDY, damage, dict_of, is_bool, is_number, is_text, list_of, optional, record

DEVICE = re.compile(r"[a-z]+(:\d+)?")
CHECKPOINT = re.compile(r"step-\d{12,}-\d{12,}")  # as records/checkpoint.py names them
VECTORIZATIONS = ("in_process", "native", "workers", "envpool", "gymnasium")
LONGEST = 40  # characters of a refused value that a message shows


@dataclass(frozen=True)
class Decision:
    """The values of one key: `allowed` says in words what `fits` accepts."""

    allowed: str
    fits: Callable[[Any], bool]
    binds: bool = True  # training depends on it, and nothing but `resume --accept-changes` may change it


def _is_positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_device(value: Any) -> bool:
    return is_text(value) and DEVICE.fullmatch(value) is not None


def _is_checkpoint(value: Any) -> bool:
    return is_text(value) and CHECKPOINT.fullmatch(value) is not None


def _are_changes(value: Any) -> bool:
    """Return whether this is a dict of dotted keys to pairs, the value before and the value now."""
    return isinstance(value, dict) and all(isinstance(pair, list) and len(pair) == 2 for pair in value.values())


def _is_evaluation(value: Any) -> bool:
    """Return whether these are decisions about the environments of evaluations."""
    return isinstance(value, dict) and all(key in ENVIRONMENT and ENVIRONMENT[key].fits(value[key]) for key in value)


def _choice(*words: str) -> Decision:
    return Decision(" or ".join(words), lambda value: is_text(value) and value in words)


def _object(**kinds: Callable[[Any], bool]) -> Decision:
    """Return the decision for an object of exactly these keys, each with a value of its kind."""
    sound = record(**kinds)
    return Decision(f"an object of {', '.join(kinds)}", lambda value: sound(value) and value.keys() == kinds.keys())


def _log(**kinds: Callable[[Any], bool]) -> Decision:
    """Return the decision for a log, a list of such objects that only grows; a log has rules of its own on resume."""
    entry = _object(**kinds)
    return Decision(f"a list, each entry {entry.allowed}", list_of(entry.fits), binds=False)


BUDGETS, DEVICES, ACCEPTED = "training.budgets", "device.changes", "accepted"
BLAS, BLAS_CHANGES = "runtime.blas", "runtime.blas_changes"  # the kernels of NumPy's linear algebra
COLLECT = "training.collect"  # the amount of each `collect` that names none
KERNELS, KERNELS_REASON = "runtime.kernels", "runtime.kernels.reason"  # the latter if hand-written ones do not fit
LOSS = "runtime.loss"  # by group, figures and sums of the gradient on a made-up batch
COUNT = Decision("a whole number from 1", _is_positive)
FLAG = Decision("true or false", is_bool)
ENVIRONMENT = {
    "environment.vectorize": _object(value=_choice(*VECTORIZATIONS).fits, reason=is_text),
    "environment.workers": COUNT,
}
DECISIONS: dict[str, Decision] = {
    "device": Decision("a device such as cpu or cuda:0", _is_device),
    "runtime.threads": COUNT,
    KERNELS: _choice("numpy", "torch"),
    KERNELS_REASON: Decision("a text", is_text, binds=False),
    LOSS: Decision("an object of lists of numbers", dict_of(list_of(optional(is_number)))),
    BLAS: Decision("the name of kernels, such as Haswell", is_text),
    "runtime.compile": FLAG,
    "runtime.tf32": FLAG,
    **ENVIRONMENT,
    "evaluation": Decision(f"an object of {', '.join(ENVIRONMENT)}", _is_evaluation),
    "training.unit": _choice("env_steps", "updates"),
    "training.horizon": COUNT,
    COLLECT: _object(steps=optional(_is_count), episodes=optional(_is_count)),
    "training.init_from": Decision("the name of a checkpoint", _is_checkpoint),
    "training.dataset": _object(digest=is_text, transitions=_is_count, episodes=_is_count),
    BUDGETS: _log(
        max_timesteps=optional(_is_count), max_updates=optional(_is_count), from_cycle=_is_count, concluded=is_bool
    ),
    DEVICES: _log(before=_is_device, now=_is_device, from_cycle=_is_count),
    BLAS_CHANGES: _log(before=is_text, now=is_text, from_cycle=_is_count),
    ACCEPTED: _log(when=is_text, env_steps=_is_count, from_cycle=_is_count, changes=_are_changes),
    "debugger": replace(_object(value=is_text, reason=is_text), binds=False),
}


def checked(content: Mapping[str, Any], path: SafePath, changed: bool = False) -> dict[str, Any]:
    """Return the decisions in a file's content without its digest.

    Refuse unknown keys, values that a decision cannot have, and a wrong digest unless the file may be `changed`.
    """
    decisions = without_digest(content)
    for key, value in decisions.items():
        if key not in DECISIONS:
            raise CheckpointError(f"{path}: unknown decision '{_short(key)}'{nearest(key, DECISIONS)} ({REMEDY})")
        if not DECISIONS[key].fits(value):
            raise damage(path, f"{key}={_short(value)!r}, must be {DECISIONS[key].allowed}")
    if not changed and not is_intact(content):
        remedy = f"{REMEDY}; for changes made on purpose, `cadenza resume RUN --accept-changes`"
        raise CheckpointError(f"{path} was changed (it does not match its digest): {remedy}")
    return decisions


def binding(decisions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decisions that training depends on."""
    return {key: value for key, value in decisions.items() if DECISIONS[key].binds}


def _short(value: Any) -> str:
    text = str(value)
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
