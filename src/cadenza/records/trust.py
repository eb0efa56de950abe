"""Configs that name code. One's own are honoured; a stranger's only when told to.

A run made here whose environment is an import path carries a signature made with a key in the user's own state folder,
so that it can be resumed without further ado, while the same config in a downloaded run is refused.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any

from cadenza.config.convert import to_dict
from cadenza.config.schema import RunConfig
from cadenza.errors import ConfigError
from cadenza.records.atomic import temporary_beside
from cadenza.records.json_text import canonical

KEY_BYTES = 32


def names_code(config: RunConfig) -> bool:
    return ":" in config.environment.id


def signature(config: RunConfig) -> str | None:
    """What this user's key makes of the part that names code; None where nothing does."""
    if not names_code(config):
        return None
    return hmac.new(_key(), canonical(to_dict(config)["environment"]).encode(), "sha256").hexdigest()


def require_trust(config: RunConfig, manifest: dict[str, Any], where: Path) -> None:
    if names_code(config) and not hmac.compare_digest(str(manifest.get("signature")), signature(config) or ""):
        raise ConfigError(
            f"{where} would import '{config.environment.id}' and was not made here: add --trust if you trust its author"
        )


def _key() -> bytes:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "cadenza" / "key"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = temporary_beside(path)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(draft, path)
        draft.unlink()
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} is damaged: remove it (runs that name code then need --trust)")
    return key
