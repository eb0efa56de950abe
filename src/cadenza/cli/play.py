"""`cadenza play`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.output import Checkpoint, Json, RunsDir, Trust, print_json, say

if TYPE_CHECKING:
    from cadenza.lab.view.human import Game
    from cadenza.lab.view.play import PlayResult
    from cadenza.records.folder import RunFolder

MOST_FPS = 10_000


def play(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="An id, a unique prefix, a path, @last, @best[:SPEC]; with --human also ENV:VARIANT."
        ),
    ],
    episodes: Annotated[int | None, typer.Option(min=1, help="Play so many episodes. Default: 1.")] = None,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a .gif or .mp4 instead of opening a window.")
    ] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Show it in this terminal, in 24-bit colours.")] = False,
    fps: Annotated[
        float | None, typer.Option(min=0.1, help="Show so many steps a second. Default: the environment's.")
    ] = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed the episodes. Default: 0.")] = None,
    episode: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="Repeat training episode K as recorded.")
    ] = None,
    explore: Annotated[bool, typer.Option("--explore", help="Act with exploration, as in training.")] = False,
    imagine: Annotated[
        bool, typer.Option("--imagine", help="Write a world model's predictions beside the real episode.")
    ] = False,
    human: Annotated[bool, typer.Option("--human", help="Play yourself, by keys.")] = False,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Play this agent of a team. Default: the first.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write your episodes as a dataset, for training.dataset.")
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Show a policy or a training episode, or play yourself.

    It opens a window, draws in the terminal, or writes a video.

    Example: cadenza play @last --video best.mp4
    Example: cadenza play @last --episode 120
    Example: cadenza play LunarLander-v3:dqn --human --fps 25 --record mine
    """
    if episode is not None and (explore or imagine or human or (episodes, checkpoint, seed) != (None, None, None)):
        raise typer.BadParameter("--episode repeats a recorded one: only --video, --terminal and --fps go with it")
    if video is not None and (terminal or human or imagine):
        raise typer.BadParameter("--video writes a file: it does not go with --terminal, --human or --imagine")
    if not human and (agent is not None or record is not None):
        raise typer.BadParameter("--agent and --record need --human")
    if imagine and (explore or terminal or (episodes, fps) != (None, None)):
        raise typer.BadParameter("--imagine writes files: only --seed and --checkpoint go with it")
    if fps is not None and not fps <= MOST_FPS:  # NaN is refused, too
        raise typer.BadParameter(f"--fps {fps}: must be at most {MOST_FPS}")
    if human and (explore or imagine):
        raise typer.BadParameter("--human is played by you: --explore and --imagine do not go with it")
    from cadenza.lab.view.play import ScreenOptions, play_policy, replay_episode
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
    options = ScreenOptions(video, terminal, fps)
    if episode is not None:
        result = replay_episode(folder, episode, options, trust)
    else:
        result = play_policy(folder, episodes or 1, seed or 0, checkpoint, explore, options, trust)
    report(folder.id, result, json)
    if result.identical is False:
        say(f"warning: {result.source} did not repeat as recorded", err=True)
        raise typer.Exit(1)


def report(run: str, result: PlayResult, json: bool) -> None:
    """Print the episodes that were played, and where their video is."""
    episodes = [episode.facts() for episode in result.episodes]
    if json:
        video = result.video and str(result.video)
        identical = {} if result.identical is None else {"identical": result.identical}
        print_json({"run": run, "source": result.source, "episodes": episodes, "video": video} | identical)
    else:
        say(result.title)
        for facts in episodes:
            cut = "" if facts["ended"] else " (cut: it did not end)"
            say(f"{outcome(facts)}{cut}")
    if result.identical:
        say("return and length are as recorded in training", err=True)
    if result.video is not None:
        say(f"video: {result.video}", err=True)


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
    """Play in the environment of a run, with its policy's choices shown, or of a spec if no run has this name."""
    from cadenza.errors import NotFoundError
    from cadenza.lab.view.human import play_human
    from cadenza.records.folder import find

    try:
        folder = find(root, run)
    except NotFoundError:
        if ":" not in run:
            raise
        if checkpoint is not None:
            raise typer.BadParameter(f"--checkpoint needs a run, and {run} is none") from None
        from cadenza.config.load import load
        from cadenza.records.trust import require_trust_of_file

        require_trust_of_file(run, trust)
        config, player, name = load(run), None, run
    else:
        from cadenza.lab.checkpoint_list import title
        from cadenza.lab.playback import load_policy

        player, loaded = load_policy(folder, checkpoint or folder.best_or_last, trust)
        say(f"the other agents, if any, are played by {title(folder, loaded)}", err=True)
        config, name = player.config, folder.id
    return name, play_human(config, player, episodes or 1, seed or 0, agent, record, terminal, fps)


def report_game(name: str, game: Game, json: bool) -> None:
    """Print the episodes that were played by hand, and the dataset they went to."""
    episodes = [episode.facts() for episode in game.episodes]
    if json:
        about = {key: game.facts[key] for key in ("transitions", "digest") if key in game.facts}
        dataset = None if game.dataset is None else str(game.dataset.absolute())
        print_json({"played": name, "agent": game.agent, "episodes": episodes, "dataset": dataset, **about})
        return
    for facts in episodes:
        say(outcome(facts))
    if game.dataset is not None:
        say(f"{game.dataset}: {game.facts['transitions']} transitions in {counted(len(episodes))}")
    elif not episodes:
        say("no episode was finished", err=True)


def report_files(folder: RunFolder, seed: int, checkpoint: str | None, trust: bool, json: bool) -> None:
    """Write what a world model imagines, and print the files."""
    from cadenza.lab.checkpoint_list import title
    from cadenza.lab.view.imagination import imagine_run

    name, files = imagine_run(folder, seed, checkpoint or folder.best_or_last, trust)
    if json:
        print_json({"run": folder.id, "checkpoint": name, "files": [str(path) for path in files]})
        return
    say(title(folder, name), err=True)
    for path in files:
        say(path)


def outcome(facts: dict[str, Any]) -> str:
    """Return a line about an episode."""
    total = round(facts["return"], 2) + 0.0  # turns -0.0 into 0.0
    return f"episode {facts['episode']}: return {total:.2f}, length {facts['length']}"


def counted(episodes: int) -> str:
    """Return `1 episode` or `N episodes`."""
    return f"{episodes} episode{'' if episodes == 1 else 's'}"
