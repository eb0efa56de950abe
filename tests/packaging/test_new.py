"""`cadenza new` writes packages whose own tests pass."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from harness.command import cadenza
from harness.page_snippets import script

TEST = """
import pytest
assert pytest.main(["-q", "-p", "no:cacheprovider", "-c", "pyproject.toml"]) == 0
"""


@pytest.mark.parametrize("kind", ["algorithm", "env", "wrapper", "network", "buffer", "sink"])
def test_a_new_package_passes_its_own_test(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "somewhere"
    cadenza("new", kind, f"fresh-{kind}", "--out", folder).succeeded()
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    (named,) = (value for group in points.values() for value in group.values())
    assert named == f"fresh_{kind}.{kind}:Fresh{kind.capitalize()}"
    script(TEST, folder)


def test_a_new_package_of_all_kinds_passes_its_own_tests(tmp_path: Path) -> None:
    cadenza("new", "package", "fresh-lab", "--out", tmp_path / "lab").succeeded()
    points = tomllib.loads((tmp_path / "lab" / "pyproject.toml").read_text())["project"]["entry-points"]
    kinds = ("algorithms", "buffers", "environments", "networks", "sinks", "wrappers")
    assert sorted(points) == [f"cadenza.{kind}" for kind in kinds]
    script(TEST, tmp_path / "lab")


def test_invalid_names_and_targets_of_new_are_refused_in_one_line(tmp_path: Path) -> None:
    cadenza("new", "algoritm", "x").refused(2, "did you mean 'algorithm'?")
    cadenza("new", "env", "random").refused(2, "a module 'random' exists already")
    for kind, name, word in (
        ("algorithm", "droq", "droq"),
        ("env", "toy", "toy"),
        ("wrapper", "time-limit", "TimeLimit"),
    ):
        cadenza("new", kind, name).refused(2, f"'{word}' is one of the")
    for name in ("My", "1x", "class", "../x", "a b", "x-"):
        cadenza("new", "env", name).refused(2, "my-walker")
    (tmp_path / "there").mkdir()
    cadenza("new", "env", "fine", "--out", tmp_path / "there").refused(2, "exists")
