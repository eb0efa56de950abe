from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cadenza.cli.algorithms import algorithms
from cadenza.cli.doctor import doctor
from cadenza.cli.evaluate import evaluate
from cadenza.cli.list import list_runs
from cadenza.cli.report import report
from cadenza.cli.show import show
from cadenza.config.schema import EnvironmentConfig, RunConfig
from cadenza.errors import NotFoundError
from cadenza.records.folder import RunFolder, create
from cadenza.records.metrics import MetricsFile
from cadenza.workflows.ppo_config import PPOConfig

app = typer.Typer()
for name, command in (
    ("list", list_runs),
    ("show", show),
    ("report", report),
    ("doctor", doctor),
    ("algorithms", algorithms),
    ("evaluate", evaluate),
):
    app.command(name)(command)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def last_line(*arguments: str) -> dict[str, Any]:
    result = json.loads(run(*arguments, "--json").splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("CADENZA_RUNS", str(tmp_path / "runs"))
    config = RunConfig(algorithm=PPOConfig(), environment=EnvironmentConfig(id="CartPole-v1"), tags=("paper",))
    folder = create(tmp_path / "runs", config, ["cadenza", "train", "CartPole-v1:ppo"])
    folder.write_decisions({"device": "cpu"})
    folder.update_status(
        status="finished", env_steps=2048, seconds=61.0, best_return=120.0, **{"eval/return_mean": 100.5}
    )
    file = MetricsFile(folder.metrics)
    for step in (1024, 2048):
        file.append(
            {"env_steps": step, "updates": 1, "eval/return_mean": step / 20, "phase": "train", "time/seconds": 1.0}
        )
    for step in (0, 2048):
        checkpoint = folder.checkpoints / f"step-{step:012d}-{step // 32:012d}"
        checkpoint.mkdir()
        (checkpoint.path / "state.json").write_bytes(b"x" * 3072)
    (folder.checkpoints.path / "last").write_text("step-000000002048-000000000064\n")
    return folder


def test_list_prints_rows_and_json(folder: RunFolder) -> None:
    rows = last_line("list", "--filter", "environment=CartPole-v1", "--sort", "return", "--limit", "3")["runs"]
    assert [(entry["run"], entry["dir"]) for entry in rows] == [(folder.id, str(folder.path))]
    assert rows[0]["eval/return_mean"] == 100.5
    table = run("list")
    assert folder.id in table
    assert "100.5" in table
    assert "0:01:01" in table
    assert "paper" in table


def test_an_evaluation_without_a_finished_episode_fails_and_says_so(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = ["timed out with 0 of 20 episodes finished"]
    result = {"run": folder.id, "return_mean": None, "episodes": 0, "returns": [], "problems": problems}
    monkeypatch.setattr("cadenza.lab.playback.evaluate_run", lambda *arguments, **options: result)
    for options in ((), ("--json",)):
        outcome = CliRunner().invoke(app, ("evaluate", "@last", "--timeout", "1", *options))
        assert outcome.exit_code == 1
        assert "no episode was finished, so there is no return: give a longer --timeout" in outcome.stderr
    assert json.loads(outcome.stdout)["return_mean"] is None


def test_list_without_runs_is_an_empty_list(tmp_path: Path) -> None:
    assert last_line("list", "--runs-dir", str(tmp_path / "none")) == {"runs": []}
    assert run("list", "--runs-dir", str(tmp_path / "none")) == ""


def test_show_prints_a_run_and_json(folder: RunFolder) -> None:
    result = last_line("show", "@last")
    expected = {"run": folder.id, "dir": str(folder.path), "status": "finished", "env_steps": 2048, "seconds": 61.0}
    assert expected.items() <= result.items()
    assert result["eval/return_mean"] == 100.5
    assert [(entry["env_steps"], entry["bytes"], entry["pointers"]) for entry in result["checkpoints"]] == [
        (0, 3072, []),
        (2048, 3072, ["last"]),
    ]
    assert result["metrics"]["env_steps"] == 2048
    text = run("show", folder.id)
    for part in (folder.id, "CartPole-v1:ppo, seed 0", "100.5 (best 120)", "algorithm.gamma", "3 KiB", "▁█"):
        assert part in text


def test_show_of_an_unknown_run_names_the_nearest(folder: RunFolder) -> None:
    with pytest.raises(NotFoundError, match="did you mean"):
        run("show", folder.id[:-1] + "z")


def test_report_writes_markdown_and_html(folder: RunFolder) -> None:
    result = last_line("report", "@last", "--html")
    assert result["run"] == folder.id
    assert Path(result["report"]).read_text().startswith("# CartPole-v1:ppo")
    assert Path(result["html"]).read_text().startswith("<!doctype html>")
    assert run("report", "@last").strip() == str(folder.report)


def test_algorithms_lists_names_and_descriptions() -> None:
    entries = last_line("algorithms")["algorithms"]
    assert "ppo" in [entry["name"] for entry in entries]
    assert all(entry["summary"] for entry in entries)
    assert "Proximal Policy Optimization" in run("algorithms")


def test_doctor_reports_versions_and_folders(tmp_path: Path) -> None:
    result = last_line("doctor", "--runs-dir", str(tmp_path / "new" / "runs"))
    assert result["packages"]["torch"]
    assert result["torch"]["threads"] >= 1
    assert result["runs"]["writable"] is True
    assert result["runs"]["free_bytes"] > 0
    assert {"name": "classic", "installed": True}.items() <= result["families"][0].items()
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"
    assert "classic" in run("doctor", "--runs-dir", str(tmp_path))


def test_doctor_reports_a_folder_that_is_not_writable() -> None:
    result = last_line("doctor", "--runs-dir", "/proc/runs")
    assert result["runs"]["writable"] is False
    assert any("/proc/runs" in problem for problem in result["problems"])


def test_doctor_names_the_line_to_install_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from cadenza.cli import doctor as module
    from cadenza.config.families import FAMILIES, Family

    monkeypatch.setattr(
        module, "requires", lambda name: ["numpy", "no-such-package>=1; extra == 'atari'", "ruff; extra == 'dev'"]
    )
    monkeypatch.setitem(FAMILIES, "atari", Family("atari", "games", "cadenza.envs.families.atari", extra="atari"))
    result = last_line("doctor")
    line = "pip install 'cadenza[atari]'"
    assert result["extras"] == {"atari": {"installed": False, "missing": ["no-such-package"], "install": line}}
    assert {"name": "atari", "summary": "games", "installed": False, "install": line} in result["families"]
