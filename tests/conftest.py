from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.config import registry
from cadenza.records.folder import RunFolder
from harness.command import TOY, last, train
from harness.lab import Lab
from harness.skips import skip_lines


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A small run that nothing disturbed. Copy it before you touch it."""
    root = tmp_path_factory.mktemp("whole") / "runs"
    train(root, *TOY).succeeded()
    return last(root)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Whatever the test registers is unknown again after it."""
    tables: list[dict[str, Any]] = [registry.ALGORITHMS, registry.FAMILIES, registry.ENVIRONMENTS, registry.WRAPPERS]
    before = [dict(table) for table in tables]
    registry.entries.cache_clear()
    yield
    registry.entries.cache_clear()
    for table, names in zip(tables, before, strict=True):
        table.clear()
        table.update(names)


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and the like go to a folder of the tests' own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped, by reason."""
    for line in skip_lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)
