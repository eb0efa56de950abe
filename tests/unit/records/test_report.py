from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cadenza.records.folder import RunFolder
from cadenza.records.metrics import MetricsFile
from cadenza.records.report import write_html, write_report

PIXEL = bytes.fromhex("47494638396101000100800000ffffff00000021f90401000000002c00000000010001000002024401003b")


@pytest.fixture
def folder(make_run) -> RunFolder:
    folder = make_run(
        "CartPole-v1", seed=3, status="finished", env_steps=4000, updates=80, seconds=8.0, **{"eval/return_mean": 90.0}
    )
    file = MetricsFile(folder.metrics)
    for step, mean in ((1000, 20.0), (2000, 150.0), (3000, None), (4000, 90.0)):
        row = {"env_steps": step, "updates": step // 50, "collect/return_mean": step / 50}
        if mean is not None:
            row |= {
                "eval/return_mean": mean,
                "eval/return_std": 5.0,
                "eval/return_min": mean - 9,
                "eval/return_max": mean + 9,
            }
        file.append(row)
    folder.write_decisions({"environment.vectorize": "in_process"})
    return folder


def test_the_report_says_what_the_run_was_and_how_it_went(folder: RunFolder) -> None:
    path = write_report(folder)
    text = path.read_text()
    assert path == folder.path / "report.md"
    for part in (
        "# CartPole-v1:ppo",
        folder.id,
        "| seed | 3 |",
        "| status | finished |",
        "| budget | 100,000 env_steps |",
        "| time | 0:00:08 (500 steps/s) |",
        "| final evaluation | 90 ± 5 (from 81 to 99), at 4,000 env_steps |",
        "| best evaluation | 150 ± 5 (from 141 to 159), at 2,000 env_steps |",
        "| algorithm.learning_rate | 0.0003 |",
        "| environment.vectorize | in_process |",
        "![return over env_steps of CartPole-v1:ppo](curves.png)",
        f"cadenza resume {folder.id}",
        f"cadenza evaluate {folder.id}",
        "| python | ",
    ):
        assert part in text
    assert folder.curves.read_bytes().startswith(b"\x89PNG")


def test_the_curve_changes_with_the_numbers(folder: RunFolder) -> None:
    write_report(folder)
    before = folder.curves.read_bytes()
    MetricsFile(folder.metrics).append({"env_steps": 5000, "updates": 100, "eval/return_mean": 400.0})
    write_report(folder)
    assert folder.curves.read_bytes() != before


def test_a_run_that_measured_nothing_still_has_a_report(make_run) -> None:
    folder = make_run()
    text = write_report(folder).read_text()
    assert "| status | crashed |" in text
    assert "curves.png" not in text
    assert not folder.curves.exists()


def test_odd_text_does_not_break_a_table(folder: RunFolder) -> None:
    folder.update_status(status="failed", message="a | b\nand more")
    assert "| status | failed: a \\| b and more |\n" in write_report(folder).read_text()


def test_a_video_is_shown_gif_first(folder: RunFolder) -> None:
    (folder.videos / "end.mp4").write_bytes(b"film")
    assert "[an episode of the trained policy](videos/end.mp4)" in write_report(folder).read_text()
    (folder.videos / "end.gif").write_bytes(PIXEL)
    assert "![an episode of the trained policy](videos/end.gif)" in write_report(folder).read_text()


def test_the_html_page_needs_no_other_file_and_escapes_text(folder: RunFolder) -> None:
    (folder.videos / "end.gif").write_bytes(PIXEL)
    folder.update_status(message="<script>alert(1)</script>")
    path: Path = write_html(folder)
    text = path.read_text()
    sources: list[str] = []
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            sources.extend(value or "" for name, value in attributes if name in ("src", "href"))

    Reader().feed(text)
    assert [source.partition(",")[0] for source in sources] == ["data:image/png;base64", "data:image/gif;base64"]
    assert "script" not in tags
    assert not re.search(r"https?://", text)


def test_no_torch_is_needed_and_pyplot_is_not_touched(folder: RunFolder) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from cadenza.records.folder import RunFolder; "
        "from cadenza.records.report import write_report; write_report(RunFolder(Path(sys.argv[1]))); "
        "print([m for m in ('torch', 'hydra', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
