"""JSON as cadenza writes it: NaN and infinities are null, floats keep every digit, arrays are lists."""

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
    """Return a value as plain JSON data; arrays and tensors become lists."""
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
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def dumps(value: Any, indent: int | None = None, ascii: bool = False) -> str:
    """Return JSON on one line (or indented) with the keys in order; `ascii` escapes all other characters."""
    try:  # most values are plain already, which the encoder notices faster than `plain`
        return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=ascii)
    except (TypeError, ValueError):
        return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=ascii)


def terminal_line(value: Any, ascii: bool = False) -> str:
    """Return one line of JSON for a terminal, with control characters (C1, bidi overrides) escaped."""
    text = dumps(value, ascii=ascii)
    return text if printable(text) == text else dumps(value, ascii=True)


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value, which digests are computed from."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def is_text(name: str) -> bool:
    """Return whether a file name or argument is valid UTF-8; others cannot be stored or sent."""
    return name.encode(errors="ignore").decode() == name


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its digest as the last key."""
    rest = without_digest(content)
    return {**rest, DIGEST: digest_of(rest)}


def without_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object without its digest."""
    return {key: value for key, value in content.items() if key != DIGEST}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Return whether the object matches its digest. An object of an older version has none, and passes."""
    return DIGEST not in content or content[DIGEST] == digest_of(without_digest(content))


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of an object."""
    return sha256(canonical(content).encode()).hexdigest()
