"""The commands and files of docs/recipes.md and AGENTS.md work, from top to bottom; links of pages lead to files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.page_snippets import run_page

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```.*?```", re.DOTALL)
LINK = re.compile(r"\]\(((?!https?:|#|mailto:)[^)#\s]+)")


def test_every_recipe_works(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    run_page(ROOT / "docs" / "recipes.md", tmp_path)


def test_tasks_of_maintenance_name_targets_and_files_that_exist() -> None:
    _, _, table = (ROOT / "docs" / "recipes.md").read_text().partition("## Maintenance")
    targets, files = re.findall(r"make ([\w-]+)", table), re.findall(r"\b(?:tests|benchmarks|docs)/[\w/.-]*\w", table)
    assert len(targets) + len(files) > 10
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_commands_for_agents_work(tmp_path: Path) -> None:
    run_page(ROOT / "AGENTS.md", tmp_path)


def test_links_between_pages_lead_to_files() -> None:
    pages = [page for folder in (".", "docs", "examples", "benchmarks") for page in (ROOT / folder).glob("*.md")]
    assert len(pages) > 30
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(CODE.sub("", page.read_text()))
        if not (page.parent / target).exists()
    ]
    assert missing == []
