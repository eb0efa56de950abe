"""`cadenza play`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.output import Json, RunsDir, Trust, print_json, say

if TYPE_CHECKING:
    from cadenza.lab.view.human import Game
    from cadenza.lab.view.play import Shown
    from cadenza.records.folder import RunFolder

MOST_FPS = 10_000


def play(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="An id, a unique prefix, a path, @last or @best[:SPEC]; with --human also ENV:VARIANT."
        ),
    ],
    episodes: Annotated[int | None, typer.Option(min=1, help="how many episodes  [default: 1]")] = None,
    video: Annotated[Path | None, typer.Option(metavar="FILE", help="write a .gif or .mp4, open no window")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="show it in this terminal, in 24-bit colours")] = False,
    fps: Annotated[float | None, typer.Option(min=0.1, help="steps a second  [default: the environment's]")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, last, or a number of env_steps  [default: best if there is one]")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed of the episodes  [default: 0]")] = None,
    episode: Annotated[int | None, typer.Option(metavar="K", min=0, help="training episode K as recorded")] = None,
    explore: Annotated[bool, typer.Option("--explore", help="act as in training, not at its best")] = False,
    imagine: Annotated[
        bool, typer.Option("--imagine", help="a world model's imagination beside what happened, as files")
    ] = False,
    human: Annotated[bool, typer.Option("--human", help="play yourself, by keys")] = False,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="whom of a team to play  [default: first]")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write what you play as a dataset, for training.dataset")
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Watch a trained policy, a training episode again, or play: in a window, a terminal, or as a video without either.

    Example: cadenza play @last --video best.mp4
    Example: cadenza play @last --episode 120
    Example: cadenza play LunarLander-v3:dqn --human --fps 25 --record mine
    """
    if episode is not None and (explore or imagine or human or (episodes, checkpoint, seed) != (None, None, None)):
        raise typer.BadParameter("--episode repeats a recorded one: only --video, --terminal and --fps fit with it")
    if video is not None and (terminal or human or imagine):
        raise typer.BadParameter("--video writes a file: it does not fit with --terminal, --human or --imagine")
    if not human and (agent is not None or record is not None):
        raise typer.BadParameter("--agent and --record are about --human")
    if imagine and (explore or terminal or (episodes, fps) != (None, None)):
        raise typer.BadParameter("--imagine writes files: only --seed and --checkpoint fit with it")
    if fps is not None and not fps <= MOST_FPS:  # no number is not below it, either
        raise typer.BadParameter(f"--fps {fps}: must be at most {MOST_FPS}")
    if human and (explore or imagine):
        raise typer.BadParameter("--human is played by you: --explore and --imagine do not fit")
    from cadenza.lab.view.play import On, show_episode, show_policy
    from cadenza.lab.view.video import check_video
    from cadenza.records.folder import find, runs_root

    if video is not None:
        check_video(video)
    root = runs_root(runs_dir)
    if human:
        report_game(*play_by_hand(root, run, episodes, seed, checkpoint, agent, record, terminal, fps, trust), json)
        return
    folder = find(root, run)
    if imagine:
        report_files(folder, seed or 0, checkpoint, trust, json)
        return
    on = On(video, terminal, fps)
    if episode is not None:
        shown = show_episode(folder, episode, on, trust)
    else:
        shown = show_policy(folder, episodes or 1, seed or 0, checkpoint, explore, on, trust)
    report(folder.id, shown, json)
    if shown.identical is False:
        say(f"warning: {shown.source} did not come out as it was recorded", err=True)
        raise typer.Exit(1)


def report(run: str, shown: Shown, json: bool) -> None:
    played = [episode.facts() for episode in shown.episodes]
    if json:
        told = {"run": run, "source": shown.source, "episodes": played, "video": shown.video and str(shown.video)}
        print_json(told | ({} if shown.identical is None else {"identical": shown.identical}))
    else:
        say(f"{run}, {shown.source}")
        for facts in played:
            cut = "" if facts["ended"] else " (cut: no end in sight)"
            say(f"{outcome(facts)}{cut}")
    if shown.identical:
        say("return and length are those recorded in training", err=True)
    if shown.video is not None:
        say(f"video: {shown.video}", err=True)


def play_by_hand(
    root: Path,
    run: str,
    episodes: int | None,
    seed: int | None,
    checkpoint: str | None,
    agent: str | None,
    record: Path | None,
    terminal: bool,
    fps: float | None,
    trust: bool,
) -> tuple[str, Game]:
    """In a run's environment, beside its policy; or in that of a spec, where no run is so called."""
    from cadenza.errors import NotFoundError
    from cadenza.lab.view.human import play_human
    from cadenza.records.folder import find

    try:
        folder = find(root, run)
    except NotFoundError:
        if ":" not in run:
            raise
        if checkpoint is not None:
            raise typer.BadParameter(f"--checkpoint is of a run, and {run} is none") from None
        from cadenza.config.load import load
        from cadenza.records.trust import require_trust_of_file

        if not trust:
            require_trust_of_file(run)
        config, player, name = load(run), None, run
    else:
        from cadenza.engine.playback import load_policy

        player, _ = load_policy(folder, checkpoint or folder.best_or_last, trust)
        config, name = player.config, folder.id
    return name, play_human(config, player, episodes or 1, seed or 0, agent, record, terminal, fps)


def report_game(name: str, game: Game, json: bool) -> None:
    played = [episode.facts() for episode in game.episodes]
    if json:
        about = {key: game.facts[key] for key in ("transitions", "digest") if key in game.facts}
        dataset = None if game.dataset is None else str(game.dataset.absolute())
        print_json({"played": name, "agent": game.agent, "episodes": played, "dataset": dataset, **about})
        return
    for facts in played:
        say(outcome(facts))
    if game.dataset is not None:
        say(f"{game.dataset}: {game.facts['transitions']} transitions in {counted(len(played))}")
    elif not played:
        say("no episode was played to its end", err=True)


def report_files(folder: RunFolder, seed: int, checkpoint: str | None, trust: bool, json: bool) -> None:
    from cadenza.lab.view.imagination import imagine_run

    files = imagine_run(folder, seed, checkpoint or folder.best_or_last, trust)
    if json:
        print_json({"run": folder.id, "files": [str(path) for path in files]})
        return
    for path in files:
        say(path)


def outcome(facts: dict[str, Any]) -> str:
    total = round(facts["return"], 2) + 0.0  # without the minus of a zero
    return f"episode {facts['episode']}: return {total:.2f}, length {facts['length']}"


def counted(episodes: int) -> str:
    return f"{episodes} episode{'' if episodes == 1 else 's'}"
