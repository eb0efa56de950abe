"""Every script and notebook of examples/ runs, with small budgets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.page_snippets import program, script

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "first_hour.ipynb"
SCRIPTS: dict[str, tuple[tuple[object, ...], str]] = {  # by name, its arguments and a part of what it prints
    "train_agent.py": ((2048,), "resumed to 4,096 env_steps"),
    "own_environment.py": ((2048,), "degrees from the target"),
    "own_algorithm.py": ((6400,), "the same when repeated: True"),
    "compare_seeds.py": ((1024,), "gamma=0.5:"),
    "load_policy.py": ((), "episode 2: return"),
    "sweep.py": ((1024,), "best: trial"),
    "team.py": ((1024,), "one battle: sum of rewards"),
    "metrics_to_pandas.py": ((1024,), "0.50"),
}


def test_all_examples_are_tried_and_listed() -> None:
    scripts = {file.name for file in EXAMPLES.glob("*.py")}
    assert scripts == set(SCRIPTS)
    page = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}]({name})" in page for name in (*scripts, NOTEBOOK.name))


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    if name == "metrics_to_pandas.py":
        pytest.importorskip("seaborn")
    arguments, expected = SCRIPTS[name]
    assert expected in program(EXAMPLES / name, tmp_path, *arguments)


def cells() -> list[dict[str, Any]]:
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_holds_no_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells())


def test_the_cells_of_the_notebook_run_as_a_program(tmp_path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in cells())
    if "pandas" in code:
        pytest.importorskip("pandas")
    script(code, tmp_path)


def test_the_notebook_runs_and_shows_a_bar_and_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for package in ("ipykernel", "pandas"):
        pytest.importorskip(package)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pages = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    assert any("env_steps" in page and "100%" in page for page in pages)  # the bar of cadenza.train
    assert any("<svg" in page for page in pages)  # the card of a run
