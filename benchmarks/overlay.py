r"""Draw learning curves of several result files: every seed as a thin line, their mean as a thick one.

python benchmarks/overlay.py HalfCheetah-v5 cadenza=benchmarks/results/sac-halfcheetah.json \
    stable-baselines3=benchmarks/results/sb3-sac-halfcheetah.json --out docs/images/sac-halfcheetah.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from outcome import result_file

from cadenza.lab.charts import INK
from cadenza.lab.plots import COLOURS, set_titles

Curve = dict[int, float]


def parse_series(text: str) -> tuple[str, list[Curve]]:
    """Parse `NAME=FILE`; return the name and the curve of each seed, by env_steps."""
    name, _, file = text.partition("=")
    if not Path(file).is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no file {file or text}; give NAME=FILE")
    rows = json.loads(Path(file).read_text()).get("seeds", [])
    curves = [{int(step): value for step, value in row["curve"].items()} for row in rows if row.get("curve")]
    if not curves:
        raise argparse.ArgumentTypeError(f"{text}: {file} has no curves of seeds")
    return name, curves


def mean_curve(curves: list[Curve], apart: float) -> tuple[list[float], list[float]]:
    """Return the mean over the seeds as far as all curves reach; steps less than `apart` from each other are equal."""
    many = min(map(len, curves))
    steps = np.array([list(curve)[:many] for curve in curves])
    if np.ptp(steps, 0).max() > apart:
        raise SystemExit("error: these seeds were not evaluated after the same steps")
    values = np.array([list(curve.values())[:many] for curve in curves])
    return steps.mean(0).tolist(), values.mean(0).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("title")
    parser.add_argument("series", nargs="+", type=parse_series, metavar="NAME=FILE")
    parser.add_argument("--apart", type=float, default=5000, metavar="STEPS", help="how far seeds' steps may differ")
    parser.add_argument("--out", type=result_file, required=True)
    options = parser.parse_args()
    figure = Figure(figsize=(7.2, 4.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for colour, (name, curves) in zip(COLOURS, options.series, strict=False):
        for curve in curves:
            axes.plot(list(curve), list(curve.values()), color=colour, linewidth=0.8, alpha=0.4)
        seeds = f"{len(curves)} seed{'s' * (len(curves) > 1)}"
        axes.plot(*mean_curve(curves, options.apart), color=colour, linewidth=2.2, label=f"{name} ({seeds})")
    set_titles(axes, options.title, "env_steps", "return of an episode (evaluation)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.legend(frameon=False, labelcolor=INK)
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
