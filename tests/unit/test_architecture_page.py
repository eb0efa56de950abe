"""Every module has a docstring, and the architecture page names only files that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cadenza"


def test_every_module_has_a_docstring() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        assert not tree.body or ast.get_docstring(tree), f"{path} does not say what it is for"


def test_the_page_names_only_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    names = {name for name in re.findall(r"`([\w/]+\.py)`", page) if not re.search(r"/x(_config)?\.py$", name)}
    paths = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    missing = {name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in paths)}
    assert not missing, f"docs/architecture.md names files that do not exist: {sorted(missing)}"
