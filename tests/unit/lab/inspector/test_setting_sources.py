"""The origin of settings by a manifest, which is a stranger's text and must not be executed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from cadenza.base.json_text import with_digest
from cadenza.lab.inspector.setting_sources import origins
from cadenza.records.folder import RunFolder
from harness.command import TOY
from harness.inspecting import inspecting

SPEC = "toy/identity:ppo"


@pytest.fixture
def stranger(whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Make a downloaded run with a module, importable from the current folder, that writes a file when imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = RunFolder(Path(shutil.copytree(whole.path, tmp_path / "runs" / "stranger")))
    for name in ("__init__", "payload"):
        (folder.path / f"{name}.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\nclass Algo: pass\n")
    for module in ("runs", "runs.stranger", "runs.stranger.payload"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return folder


def write_manifest(folder: RunFolder, spec: str, *command: str) -> None:
    manifest = json.loads(folder.manifest.read_text())
    manifest |= {"spec": spec, "command": ["cadenza", "train", SPEC, *command]}
    folder.manifest.path.write_text(json.dumps(with_digest(manifest)))


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        (SPEC, ["algorithm.name=runs.stranger.payload:Algo"]),
        (SPEC, ["algorithm.torso.encoder=runs.stranger.payload:Algo"]),
        (SPEC, ["environment.wrappers=[{id: 'runs.stranger.payload:Algo'}]"]),
        (SPEC, ["hydra.searchpath=[pkg://runs.stranger]"]),
        (SPEC, ["experiment=../../../stranger/evil"]),
        (SPEC, ["--config-dir", "runs/stranger/conf"]),
        (SPEC, ["--config-dir=runs/stranger/conf"]),
        ("toy/identity:runs.stranger.payload:Algo", []),
        ("runs.stranger.payload:Algo:ppo", []),
        ("runs/stranger/evil.yaml", []),
        ("runs/stranger/evil", []),
        ("+experiment=runs/stranger/evil", []),
    ],
)
def test_a_manifest_runs_no_code(
    stranger: RunFolder, tmp_path: Path, spec: str, command: list[str], forgotten: None
) -> None:
    evil = "defaults: [_self_]\nhydra: {searchpath: ['pkg://runs.stranger']}\nspec: toy/identity:ppo\n"
    (stranger.path / "conf").mkdir()
    for name in ("evil.yaml", "evil", "conf/config.yaml"):
        (stranger.path / name).write_text(evil + "algorithm: {name: 'runs.stranger.payload:Algo'}\n")
    write_manifest(stranger, spec, *command)
    sources = origins(stranger)
    assert not (tmp_path / "pwned").exists()
    assert "--trust" in sources["note"]
    assert sources["keys"]["algorithm.n_steps"]["doc"]


def test_the_server_runs_no_code_of_a_manifest(stranger: RunFolder, tmp_path: Path) -> None:
    """The server's child process must not import modules of the current folder."""
    write_manifest(stranger, SPEC, "algorithm.name=runs.stranger.payload:Algo")
    for name in ("hydra", "cadenza", "yaml"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    with inspecting(tmp_path / "runs") as client:
        assert "runs.stranger.payload:Algo" in client.ask("origins", run="stranger")["note"]
    assert not (tmp_path / "pwned").exists()
    with inspecting(tmp_path / "runs", trust=True) as client:
        client.ask("origins", run="stranger")
    assert (tmp_path / "pwned").exists(), "--trust does not reach the child"


def test_options_with_an_equals_sign_and_folders_of_ones_own(stranger: RunFolder) -> None:
    write_manifest(stranger, SPEC, *TOY[1:-2], "--max-timesteps=2048", "--seed=0")
    keys = origins(stranger)["keys"]
    assert keys["seed"]["source"] == "command line: --seed"
    assert keys["training.max_timesteps"]["source"] == "command line: --max-timesteps"
    mine = stranger.path / "mine" / "experiment" / "toy" / "identity"
    mine.mkdir(parents=True)
    (mine / "ppo.yaml").write_text("# @package _global_\nalgorithm: {name: ppo, n_steps: 16}\n")
    write_manifest(stranger, SPEC, "--config-dir=runs/stranger/mine")
    source = origins(stranger, trust=True)["keys"]["algorithm.n_steps"]["source"]
    assert source.endswith("mine/experiment/toy/identity/ppo.yaml")
