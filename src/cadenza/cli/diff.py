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
    from cadenza.lab.diff import differences, first_divergence, without_episodes
    from cadenza.records.folder import find, runs_root

    root = runs_root(runs_dir)
    ours, theirs = find(root, a), find(root, b)
    divergence, lacking = first_divergence(ours, theirs), without_episodes(ours, theirs)
    differing = {} if first else differences(ours, theirs)
    if json:
        result = {"a": ours.id, "b": theirs.id, "identical": divergence is None, "first_difference": divergence}
        print_json(result | {"episodes_compared": not lacking} | differing)
        return
    for title, values in differing.items():
        if values:
            print_table((title, ours.id, theirs.id), [(key, _text(x), _text(y)) for key, (x, y) in values.items()])
    say(first_difference(divergence, lacking))
    if divergence is not None and (episode := first_episode(divergence)):
        say(episode)


def first_difference(divergence: dict[str, Any] | None, lacking: list[str]) -> str:
    """Return a line about the first difference; `lacking` runs recorded no episodes."""
    if divergence is None:
        without = f"{' and '.join(dict.fromkeys(lacking))} recorded none"
        rest = f"metrics are identical; episodes cannot be compared: {without}"
        return rest if lacking else "metrics and episodes are identical"
    text = "metrics are identical, episodes are not"
    if divergence["env_steps"] is not None:
        text = f"they first differ at step {divergence['env_steps']} in {divergence['quantity']}: "
        text += f"{_text(divergence['a'])} and {_text(divergence['b'])}"
    return text


def first_episode(divergence: dict[str, Any]) -> str:
    """Return a line about the first episode that differs, or nothing if it is unknown."""
    episode = divergence.get("episode")
    if episode is None:
        return ""
    where = f"episode {episode['number']} of environment {episode['env']}"
    step = f" at its step {episode['step']}" if episode["step"] is not None else ""
    return f"first of the finished episodes to differ: {where}{step}, in its {episode['quantity']}"


def _text(value: Any) -> str:
    from cadenza.base.json_text import dumps

    return "-" if value is None else value if isinstance(value, str) else dumps(value)
