"""The workspace at Weights & Biases, with a server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.command import TOY, cadenza, train
from harness.wandb_server import WandbServer

WHERE = ("--entity", "me", "--project", "lab")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    pytest.importorskip("wandb_workspaces")
    with WandbServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield server
        server.shutdown()


def panels(spec: dict[str, Any]) -> dict[str, list[str]]:
    return {
        section["name"]: [panel["config"]["metrics"][0] for panel in section["panels"]]
        for section in spec["section"]["panelBankConfig"]["sections"]
    }


def test_repeated_calls_update_one_workspace(tmp_path: Path, server: WandbServer) -> None:
    train(tmp_path, *TOY).succeeded()
    where = (*WHERE, "--runs-dir", tmp_path)
    dry = panels(json.loads(cadenza("dashboard", *where, "--dry-run").succeeded().out))
    assert list(dry)[:3] == ["Evaluation", "Training episodes", "Learning"]
    assert "eval/return_mean" in dry["Evaluation"]
    assert "train/entropy" in dry["Learning"]
    assert not server.views

    assert "/me/lab?nw=cadenza made: " in cadenza("dashboard", *where).succeeded().out
    (view,) = server.views.values()
    assert panels(json.loads(view["spec"])) == dry
    assert "is unchanged" in cadenza("dashboard", *where).succeeded().out
    assert server.saved == 1

    result = json.loads(cadenza("dashboard", *where, "--overwrite", "--select-latest", "--json").succeeded().out)
    assert (result["done"], server.saved, len(server.views)) == ("replaced", 2, 1)
    (runset,) = json.loads(view["spec"])["section"]["runSets"]
    assert runset["selections"]["tree"] == ["older", "oldest"]


def test_errors_of_wandb_are_reported_in_one_line(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cadenza("dashboard", "--project", "lab").refused(2, "--entity")
    server.project = False
    cadenza("dashboard", *WHERE, "--runs-dir", tmp_path).refused(70, "W&B: Project `me/lab` not found")
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    cadenza("dashboard", *WHERE, "--runs-dir", tmp_path).refused(70, "W&B: ", "wandb login")
