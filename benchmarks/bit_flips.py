"""Flip single bits in every file that decides how a run continues, and check that no flip changes a training silently.

    python benchmarks/bit_flips.py --flips 300 --out benchmarks/results/bit-flips.json

A small run is killed halfway. For each flip a copy of it gets one wrong bit and is resumed to its end. The result is
`equal` to the undisturbed run, `refused` (one line, exit code 2 or 78), `told` (equal, and a warning names the damage),
or `SILENT`, which is a bug.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from outcome import keep, machine, result_file, versions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.flipping import RUNS, Flips

COLUMNS = ("equal", "refused", "told", "SILENT")


def table(counts: dict[str, Counter[str]]) -> str:
    width = max(map(len, counts))
    lines = ["  ".join([" " * width, *(f"{column:>8}" for column in COLUMNS)])]
    for file, counter in counts.items():
        lines.append("  ".join([f"{file:{width}}", *(f"{counter[column]:8}" for column in COLUMNS)]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--flips", type=int, default=300, help="in each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="where runs are copied to; memory is fastest (/dev/shm)")
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.runs:
        with tempfile.TemporaryDirectory(dir=options.scratch) as root:
            flips = Flips(RUNS[name], Path(root))
            counts: dict[str, Counter[str]] = {}
            for file in flips.files():
                counts[file] = flips.count(file, options.flips, options.seed)
                print(f"{name}: {file}: {dict(counts[file])}", file=sys.stderr, flush=True)
        print(f"{name}\n{table(counts)}", file=sys.stderr, flush=True)
        files = {file: dict(counter) for file, counter in counts.items()}
        results[name] = {"files": files, "silent": flips.silent}
    about = {"versions": versions("torch", "numpy", "safetensors"), "machine": machine()}
    keep({"flips": options.flips, "seed": options.seed, "runs": results, **about}, options.out)


if __name__ == "__main__":
    main()
