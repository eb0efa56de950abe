"""`cadenza train` runs few files and imports few modules, so that a run can be followed by reading these alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "path.py"
FILES, MODULES = 90, 97  # may only shrink


def test_training_runs_few_files_and_imports_few_modules() -> None:
    process = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    counts = json.loads(process.stdout)
    assert counts["files"] <= FILES, counts
    assert counts["modules"] <= MODULES, counts
