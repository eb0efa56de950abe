"""`cadenza envs`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, cut, print_json, print_table, say
from cadenza.errors import NotFoundError, nearest

HEAD = ("id", "observation", "action", "max steps", "solved at", "resume by", "tuned variants")
SPACE, VARIANTS = 17, 14  # characters of a cell where several environments are listed
SUMMARY = 66  # characters


def envs(
    filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="List the ids that contain this text, or those of this family.")
    ] = "",
    json: Json = False,
) -> None:
    """List families of environments, or the ids that match a filter.

    An id is the ENV of a spec ENV:VARIANT.

    Example: cadenza envs
    Example: cadenza envs mujoco
    Example: cadenza envs CartPole-v1
    """
    from cadenza.config.environments import families, unlisted
    from cadenza.envs.catalog import listing

    if not filter and not json:
        return print_families()
    rows, absent = listing(filter), unlisted(filter)
    if not rows and absent:
        raise next(iter(absent.values()))
    if not rows:
        names = [name for family, ids in families().items() for name in (family, *ids)]
        raise NotFoundError(f"no environment matches '{filter}'{nearest(filter, names)} (`cadenza envs` lists all)")
    if json:
        print_json({"environments": rows})
    elif len(rows) == 1:
        print_table(("", ""), [(name, text) for name, text in _facts(rows[0]).items() if text])
    else:
        lines = [_cells(row) for row in rows]
        filled = [place for place in range(len(HEAD)) if any(line[place] for line in lines)]
        head, lines = [HEAD[place] for place in filled], [[line[place] for place in filled] for line in lines]
        print_table(head, lines, right=("max steps", "solved at"))
        say(f"{len(rows)} environments; a whole id shows the spaces in full", err=True)
    for reason in (*absent.values(), *(row["error"] for row in rows if row["error"])):
        say(f"note: {reason}", err=True)


def print_families() -> None:
    """Print a line per family: how many environments it has, one of them, and what it is or what it needs."""
    from cadenza.config import registry
    from cadenza.config.environments import families, unlisted
    from cadenza.config.families import FAMILIES
    from cadenza.envs.catalog import tuned_variants
    from cadenza.errors import install

    broken = registry.load_environments()
    installed, absent, rows = families(), unlisted(), []
    for name in dict.fromkeys((*FAMILIES, *installed)):
        summary = FAMILIES[name].summary if name in FAMILIES else "registered by installed packages"
        if name in absent:
            extra = FAMILIES[name].extra
            summary = f"needs {install(extra) if extra else 'an installation by hand: docs/environments.md'}"
        ids = installed.get(name, [])
        example = max(ids, key=lambda id: len(tuned_variants(id)), default="")
        rows.append((name, str(len(ids) or "-"), example, cut(summary, SUMMARY)))
    print_table(("family", "ids", "for example", ""), rows, right=("ids",))
    for problem in broken.values():
        say(f"note: {problem}", err=True)
    say("`cadenza envs FAMILY` or `cadenza envs TEXT` lists ids with their spaces and tuned variants", err=True)


def _facts(row: dict[str, Any]) -> dict[str, str]:
    """Return everything about one environment, by the names of HEAD."""
    names = ("id", "observation", "action", "max_episode_steps", "threshold", "restore", "variants")
    texts = {key: ", ".join(value) if isinstance(value, list) else value for key, value in row.items()}
    return {head: "" if texts[name] is None else f"{texts[name]}" for head, name in zip(HEAD, names, strict=True)}


def _cells(row: dict[str, Any]) -> list[str]:
    facts = _facts(row)
    limits = {"observation": SPACE, "action": SPACE, "tuned variants": VARIANTS}
    return [cut(text, limits.get(name, len(text))) for name, text in facts.items()]
