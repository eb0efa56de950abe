from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cadenza.errors import NotFoundError, StorageError
from cadenza.records import folder as folders
from cadenza.records.folder import RunFolder, create, find, runs_root
from cadenza.records.lock import RunLock


def test_a_new_run_is_complete_and_last(tmp_path: Path, make_run: Callable[..., RunFolder]) -> None:
    folder = make_run("toy/identity", seed=7)
    assert re.fullmatch(r"toy_identity-ppo-s7-\d{8}-\d{6}-[0-9a-f]{4}", folder.id)
    assert (tmp_path / "runs" / "@last").read_text() == folder.id + "\n"
    assert folder.settings()["environment"]["id"] == "toy/identity"
    assert folder.read_config().seed == 7
    manifest = folder.read_manifest()
    assert manifest["command"] == ["cadenza", "train", "toy/identity:ppo"]
    assert manifest["spec"] == "toy/identity:ppo"
    assert len(manifest["config_hash"]) == 16
    assert {"python", "cadenza", "torch", "numpy", "gymnasium"} <= set(manifest["versions"])
    assert {"platform", "cpu", "cores", "host"} == set(manifest["machine"])
    status = folder.read_status()
    assert (status["status"], status["env_steps"], status["eval/return_mean"]) == ("running", 0, None)
    assert status["dir"] == str(folder.path.absolute())
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {folder.id, "@last"}


def test_the_manifest_names_the_commit_and_local_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: Callable[..., RunFolder]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    Path("file").write_text("one")
    for arguments in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert make_run().read_manifest()["git"] == {"commit": commit, "dirty": False}
    Path("file").write_text("two")
    assert make_run().read_manifest()["git"] == {"commit": commit, "dirty": True}


def test_outside_a_repository_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: Callable[..., RunFolder]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert make_run().read_manifest()["git"] is None


def test_an_existing_id_is_not_used_again(monkeypatch: pytest.MonkeyPatch, make_run: Callable[..., RunFolder]) -> None:
    first = make_run()
    ids = iter([first.id, first.id, "another"])
    monkeypatch.setattr(folders, "new_id", lambda config: next(ids))
    assert make_run(seed=1).id == "another"
    assert first.read_config().seed == 0


def test_an_unusable_runs_folder_is_refused_in_one_line(tmp_path: Path, make_run: Callable[..., RunFolder]) -> None:
    config = make_run().read_config()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot create a run in .*file"):
        create(tmp_path / "file", config, [])


def test_status_updates_merge(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run()
    folder.update_status(env_steps=10, **{"eval/return_mean": float("nan")})
    folder.update_status(status="finished", best_return=3.5)
    status = folder.read_status()
    assert (status["env_steps"], status["status"], status["best_return"]) == (10, "finished", 3.5)
    assert status["eval/return_mean"] is None
    with pytest.raises(ValueError, match="finito"):
        folder.update_status(status="finito")


def test_a_running_run_without_a_lock_holder_has_crashed(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run()
    assert folder.state() == "crashed"
    with RunLock(folder.path):
        assert folder.state() == "running"
    folder.update_status(status="finished")
    assert folder.state() == "finished"


def test_decisions_are_read_back(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run()
    assert folder.read_decisions() == {}
    folder.write_decisions({"device": "cpu"})
    assert folder.read_decisions() == {"device": "cpu"}


def test_the_root_is_the_option_then_the_variable_then_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_RUNS", "/elsewhere")
    assert runs_root(Path("here")) == Path("here")
    assert runs_root() == Path("/elsewhere")
    monkeypatch.delenv("CADENZA_RUNS")
    assert runs_root() == Path("runs")


def test_runs_are_found_by_id_prefix_path_and_alias(tmp_path: Path, make_run: Callable[..., RunFolder]) -> None:
    root = tmp_path / "runs"
    cart = make_run("CartPole-v1", status="finished", **{"eval/return_mean": 100.0})
    pole = make_run("CartPole-v1", seed=1, status="finished", **{"eval/return_mean": 200.0})
    bot = make_run("Acrobot-v1", status="finished", **{"eval/return_mean": -80.0})
    unrated = make_run("Acrobot-v1", seed=2)
    assert find(root, cart.id) == cart
    assert find(root, "CartPole-v1-ppo-s1") == pole
    assert find(root, str(bot.path)) == RunFolder(bot.path)
    assert find(root, "@last") == unrated
    assert find(root, "@best") == pole
    assert find(root, "@best:Acrobot-v1:ppo") == bot


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("CartPole-v1-pp0", r"no run 'CartPole-v1-pp0' .*did you mean 'CartPole-v1-ppo-s[01]-"),
        ("CartPol3", "did you mean 'CartPole'"),
        ("CartPole", r"'CartPole' could be any of 2 runs: CartPole-v1-ppo-s0-.*, CartPole-v1-ppo-s1-"),
        ("@lst", "did you mean '@last'"),
        ("@best", "has been evaluated yet"),
        ("@best:CartPole-v0:ppo", "did you mean 'CartPole-v1:ppo'"),
        ("", "needs a name"),
    ],
)
def test_unknown_names_of_runs_are_refused_with_the_nearest(
    tmp_path: Path, make_run: Callable[..., RunFolder], ref: str, message: str
) -> None:
    make_run()
    make_run(seed=1)
    with pytest.raises(NotFoundError, match=message) as problem:
        find(tmp_path / "runs", ref)
    assert "\n" not in str(problem.value)


def test_an_empty_runs_folder_and_a_lost_last_run_are_reported(
    tmp_path: Path, make_run: Callable[..., RunFolder]
) -> None:
    for ref in ("@last", "x", "@best"):
        with pytest.raises(NotFoundError):
            find(tmp_path / "nothing", ref)
    folder = make_run()
    folder.path.rename(tmp_path / "away")
    with pytest.raises(NotFoundError, match=r"not in .* any more"):
        find(tmp_path / "runs", "@last")
    assert find(tmp_path / "runs", str(tmp_path / "away")).read_status()["run"] == folder.id


IMPORTS = """
import importlib, json, sys
names = "records.folder records.lock records.index records.metrics records.episodes base.atomic base.failpoints"
for name in f"{names} lab.report lab.charts lab.html".split():
    importlib.import_module(f"cadenza.{name}")
import cadenza.watch.console
heavy = ("torch", "hydra", "numpy", "matplotlib", "rich", "gymnasium")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_import_loads_no_heavy_package() -> None:
    process = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert json.loads(process.stdout) == []


def test_a_run_is_named_by_its_path_where_a_command_would_not_look_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CADENZA_RUNS", raising=False)
    assert RunFolder(Path("runs/a-1")).reference == "a-1"
    assert RunFolder(tmp_path / "runs" / "a-1").reference == "a-1"
    assert RunFolder(Path("other runs/a-1")).reference == "'other runs/a-1'"
    monkeypatch.setenv("CADENZA_RUNS", "other runs")
    assert RunFolder(Path("other runs/a-1")).reference == "a-1"
