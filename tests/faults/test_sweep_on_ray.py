"""A sweep on a real Ray cluster of two nodes, one of whose workers is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from cadenza.lab.sweeps.journal import Journal
from cadenza.lab.sweeps.sweep_file import read
from cadenza.lab.sweeps.sweep_plan import plan
from cadenza.tools.verify import compare
from harness.files import safe
from harness.processes import PATIENCE
from harness.sweeping import BUDGET, TINY, folders, outcomes, run

pytest.importorskip("ray", reason="the extra ray is not installed")


def test_trials_of_a_killed_ray_worker_are_repeated(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    path, root = tmp_path / "tried.yaml", tmp_path / "runs"
    space = {**TINY, "algorithm.learning_rate": [0.001, 0.1]}
    content = {"base": "CartPole-v1:ppo", "sweep": space, "max_timesteps": BUDGET, "parallel_jobs": 2}
    path.write_text(yaml.safe_dump(content))
    # Ray's workers have the environment of their node: the runs of this one stand still midway
    os.environ["CADENZA_FAILPOINT"] = "run:task@3:stop"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        del os.environ["CADENZA_FAILPOINT"]
        command = [
            sys.executable,
            "-m",
            "cadenza",
            "sweep",
            str(path),
            "--runs-dir",
            str(root),
            "--on",
            cluster.address,
        ]
        sweep = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        victim = next_stopped(root, set())
        psutil.Process(victim.ppid()).kill()
        killed: set[int] = set()
        while sweep.poll() is None:
            process = next_stopped(root, killed, sweep)
            if process is not None:
                killed.add(process.pid)
                process.send_signal(signal.SIGCONT)
        errors = sweep.stderr.read() if sweep.stderr else ""
        assert sweep.returncode == 0, errors
        assert "its process was killed; going on" in errors
    finally:
        os.environ.pop("CADENZA_FAILPOINT", None)
        cluster.shutdown()
    made = plan(read(path))
    journal = Journal(safe(root / "sweeps" / made.id / "journal.jsonl"))
    journal.close()
    ours, whole = list(journal.trials.values()), run(made, tmp_path / "whole")
    assert outcomes(ours) == outcomes(whole)
    for one, other in zip(folders(ours, root), folders(whole, tmp_path / "whole"), strict=True):
        assert compare(one, other) is None


def next_stopped(root: Path, killed: set[int], sweep: subprocess.Popen[str] | None = None) -> psutil.Process | None:
    """Return the process of a stopped run that is not in `killed`; None when the sweep is over."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and (sweep is None or sweep.poll() is None):
        for process in psutil.process_iter(["cmdline", "status"]):
            line = process.info["cmdline"] or []
            still = process.info["status"] == psutil.STATUS_STOPPED
            if still and process.pid not in killed and "trial" in line and str(root) in line:
                return process
        time.sleep(0.05)
    assert sweep is not None, "no run has begun"
    return None
