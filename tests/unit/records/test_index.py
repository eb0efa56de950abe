from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cadenza.base.files import SafePath
from cadenza.errors import ConfigError
from cadenza.records.folder import RunFolder
from cadenza.records.index import rebuild, rows
from cadenza.records.lock import RunLock
from cadenza.records.run_summary import COLUMNS, changes, describe
from harness.command import cadenza


@pytest.fixture
def root(tmp_path: Path, make_run: Callable[..., RunFolder]) -> Path:
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


def seeds(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
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
        (["return>3"], {("CartPole-v1", 1)}),
        (["return >= 3", "return<5"], {("CartPole-v1", 0)}),
        (["environment!=Cart*"], {("Acrobot-v1", 0)}),
        (["algorithm.gamma<0.985"], {("CartPole-v1", 0)}),
        (["created>2020-01-01", "tag=small"], {("CartPole-v1", 0)}),
        (["tag=untuned", "tag=ppo", "seed=1"], {("CartPole-v1", 1)}),
        (["algorithm.normalize_advantage=True"], {("CartPole-v1", 0), ("CartPole-v1", 1), ("Acrobot-v1", 0)}),
        (["spec=CartPole-v1:ppo", "seed=7"], set()),
    ],
)
def test_filters_select_runs_by_any_key(root: Path, filters: list[str], expected: set[Any]) -> None:
    assert set(seeds(rows(root, filters))) == expected


def test_filters_from_python(root: Path) -> None:
    found = rows(root, {"status": ["finished", "crashed"], "algorithm.gamma": lambda gamma: gamma < 0.985})
    assert seeds(found) == [("CartPole-v1", 0)]
    assert seeds(rows(root, {"return": ">4"})) == [("CartPole-v1", 1)]
    assert seeds(rows(root, {"return": None})) == [("Acrobot-v1", 0)]
    assert seeds(rows(root, {"algorithm.normalize_advantage": False})) == []


def test_commits_and_hashes_are_found_by_their_beginning(root: Path, make_run: Callable[..., RunFolder]) -> None:
    row = rows(root, {"seed": 1})[0]
    assert row["run"] in [found["run"] for found in rows(root, [f"config_hash={row['config_hash'][:6]}"])]
    folder = make_run("CartPole-v1", seed=4)
    manifest = folder.read_manifest() | {"git": {"commit": "1f3a9c77", "dirty": True}}
    folder.manifest.path.write_text(json.dumps(manifest))
    assert seeds(rows(root, ["git=1f3a"])) == [("CartPole-v1", 4)]
    assert seeds(rows(root, ["git=1f3b"])) == []
    assert seeds(rows(root, ["tag=local-changes", "git=1f3*"])) == [("CartPole-v1", 4)]


def test_a_run_without_a_name_is_told_by_what_was_changed() -> None:
    command = ["cadenza", "train", "CartPole-v1:ppo", "algorithm.gamma=0.9", "seed=3", "--max-timesteps", "100"]
    assert changes(command) == ["algorithm.gamma=0.9"]


def test_any_metric_can_be_queried_by_its_last_value(root: Path, make_curve: Callable[..., RunFolder]) -> None:
    short, long = make_curve([1.0], seed=11), make_curve([1.0, 1.0, 1.0], seed=12)
    found = rows(root, ["train/loss>0"], sort="train/loss")
    assert [(row["run"], row["train/loss"]) for row in found] == [(short.id, 1.0), (long.id, 1 / 3)]
    with pytest.raises(ConfigError, match="'train/lss'; did you mean 'train/loss'"):
        rows(root, ["train/lss>0"])


def test_a_rebuilt_index_is_read_from_the_folders(root: Path) -> None:
    before = rows(root)
    with sqlite3.connect(root / "index.sqlite") as database:
        database.execute("UPDATE runs SET facts = replace(facts, 'finished', 'failed')")
    assert {row["status"] for row in rows(root)} == {"failed"}
    assert rebuild(root) == 3
    assert rows(root) == before


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
    for text in ("seed", "return>>3", "return=>3", "seed===1"):
        with pytest.raises(ConfigError, match="key=value"):
            rows(root, [text])


