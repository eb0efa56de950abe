"""Every snippet of docs/extending.md runs, in the order of the page."""

from __future__ import annotations

import tomllib
from pathlib import Path

from harness.page_snippets import run_page, script, snippets

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


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
parts = ["torso.encoder=fourier", "optimizer.name=lion", "learning_rate=cosine", "advantage=two_steps"]
load("CartPole-v1:ppo", [f"algorithm.{part}" for part in parts])
load("Pendulum-v1:tdmpc2", ["algorithm.dynamics=residual"])
assert run(["rank", "--count", "1"]) == 0
assert run(["--help"]) == 0
"""


def test_every_snippet_works(tmp_path: Path) -> None:
    blocks = list(snippets(PAGE))
    assert {kind for kind, _ in blocks} == {"python", "console", "toml", "yaml"}
    run_page(PAGE, tmp_path)
    (points,) = [tomllib.loads(text)["project"]["entry-points"] for kind, text in blocks if kind == "toml"]
    install(points, tmp_path)
