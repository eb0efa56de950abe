"""Every module has a docstring, and the pages name only files that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cadenza"
TREES = ("src", "tests", "docs", "benchmarks", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *(path for tree in TREES for path in (ROOT / tree).glob("*.md"))])
PLACEHOLDER = re.compile(r"/(x(_config)?\.py|PACKAGE)$")


def test_every_module_has_a_docstring() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        assert not tree.body or ast.get_docstring(tree), f"{path} does not say what it is for"


@pytest.fixture(scope="module")
def paths() -> set[str]:
    """The paths of all files and folders of the repository's own trees, each after a slash."""
    return {f"/{path.relative_to(ROOT).as_posix()}" for tree in TREES for path in (ROOT / tree).rglob("*")}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_page_names_only_files_that_exist(page: Path, paths: set[str]) -> None:
    text = page.read_text()
    names = {*re.findall(r"`([\w/.-]+\.(?:py|js))`", text)}
    names |= {*re.findall(rf"(?<![\w./-])(?:{'|'.join(TREES)})/[\w/.-]*\w", text)}
    ours = {name for name in names if not PLACEHOLDER.search(name)}
    assert sorted(name for name in ours if not any(path.endswith(f"/{name}") for path in paths)) == []
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_contributing_names_the_files_that_the_architecture_page_names() -> None:
    """Both have a table of which file to change for what."""
    guide = (ROOT / "CONTRIBUTING.md").read_text().split("## What to write")[1].split("\n## ")[0]
    page = (ROOT / "docs" / "architecture.md").read_text().split("## Where things go")[1].split("\n## ")[0]
    files = r"`([\w/]+\.(?:py|yaml))`"
    ours = {name for name in re.findall(files, guide) if not name.startswith("tests/")}
    assert sorted(ours - set(re.findall(files, page))) == ["cli/show.py"]  # the example of a command