def test_keys_are_looked_up_before_any_run_is_left_out(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"'algorithm\.gama'"):
        rows(root, ["seed=99", "algorithm.gama=1"])
    with pytest.raises(ConfigError, match="'retrun'"):
        rows(root, ["seed=99"], sort="retrun")
    assert rows(root, ["seed=99", "algorithm.gamma=1"]) == []


def test_brackets_in_a_name_are_no_wildcard(root: Path, make_run: Callable[..., RunFolder]) -> None:
    make_run(seed=6, name="[a] plain")
    assert seeds(rows(root, ["name=[a] plain"])) == seeds(rows(root, ["name=*plain"])) == [("CartPole-v1", 6)]


def test_the_index_follows_the_folders(root: Path, make_run: Callable[..., RunFolder]) -> None:
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


def test_running_and_crashed_are_told_apart_at_each_query(root: Path, make_run: Callable[..., RunFolder]) -> None:
    folder = make_run(seed=5)
    assert rows(root, ["seed=5"])[0]["status"] == "crashed"
    with RunLock(folder.path):
        assert rows(root, ["seed=5"])[0]["status"] == "running"
        assert rows(root, ["status=running"])[0]["run"] == folder.id
    assert rows(root, ["status=crashed"])[0]["run"] == folder.id


@pytest.mark.parametrize("damage", [b"not a database at all", b""])
def test_a_damaged_index_is_rebuilt(root: Path, damage: bytes) -> None:
    before = rows(root)
    (root / "index.sqlite").write_bytes(damage)
    assert rows(root) == before
    with sqlite3.connect(root / "index.sqlite") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (3,)


@pytest.mark.parametrize("column", ["stamp", "facts", "settings", "measured"])
@pytest.mark.parametrize("value", [None, b"\xff"])
def test_a_value_of_another_kind_in_the_index_is_replaced(root: Path, column: str, value: Any) -> None:
    before = rows(root, ["algorithm.gamma>0.1"])
    with sqlite3.connect(root / "index.sqlite") as database:
        database.execute(f"UPDATE runs SET {column} = ?", (value,))
    assert rows(root, ["algorithm.gamma>0.1"]) == before
    with sqlite3.connect(root / "index.sqlite") as database:
        assert database.execute(f"SELECT DISTINCT typeof({column}) FROM runs").fetchall() == [("text",)]


def test_a_truncated_index_is_rebuilt(root: Path) -> None:
    before = rows(root)
    content = (root / "index.sqlite").read_bytes()
    (root / "index.sqlite").write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    assert rows(root) == before


def test_an_index_of_another_version_is_rebuilt(root: Path) -> None:
    before = rows(root)
    with sqlite3.connect(root / "index.sqlite") as database:
        database.executescript("DROP TABLE runs; CREATE TABLE runs (old TEXT); PRAGMA user_version = 99")
    assert rows(root) == before


def test_list_works_with_an_index_that_cannot_be_written(root: Path) -> None:
    (root / "index.sqlite").unlink(missing_ok=True)
    (root / "index.sqlite").mkdir()
    assert len(rows(root)) == 3


def test_one_damaged_folder_does_not_hide_the_others(root: Path, make_run: Callable[..., RunFolder]) -> None:
    bad = make_run(seed=8)
    bad.status.path.write_text("{")
    bad.config.path.write_text(": [")
    assert len(rows(root)) == 4
    dated, latin, odd = (make_run(seed=seed, **{"eval/return_mean": "high"}) for seed in (10, 11, 12))
    dated.config.path.write_text("name: 2026-01-01\ntags: paper\nlogging: {since: !!binary aGk=}")
    latin.config.path.write_bytes(b"name: caf\xe9")
    manifest = {"git": "1f3a", "machine": [], "command": "train", "created": 5, "config_hash": "x"}
    odd.manifest.path.write_text(json.dumps(manifest))
    assert len(rows(root, sort="return")) == 7
    endless, half = make_run(seed=13), make_run(seed=14)
    endless.config.path.write_text("&a\nseed: *a")
    half.manifest.path.write_text(half.manifest.read_text().replace('"name": ""', '"created": "\\ud800"'))
    (root / os.fsdecode(b"caf\xe9")).mkdir()
    (root / os.fsdecode(b"caf\xe9") / "config.yaml").touch()
    assert len(rows(root, sort="return")) == 9
    assert [row["run"] for row in rows(root, ["name=2026-01-01", "tag=paper"])] == [dated.id]
    assert cadenza("list", "--runs-dir", root, "--sort", "seconds").succeeded().out.count("CartPole") == 8
    assert cadenza("show", "@best", "--runs-dir", root, "--json").succeeded()


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


