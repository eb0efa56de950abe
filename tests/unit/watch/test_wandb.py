"""Weights & Biases: every row is stored once, also with a server that refuses, is silent or fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cadenza.records.folder import RunFolder
from cadenza.records.metrics import compared, read
from harness.command import TOY, last, train
from harness.processes import call
from harness.wandb_file import history

OFFLINE = [*TOY, "logging.wandb=offline"]
BLOCKED = "import sys; sys.modules['wandb'] = None; from cadenza.cli.main import main; main()"


@pytest.fixture
def wandb() -> None:
    pytest.importorskip("wandb.sdk")


def assert_same_as_metrics(folder: RunFolder) -> None:
    files = sorted(folder.path.glob("wandb/offline-run-*/*.wandb"))
    stored = [row for file in files for row in history(file)]
    rows = read(folder.metrics)
    assert [row["_step"] for row in stored] == list(range(len(rows)))
    for ours, theirs in zip(rows, stored, strict=True):
        numbers = {key: value for key, value in compared(ours).items() if isinstance(value, int | float)}
        assert {key: theirs[key] for key in numbers} == numbers


@pytest.mark.usefixtures("wandb")
def test_a_killed_and_resumed_run_sends_each_row_once(tmp_path: Path) -> None:
    rare = [*OFFLINE, "checkpoint.every_steps=1024", "evaluation.every_steps=4096"]  # rows follow the checkpoint
    assert call(["train", *rare], tmp_path, "run:task@26")[0] == -signal.SIGKILL
    assert call(["resume", "@last"], tmp_path) == (0, "")
    assert_same_as_metrics(last(tmp_path))


@pytest.fixture(params=["refuses", "says nothing", "answers 500"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that refuses, is silent or fails."""

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(500)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    if request.param == "answers 500":
        with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as broken:
            threading.Thread(target=broken.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{broken.server_port}"
            broken.shutdown()
        return
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if request.param == "refuses":
            silent.close()
            yield "http://127.0.0.1:9"
        else:
            yield f"http://127.0.0.1:{silent.getsockname()[1]}"


@pytest.mark.usefixtures("wandb")
def test_an_unreachable_server_leaves_all_rows_for_wandb_sync(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cadenza.watch import wandb_sink

    monkeypatch.setattr(wandb_sink, "PATIENCE_SECONDS", 60.0)  # to see how it ends
    for name, value in {"BASE_URL": server, "API_KEY": "0" * 40, "INIT_TIMEOUT": "1"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    (warning,) = train(tmp_path, *TOY, "logging.wandb=true").succeeded().warnings
    assert "W&B could not be reached" in warning
    assert len(read(last(tmp_path).metrics)) == 16
    assert_same_as_metrics(last(tmp_path))  # for `wandb sync`


def test_without_wandb_a_run_is_refused_before_its_folder_is_created(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, "train", *OFFLINE, "--runs-dir", str(tmp_path / "runs")]
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert (process.returncode, process.stderr) == (
        69,
        "error: logging.wandb needs an extra: pip install 'cadenza[wandb]'\n",
    )
    assert not (tmp_path / "runs").exists()
