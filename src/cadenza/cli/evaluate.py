"""`cadenza evaluate`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cadenza.cli.output import Json, Run, RunsDir, Trust, print_json, say


def evaluate(
    run: Run,
    episodes: Annotated[int, typer.Option(min=1, help="Finish so many episodes.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed the episodes.")] = 0,
    checkpoint: Annotated[str, typer.Option(help="Load best, last, or a number of env_steps.")] = "last",
    timeout: Annotated[
        float | None, typer.Option(min=0.001, metavar="S", help="Stop after S seconds and use the episodes finished.")
    ] = None,
    explore: Annotated[bool, typer.Option("--explore", help="Draw actions as in training.")] = False,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Measure the returns of a trained policy.

    Example: cadenza evaluate @last --episodes 100 --checkpoint best
    """
    from cadenza.lab.checkpoint_list import title
    from cadenza.lab.playback import evaluate_run
    from cadenza.records.folder import find, runs_root

    folder, report = find(runs_root(runs_dir), run), partial(say, err=True)
    result = evaluate_run(
        folder, episodes, seed, checkpoint, trust, timeout_seconds=timeout, explore=explore, report=report
    )
    for problem in result["problems"]:
        say(f"warning: {problem}", err=True)
    if json:
        print_json(result)
    if not result["returns"]:
        say("no episode was finished, so there is no return: give a longer --timeout", err=True)
        raise typer.Exit(1)
    if json:
        return
    say(title(folder, result["checkpoint"]))
    spread = f"{result['return_mean']:.2f} ± {result['return_std']:.2f} (std)"
    say(f"return {spread} over {result['episodes']} episodes")
    say(f"min {result['return_min']:.2f}, max {result['return_max']:.2f}, length {result['length_mean']:.1f}")
    if "win_rate" in result:
        say(f"won {result['win_rate']:.1%}")
    groups = {key.removesuffix("/return_mean"): value for key, value in result.items() if key.endswith("/return_mean")}
    if groups:
        say("of which " + ", ".join(f"{group} {value:.2f}" for group, value in groups.items()))
