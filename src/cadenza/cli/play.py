"""`cadenza play`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import Json, Run, RunsDir, Trust, print_json

if TYPE_CHECKING:
    from cadenza.view.play import Shown


def play(
    run: Run,
    episodes: Annotated[int | None, typer.Option(min=1, help="how many episodes  [default: 1]")] = None,
    video: Annotated[Path | None, typer.Option(metavar="FILE", help="write a .gif or .mp4, open no window")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, last, or a number of env_steps  [default: best if there is one]")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed of the episodes  [default: 0]")] = None,
    episode: Annotated[int | None, typer.Option(metavar="K", min=0, help="training episode K as recorded")] = None,
    explore: Annotated[bool, typer.Option("--explore", help="act as in training, not at its best")] = False,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Watch a trained policy, or a training episode again: in a window, or as a video where there is no screen.

    Example: cadenza play @last --video best.mp4
    Example: cadenza play @last --episode 120
    """
    from cadenza.records.folder import find, runs_root
    from cadenza.view.play import show_episode, show_policy
    from cadenza.view.video import check_video

    if episode is not None and (explore or (episodes, checkpoint, seed) != (None, None, None)):
        raise typer.BadParameter("--episode repeats a recorded episode: of the other choices only --video fits")
    if video is not None:
        check_video(video)
    folder = find(runs_root(runs_dir), run)
    if episode is not None:
        shown = show_episode(folder, episode, video, trust)
    else:
        shown = show_policy(folder, episodes or 1, seed or 0, checkpoint, explore, video, trust)
    report(folder.id, shown, json)
    if shown.identical is False:
        typer.echo(f"warning: {shown.source} did not come out as it was recorded", err=True)
        raise typer.Exit(1)


def report(run: str, shown: Shown, json: bool) -> None:
    played = [episode.facts() for episode in shown.episodes]
    if json:
        told = {"run": run, "source": shown.source, "episodes": played, "video": shown.video and str(shown.video)}
        print_json(told | ({} if shown.identical is None else {"identical": shown.identical}))
    else:
        typer.echo(f"{run}, {shown.source}")
        for facts in played:
            cut = "" if facts["ended"] else " (cut: no end in sight)"
            typer.echo(f"episode {facts['episode']}: return {facts['return']:.2f}, length {facts['length']}{cut}")
    if shown.identical:
        typer.echo("return and length are those recorded in training", err=True)
    if shown.video is not None:
        typer.echo(f"video: {shown.video}", err=True)
