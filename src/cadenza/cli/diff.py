"""`cadenza diff`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, Run, RunsDir, print_json, print_table, say


def diff(
    a: Run,
    b: Run,
    first: Annotated[bool, typer.Option("--first", help="Show only the first step and quantity that differ.")] = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Show where two runs differ.

    It compares settings, versions and machines, and names the first step and quantity of the metrics that differ.

    Example: cadenza diff CartPole-v1-ppo-s1 @last --first
    """
    from cadenza.lab.diff import facts, parting, without_episodes
    from cadenza.records.folder import find, runs_root

    root = runs_root(runs_dir)
    ours, theirs = find(root, a), find(root, b)
    parted, lacking = parting(ours, theirs), without_episodes(ours, theirs)
    differing = {} if first else facts(ours, theirs)
    if json:
        result = {"a": ours.id, "b": theirs.id, "identical": parted is None, "first_difference": parted}
        print_json(result | {"episodes_compared": not lacking} | differing)
        return
    for title, values in differing.items():
        if values:
            print_table((title, ours.id, theirs.id), [(key, _text(x), _text(y)) for key, (x, y) in values.items()])
    say(first_difference(parted, lacking))
    if parted is not None and (episode := first_episode(parted)):
        say(episode)


def first_difference(parted: dict[str, Any] | None, lacking: list[str]) -> str:
    """Return a line about the first difference; `lacking` runs recorded no episodes."""
    if parted is None:
        without = f"{' and '.join(dict.fromkeys(lacking))} recorded none"
        rest = f"metrics are identical; episodes cannot be compared: {without}"
        return rest if lacking else "metrics and episodes are identical"
    text = "metrics are identical, episodes are not"
    if parted["env_steps"] is not None:
        text = f"they first differ at step {parted['env_steps']} in {parted['quantity']}: "
        text += f"{_text(parted['a'])} and {_text(parted['b'])}"
    return text


def first_episode(parted: dict[str, Any]) -> str:
    """Return a line about the first episode that differs, or nothing if it is unknown."""
    episode = parted.get("episode")
    if episode is None:
        return ""
    where = f"episode {episode['number']} of environment {episode['env']}"
    step = f" at its step {episode['step']}" if episode["step"] is not None else ""
    return f"first of the finished episodes to differ: {where}{step}, in its {episode['quantity']}"


def _text(value: Any) -> str:
    from cadenza.base.json_text import dumps

    return "-" if value is None else value if isinstance(value, str) else dumps(value)
