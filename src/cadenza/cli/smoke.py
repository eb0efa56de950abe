"""`cadenza smoke`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import Json, print_json, print_table, say
from cadenza.cli.train import positive
from cadenza.errors import NotFoundError, nearest

Work = Callable[[], None]


def smoke(
    filter: Annotated[str, typer.Option(help="Try only names that contain this text.")] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Try at most so many.")] = None,
    timesteps: Annotated[int, typer.Option(parser=positive, metavar="N", help="Train each for N env_steps.")] = 100,
    envs: Annotated[bool, typer.Option("--envs", help="Step every environment with random actions instead.")] = False,
    json: Json = False,
) -> None:
    """Try every tuned experiment briefly: train, resume, evaluate.

    It exits with 1 if one fails.

    Example: cadenza smoke --filter CartPole
    Example: cadenza smoke --envs --filter Pong --limit 3
    """
    from cadenza.tools.smoke import attempt

    tried = []
    with tempfile.TemporaryDirectory(prefix="cadenza-smoke-") as scratch:
        listed = dict(environments(timesteps) if envs else experiments(timesteps, Path(scratch)))
        matches = [(name, work) for name, work in listed.items() if filter.lower() in name.lower()]
        selected = dict(matches[:limit])
        if not selected:
            raise NotFoundError(f"--filter {filter}: no name contains this{nearest(filter, listed)}")
        for name, work in selected.items():
            row = attempt(name, work)
            say(f"{row.status:<8}{name}  {row.seconds:.1f} s", err=True)
            tried.append(row)
    counts = {status: sum(row.status == status for row in tried) for status in ("ok", "failed", "skipped")}
    if json:
        print_json({"tried": [asdict(row) for row in tried], **counts})
    else:
        cells = [(row.name, row.status, f"{row.seconds:.1f}", row.message) for row in tried]
        print_table(("name", "status", "seconds", "why"), cells, right=("seconds",))
        say(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    if counts["failed"]:
        raise typer.Exit(1)


def experiments(timesteps: int, root: Path) -> Iterator[tuple[str, Work]]:
    """Yield each shipped experiment and how to try it."""
    from cadenza.config.spec import experiments as shipped
    from cadenza.tools.smoke import try_experiment

    for name in shipped():
        yield name, partial(try_experiment, name, timesteps, root / name)


def environments(timesteps: int) -> Iterator[tuple[str, Work]]:
    """Yield each environment and how to try it; a family that is not installed is one entry."""
    from cadenza.config.environments import families, unlisted
    from cadenza.errors import MissingExtraError
    from cadenza.tools.smoke import try_environment

    def refuse(problem: MissingExtraError) -> None:
        raise problem

    for ids in families().values():
        for id in ids:
            yield id, partial(try_environment, id, timesteps)
    for family, problem in unlisted().items():
        yield family, partial(refuse, problem)
