"""`cadenza envs`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, print_json, print_table, say
from cadenza.errors import NotFoundError, nearest

HEAD = ("id", "family", "observation", "action", "max steps", "solved at", "resume by", "tuned variants")


def envs(
    filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="List only ids that contain this text, or this family.")
    ] = "",
    json: Json = False,
) -> None:
    """List the environments: the ENV of a spec ENV:VARIANT.

    Example: cadenza envs cartpole
    """
    from cadenza.config.environments import families, unlisted
    from cadenza.envs.catalog import listing

    rows, absent = listing(filter), unlisted(filter)
    if not rows and absent:
        raise next(iter(absent.values()))
    if not rows:
        names = [name for family, ids in families().items() for name in (family, *ids)]
        raise NotFoundError(f"no environment matches '{filter}'{nearest(filter, names)} (`cadenza envs` lists all)")
    if json:
        print_json({"environments": rows})
    else:
        print_table(HEAD, [_cells(row) for row in rows], right=("max steps", "solved at"))
    for reason in (*absent.values(), *(row["error"] for row in rows if row["error"])):
        say(f"note: {reason}", err=True)
    brief = {row["family"]: None for row in rows if not row["observation"] and not row["error"]}
    if brief:
        commands = " or ".join(f"`cadenza envs {family}`" for family in brief)
        say(f"note: the spaces of large families are shown by {commands}", err=True)


def _cells(row: dict[str, Any]) -> list[str]:
    texts = {key: ", ".join(value) if isinstance(value, list) else value for key, value in row.items()}
    return ["" if text is None else f"{text}" for key, text in texts.items() if key != "error"]
