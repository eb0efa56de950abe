"""`cadenza debug`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, Run, RunsDir, Trust, print_json, say


def debug(
    run: Run,
    checkpoint: Annotated[str | None, typer.Option(help="start from best, last, or a number of env_steps")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="how far, in env_steps; else to the run's end")] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Find where a run's first NaN or infinity is born, by repeating its end with every check on.

    It starts from the state before the failure of a `train --debug` run, or from the last checkpoint if that is newer.
    Example: cadenza debug @last
    """
    from cadenza.cli.train import finish
    from cadenza.records.folder import find, runs_root
    from cadenza.tools.diagnose import diagnose

    result = diagnose(find(runs_root(runs_dir), run), checkpoint, steps, trust, partial(say, err=True))
    if json:
        print_json(result)
    else:
        for line in tell(result):
            say(line)
    finish(result.get("signal"))


def tell(result: dict[str, Any]) -> list[str]:
    """A diagnosis for people."""
    if not result["found"]:
        span = f"from {result['from']} to step {result['env_steps']}"
        return [f"nothing found: every number is finite {span} (--checkpoint starts from another)"]
    place = f"at step {result['env_steps']}, {result['when']} update {result['updates']}"
    what = f"{result['site']} {result['what']}" if result["site"] else result["error"]
    lines = [what, f"  {place}, during `{result['during']}` of phase {result['phase']}"]
    facts = {"values": result.get("values"), **result.get("inputs", {}), **result.get("parameters", {})}
    lines += [f"  {name}: {numbers(fact)}" for name, fact in facts.items() if fact]
    for title, found in (("made by", result["operation"]), ("in the derivative of", result["backward"])):
        if found:
            lines.append(f"{title} {found['function']}, {found.get('where', 'somewhere in torch')}")
            lines += [f"  {found['code']}"] if found.get("code") else []
    return lines


def numbers(fact: dict[str, Any]) -> str:
    span = f", finite ones in [{fact['min']:.4g}, {fact['max']:.4g}]" if "min" in fact else ""
    bad = f"{fact['nan']} NaN, {fact['inf']} infinite" if fact["nan"] or fact["inf"] else "all finite"
    return f"{fact['dtype']} {fact['shape']}, {bad}{span}"
