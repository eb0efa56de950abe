"""`cadenza demonstrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import Json, print_json, say


def demonstrate(
    env: Annotated[str, typer.Argument(metavar="ENV", help="environment, as in `cadenza envs`")],
    expert: Annotated[
        str, typer.Argument(metavar="EXPERT", help="one of ours (fork, pusht), or your own: package.module:name")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="key=value …", help="settings of the environment")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="a new folder")] = None,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="episodes to play")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="seed of the episodes and of the expert's chance")] = 0,
    json: Json = False,
) -> None:
    """Let a scripted expert play, and write what it does as a dataset to learn from.

    EXPERT is a function (obs, random) -> action, where random is a numpy Generator; or a class without arguments,
    called like that, of which each episode has an instance of its own.

    Example: cadenza demonstrate toy/fork fork --episodes 200 --out forks
    Example: cadenza demonstrate Pendulum-v1 my_experts:swing_up --out swings
    """
    if out is None:
        raise typer.BadParameter("demonstrations go to a folder: say where with --out DIR")
    wrong = [one for one in overrides or () if not one.startswith("environment.")]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]}: only environment.… matters to an expert")
    from cadenza.cli.export import told
    from cadenza.config.load import load
    from cadenza.config.registry import ALGORITHMS
    from cadenza.tools.demonstrate import demonstrate as play
    from cadenza.tools.export import Episodes

    alone, _, algorithm = env.rpartition(":")
    if alone and algorithm in ALGORITHMS:
        raise typer.BadParameter(f"{env}: the expert acts, no algorithm; give {alone} alone")
    config = load(f"{env}:diffusion_policy", overrides or ())
    result = play(config, expert, out, Episodes(episodes, seed))
    if json:
        print_json(result)
    else:
        say(f"{out}: {told(result)}")
