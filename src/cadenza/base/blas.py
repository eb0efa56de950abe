"""The kernels of NumPy's linear algebra: which are loaded, and how a process gets those that a run began with.

OpenBLAS chooses its kernels by the processor, or by a variable, when it is loaded. Results differ in the last bits, and
products may take twice the time (docs/performance.md).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

VARIABLE = "OPENBLAS_CORETYPE"
STARTED_FOR = "CADENZA_KERNELS"  # of a command that was started again: the kernels that it was started for
AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}
NEEDED = {"Haswell": AVX2, "Zen": AVX2, "SkylakeX": AVX512}  # the processor's flags; of other kernels none is asked for

may_start_again = False  # whether this process is a command, which a new process may replace
started_for = ""  # the kernels that this command was started again for


class OtherKernelsError(Exception):
    """A run began with other kernels than this process has: a new process in this `environment` has them.

    So have its children, such as workers of environments.
    """

    def __init__(self, kernels: str) -> None:
        super().__init__(f"the run began with {kernels} kernels of linear algebra")
        self.environment = {**os.environ, VARIABLE: kernels, STARTED_FOR: kernels}


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
    if may_start_again and not tried and kernels in NEEDED and processor_flags() >= NEEDED[kernels]:
        raise OtherKernelsError(kernels)


def processor_flags(information: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the flags of the first processor, or none where the system does not list them."""
    try:
        with information.open() as lines:
            line = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())


def slower_by_variable() -> str:
    """Return in brackets that a variable keeps NumPy from the processor's AVX-512 kernels, or nothing."""
    if os.environ.get(VARIABLE) and loaded() in ("Haswell", "Zen") and processor_flags() >= AVX512:
        return f" ({VARIABLE}={os.environ[VARIABLE]}; this processor has faster ones, for AVX-512)"
    return ""
