"""The result of a benchmark: printed, and stored with the machine and the versions of packages."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        **gpu(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def gpu() -> dict[str, str]:
    import torch

    return {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def seeds(text: str) -> list[int]:
    """Parse seeds: `3` is 0, 1, 2; `4,5,6` are these, and `4,` is a single one."""
    numbers = [int(seed) for seed in text.split(",") if seed] if "," in text else list(range(int(text)))
    if not numbers:
        raise argparse.ArgumentTypeError(f"{text}: no seed at all")
    return numbers


def result_file(text: str) -> Path:
    """Parse the path of a result file; refuse it before anything is measured if its folder does not exist."""
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {Path(text).parent}")
    return Path(text)


def versions(*packages: str) -> dict[str, str | None]:
    """Return the version of each package; None if it is not installed, so that no result of hours is lost."""
    result: dict[str, str | None] = {}
    for name in packages:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            result[name] = None
    return result


def keep(result: dict[str, Any], out: Path | None) -> None:
    """Print the result, and write it to `out` if there is one."""
    print(json.dumps(result, indent=1))
    write(result, out)


def write(result: dict[str, Any], out: Path | None) -> None:
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n")
