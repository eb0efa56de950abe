"""A command."""

from __future__ import annotations

from pathlib import Path

import cadenza


def count_runs(runs_dir: Path | None = None) -> None:
    """Print the number of runs."""
    print(len(cadenza.runs(runs_dir)))
