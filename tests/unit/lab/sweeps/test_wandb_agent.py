"""W&B's own agent with a server on loopback: its settings reach the run that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.command import TOY, last
from harness.wandb_server import WandbServer


def test_the_settings_of_a_real_agent_reach_the_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb.sdk")
    with WandbServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        runs = tmp_path / "runs"
        server.command = [sys.executable, "-m", "cadenza", "train", *TOY, "--runs-dir", str(runs), "-q"]
        server.trials = [{"algorithm.learning_rate": "lin_0.01", "algorithm.gamma": 0.9, "training.max_timesteps": 64}]
        environ = {**os.environ, "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40}
        agent = [sys.executable, "-m", "wandb", "agent", "--count", "1", "me/lab/abc123"]
        process = subprocess.run(agent, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        server.shutdown()
    assert process.returncode == 0, process.stderr
    settings = last(runs).settings()
    assert settings["algorithm"]["learning_rate"]["start_value"] == 0.01
    assert settings["algorithm"]["gamma"] == 0.9
    assert settings["training"]["max_timesteps"] == 2048  # the command line's own flags stand above the agent's
    assert last(runs).read_status()["status"] == "finished"
