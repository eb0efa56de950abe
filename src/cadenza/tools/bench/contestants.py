"""Find cadenza and other libraries in interpreters, and measure one training of each in a fresh process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.base import blas
from cadenza.errors import NotFoundError, nearest
from cadenza.tools.bench.tasks import ALGORITHMS, BenchTask

HERE = Path(__file__).parent
PROBE = """
import importlib.util, json, sys
sys.path = [folder for folder in sys.path if folder]  # a local folder of that name is not the package
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))
"""
COMMON = ("torch", "numpy", "gymnasium", "mujoco")  # packages whose versions affect the speed of all
NO_DIAGNOSTICS = "computes no diagnostics but losses"
PATIENCE = 3600  # seconds after which a contestant is stopped
LINE = 300  # characters of an error message that are stored


@dataclass(frozen=True)
class Contestant:
    """A library; its file in `peers/` has a function for each algorithm."""

    name: str  # on the command line
    package: str  # the module that is imported
    distributions: tuple[str, ...]  # the packages that pip installs, the library first
    notes: Mapping[str, tuple[str, ...]]  # algorithm -> where its work differs from the others'
    module: str = ""  # its file in `peers/`, if not `name`

    @property
    def file(self) -> Path:
        return HERE / "peers" / f"{self.module or self.name}.py"


CADENZA = Contestant("cadenza", "cadenza", ("cadenza",), dict.fromkeys(ALGORITHMS, ()))
PEERS = {
    peer.name: peer
    for peer in (
        Contestant(
            "sb3", "stable_baselines3", ("stable-baselines3",), {"ppo": (), "dqn": (), "sac": ()}, "stable_baselines"
        ),
        Contestant(
            "sbx",
            "sbx",
            ("sbx-rl", "jax"),
            {"ppo": ("clips the gradients of policy and value apart",), "dqn": (), "sac": ()},
            "stable_baselines",
        ),
        Contestant(
            "skrl",
            "skrl",
            ("skrl",),
            {"ppo": ("standardises advantages over the rollout, not each minibatch", NO_DIAGNOSTICS)},
        ),
        Contestant("tianshou", "tianshou", ("tianshou",), {"ppo": (NO_DIAGNOSTICS,)}),
        Contestant(
            "sheeprl",
            "sheeprl",
            ("sheeprl", "lightning"),
            {
                "ppo": ("has a standard deviation for each state where actions are continuous", NO_DIAGNOSTICS),
                "dreamer_v3": ("has no bias before a layer norm", NO_DIAGNOSTICS),
            },
        ),
        Contestant("torchrl", "torchrl", ("torchrl", "tensordict"), {"ppo": ()}),
        Contestant(
            "benchmarl",
            "benchmarl",
            ("benchmarl", "torchrl", "tensordict"),
            {"mappo": ("optimises policy and value apart", "has a standard deviation for each state")},
        ),
    )
}


@dataclass(frozen=True)
class Installed:
    """A contestant and an interpreter that can import it."""

    contestant: Contestant
    python: str


def select_peers(names: str) -> list[Contestant]:
    """Return the peers of `all`, `none`, or names with commas between them."""
    if names in ("all", "none"):
        return list(PEERS.values()) if names == "all" else []
    selected = [name.strip() for name in names.split(",") if name.strip()]
    for name in selected:
        if name not in PEERS:
            valid = ("all", "none", *PEERS)
            raise NotFoundError(f"--peers {name}: unknown{nearest(name, valid)} (known: {', '.join(valid)})")
    return [PEERS[name] for name in selected]


def find_installed(
    contestants: Sequence[Contestant], pythons: Sequence[str]
) -> tuple[list[Installed], list[Contestant]]:
    """Return each contestant with the first interpreter that has it, and the contestants that none has."""
    available = {python: packages(python, contestants) for python in pythons}
    pairs = [
        (peer, next((python for python in available if peer.package in available[python]), None))
        for peer in contestants
    ]
    return [Installed(peer, python) for peer, python in pairs if python], [peer for peer, python in pairs if not python]


def packages(python: str, contestants: Sequence[Contestant]) -> list[str]:
    """Return the contestants' packages that an interpreter can find, without importing them."""
    command = [python, "-c", PROBE, *(peer.package for peer in contestants)]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, check=True)
        return list(json.loads(probe.stdout))
    except (OSError, subprocess.CalledProcessError, ValueError) as problem:
        raise NotFoundError(f"--python {python}: cannot be run as a Python ({problem})") from None


def measure(installed: Installed, task: BenchTask) -> dict[str, Any]:
    """Train once in a fresh process and return its figures, or `error` if it fails."""
    packages = [*installed.contestant.distributions, *COMMON]
    result: dict[str, Any] = {"load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None}
    with tempfile.TemporaryDirectory(prefix="cadenza-bench-") as scratch:
        start = time.time()
        work = {**task.order(), "contestant": installed.contestant.name}
        order = {"task": work, "packages": packages, "started": start}
        process = subprocess.Popen(
            [installed.python, str(HERE / "process.py"), str(installed.contestant.file), json.dumps(order)],
            cwd=scratch,
            env=environment(installed.contestant) | threads(task.threads),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only this process, which ends the other below
        )
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return result | {"error": f"stopped after {PATIENCE} s"}
        finally:
            end(process)
        result["process_s"] = time.time() - start
    if process.returncode:
        return result | {"error": last_line(err) or f"ended with {process.returncode}"}
    answer: dict[str, Any] = json.loads(out)
    return result | answer


def end(process: subprocess.Popen[str]) -> None:
    """Kill a contestant and the processes it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    if process.poll() is None:
        process.communicate()


def environment(contestant: Contestant) -> dict[str, str]:
    """Return the environment of a contestant: variables that cadenza has chosen itself are for cadenza alone."""
    is_ours = contestant.name == "cadenza"
    return {name: value for name, value in os.environ.items() if is_ours or name not in blas.own_variables}


def threads(count: int) -> dict[str, str]:
    """Return environment variables that set the threads of numerical libraries; XLA has one thread or its default."""
    names = ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "NUMEXPR_NUM", "VECLIB_MAXIMUM")
    variables = {f"{name}_THREADS": str(count) for name in names}
    if count == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        variables["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    return variables


def last_line(text: str) -> str:
    """Return the last line that is not blank, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LINE] if lines else ""
