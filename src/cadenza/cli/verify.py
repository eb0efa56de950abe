"""`cadenza verify`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.diff import first_episode
from cadenza.cli.output import Json, RunsDir, Trust, print_json, print_table, progress, say
from cadenza.errors import CadenzaError

if TYPE_CHECKING:
    from cadenza.lab.diff import Pairs


def verify(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Repeat this run.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="key=value …", help="Change these settings of --resume.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Compare a whole run of SPEC with a killed and resumed one.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Compare so many env_steps.")] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Repeat a run, or kill and resume one; compare bit for bit.

    It exits with 1 at the first difference.

    Example: cadenza verify @last --steps 5000
    Example: cadenza verify --resume CartPole-v1:ppo
    """
    from cadenza.config.load import load
    from cadenza.engine.resumption import described_changes
    from cadenza.records.folder import find, runs_root
    from cadenza.records.trust import require_trust_of_file
    from cadenza.tools import verify as proof

    changed: Pairs = {}
    by_hand: list[str] = []
    with tempfile.TemporaryDirectory(prefix="cadenza-verify-") as scratch:
        root = Path(scratch)
        if resume is not None:
            # typer takes the first key=value for RUN then
            settings = [*([run] if run else []), *(overrides or [])]
            require_trust_of_file(resume, trust)
            command = [resume, *settings, *proof.kill_settings(load(resume, settings), steps)]
            command += ["--trust"] * trust
            whole = proof.uninterrupted(command, root / "whole", progress)
            killed, kills = proof.interrupted(command, root / "killed", report=progress)
            if not kills:
                raise CadenzaError(f"{resume} finished before any kill: nothing is proven; give more --steps")
            difference = proof.compare(whole, killed)
            subject = f"{resume}, killed {kills} times and resumed,"
        elif run is None:
            raise typer.BadParameter("give a RUN, or --resume SPEC")
        elif overrides:
            raise typer.BadParameter("settings need --resume SPEC: a RUN is repeated as it was")
        else:
            folder = find(runs_root(runs_dir), run)
            difference, changed = proof.repeat(folder, root, steps, trust)
            by_hand = described_changes(folder.read_decisions())
            subject = f"{folder.id}, done again{f' up to step {steps}' if steps else ''},"
    report(subject, difference, changed, json, by_hand)


def report(
    subject: str, difference: dict[str, Any] | None, changed: Pairs, json: bool, by_hand: Sequence[str] = ()
) -> None:
    """Print the result, and exit with 1 if there is a difference; `by_hand` are changes that may explain it."""
    if changed and not json:
        lines = [(key, *("-" if value is None else str(value) for value in pair)) for key, pair in changed.items()]
        print_table(("made with", "then", "now"), lines)
    if json:
        result = {"identical": difference is None, "first_difference": difference, "made_with": changed}
        print_json(result | ({"changes": list(by_hand)} if by_hand else {}))
    elif difference is None:
        say(f"{subject} is identical bit for bit")
    else:
        place = f" at step {difference['env_steps']}" if difference.get("env_steps") is not None else ""
        values = f"{difference['a']} and {difference['b']}"
        say(f"{subject} differs{place} in {difference['quantity']}: {values}")
        if episode := first_episode(difference):
            say(episode)
        for line in by_hand:
            say(f"  {line}")
    if difference is not None:
        raise typer.Exit(1)
