"""Publishing to a local Hub and loading from it: idempotent, complete, and without private data."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import cadenza as lab
from cadenza.base.json_text import with_digest
from cadenza.config.load import dump
from cadenza.errors import ConfigError
from cadenza.lab.view import publish
from cadenza.records.folder import RunFolder
from cadenza.records.hub import upload
from harness.command import SMALL, cadenza, copied, last, train
from harness.hub import TOKEN, Hub, Repo, serving

pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    root = tmp_path_factory.mktemp("runs")
    train(root, "CartPole-v1:ppo", *SMALL).succeeded()
    return last(root)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage speaks no HTTP that could be served here
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def test_a_published_run_loads_back_the_same_and_is_not_uploaded_twice(
    trained: RunFolder, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = cadenza("publish", trained.path, "me/cartpole", "--json").succeeded()
    result = json.loads(outcome.out)
    repo = hub.repos["me/cartpole"]
    sha, files = repo.commits[-1]
    assert (result["changed"], result["commit"], len(repo.commits)) == (True, sha, 2)
    assert {"README.md", "config.yaml", "manifest.json", "metrics.jsonl", "curves.png"} <= files.keys()
    assert [name for name in files if name.startswith("replay.")]
    front = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert front["library_name"] == "cadenza"
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == "CartPole-v1"
    assert not [name for name, content in files.items() if str(trained.path.parent).encode() in content]
    assert (
        json.loads(files["manifest.json"]).keys().isdisjoint({"command", "machine", "git", "variables", "signatures"})
    )

    steps = [line.split(" ")[0] for line in outcome.err.splitlines()]
    assert steps == ["preparing", "reading", "drawing", "recording", "uploading"]

    again = cadenza("publish", trained.path, "--repo", "me/cartpole").succeeded()
    assert [name for name, content in repo.commits[-1][1].items() if files[name] != content] == []
    assert "nothing has changed" in again.out
    assert len(repo.commits) == 2

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for reads in ("pickle.load", "pickle.loads", "torch.load", "numpy.load"):
        monkeypatch.setattr(reads, refuse)
    theirs, ours = lab.load("hf:me/cartpole", checkpoint="best"), lab.load(str(trained.path), checkpoint="best")
    for obs in np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32):
        assert theirs(obs) == ours(obs)
    first = cadenza("evaluate", "hf:me/cartpole", "--episodes", 3, "--checkpoint", "best", "--json").succeeded()
    second = cadenza("evaluate", trained.path, "--episodes", 3, "--checkpoint", "best", "--json").succeeded()
    assert json.loads(first.out)["returns"] == json.loads(second.out)["returns"]


def test_publishing_another_checkpoint_replaces_the_first(trained: RunFolder, hub: Hub) -> None:
    for which in ("best", "last"):
        cadenza("publish", trained.path, "me/x", "--checkpoint", which).succeeded()
    names = {name.split("/")[1] for name in hub.repos["me/x"].commits[-1][1] if name.startswith("checkpoints/step-")}
    assert names == {(trained.checkpoints / "last").read_text().strip()}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A minimal run folder to upload."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "tiny" / "manifest.json").write_text('{"config_hash": "x"}')
    return tmp_path / "tiny"


def test_a_repository_that_is_no_run_is_left_alone(tiny: Path, hub: Hub) -> None:
    precious = {".gitattributes": b"", "model.safetensors": b"precious", "README.md": b"mine"}
    for more in ({}, {"config.yaml": b"a: 1", "manifest.json": b"[]"}):
        hub.repos["me/llama"] = repo = Repo(private=False)
        repo.commit(precious | more)
        with pytest.raises(ConfigError, match=r"me/llama holds something that is no run of cadenza"):
            upload(tiny, "me/llama", False, "x")
        assert [files for _, files in repo.commits] == [precious | more]
    upload(tiny, "me/run", False, "x")
    repo = hub.repos["me/run"]
    repo.commit(repo.commits[-1][1] | {"notes.txt": b"mine", "checkpoints/step-1-1/old.safetensors": b"x"})
    upload(tiny, "me/run", False, "x")
    assert repo.commits[-1][1].keys() == {".gitattributes", "config.yaml", "manifest.json", "notes.txt"}


def test_private_is_refused_for_a_public_repository(tiny: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        upload(tiny, "me/secret", True, "x")
    assert hub.repos["me/secret"].private
    upload(tiny, "me/open", False, "x")
    with pytest.raises(ConfigError, match=r"--private: me/open exists already and is public"):
        upload(tiny, "me/open", True, "x")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    cadenza("evaluate", "hf:me/secret").refused(2, "hf auth login")


def with_secrets(folder: RunFolder) -> RunFolder:
    """Put private texts of an author into all settings and decisions of a run that can hold one."""
    config = folder.read_config()
    private = replace(
        config,
        name="SECRET-name",
        tags=("SECRET-tag",),
        logging=replace(
            config.logging, wandb_entity="SECRET-user", wandb_project="SECRET-project", sinks=("SECRET:Sink",)
        ),
        training=replace(config.training, dataset="/SECRET/data", init_from="SECRET/run"),
        environment=replace(config.environment, kwargs={"xml_file": "/SECRET/my.xml"}),
    )
    folder.change_config(dump(private))
    dataset = {"digest": "x SECRET y", "transitions": 1, "episodes": 1}
    decisions = {"training.dataset": dataset, "debugger": {"value": "pdb", "reason": "~/SECRET/z"}}
    accepted = {"when": "then", "env_steps": 1, "from_cycle": 1, "changes": {"config.name": ["a", "SECRET-name"]}}
    folder.write_decisions(folder.read_decisions() | decisions | {"accepted": [accepted]})
    return folder


@pytest.mark.parametrize("broken", [None, "without_paths", "PRIVATE_DECISIONS", "without_folders"])
def test_nothing_private_of_the_author_is_published(
    broken: str | None, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, out = with_secrets(copied(trained, tmp_path / "runs")), tmp_path / "out"
    if broken is not None:  # the test must notice it
        monkeypatch.setattr(publish, broken, () if broken == "PRIVATE_DECISIONS" else lambda tree: tree)
    monkeypatch.setattr(publish, "record_video", lambda *_: (tmp_path / "out" / "replay.gif").touch())
    problems = publish.prepare(mine, "me/x", out, "last", trust=True)
    leaks = [path.name for path in out.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    assert bool(leaks) == (broken is not None)
    if broken is None:
        assert any("environment.kwargs.xml_file" in one and "'my.xml'" in one for one in problems)
        assert yaml.safe_load((out / "config.yaml").read_text())["training"]["dataset"] == "data"


@pytest.mark.parametrize("broken", [None, "without_environment", "redact"])
def test_no_value_of_an_environment_variable_is_published(
    broken: str | None, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, out = copied(trained, tmp_path / "runs"), tmp_path / "out"
    config = mine.read_config()
    environment = replace(config.environment, kwargs={"token": "HIDDEN", "deep": {"parts": ["a", "HIDDEN"]}})
    keys = ("environment.kwargs.token", "environment.kwargs.deep.parts.1", "logging.wandb_entity")
    mine.change_config(dump(replace(config, environment=environment, from_environment=keys)))
    mine.write_decisions(mine.read_decisions() | {"debugger": {"value": "pdb", "reason": "x HIDDEN y"}})
    if broken is not None:  # the test must notice it
        monkeypatch.setattr(publish, broken, lambda *arguments: arguments[-1])
    monkeypatch.setattr(publish, "record_video", lambda *_: (tmp_path / "out" / "replay.gif").touch())
    problems = publish.prepare(mine, "me/x", out, "last", trust=True)
    leaks = [path.name for path in out.rglob("*") if path.is_file() and b"HIDDEN" in path.read_bytes()]
    assert bool(leaks) == (broken is not None)
    assert "environment.kwargs.token came from an environment variable and is not published" in problems
    if broken is None:
        stored = yaml.safe_load((out / "config.yaml").read_text())
        assert stored["environment"]["kwargs"] == {"deep": {"parts": ["a"]}}
        assert "from_environment" not in stored
        mine.change_config(dump(replace(config, from_environment=("environment.id",))))
        with pytest.raises(
            ConfigError, match=r"environment.id came from an environment variable, which is never published"
        ):
            publish.prepare(mine, "me/x", tmp_path / "again", "last")


def test_the_card_of_a_team_and_of_imported_code_shows_commands_that_work(tmp_path: Path) -> None:
    from cadenza.config.load import load

    team, imported = load("skirmish/2m1x1h:mappo"), load("cadenza.envs.toys.toy:Identity:ppo")
    python: Any
    shell: Any
    (python, shell) = publish.usage_blocks(team, "me/team", {})
    assert "cadenza.load" not in python.text
    assert 'cadenza.Run.find("hf:me/team")' in python.text
    assert "--trust" not in shell.text
    (*python, shell) = publish.usage_blocks(imported, "me/own", {"my": "my-package 1.2", "mine": None})
    assert all("trust=True" in code.text for code in python)
    assert shell.text.count("--trust") == 2
    first, second, *_ = shell.text.splitlines()
    assert (first, second) == (
        "pip install 'cadenza[hub]' my-package==1.2",
        "# mine belongs to no package: put it on PYTHONPATH",
    )
    lander = publish.installation(load("LunarLander-v3:ppo"), {})
    assert lander == ["pip install 'cadenza[box2d,hub]'"]


def test_a_manifest_of_a_stranger_adds_no_command_to_the_page() -> None:
    from cadenza.config.load import load

    commands = publish.installation(load("toy/identity:ppo"), {"theirs": "package; rm -r ~"})
    assert commands == ["pip install 'cadenza[hub]' 'package;==rm==-r==~'"]


def test_a_dry_run_prints_the_files_without_a_request(trained: RunFolder, hub: Hub, tmp_path: Path) -> None:
    mine = copied(trained, tmp_path / "runs")
    shutil.rmtree(mine.videos.path, ignore_errors=True)
    outcome = cadenza("publish", mine.path, "--dry-run", "--out", tmp_path / "there").succeeded()
    assert "config.yaml" in outcome.out
    assert "library_name: cadenza" in outcome.out
    assert (tmp_path / "there" / "README.md").is_file()
    assert hub.requests == []
    assert not mine.videos.exists()
    cadenza("evaluate", tmp_path / "there", "--episodes", 1).succeeded()  # it is a run folder like any other


def test_invalid_repositories_and_tokens_are_refused(
    trained: RunFolder, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cadenza("publish", trained.path).refused(2, "USER/REPO")
    for name in ("nobody", "a/../b", "a/b/c", "/etc/passwd", "me/x--y"):
        cadenza("publish", trained.path, name).refused(2, "user/name")
    cadenza("evaluate", "hf:me/nothing").refused(2, "me/nothing")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "huggingface_hub.utils", None)
        cadenza("evaluate", "hf:me/cartpole").refused(69, "pip install 'cadenza[hub]'")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    cadenza("publish", trained.path, "me/other").refused(2, "hf auth login")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    cadenza("publish", trained.path, "me/other").refused(69, "the Hub cannot be reached")


def test_a_published_run_that_names_code_needs_trust(trained: RunFolder, hub: Hub, tmp_path: Path) -> None:
    mine = copied(trained, tmp_path / "runs")
    cadenza("publish", mine.path, "me/code").succeeded()
    repo = hub.repos["me/code"]
    files = dict(repo.commits[-1][1])
    files["config.yaml"] = files["config.yaml"].replace(b"id: CartPole-v1", b"id: evil:Env", 1)
    repo.commit(files)
    cadenza("evaluate", "hf:me/code").refused(2, "evil:Env", "--trust")


def test_a_published_vizdoom_scenario_starts_no_program(trained: RunFolder, hub: Hub, tmp_path: Path) -> None:
    """ViZDoom starts whatever program its config file names."""
    cadenza("publish", trained.path, "evil/doom").succeeded()
    repo = hub.repos["evil/doom"]
    files, blob = dict(repo.commits[-1][1]), tmp_path / "e.cfg"
    started = tmp_path / "started"
    (tmp_path / "program").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tmp_path / "program").chmod(0o755)
    blob.write_text("vizdoom_path = program\navailable_buttons = { ATTACK }\ngame_args = +exec evil\n")
    config = yaml.safe_load(files["config.yaml"])
    config["environment"] |= {"id": "VizDoom-custom", "kwargs": {"config_path": str(blob)}}
    files["config.yaml"] = yaml.safe_dump(config, sort_keys=False).encode()
    manifest = json.loads(files["manifest.json"]) | {"configs": [sha256(files["config.yaml"]).hexdigest()]}
    sealed = json.dumps(with_digest(manifest)).encode()
    files |= {"manifest.json": sealed, "checkpoints/e.cfg": blob.read_bytes(), "x.json": b"{}"}
    repo.commit(files)
    for command in ("evaluate", "play"):
        cadenza(command, "hf:evil/doom").refused(2, str(blob), "--trust")
    assert not list((tmp_path / "cache").rglob("*.cfg"))
    assert not list((tmp_path / "cache").rglob("x.json"))
    assert not started.exists()


def test_commands_leave_a_published_run_unchanged(
    trained: RunFolder, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cadenza("publish", trained.path, "me/x").succeeded()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)

    def cached() -> list[Path]:
        return sorted(path for path in (tmp_path / "cache").rglob("*") if "snapshots" in path.parts)

    cadenza("resume", "hf:me/x").refused(2, trained.id, "weights only")
    before = cached()
    result = json.loads(cadenza("play", "hf:me/x", "--json").succeeded().out)
    assert result["run"] == trained.id
    assert Path(result["video"]).resolve().parent == tmp_path / "videos"
    cadenza("report", "hf:me/x").refused(2, "--out DIR")
    cadenza("report", "hf:me/x", "--out", tmp_path / "cmp").succeeded()
    assert cached() == before

    repo = hub.repos["me/x"]
    cadenza("evaluate", "hf:me/x@nope").refused(2, "me/x has no revision 'nope'")
    good, odd = repo.commits[-1][1], {"../../a.json": b"{}", "checkpoints/step-1/../../../b.json": b"{}"}
    repo.commit(good | odd | {"decisions.json": b'{"runtime.threads": "many"}'})
    cadenza("evaluate", "hf:me/x", "--episodes", 1).refused(78, "decisions.json", "runtime.threads")
    assert not list(tmp_path.rglob("a.json"))
    assert not list(tmp_path.rglob("b.json"))


def test_system_metrics_are_not_published(trained: RunFolder, hub: Hub, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path / "runs")
    rows = [json.loads(line) | {"system/disk_free_gb": 5.0} for line in folder.metrics.read_text().splitlines()]
    folder.metrics.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cadenza("publish", folder.path, "me/load").succeeded()
    _, files = hub.repos["me/load"].commits[-1]
    assert [json.loads(line) for line in files["metrics.jsonl"].splitlines()] == [
        {key: value for key, value in row.items() if not key.startswith("system/")} for row in rows
    ]
