"""The kernels of NumPy's linear algebra: which are loaded, and how a process gets others; how torch's threads wait.

OpenBLAS chooses its kernels by the processor, or by a variable, when it is loaded. Results differ in the last bits, and
products may take twice the time (docs/performance.md).
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "OPENBLAS_CORETYPE"
STARTED_FOR = "CADENZA_KERNELS"  # of a command that was started again: the kernels that it was started for
AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}
AUTO, FASTEST = "auto", "fastest"  # settings that name no kernels
# the processor's flags, the fastest kernels first; NumPy's wheels have these and older ones, but not Zen
NEEDED = {"SkylakeX": AVX512, "Haswell": AVX2, "Zen": AVX2, "Sandybridge": frozenset({"avx"})}
# of runs from before cadenza chose: OpenBLAS takes Katmai where it does not know the processor
OLDER = {"Nehalem": frozenset({"sse4_2"}), "Katmai": frozenset[str]()}

WAIT_POLICY = "OMP_WAIT_POLICY"  # of the threads of torch, when torch is imported

own_variables: set[str] = set()  # variables that this process has set itself, for its libraries and its children
may_start_again = False  # whether this process is a command, which a new process may replace
started_for = ""  # the kernels that this command was started again for


class OtherKernelsError(Exception):
    """A run needs other kernels than this process has: a new process in this `environment` has them.

    So have its children, such as workers of environments.
    """

    def __init__(self, kernels: str) -> None:
        super().__init__(f"the run needs {kernels} kernels of linear algebra")
        self.environment = {**os.environ, VARIABLE: kernels, STARTED_FOR: kernels}


def choose(setting: str = AUTO) -> None:
    """Set the variable by which NumPy's library chooses its kernels, if NumPy is not imported yet.

    `auto` keeps what the environment says. Where it says nothing, the processor's flags decide, since OpenBLAS falls
    back to kernels of 2004 on a processor whose vendor or model it does not know. Only the kernels of NumPy's wheels
    are known; other builds choose by themselves.
    """
    if "numpy" in sys.modules or (setting == AUTO and VARIABLE in os.environ):
        return
    kernels = requested(FASTEST if setting == AUTO else setting)
    if kernels in NEEDED and processor_flags() >= NEEDED[kernels]:  # else it is refused, not run
        os.environ[VARIABLE] = kernels
        own_variables.add(VARIABLE)


def let_threads_sleep() -> None:
    """Let torch's threads sleep while they have nothing to do, if torch is not imported and no variable says otherwise.

    By default they spin, and where another process uses the core, each product waits for its next turn (20 ms).
    """
    if "torch" not in sys.modules and WAIT_POLICY not in os.environ:
        os.environ[WAIT_POLICY] = "passive"
        own_variables.add(WAIT_POLICY)


def requested(setting: str) -> str:
    """Return the kernels that a setting requests, or nothing where any will do or the fastest are unknown."""
    if setting == FASTEST:
        return fastest() if is_wheel() else ""
    return "" if setting == AUTO else setting


def fastest() -> str:
    """Return the fastest kernels that this processor can run, or nothing if it lists no flags that are known."""
    flags = processor_flags()
    return next((kernels for kernels, needed in NEEDED.items() if flags >= needed), "")


def is_wheel() -> bool:
    """Return whether NumPy brings a library of its own; NumPy is not imported for it."""
    numpy = find_spec("numpy")
    return numpy is not None and Path(str(numpy.origin)).parent.with_name("numpy.libs").is_dir()


@cache
def loaded() -> str:
    """Return the name of the kernels that NumPy computes with, or nothing if its library does not tell."""
    import numpy  # loads the library
    from threadpoolctl import threadpool_info

    package = Path(numpy.__file__).resolve().parent
    homes = {package, package.with_name("numpy.libs")}  # of the library that a wheel brings
    libraries = (info for info in threadpool_info() if info["user_api"] == "blas" and info.get("architecture"))
    ours = (info for info in libraries if homes & {*Path(info["filepath"]).resolve().parents})
    return next((str(info["architecture"]) for info in ours), "")


def require(kernels: str) -> None:
    """Raise `OtherKernelsError` if this process does not compute with these kernels and a new one would."""
    tried = kernels in (loaded(), started_for)
    needed = {**NEEDED, **OLDER}.get(kernels)
    if may_start_again and not tried and needed is not None and processor_flags() >= needed:
        raise OtherKernelsError(kernels)


def processor_flags(information: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the flags of the first processor, or none where the system does not list them."""
    try:
        with information.open() as lines:
            line = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())


def remark() -> str:
    """Return in brackets that the processor has faster kernels than NumPy computes with, or nothing."""
    kernels, best = loaded(), fastest()
    if kernels not in NEEDED or not best or NEEDED[kernels] >= NEEDED[best]:
        return ""
    variable = os.environ.get(VARIABLE)
    cause, remedy = (f"{VARIABLE}={variable}; ", "unset it, or set") if variable else ("", "set")
    return f" ({cause}{best} kernels are up to twice as fast here: {remedy} runtime.blas=fastest)"
