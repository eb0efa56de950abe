"""Every shipped experiment trains, resumes and plays."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.spec import experiments
from cadenza.errors import MissingExtraError
from cadenza.tools.smoke import try_experiment


@pytest.mark.parametrize("name", experiments())
def test_every_spec_works_in_a_smoke_run(name: str, tmp_path: Path) -> None:
    try:
        try_experiment(name, 100, tmp_path)
    except MissingExtraError as problem:
        pytest.skip(str(problem))
