"""Every experiment that ships trains, resumes and plays."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.spec import experiments
from cadenza.errors import MissingExtraError
from cadenza.tools.smoke import try_experiment


@pytest.mark.parametrize("name", experiments())
def test_works_in_small(name: str, tmp_path: Path) -> None:
    try:
        try_experiment(name, 100, tmp_path)
    except MissingExtraError as problem:
        pytest.skip(str(problem))
