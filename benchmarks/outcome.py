"""What every benchmark leaves behind: its result with the machine and the versions it was had on, shown and kept."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, str]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def versions(*packages: str) -> dict[str, str]:
    return {name: version(name) for name in packages}


def keep(result: dict[str, Any], out: Path | None) -> None:
    """Print the result, and write it where it was asked for."""
    text = json.dumps(result, indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")
