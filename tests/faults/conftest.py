from __future__ import annotations

import pytest

from cadenza.records.folder import RunFolder
from harness.command import TOY, last, train


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A small run that nothing disturbed. Copy it before you touch it."""
    root = tmp_path_factory.mktemp("whole") / "runs"
    train(root, *TOY).succeeded()
    return last(root)
