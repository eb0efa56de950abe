"""`cadenza demonstrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import Json, Overrides, print_json, say


def demonstrate(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An environment, as in `cadenza envs`.")],
    expert: Annotated[
        str, typer.Argument(metavar="EXPERT", help="A shipped one (fork, pusht), or your own: package.module:name.")
    ],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write to this new folder.")] = None,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Play so many episodes.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed the episodes and the expert's random generator.")] = 0,
    json: Json = False,
) -> None:
    """Play with a scripted expert, and write a dataset.

    EXPERT is a function (obs, random) -> action, where random is a NumPy Generator; or a class without arguments
    whose instances are called like that, one for each episode.

    Example: cadenza demonstrate toy/fork fork --episodes 200 --out forks
    Example: cadenza demonstrate Pendulum-v1 my_experts:swing_up --out swings
    """
    if out is None:
        raise typer.BadParameter("demonstrations are a folder: give --out DIR")
    for override in overrides or ():
        if not override.startswith("environment."):
            raise typer.BadParameter(f"{override}: an expert has only settings environment.…")
    from cadenza.cli.export import counts
    from cadenza.config.load import load
    from cadenza.config.registry import ALGORITHMS
    from cadenza.tools.demonstrate import demonstrate as play
    from cadenza.tools.export import EpisodeSelection

    id, _, algorithm = env.rpartition(":")
    if id and algorithm in ALGORITHMS:
        raise typer.BadParameter(f"{env}: the expert acts, not an algorithm; give {id} alone")
    config = load(f"{env}:diffusion_policy", overrides or ())
    result = play(config, expert, out, EpisodeSelection(episodes, seed))
    if json:
        print_json(result)
    else:
        say(f"{out}: {counts(result)}")
