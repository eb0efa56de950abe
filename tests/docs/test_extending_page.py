"""Every snippet of docs/extending.md runs, in the order of the page."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from harness.page_snippets import command, script

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")


def install(points: dict[str, dict[str, str]], folder: Path) -> None:
    """Declare the entry points of a package whose modules lie in the folder, and try each one."""
    (folder / "page-1.0.dist-info").mkdir()
    (folder / "page-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: page\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{name} = {path}\n" for name, path in points[group].items()) for group in points]
    (folder / "page-1.0.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    script(TRY_ENTRY_POINTS, folder)


TRY_ENTRY_POINTS = """
from importlib.metadata import distribution

from cadenza.cli.main import run
from cadenza.config.load import load

for entry in distribution("page").entry_points:
    entry.load()
load("mine/walk:climb", ["environment.wrappers=[Hurry]", "logging.sinks=[table]", "training.buffers.rollout=clipped"])
parts = ["torso.encoder=fourier", "optimizer.name=lion", "learning_rate=cosine"]
load("CartPole-v1:ppo", [f"algorithm.{part}" for part in parts])
assert run(["rank", "--count", "1"]) == 0
assert run(["--help"]) == 0
"""


def test_every_snippet_works(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert {kind for kind, _ in blocks} == {"python", "console", "toml", "yaml"}
    for kind, text in blocks:
        if kind == "toml":
            points = tomllib.loads(text)["project"]["entry-points"]
            install(points, tmp_path)
        elif kind == "console":
            for line in text.splitlines():
                assert line.startswith("$ cadenza "), line
                command(shlex.split(line)[2:], tmp_path)
        elif name := FILE.match(text):
            (tmp_path / name[1]).write_text(text)
        else:
            script(text, tmp_path)
