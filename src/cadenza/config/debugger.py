"""Training under a debugger: one environment in this process, so that breakpoints are reached and no step times out."""

from __future__ import annotations

import bdb
import sys
from dataclasses import replace
from typing import Any

from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.schema import RunConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

DAY = 86_400.0  # seconds that a step may take while someone looks around in it


def attached() -> str | None:
    """Return the name of the debugger of this process, or None. Coverage tools trace, too, and are none."""
    tracer = getattr(sys.gettrace(), "__self__", None)
    if isinstance(tracer, bdb.Bdb) or _under_bdb():
        return "pdb"
    debugpy = sys.modules.get("debugpy")
    if debugpy is not None and getattr(debugpy, "is_client_connected", lambda: False)():
        return "debugpy"
    if getattr(sys.modules.get("pydevd"), "connected", False):
        return "pydevd"
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12 and later: what newer debuggers trace with
    tool = monitoring.get_tool(monitoring.DEBUGGER_ID) if monitoring else None
    return str(tool) if tool else None


def _under_bdb() -> bool:
    """Return whether bdb runs the program: `continue` without breakpoints ends its tracing, but not the debugger."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == bdb.__file__ and isinstance(frame.f_locals.get("self"), bdb.Bdb):
            return True
        frame = frame.f_back
    return False


def note(debugger: str) -> str:
    """Return the line that says what an attached debugger changes."""
    return f"{debugger} is attached: one environment in this process, in training and evaluation"


def with_one_environment(config: RunConfig, spec: EnvSpec) -> RunConfig:
    """Return the config with one environment, which collects as much between updates as all of them would."""
    environment, evaluation = config.environment, config.evaluation
    return replace(
        config,
        algorithm=with_longer_rollouts(config.algorithm, spec, environment.num_envs),
        environment=replace(environment, num_envs=1, vectorize="in_process", timeout_seconds=DAY),
        evaluation=replace(evaluation, num_envs=1),
    )


def with_longer_rollouts(algorithm: AlgorithmSettings, spec: EnvSpec, num_envs: int) -> AlgorithmSettings:
    """Return settings that collect as much in one environment as these do in `num_envs`, or these if refused."""
    try:
        longer = algorithm.for_one_environment(num_envs)
        longer.check(spec, 1)
    except ConfigError:
        return algorithm
    return longer
