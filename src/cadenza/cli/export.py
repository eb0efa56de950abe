"""`cadenza export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.compare import Runs, listed
from cadenza.cli.output import Filters, Json, RunsDir, Trust, print_json, require_parent, say

TABLES = ("csv", "json", "parquet", "latex")
MODELS = ("onnx", "torchscript")
FORMATS = (*TABLES, "dataset", *MODELS)


def export(
    runs: Runs = None,
    format: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"Write {', '.join(FORMATS)}.")] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write here. Default: stdout (a dataset needs a new folder).")
    ] = None,
    filters: Filters = None,
    metrics: Annotated[str, typer.Option("--metrics", "-m", metavar="A,B", help="Write these metrics alone.")] = "",
    by: Annotated[str, typer.Option(metavar="KEY,…", help="Group runs by these settings (latex).")] = "",
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Play N episodes instead of writing the replay (dataset).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed the played episodes. Default: 0.")] = None,
    explore: Annotated[bool, typer.Option("--explore", help="Play with exploration, as in training.")] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Take best, last, or a number of env_steps (model, played episodes). Default: last."),
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Write runs in formats for other programs.

    csv, json and parquet hold metrics, latex a table of scores, dataset the experience. onnx and torchscript hold the
    policy with its normaliser, checked to act as the run does.

    Example: cadenza export CartPole-v1:ppo --format csv --metrics eval/return_mean > curves.csv
    Example: cadenza export --filter tag=paper --format latex --out table.tex
    Example: cadenza export @best --format dataset --episodes 100 --out expert
    Example: cadenza export @best --format onnx --out policy.onnx
    """
    from cadenza.records.folder import find, runs_root

    if format not in FORMATS:
        from cadenza.errors import nearest

        formats = f"{nearest(format, FORMATS)} (there are: {', '.join(FORMATS)})"
        raise typer.BadParameter(f"--format {format}: unknown{formats}" if format else f"--format is missing{formats}")
    selects = bool(filters or metrics or by) or len(runs or []) != 1
    plays = explore or (episodes, seed) != (None, None)
    root, run = runs_root(runs_dir), (runs or [""])[0]
    if format in MODELS:
        if selects or plays:
            raise typer.BadParameter(f"--format {format} takes one RUN, --out and --checkpoint, and nothing else")
        check_out(format, out, json, binary=True)
        from cadenza.tools.export_policy import export_policy

        content, result = export_policy(find(root, run), format, checkpoint or "last", trust)
        write(content, out)
        if json:
            print_json({"out": str(out and out.absolute()), **result})
        else:
            for line in describe_model(str(out or "stdout"), result):
                say(line, err=out is None)
    elif format == "dataset":
        if selects:
            raise typer.BadParameter("a dataset is made of one RUN, all of it")
        if out is None:
            raise typer.BadParameter("a dataset is a folder: give --out DIR")
        if episodes is None and (plays or checkpoint is not None):
            raise typer.BadParameter("--seed, --explore and --checkpoint need --episodes N")
        from cadenza.tools.export import EpisodeSelection, export_dataset

        selection = None if episodes is None else EpisodeSelection(episodes, seed or 0, explore)
        folder = find(root, run)
        result = export_dataset(folder, out, selection, checkpoint or "last", trust)
        if json:
            print_json(result)
        else:
            from cadenza.lab.checkpoint_list import title

            say(f"{out}: {counts(result)}; {title(folder, result['checkpoint'])}")
    else:
        if checkpoint is not None:
            raise typer.BadParameter(f"--checkpoint needs --format {', '.join(MODELS)}, or dataset with --episodes")
        if plays:
            raise typer.BadParameter("--episodes, --seed and --explore need --format dataset")
        export_table(root, runs or [], filters or [], format, out, metrics, by, json)


def check_out(format: str, out: Path | None, json: bool, binary: bool) -> None:
    """Refuse a file without a folder, JSON after a file on stdout, and bytes on a terminal."""
    if out is None and json:
        raise typer.BadParameter("--json prints where the export went: give --out FILE")
    if out is None and binary and sys.stdout.isatty():
        raise typer.BadParameter(f"{format} is not text: give --out FILE")
    require_parent("--out", out)


def write(content: bytes, out: Path | None) -> None:
    """Write to a file or to stdout."""
    from cadenza.base import atomic

    if out is not None:
        atomic.write_out(out, content)
    else:
        sys.stdout.buffer.write(content)


def describe_model(where: str, result: dict[str, Any]) -> list[str]:
    """Return lines about the inputs and outputs of a model, and its differences from the run's own policy."""
    inputs = [f"{name} {dtype}[{', '.join(map(str, shape))}]" for name, (dtype, shape) in result["inputs"].items()]
    largest, choices, share = (result[key] for key in ("largest_difference", "choices_checked", "random_share"))
    equal = f", {choices - result['choices_differing']} of {choices} choices equal" if choices else ""
    lines = [
        f"{where}: the policy of {result['run']} at {result['checkpoint']}, {result['bytes']:,} bytes",
        f"  takes {', '.join(inputs)}; gives {', '.join(result['outputs'])}",
        f"  {result['observations_checked']} random observations: largest difference {largest:.2g}{equal}",
    ]
    if share:
        lines.append(f"  in evaluations the run acts at random {share:.1%} of the time; the model never does")
    return lines


def export_table(
    root: Path, runs: list[str], filters: list[str], format: str, out: Path | None, metrics: str, by: str, json: bool
) -> None:
    """Write the metrics or scores of runs as a table."""
    if by and format != "latex":
        raise typer.BadParameter("--by needs --format latex: the other formats do not group runs")
    check_out(format, out, json, binary=format == "parquet")
    from cadenza.lab import formats
    from cadenza.lab.compare import compare
    from cadenza.lab.series import select_runs

    folders, columns = select_runs(root, runs, filters), listed(metrics)
    if format == "latex":
        content: str | bytes = formats.as_latex(compare(folders, columns, by=listed(by)))
    else:
        content = getattr(formats, f"as_{format}")(folders, columns)
    if out is None and isinstance(content, str):
        say(content, several=True, end="")
        return
    data = content.encode() if isinstance(content, str) else content
    write(data, out)
    if out is None:
        return
    if json:
        print_json({"out": str(out.absolute()), "format": format, "runs": [f.id for f in folders], "bytes": len(data)})
    else:
        say(f"{out}: {len(folders)} run{'s' if len(folders) > 1 else ''} as {format}")


def counts(result: dict[str, Any]) -> str:
    """Return a line with the counts and returns of a dataset."""
    text = f"{result['transitions']} transitions in {result['episodes']} episodes"
    if result["unfinished"]:
        text += f" ({result['unfinished']} of them incomplete)"
    if result["return_mean"] is None:
        return text
    return text + (
        f", return {result['return_mean']:.2f} (min {result['return_min']:.2f}, max {result['return_max']:.2f})"
    )
