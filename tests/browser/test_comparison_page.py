"""The page of a comparison in a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cadenza.config.load import load
from cadenza.lab.compare import compare
from cadenza.lab.comparison_page import write_page
from cadenza.lab.series import select_runs
from cadenza.records.folder import create
from cadenza.records.metrics import MetricsFile
from harness.browser import Browser, program

pytestmark = pytest.mark.skipif(program() is None, reason="there is no Chromium here")

DOTS = "[...document.querySelectorAll('figure > svg > path')]"


def test_curves_of_one_point_at_the_edge_are_whole_and_differ(tmp_path: Path) -> None:
    for number in range(10):
        folder = create(tmp_path / "runs", load("CartPole-v1:ppo", [f"algorithm.gamma=0.9{number}"]), ["test"])
        folder.update_status(status="finished")
        file = MetricsFile(folder.metrics)
        row: dict[str, Any] = {"env_steps": 300, "updates": 1, "time/seconds": 1.0}
        file.append(row | {"eval/return_mean": float(number)})
        file.close()
    write_page(compare(select_runs(tmp_path / "runs", ["CartPole*"])), tmp_path / "page.html", "env_steps")
    browser = Browser(tmp_path / "chromium")
    try:
        browser.open((tmp_path / "page.html").as_uri())
        browser.until(f"{DOTS}.length === 10")  # outside the part that is cut off at the axes
        looks = f"new Set({DOTS}.map((dot) => dot.getAttribute('d') + dot.getAttribute('fill'))).size"
        assert browser.run(looks) == 10
        assert browser.run("document.querySelectorAll('.legend path').length") == 10
    finally:
        browser.close()