@pytest.mark.parametrize(
    "facts",
    [
        {"changes": 5},
        {"changes": [["a"]]},
        {"seconds": "x"},
        {"tags": 5},
        {"spec": None},
        {"return": [1]},
        {"status": {}},
    ],
)
def test_index_with_facts_of_the_wrong_kind_is_not_believed(root: Path, facts: dict[str, Any]) -> None:
    before = rows(root)
    with closing(sqlite3.connect(root / "index.sqlite")) as database, database:
        for run, text in database.execute("SELECT run, facts FROM runs").fetchall():
            changed = json.dumps(json.loads(text) | facts)
            database.execute("UPDATE runs SET facts = ? WHERE run = ?", (changed, run))
    assert rows(root) == before
    cadenza("list", "--filter", "tag=paper", "--sort", "return", "--runs-dir", root).succeeded()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.yaml", "a: &a [x]\nb: &b [" + "*a, " * 200 + "]\nc: [" + "*b, " * 200 + "]\n", "aliases expand"),
        ("manifest.json", '{"deep": ' + "[" * 20_000 + "]" * 20_000 + "}", "nested more than 100 deep"),
        ("manifest.json", "[]", "no JSON object"),
    ],
    ids=["bomb", "deep", "list"],
)
def test_run_whose_description_cannot_be_read_is_listed_with_the_reason(
    root: Path, name: str, content: str, reason: str
) -> None:
    run = rows(root)[0]["run"]
    (root / run / name).write_text(content)
    outcome = cadenza("list", "--rebuild", "--runs-dir", root).succeeded()
    assert [row["run"] for row in rows(root) if row["status"] == "unreadable"] == [run]
    assert outcome.out.count("unreadable") == 1
    assert f"{run} cannot be read: " in outcome.err
    assert name in outcome.err
    assert reason in outcome.err


def test_pointer_that_is_a_link_to_a_folder_is_no_run(root: Path, tmp_path: Path) -> None:
    before = rows(root)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(root / before[0]["run"], elsewhere)
    (root / "@last").unlink(missing_ok=True)
    (root / "@last").symlink_to(elsewhere)
    assert rows(root) == before


def test_a_folder_that_cannot_be_opened_hides_no_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, openings = rows(root)[0]["run"], SafePath._folder
    (root / "index.sqlite").unlink()

    def opening(path: SafePath) -> Any:
        if path.root.name == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return openings(path)

    monkeypatch.setattr(SafePath, "_folder", opening)
    statuses = {row["run"]: row["status"] for row in rows(root)}
    assert len(statuses) == 3
    assert [run for run, status in statuses.items() if status == "unreadable"] == [closed]


def test_seeds_share_settings_but_for_the_seed_and_a_line_of_a_text_is_none(
    make_run: Callable[..., RunFolder],
) -> None:
    first, second = make_run(seed=1), make_run(seed=2)
    text = first.config.path.read_text()
    second.config.path.write_text(text.replace("seed: 1\n", "seed: 2\n"))
    assert {row["seed"] for row in rows(first.path.parent)} == {1, 2}
    quoted = text.replace("seed: 1\n", "") + "other: 'a\n\nseed: 5'\n"
    first.config.path.write_text(quoted)
    assert describe(first.path)[0]["seed"] is None
    assert "algorithm.gamma" in describe(first.path)[1]
