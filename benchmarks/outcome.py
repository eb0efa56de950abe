"""What every benchmark leaves behind: its result with the machine and the versions it was had on, shown and kept."""

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
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def gpu() -> dict[str, str]:
    import torch

    return {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def seeds(told: str) -> list[int]:
    """`3`: so many, from 0 on; `4,5,6`: these, and `4,` this one alone."""
    found = [int(seed) for seed in told.split(",") if seed] if "," in told else list(range(int(told)))
    if not found:
        raise argparse.ArgumentTypeError(f"{told}: no seed at all")
    return found


def result_file(told: str) -> Path:
    """Where a result shall be written; asked before anything is measured."""
    if not Path(told).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{told}: there is no folder {Path(told).parent}")
    return Path(told)


def versions(*packages: str) -> dict[str, str | None]:
    """Of each package; None where it is not installed, for a result of hours must not be lost to that."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def keep(result: dict[str, Any], out: Path | None) -> None:
    """Print the result, and write it where it was asked for."""
    print(json.dumps(result, indent=1))
    write(result, out)


def write(result: dict[str, Any], out: Path | None) -> None:
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n")
