"""The page that says where things are names every file, in the file's own words."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_file_is_on_the_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for path in sorted((ROOT / "src" / "cadenza").rglob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text()))
        if path.name != "__init__.py" or doc:
            assert doc, f"{path} does not say what it is for"
            assert f"- `{path.name}`: {doc.splitlines()[0]}" in page, f"docs/architecture.md lacks {path.name}"
