"""Measure the products of a layer's gradient step, by NumPy and torch, against the processor's peak.

    python benchmarks/products.py --out benchmarks/results/products.json

A layer of W x W and a batch of B rows have three products of B W² multiply-adds: forwards, the slope of the input and
the slope of the weights. Each library computes in a process of its own with one thread: NumPy with the fastest kernels
of the processor and with those of AVX2, torch by MKL and by oneDNN, and in bfloat16. Processor time, the shortest of
several repetitions. The peak is that of multiply-adds alone (`--peak`), or the best product of 1024 x 1024 x 1024.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from outcome import machine, result_file, versions, write

from cadenza.base import blas

WIDTHS, BATCHES = (64, 128, 256, 512, 1024), (32, 64, 256, 1024, 4096)
PRODUCTS = ("forward", "input", "weight")
LIBRARIES = {  # name -> the variables of its process
    "numpy": {},
    "numpy haswell": {blas.VARIABLE: "Haswell"},
    "torch mkl": {},
    "torch onednn": {},
    "torch bfloat16": {},
}
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
SECONDS, REPETITIONS = 0.01, 12  # of processor time in a repetition at least


def numpy_products(rows: int, width: int) -> list[Callable[[], Any]]:
    """Return the three products by NumPy, into arrays that exist."""
    import numpy as np

    x, weight, slope = (np.random.rand(*shape).astype("f") for shape in ((rows, width), (width, width), (rows, width)))
    y, of_x, of_weight = np.empty_like(slope), np.empty_like(x), np.empty_like(weight)
    return [
        lambda: np.matmul(x, weight.T, out=y),
        lambda: np.matmul(slope, weight, out=of_x),
        lambda: np.matmul(slope.T, x, out=of_weight),
    ]


def torch_products(rows: int, width: int, library: str) -> list[Callable[[], Any]]:
    """Return the three products by torch."""
    import torch

    dtype = torch.bfloat16 if library == "torch bfloat16" else torch.float32
    x, weight, slope = (torch.rand(*shape).to(dtype) for shape in ((rows, width), (width, width), (rows, width)))
    if library == "torch onednn":
        from cadenza.nets.linear import product

        pairs = [(x, weight), (slope, weight.T), (slope.T, x.T)]
        return [partial(product, left, right) for left, right in pairs]
    return [lambda: torch.mm(x, weight.T), lambda: torch.mm(slope, weight), lambda: torch.mm(slope.T, x)]


def rate(product: Callable[[], Any], operations: int) -> float:
    """Return the GFLOP/s of the fastest repetition."""
    product()
    start, calls = time.process_time(), 0
    while time.process_time() - start < SECONDS:
        product()
        calls += 1
    best = float("inf")
    for _ in range(REPETITIONS):
        start = time.process_time()
        for _ in range(calls):
            product()
        best = min(best, (time.process_time() - start) / calls)
    return operations / best / 1e9


def measure(library: str) -> dict[str, list[float]]:
    """Return the GFLOP/s of the three products of every shape by one library, in this process."""
    rates = {}
    for width in WIDTHS:
        for batch in BATCHES:
            products = (
                numpy_products(batch, width) if library.startswith("numpy") else torch_products(batch, width, library)
            )
            rates[f"{width} x {batch}"] = [round(rate(product, 2 * batch * width * width), 1) for product in products]
    return rates


def in_process(library: str) -> dict[str, list[float]]:
    """Return what a new process measures."""
    inherited = {name: value for name, value in os.environ.items() if name not in (blas.VARIABLE, "OPENBLAS_L2_SIZE")}
    kernels = blas.fastest()
    environment = inherited | ({blas.VARIABLE: kernels} if kernels else {}) | ONE_THREAD | LIBRARIES[library]
    command = [sys.executable, __file__, "--library", library]
    rates: dict[str, list[float]] = json.loads(subprocess.run(command, env=environment, stdout=-1, check=True).stdout)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=result_file, help="write the result to this JSON file")
    parser.add_argument("--peak", type=float, help="GFLOP/s of one core; default: the best product by NumPy")
    parser.add_argument("--library", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(json.dumps(measure(options.library)))
        return
    results = {library: in_process(library) for library in LIBRARIES}
    peak = options.peak or max(max(rates) for rates in results["numpy"].values())
    print(f"peak {peak:.0f} GFLOP/s; forward, slope of the input, slope of the weights in % of it")
    print(f"{'width x batch':>14}", *(f"{library:>16}" for library in LIBRARIES))
    for shape in results["numpy"]:
        shares = ["/".join(f"{100 * one / peak:.0f}" for one in rates[shape]) for rates in results.values()]
        print(f"{shape:>14}", *(f"{share:>16}" for share in shares))
    gflops = {
        library: {shape: " ".join(map(str, rates[shape])) for shape in rates} for library, rates in results.items()
    }
    facts = {"kernels": blas.fastest(), "peak_gflops": peak, "load": os.getloadavg()[0], "gflops": gflops}
    write({**facts, "versions": versions("torch", "numpy"), "machine": machine()}, options.out)


if __name__ == "__main__":
    main()
