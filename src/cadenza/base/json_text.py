"""JSON as this project writes it: NaN and infinities are null, floats keep every digit, arrays are lists."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.text import printable

DIGEST = "digest"  # the key of a JSON object's digest of everything else in it


def plain(value: Any) -> Any:
    """The same value made of what JSON knows; arrays and tensors are read through `tolist`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, PurePath | SafePath):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def dumps(value: Any, indent: int | None = None, ascii: bool = False) -> str:
    """One line (or indented) JSON in the given key order; `ascii` escapes all other letters."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=ascii)


def shown(value: Any, ascii: bool = False) -> str:
    """Return one line of JSON for a terminal: what it would obey (C1, bidi overrides) is JSON's own escape."""
    text = dumps(value, ascii=ascii)
    return text if printable(text) == text else dumps(value, ascii=True)


def canonical(value: Any) -> str:
    """The one spelling that digests are taken of."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def is_text(name: str) -> bool:
    """Not so for a file's name, or an argument, of bytes that are no UTF-8: it cannot be stored or sent."""
    return name.encode(errors="ignore").decode() == name


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its digest as the last key."""
    rest = without_digest(content)
    return {**rest, DIGEST: digest_of(rest)}


def without_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != DIGEST}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Return whether the object matches its digest. One without a digest is of an older version, and passes."""
    return DIGEST not in content or content[DIGEST] == digest_of(without_digest(content))


def digest_of(content: Mapping[str, Any]) -> str:
    return sha256(canonical(content).encode()).hexdigest()
