"""`cadenza export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, RunsDir, Trust, print_json, say

TABLES = ("csv", "json", "parquet", "latex")
MODELS = ("onnx", "torchscript")
FORMATS = (*TABLES, "dataset", *MODELS)


def export(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN …", help="Runs; a wildcard ('CartPole*') or a spec means several."),
    ] = None,
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help=f"what to write: {', '.join(FORMATS)}")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="where; stdout without it (a dataset needs a new folder)")
    ] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", "-f", metavar="KEY=VALUE", help="runs, as in list")
    ] = None,
    metrics: Annotated[str, typer.Option("--metrics", "-m", metavar="A,B", help="these alone")] = "",
    by: Annotated[str, typer.Option(metavar="KEY,…", help="latex: put runs together by these settings")] = "",
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="dataset: play N episodes instead of taking the replay")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed of the played episodes  [default: 0]")] = None,
    explore: Annotated[bool, typer.Option("--explore", help="play as in training, not at its best")] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="best, last, or a number of env_steps, for models and played episodes  [default: last]"),
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Write runs for other programs: metrics as csv, json or parquet, scores as a latex table, experience as a dataset,
    the policy with its normaliser as an onnx or torchscript model, checked to act as the run does.

    Example: cadenza export CartPole-v1:ppo --format csv --metrics eval/return_mean > curves.csv
    Example: cadenza export --filter tag=paper --format latex --out table.tex
    Example: cadenza export @best --format dataset --episodes 100 --out expert
    Example: cadenza export @best --format onnx --out policy.onnx
    """
    if format not in FORMATS:
        from cadenza.errors import nearest

        known = f"{nearest(format, FORMATS)} (there are: {', '.join(FORMATS)})"
        raise typer.BadParameter(f"--format {format}: unknown{known}" if format else f"say --format{known}")
    if format in MODELS:
        if filters or metrics or by or explore or (episodes, seed) != (None, None) or len(runs or []) != 1:
            raise typer.BadParameter(f"--format {format} takes one RUN, --out and --checkpoint, and nothing else")
        export_model((runs or [""])[0], format, out, checkpoint or "last", trust, runs_dir, json)
        return
    played = explore or (episodes, seed, checkpoint) != (None, None, None)
    if format != "dataset":
        if checkpoint is not None:
            raise typer.BadParameter(f"--checkpoint is about --format {', '.join(MODELS)} and dataset --episodes")
        if played:
            raise typer.BadParameter("--episodes, --seed and --explore are about --format dataset")
        export_table(runs, filters, format, out, metrics, by, runs_dir, json)
        return
    if filters or metrics or by or len(runs or []) != 1:
        raise typer.BadParameter("a dataset is made of one RUN, all of it")
    if out is None:
        raise typer.BadParameter("a dataset is a folder: say where with --out DIR")
    if episodes is None and played:
        raise typer.BadParameter("--seed, --explore and --checkpoint are about played episodes: give --episodes N")
    from cadenza.records.folder import find, runs_root
    from cadenza.tools.export import Episodes, export_dataset

    asked = None if episodes is None else Episodes(episodes, seed or 0, explore)
    result = export_dataset(find(runs_root(runs_dir), (runs or [""])[0]), out, asked, checkpoint or "last", trust)
    if json:
        print_json(result)
    else:
        say(f"{out}: {told(result)}")


def export_model(
    run: str, format: str, out: Path | None, checkpoint: str, trust: bool, runs_dir: Path | None, json: bool
) -> None:
    if out is None and (json or sys.stdout.isatty()):
        raise typer.BadParameter(f"{format} is no text: give --out FILE")
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"--out {out}: there is no folder {out.parent}")
    from cadenza.base import atomic
    from cadenza.records.folder import find, runs_root
    from cadenza.tools.export_policy import export_policy

    content, result = export_policy(find(runs_root(runs_dir), run), format, checkpoint, trust)
    if out is not None:
        atomic.write_out(out, content)
    else:
        sys.stdout.buffer.write(content)
    if json:
        print_json({"out": str(out and out.absolute()), **result})
    else:
        for line in told_of_model(str(out or "stdout"), result):
            say(line, err=out is None)


def told_of_model(where: str, result: dict[str, Any]) -> list[str]:
    """What it takes and gives, and how far it is from the run's own policy."""
    inputs = [f"{name} {dtype}[{', '.join(map(str, shape))}]" for name, (dtype, shape) in result["inputs"].items()]
    lines = [
        f"{where}: the policy of {result['run']} at {result['checkpoint']}, {result['bytes']:,} bytes",
        f"  takes {', '.join(inputs)}; gives {', '.join(result['outputs'])}",
    ]
    largest, choices, share = (result[key] for key in ("largest_difference", "choices_checked", "random_share"))
    equal = f", {choices - result['choices_differing']} of {choices} choices equal" if choices else ""
    lines.append(f"  {result['observations_checked']} random observations: largest difference {largest:.2g}{equal}")
    if share:
        lines.append(f"  when it is measured, the run acts at random {share:.1%} of the time; the model never does")
    return lines


def export_table(
    runs: list[str] | None,
    filters: list[str] | None,
    format: str,
    out: Path | None,
    metrics: str,
    by: str,
    runs_dir: Path | None,
    json: bool,
) -> None:
    if by and format != "latex":
        raise typer.BadParameter("--by is about --format latex: the other formats keep every run apart")
    if json and out is None:
        raise typer.BadParameter("--json tells where the export went: give --out FILE")
    if format == "parquet" and out is None and sys.stdout.isatty():
        raise typer.BadParameter("parquet is no text: give --out FILE")
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"--out {out}: there is no folder {out.parent}")
    from cadenza.base import atomic
    from cadenza.cli.compare import listed
    from cadenza.lab import formats
    from cadenza.lab.compare import compare
    from cadenza.lab.series import chosen
    from cadenza.records.folder import runs_root

    folders, wanted = chosen(runs_root(runs_dir), runs or [], filters or []), listed(metrics)
    if format == "latex":
        content: str | bytes = formats.as_latex(compare(folders, wanted, by=listed(by)))
    elif format == "parquet":
        content = formats.as_parquet(folders, wanted)
    else:
        content = (formats.as_csv if format == "csv" else formats.as_json)(folders, wanted)
    if out is None:
        if isinstance(content, bytes):
            sys.stdout.buffer.write(content)
        else:
            say(content, several=True, end="")
        return
    data = content.encode() if isinstance(content, str) else content
    atomic.write_out(out, data)
    if json:
        print_json({"out": str(out.absolute()), "format": format, "runs": [f.id for f in folders], "bytes": len(data)})
    else:
        say(f"{out}: {len(folders)} run{'s' if len(folders) > 1 else ''} as {format}")


def told(result: dict[str, Any]) -> str:
    """Counts and returns in a line."""
    counts = f"{result['transitions']} transitions in {result['episodes']} episodes"
    if result["unfinished"]:
        counts += f" ({result['unfinished']} of them in part)"
    if result["return_mean"] is None:
        return counts
    spread = f"min {result['return_min']:.2f}, max {result['return_max']:.2f}"
    return f"{counts}, return {result['return_mean']:.2f} ({spread})"
