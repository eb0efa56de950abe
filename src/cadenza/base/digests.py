"""A digest inside a JSON object, of everything else in it: a changed bit is noticed when the file is read."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from cadenza.base.json_text import canonical

KEY = "digest"


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its digest as the last key."""
    rest = without_digest(content)
    return {**rest, KEY: digest_of(rest)}


def without_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != KEY}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Return whether the object matches its digest. One without a digest is of an older version, and passes."""
    return KEY not in content or content[KEY] == digest_of(without_digest(content))


def digest_of(content: Mapping[str, Any]) -> str:
    return sha256(canonical(content).encode()).hexdigest()
