from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadenza.errors import ConfigError
from cadenza.records.index import COLUMNS, rows
from cadenza.records.lock import RunLock


@pytest.fixture
def root(tmp_path: Path, make_run) -> Path:
    make_run(
        "CartPole-v1",
        seed=0,
        gamma=0.98,
        tags=("paper", "small"),
        status="finished",
        env_steps=10,
        **{"eval/return_mean": 3.0},
    )
    make_run("CartPole-v1", seed=1, status="failed", env_steps=20, **{"eval/return_mean": 5.0})
    make_run("Acrobot-v1", seed=0, status="finished", env_steps=30)
    return tmp_path / "runs"


def seeds(found: list[dict]) -> list[tuple[str, int]]:
    return [(row["environment"], row["seed"]) for row in found]


def test_rows_hold_the_facts_of_each_run(root: Path) -> None:
    found = rows(root, {"seed": "0", "environment": "CartPole-v1"})
    assert len(found) == 1
    row = found[0]
    assert set(COLUMNS) <= set(row)
    assert Path(row["dir"]) == (root / row["run"]).absolute()
    assert (row["spec"], row["status"], row["env_steps"], row["return"]) == ("CartPole-v1:ppo", "finished", 10, 3.0)
    assert row["tags"] == ["paper", "small"]
    assert row["config_hash"] == json.loads((root / row["run"] / "manifest.json").read_text())["config_hash"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["environment=CartPole-v1"], {("CartPole-v1", 0), ("CartPole-v1", 1)}),
        (["environment=Cart*", "status=failed"], {("CartPole-v1", 1)}),
        (["algorithm.gamma=0.980"], {("CartPole-v1", 0)}),
        (["training.max_timesteps=1e5"], {("CartPole-v1", 0), ("CartPole-v1", 1), ("Acrobot-v1", 0)}),
        (["tags=paper"], {("CartPole-v1", 0)}),
        (["eval/return_mean=5"], {("CartPole-v1", 1)}),
        (["val/return_mean=5"], {("CartPole-v1", 1)}),
        (["return=null"], {("Acrobot-v1", 0)}),
        (["algorithm.normalize_advantage=True"], {("CartPole-v1", 0), ("CartPole-v1", 1), ("Acrobot-v1", 0)}),
        (["spec=CartPole-v1:ppo", "seed=7"], set()),
    ],
)
def test_filters(root: Path, filters: list[str], expected: set) -> None:
    assert set(seeds(rows(root, filters))) == expected


def test_sorting_puts_the_best_first_and_the_unmeasured_last(root: Path) -> None:
    assert seeds(rows(root, sort="return")) == [("CartPole-v1", 1), ("CartPole-v1", 0), ("Acrobot-v1", 0)]
    assert seeds(rows(root, sort="test/return_mean", limit=1)) == [("CartPole-v1", 1)]
    assert [row["env_steps"] for row in rows(root, sort="env_steps")] == [30, 20, 10]
    assert [row["environment"] for row in rows(root, sort="environment")] == [
        "Acrobot-v1",
        "CartPole-v1",
        "CartPole-v1",
    ]


def test_unknown_columns_and_malformed_filters_are_said(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"'algorithm\.gama'; did you mean 'algorithm\.gamma'"):
        rows(root, ["algorithm.gama=1"])
    with pytest.raises(ConfigError, match="unknown column 'retrun'; did you mean 'return'"):
        rows(root, sort="retrun")
    with pytest.raises(ConfigError, match="key=value"):
        rows(root, ["seed"])


def test_the_index_follows_the_folders(root: Path, make_run) -> None:
    assert len(rows(root)) == 3
    folder = make_run("Acrobot-v1", seed=9)
    assert len(rows(root)) == 4
    for steps in range(50):
        folder.update_status(env_steps=steps)
        assert rows(root, {"seed": "9"})[0]["env_steps"] == steps
    shutil.rmtree(folder.path)
    assert len(rows(root)) == 3
    with sqlite3.connect(root / "index.sqlite") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (3,)


def test_running_and_crashed_are_told_apart_at_each_query(root: Path, make_run) -> None:
    folder = make_run(seed=5)
    assert rows(root, ["seed=5"])[0]["status"] == "crashed"
    with RunLock(folder.path):
        assert rows(root, ["seed=5"])[0]["status"] == "running"
        assert rows(root, ["status=running"])[0]["run"] == folder.id
    assert rows(root, ["status=crashed"])[0]["run"] == folder.id


@pytest.mark.parametrize("damage", [b"not a database at all", b""])
def test_a_damaged_index_is_made_anew(root: Path, damage: bytes) -> None:
    before = rows(root)
    (root / "index.sqlite").write_bytes(damage)
    assert rows(root) == before
    with sqlite3.connect(root / "index.sqlite") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (3,)


def test_a_torn_index_is_made_anew(root: Path) -> None:
    before = rows(root)
    content = (root / "index.sqlite").read_bytes()
    (root / "index.sqlite").write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    assert rows(root) == before


def test_an_index_of_another_layout_is_made_anew(root: Path) -> None:
    before = rows(root)
    with sqlite3.connect(root / "index.sqlite") as database:
        database.executescript("DROP TABLE runs; CREATE TABLE runs (old TEXT); PRAGMA user_version = 99")
    assert rows(root) == before


def test_an_index_that_cannot_be_written_does_not_matter(root: Path) -> None:
    (root / "index.sqlite").unlink(missing_ok=True)
    (root / "index.sqlite").mkdir()
    assert len(rows(root)) == 3


def test_one_damaged_folder_does_not_hide_the_others(root: Path, make_run) -> None:
    bad = make_run(seed=8)
    bad.status.write_text("{")
    bad.config.write_text(": [")
    assert len(rows(root)) == 4


def test_what_is_no_run_is_not_listed(root: Path) -> None:
    (root / "sweep-parent").mkdir()
    (root / ".tmp-x").mkdir()
    (root / ".tmp-x" / "config.yaml").write_text("seed: 1")
    (root / "notes.txt").write_text("")
    assert len(rows(root)) == 3
    assert rows(root / "nowhere") == []
    assert not (root / "nowhere").exists()


def test_processes_can_query_at_once(root: Path) -> None:
    code = "import sys, pathlib, cadenza.records.index as index; print(len(index.rows(pathlib.Path(sys.argv[1]))))"
    command = [sys.executable, "-c", code, str(root)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    assert [process.communicate()[0].strip() for process in processes] == ["3"] * 8


def test_two_thousand_runs_are_listed_in_a_second(tmp_path: Path, make_run) -> None:
    first = make_run(status="finished", **{"eval/return_mean": 1.0})
    root = tmp_path / "runs"
    for number in range(1999):
        copy = root / f"CartPole-v1-ppo-s{number}-copy"
        copy.mkdir()
        for name in ("config.yaml", "manifest.json", "status.json"):
            (copy / name).write_bytes((first.path / name).read_bytes())
    assert len(rows(root)) == 2000
    began = time.process_time()
    assert len(rows(root, ["algorithm.gamma=0.99"], sort="return")) == 2000
    assert time.process_time() - began < 1
