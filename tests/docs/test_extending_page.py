"""Every snippet of docs/extending.md runs, in the order of the page."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from harness.page_snippets import command, script

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")


def test_every_snippet_works(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert {kind for kind, _ in blocks} == {"python", "console", "toml"}
    for kind, text in blocks:
        if kind == "toml":
            points = tomllib.loads(text)["project"]["entry-points"]
            assert {name.partition(":")[0] for group in points.values() for name in group.values()} <= {
                path.stem for path in tmp_path.glob("*.py")
            }
        elif kind == "console":
            for line in text.splitlines():
                assert line.startswith("$ cadenza "), line
                command(shlex.split(line)[2:], tmp_path)
        elif name := FILE.match(text):
            (tmp_path / name[1]).write_text(text)
        else:
            script(text, tmp_path)
