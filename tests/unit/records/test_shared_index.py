from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cadenza.records.folder import RunFolder

pytest.importorskip("sqlalchemy", reason="the extra `team` is not installed")

import sqlalchemy as sql

from cadenza.engine.events import Ended, Started
from cadenza.errors import ConfigError, StorageError
from cadenza.records.index import rows
from cadenza.records.lock import RunLock
from cadenza.records.shared_index import LOST_SECONDS, TABLE, SharedIndex
from cadenza.watch.heartbeat import Heartbeat
from harness.command import SMALL, cadenza, last, train
from harness.postgres import installed, server


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with server() as url:
        yield url


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty index of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/team.sqlite"
    address: str = request.getfixturevalue("postgres")
    engine = sql.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    TABLE.metadata.drop_all(engine)
    engine.dispose()
    return address


def test_damaged_row_of_somebody_else_is_listed_as_unreadable(url: str, tmp_path: Path) -> None:
    index = SharedIndex(url)
    index.exchange(tmp_path, [])  # makes the table
    elsewhere(url, changes=[["a"]], seconds="x", status="finished")
    (row,) = index.exchange(tmp_path, [])
    assert (row.row["run"], row.row["status"]) == ("theirs", "unreadable")
    assert row.row["dir"] == "farhost:/home/her/runs"


def elsewhere(url: str, seconds_ago: float = 0, **facts: object) -> None:
    """Write a run of another machine that reported some time ago."""
    row = {"run": "theirs", "dir": "/home/her/runs/theirs", "tags": [], "auto_tags": [], "changes": [], "seed": 3}
    row |= {"created": "2026-01-01", "environment": "Acrobot-v1", "spec": "Acrobot-v1:ppo", **facts}
    engine = sql.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        beat = connection.execute(sql.select(sql.func.now())).scalar_one() - timedelta(seconds=seconds_ago)
        texts = {"facts": json.dumps(row), "settings": json.dumps({"algorithm.gamma": 0.5}), "measured": "{}"}
        place = {"place": "farhost:/home/her/runs", "run": "theirs"}
        connection.execute(TABLE.insert().values(**place, beat=beat, version=1, **texts))
    engine.dispose()


def test_everyones_runs_are_listed_and_found_by_the_same_filters(
    url: str, tmp_path: Path, make_run: Callable[..., RunFolder]
) -> None:
    make_run(seed=1, gamma=0.98, status="finished")
    root = tmp_path / "runs"
    assert len(rows(root, url=url)) == 1
    elsewhere(url, status="finished", **{"return": 7.0})
    by_run = {row["run"]: row for row in rows(root, url=url)}
    assert by_run["theirs"]["dir"] == "farhost:/home/her/runs/theirs"
    assert [row["run"] for row in rows(root, ["algorithm.gamma<0.6"], url=url)] == ["theirs"]
    assert [row["seed"] for row in rows(root, {"algorithm.gamma": 0.98}, url=url)] == [1]
    assert [row["seed"] for row in rows(root)] == [1], "without the URL: the runs here"


@pytest.mark.parametrize(("silent", "state"), [(LOST_SECONDS / 2, "running"), (LOST_SECONDS * 2, "crashed")])
def test_a_run_elsewhere_that_is_silent_for_long_has_crashed(
    url: str, tmp_path: Path, silent: float, state: str
) -> None:
    assert rows(tmp_path / "runs", url=url) == []
    elsewhere(url, seconds_ago=silent, status="running")
    assert [row["status"] for row in rows(tmp_path / "runs", url=url)] == [state]


def test_a_run_that_was_deleted_here_is_forgotten_there(
    url: str, tmp_path: Path, make_run: Callable[..., RunFolder]
) -> None:
    gone, stays = make_run(seed=1, status="finished"), make_run(seed=2, status="finished")
    root = tmp_path / "runs"
    assert len(rows(root, url=url)) == 2
    shutil.rmtree(gone.path)
    rows(root, url=url)
    assert [row["run"] for row in rows(tmp_path / "nowhere", url=url)] == [stays.id]


