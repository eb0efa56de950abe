"""One module opens all files of a run, relative to the run's folder, so that links placed later are not followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cadenza

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def openings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run all commands on a run in a process; return the code that named files of the run by absolute paths."""
    place = tmp_path_factory.mktemp("life")
    paths = os.pathsep.join((str(Path(cadenza.__file__).parents[1]), str(TESTS)))
    variables = {**os.environ, "PYTHONPATH": paths, "XDG_STATE_HOME": str(place / "state"), "SDL_VIDEODRIVER": "dummy"}
    command = [sys.executable, "-m", "harness.file_openings", str(place)]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]
    result: dict[str, Any] = json.loads(process.stdout)
    return result


@pytest.mark.parametrize("kind", ["open", "change"])
def test_files_of_a_run_are_named_by_one_module_only(kind: str, openings: dict[str, Any]) -> None:
    offenders = [f"{place}: {', '.join(names[:3])}" for place, names in openings[kind].items()]
    assert not offenders, f"{len(offenders)} places {kind} a run's files by absolute path:\n" + "\n".join(offenders)
