"""Who takes part: cadenza and other libraries, where they are installed, and one training in a fresh process."""

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

from cadenza.errors import NotFoundError, nearest
from cadenza.tools.bench.tasks import Task

HERE = Path(__file__).parent
PROBE = """
import importlib.util, json, sys
sys.path = [place for place in sys.path if place]  # a folder of that name is no package
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))
"""
COMMON = ("torch", "numpy", "gymnasium", "mujoco")  # packages whose versions matter to everyone's speed
PATIENCE = 3600  # seconds after which a contestant is given up
LINE = 300  # characters of a failure worth keeping


@dataclass(frozen=True)
class Contestant:
    """A library; its file in `peers/` has a function for each algorithm."""

    name: str  # of the file, and on the command line
    package: str  # what is imported
    distributions: tuple[str, ...]  # what pip installs, itself first
    notes: Mapping[str, tuple[str, ...]]  # by algorithm it does: where its work differs from everyone's

    @property
    def file(self) -> Path:
        return HERE / "peers" / f"{self.name}.py"


CADENZA = Contestant(
    "cadenza", "cadenza", ("cadenza",), dict.fromkeys(("ppo", "dqn", "sac", "mappo", "happo", "dreamer_v3"), ())
)
PEERS = {
    peer.name: peer
    for peer in (
        Contestant("sb3", "stable_baselines3", ("stable-baselines3",), {"ppo": (), "dqn": (), "sac": ()}),
        Contestant(
            "sbx",
            "sbx",
            ("sbx-rl", "jax"),
            {"ppo": ("clips the gradients of policy and value apart",), "dqn": (), "sac": ()},
        ),
        Contestant(
            "skrl",
            "skrl",
            ("skrl",),
            {
                "ppo": (
                    "standardises advantages over the rollout, not each minibatch",
                    "computes no diagnostics but losses",
                )
            },
        ),
        Contestant("tianshou", "tianshou", ("tianshou",), {"ppo": ("computes no diagnostics but losses",)}),
        Contestant(
            "sheeprl",
            "sheeprl",
            ("sheeprl", "lightning"),
            {
                "ppo": (
                    "has a standard deviation for each state where actions are continuous",
                    "computes no diagnostics but losses",
                ),
                "dreamer_v3": ("has no bias before a layer norm", "computes no diagnostics but losses"),
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
class Found:
    """A contestant and the interpreter that has it."""

    contestant: Contestant
    python: str


def chosen(names: str) -> list[Contestant]:
    """`all`, `none`, or names with commas between them."""
    if names in ("all", "none"):
        return list(PEERS.values()) if names == "all" else []
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in PEERS:
            known = ("all", "none", *PEERS)
            raise NotFoundError(f"--peers {name}: unknown{nearest(name, known)} (known: {', '.join(known)})")
    return [PEERS[name] for name in asked]


def look_for(contestants: Sequence[Contestant], pythons: Sequence[str]) -> tuple[list[Found], list[Contestant]]:
    """Each contestant with the first interpreter that has it, and those that none has."""
    having = {python: packages(python, contestants) for python in pythons}
    found = {
        peer.name: Found(peer, python)
        for python in reversed(having)
        for peer in contestants
        if peer.package in having[python]
    }
    return [found[peer.name] for peer in contestants if peer.name in found], [
        peer for peer in contestants if peer.name not in found
    ]


def packages(python: str, contestants: Sequence[Contestant]) -> list[str]:
    """Which of the contestants' packages an interpreter can find; it imports none of them."""
    command = [python, "-c", PROBE, *(peer.package for peer in contestants)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout))
    except (OSError, subprocess.CalledProcessError, ValueError) as problem:
        raise NotFoundError(f"--python {python}: is no Python that can be run ({problem})") from None


def measure(found: Found, task: Task) -> dict[str, Any]:
    """One training from a fresh process; where it fails, only `error` says how."""
    packages = [*found.contestant.distributions, *COMMON]
    result: dict[str, Any] = {"load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None}
    with tempfile.TemporaryDirectory(prefix="cadenza-bench-") as scratch:
        began = time.time()
        order = {"task": task.order(), "packages": packages, "started": began}
        process = subprocess.Popen(
            [found.python, str(HERE / "process.py"), str(found.contestant.file), json.dumps(order)],
            cwd=scratch,
            env=os.environ | threads(task.threads),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C is for whoever reads the results; it ends this one below
        )
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return result | {"error": f"gave up after {PATIENCE} s"}
        finally:
            end(process)
        result["process_s"] = time.time() - began
    if process.returncode:
        return result | {"error": last_line(err) or f"ended with {process.returncode}"}
    answer: dict[str, Any] = json.loads(out)
    return result | answer


def end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of a contestant behind, nor of the processes it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    if process.poll() is None:
        process.communicate()


def threads(count: int) -> dict[str, str]:
    """What numerical libraries read when they are loaded. XLA knows only one thread or as many as it likes."""
    names = ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "NUMEXPR_NUM", "VECLIB_MAXIMUM")
    found = {f"{name}_THREADS": str(count) for name in names}
    if count == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        found["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    return found


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LINE] if lines else ""