def test_the_heartbeat_writes_progress_and_outcome_of_a_run(
    url: str, tmp_path: Path, make_run: Callable[..., RunFolder]
) -> None:
    messages: list[str] = []
    folder = make_run(seed=4)
    beat = Heartbeat(SharedIndex(url), messages.append)
    with RunLock(folder.path):
        beat(Started(folder, None, "env_steps", 0, lambda: None))
        folder.update_status(status="finished", env_steps=99)
        beat(Ended("finished", ""))
    assert messages == []
    listed = rows(tmp_path / "another", url=url)
    assert [(row["run"], row["status"], row["env_steps"]) for row in listed] == [(folder.id, "finished", 99)]


def test_an_unreachable_database_causes_a_warning_and_the_run_continues(
    tmp_path: Path, make_run: Callable[..., RunFolder]
) -> None:
    messages: list[str] = []
    folder = make_run()
    beat = Heartbeat(SharedIndex(f"postgresql://nobody@/none?host={tmp_path}"), messages.append)
    beat(Started(folder, None, "env_steps", 0, lambda: None))
    beat(Ended("finished", ""))
    assert len(messages) == 1
    assert "does not know how the run ended" in messages[0]


def test_errors_of_the_database_are_reported_at_the_end(
    tmp_path: Path, make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(index: SharedIndex, run: Path) -> None:
        raise ZeroDivisionError("by nothing")

    messages: list[str] = []
    folder = make_run()
    monkeypatch.setattr(SharedIndex, "tell", broken)
    beat = Heartbeat(SharedIndex(f"sqlite:///{tmp_path}/team.sqlite"), messages.append)
    beat(Started(folder, None, "env_steps", 0, lambda: None))
    beat(Ended("finished", ""))
    assert messages == ["the team's index does not know how the run ended: ZeroDivisionError: by nothing"]


def test_a_wrong_url_is_refused_before_there_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_INDEX", "foo")
    train(tmp_path / "runs", "toy/identity:ppo", *SMALL).refused(2, "CADENZA_INDEX is no URL")
    assert not (tmp_path / "runs").exists()


def test_a_run_of_the_command_line_is_told_to_the_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_INDEX", f"sqlite:///{tmp_path}/team.sqlite")
    train(tmp_path / "runs", "toy/identity:ppo", *SMALL[:-1], "256").succeeded()
    listed = json.loads(cadenza("list", "--runs-dir", tmp_path / "elsewhere", "--json").succeeded().out)["runs"]
    assert [(row["run"], row["status"]) for row in listed] == [(last(tmp_path / "runs").id, "finished")]


def test_invalid_index_urls_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no URL"):
        SharedIndex("somewhere")
    with pytest.raises(ConfigError, match="must begin with postgresql://"):
        SharedIndex("mysql://host/db")
    with pytest.raises(StorageError, match="cannot use the index at postgresql") as caught:
        rows(tmp_path, url=f"postgresql://me:secret@/none?host={tmp_path}")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


WRITERS = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from cadenza.config.schema import EnvironmentConfig, RunConfig
    from cadenza.records.folder import create
    from cadenza.records.index import rows
    from cadenza.workflows.ppo_config import PPOConfig
    root, url = Path(sys.argv[1]), sys.argv[2] or None
    if url:
        from cadenza.records.shared_index import SharedIndex

    def make(seed, root):
        config = RunConfig(algorithm=PPOConfig(), environment=EnvironmentConfig(id="CartPole-v1"), seed=seed)
        return create(root, config, ["test"])

    make(0, root.parent / "before")  # imports, once, what all children need
    children = []
    for seed in range(50):
        child = os.fork()
        if child == 0:
            folder = make(seed, root)
            folder.update_status(status="finished", env_steps=2)
            if url:
                SharedIndex(url).tell(folder.path)
            if seed % 5 == 0:  # some look while others write
                mine = [row for row in rows(root, url=url) if row["dir"] == str(folder.path)]
                assert [row["env_steps"] for row in mine] == [2], mine
            os._exit(0)
        children.append(child)
    print(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children))
    """
)


def test_fifty_writers_at_once_lose_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres") if installed() else ""
    root = tmp_path / "runs"
    process = subprocess.run([sys.executable, "-c", WRITERS, root, url], capture_output=True, text=True, cwd=tmp_path)
    assert process.stdout.strip() == "50", process.stderr
    tables = [rows(root), *([rows(tmp_path / "elsewhere", url=url)] if url else [])]  # by the folders; by the team
    for table in tables:
        mine = [row for row in table if row["dir"].startswith(str(root))]
        assert sorted(row["seed"] for row in mine) == list(range(50))
        assert {row["env_steps"] for row in mine} == {2}
