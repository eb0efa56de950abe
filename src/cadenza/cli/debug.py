"""`cadenza debug`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, Run, RunsDir, Trust, print_json, say


def debug(
    run: Run,
    checkpoint: Annotated[str | None, typer.Option(help="Start from best, last, or a number of env_steps.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Repeat so many env_steps. Default: to the run's end.")
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Find where the first NaN or infinity of a run arises.

    It repeats the end of the run with every check on, from the state before the failure of a `train --debug` run, or
    from the last checkpoint if that is newer.

    Example: cadenza debug @last
    """
    from cadenza.cli.train import finish
    from cadenza.records.folder import find, runs_root
    from cadenza.tools.diagnose import diagnose

    result = diagnose(find(runs_root(runs_dir), run), checkpoint, steps, trust, partial(say, err=True))
    if json:
        print_json(result)
    else:
        for line in describe(result):
            say(line)
    finish(result.get("signal"))


def describe(result: dict[str, Any]) -> list[str]:
    """Return the lines of a diagnosis."""
    if not result["found"]:
        span = f"from {result['from']} to step {result['env_steps']}"
        return [f"nothing found: every number is finite {span} (--checkpoint starts from another)"]
    place = f"at step {result['env_steps']}, {result['when']} update {result['updates']}"
    what = f"{result['site']} {result['what']}" if result["site"] else result["error"]
    lines = [what, f"  {place}, during `{result['during']}` of phase {result['phase']}"]
    facts = {"values": result.get("values"), **result.get("inputs", {}), **result.get("parameters", {})}
    lines += [f"  {name}: {numbers(fact)}" for name, fact in facts.items() if fact]
    for title, call in (("made by", result["operation"]), ("in the derivative of", result["backward"])):
        if call:
            lines.append(f"{title} {call['function']}, {call.get('where', 'somewhere in torch')}")
            lines += [f"  {call['code']}"] if call.get("code") else []
    return lines


def numbers(fact: dict[str, Any]) -> str:
    """Return the type and shape of an array, how many of its values are not finite, and the range of the others."""
    span = f", finite ones in [{fact['min']:.4g}, {fact['max']:.4g}]" if "min" in fact else ""
    bad = f"{fact['nan']} NaN, {fact['inf']} infinite" if fact["nan"] or fact["inf"] else "all finite"
    return f"{fact['dtype']} {fact['shape']}, {bad}{span}"
