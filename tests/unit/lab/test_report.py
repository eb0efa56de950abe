from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cadenza.lab import svg_charts
from cadenza.lab.report import student_t, write_html, write_report
from cadenza.records import metrics
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import MetricsFile
from harness.command import cadenza

# what kinds of XML are called: nothing is fetched from there
NAMES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
PIXEL = bytes.fromhex("47494638396101000100800000ffffff00000021f90401000000002c00000000010001000002024401003b")


@pytest.fixture
def folder(make_run: Callable[..., RunFolder]) -> RunFolder:
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
    folder.write_decisions({"environment.vectorize": {"value": "in_process", "reason": "it is light"}})
    return folder


def test_the_report_says_what_the_run_was_and_how_it_went(folder: RunFolder) -> None:
    path = write_report(folder)
    text = path.read_text()
    assert path.path == folder.path / "report.md"
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
        "| environment.vectorize | in_process (it is light) |",
        "![return over env_steps of CartPole-v1:ppo](curves.svg)",
        f"cadenza resume {folder.reference}",
        f"cadenza evaluate {folder.reference}",
        "| python | ",
    ):
        assert part in text
    assert ElementTree.fromstring(folder.curves.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_report_needs_no_plotting_library(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it raises
    MetricsFile(folder.metrics).append({"env_steps": 5000, "updates": 100, "train/loss": 1.0})
    MetricsFile(folder.metrics).append({"env_steps": 6000, "updates": 120, "train/loss": 0.5})
    write_report(folder)
    assert "metrics of the updates" in write_html(folder).read_text()


def test_the_best_evaluation_is_that_of_the_best_checkpoint(folder: RunFolder) -> None:
    """Where teams play each other the newest checkpoint is the best, whatever the sum of their returns."""
    folder.checkpoints.mkdir()
    (folder.checkpoints / "best").path.write_text("step-000000004000-000000000080\n")
    assert "| best evaluation | 90 ± 5 (from 81 to 99), at 4,000 env_steps |" in write_report(folder).read_text()


def test_its_commands_find_the_run_from_where_it_was_made(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def named() -> set[str]:
        *_, commands = write_report(folder).read_text().split("```")[:-1]
        lines = [shlex.split(line, comments=True) for line in commands.splitlines() if line.startswith("cadenza")]
        return {words[2] for words in lines if words[1] != "train"}

    monkeypatch.delenv("CADENZA_RUNS", raising=False)
    assert named() == {str(folder.path)}
    monkeypatch.setenv("CADENZA_RUNS", str(folder.path.parent))
    assert named() == {folder.id}


def test_the_curve_changes_with_the_numbers(folder: RunFolder) -> None:
    write_report(folder)
    before = folder.curves.read_bytes()
    MetricsFile(folder.metrics).append({"env_steps": 5000, "updates": 100, "eval/return_mean": 400.0})
    write_report(folder)
    assert folder.curves.read_bytes() != before


def test_a_run_that_measured_nothing_still_has_a_report(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run()
    text = write_report(folder).read_text()
    assert "| status | crashed |" in text
    assert "curves.svg" not in text
    assert not folder.curves.exists()


def test_markup_in_messages_does_not_break_a_table(folder: RunFolder) -> None:
    folder.update_status(status="failed", message="a | b\nand more")
    assert "| status | failed: a \\| b and more |\n" in write_report(folder).read_text()


def test_a_video_is_shown_gif_first(folder: RunFolder) -> None:
    (folder.videos.path / "end.mp4").write_bytes(b"film")
    assert "[an episode of the trained policy](videos/end.mp4)" in write_report(folder).read_text()
    (folder.videos.path / "end.gif").write_bytes(PIXEL)
    assert "![an episode of the trained policy](videos/end.gif)" in write_report(folder).read_text()


def test_the_html_page_needs_no_other_file_and_escapes_text(folder: RunFolder) -> None:
    (folder.videos.path / "end.gif").write_bytes(PIXEL)
    folder.update_status(message="<script>alert(1)</script>")
    path = write_html(folder)
    text = path.read_text()
    sources: list[str] = []
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            sources.extend(value or "" for name, value in attributes if name in ("src", "href"))

    Reader().feed(text)
    films = [source for source in sources if not source.startswith("#")]  # parts of a drawing name each other
    assert [source.partition(",")[0] for source in films] == ["data:image/gif;base64"]
    assert "svg" in tags
    assert "script" not in tags
    assert set(re.findall(r"https?://[^\s\"]*", text)) <= NAMES
    assert "prefers-color-scheme: dark" in text


def test_the_report_contains_alerts_and_times(folder: RunFolder) -> None:
    assert "## Alerts\n\nNone." in write_report(folder).read_text()
    alert = {"rule": "no_progress", "env_steps": 3000, "what": "it <b>stands</b> still", "hint": "rest"}
    folder.alerts.path.write_text(f"{json.dumps(alert)}\n{json.dumps(alert | {'env_steps': 4000})}\n")
    MetricsFile(folder.metrics).append({"env_steps": 5000, "updates": 100, "time/collect": 2.0, "time/update": 5.0})
    text = write_report(folder).read_text()
    assert "| no_progress | 2 | 3000 | it &lt;b>stands&lt;/b> still | rest |" in text
    assert "| update | 5.00 s | 62 % |" in text
    page = write_html(folder).read_text()
    assert "it &lt;b&gt;stands&lt;/b&gt; still" in page
    assert "<details><summary>The whole config</summary>" in page


def test_several_runs_make_a_report_of_their_comparison(make_curve: Callable[..., RunFolder], tmp_path: Path) -> None:
    for seed, last in ((0, 10.0), (1, 12.0), (2, 11.0)):
        make_curve([1.0, 5.0, last], seed=seed)
        make_curve([1.0, 3.0, last - 4], seed=seed, gamma=0.5)
    out = tmp_path / "out"
    cadenza("report", "*", "--out", out, "--runs-dir", tmp_path / "runs").succeeded()
    text, page = (out / "report.md").read_text(), (out / "report.html").read_text()
    assert "| CartPole-v1 | gamma=0.5 | 3 | 7 | [6, 8] | 6 | 8 |" in text
    assert "![eval/return_mean of " in text
    assert "<svg" in page
    assert set(re.findall(r"https?://[^\s\"]*", page)) <= NAMES
    cadenza("report", "*", "--runs-dir", tmp_path / "runs").refused(2, "--out DIR")


def test_no_torch_is_needed_and_pyplot_is_not_touched(folder: RunFolder) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from cadenza.records.folder import RunFolder; "
        "from cadenza.lab.report import write_report; write_report(RunFolder(Path(sys.argv[1]))); "
        "print([m for m in ('torch', 'hydra', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (4, 2.776), (11, 2.201), (19, 2.093), (99, 1.984)])
def test_intervals_of_few_episodes_are_wider(freedom: int, expected: float) -> None:
    assert student_t(freedom) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), 1e308, float("-inf")])
def test_numbers_that_no_plot_can_show_are_gaps(
    make_curve: Callable[..., RunFolder], tmp_path: Path, value: float
) -> None:
    for seed, sign in ((0, 1), (1, -1)):
        folder = make_curve([1.0, 2.0, 3.0], seed=seed)
        odd = {"eval/return_mean": sign * value, "eval/return_std": 1.0, "eval/episodes": 1e308}
        rows = [json.loads(line) | odd for line in folder.metrics.read_text().splitlines()]
        folder.metrics.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for page in ("a.png", "a.html"):
        cadenza("compare", "*", "--plot", tmp_path / page, "--runs-dir", tmp_path / "runs").succeeded()
    cadenza("report", folder.id, "--html", "--runs-dir", tmp_path / "runs").succeeded()


def test_page_that_cannot_be_written_leaves_the_report_as_it_was(folder: RunFolder) -> None:
    (folder.videos.path / "step-000000000001-000000000001.gif").mkdir()
    arguments = ("report", folder.id, "--html", "--runs-dir", folder.path.parent)
    cadenza(*arguments).refused(78, "is a folder, not a file")
    assert not folder.report.exists()


def test_the_legend_of_a_learning_curve_explains_everything_that_is_drawn() -> None:
    rows = [
        {
            "env_steps": step,
            "collect/return_mean": 1.0,
            **{f"eval/return_{name}": 2.0 for name in ("mean", "min", "max")},
        }
        for step in (1, 2)
    ]
    chart = svg_charts.learning_curve(rows, "a run", threshold=3.0)
    assert chart is not None
    assert len(chart.curves) == 5
    image = svg_charts.svg([chart])
    assert all(curve.label and f">{curve.label}</text>" in image for curve in chart.curves)


def test_a_long_run_has_the_report_of_a_short_one(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_report(folder).read_text()
    monkeypatch.setattr(metrics, "LONG", 0)
    assert write_report(folder).read_text() == whole
