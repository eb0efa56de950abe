"""`cadenza config`: what a key is and who set it; old config files made new."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import Trust, print_json, say

if TYPE_CHECKING:
    from cadenza.config.explain import Explanation

DEFAULT_SPEC = "CartPole-v1:ppo"

app = typer.Typer(help="Explain config keys, upgrade stored configs.", rich_markup_mode=None)


@app.command(epilog="Example: cadenza config explain algorithm.learning_rate CartPole-v1:ppo")
def explain(
    key: Annotated[str, typer.Argument(help="dotted key, e.g. algorithm.gamma, or a block, e.g. algorithm")],
    spec: Annotated[str, typer.Argument(help="ENV:VARIANT, experiment or file")] = DEFAULT_SPEC,
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value …")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on the last line")] = False,
    trust: Trust = False,
) -> None:
    """Show a key's value, who set it, its default, type, unit and meaning."""
    from dataclasses import asdict

    from cadenza.config.explain import explain as explain_key
    from cadenza.records.trust import require_trust_of_file

    given = list(overrides or ())
    if "=" in spec or spec.startswith("~"):  # an override right after the key
        spec, given = DEFAULT_SPEC, [spec, *given]
    if not trust:
        require_trust_of_file(spec)
    told = explain_key(key, spec, given)
    if as_json:
        print_json(asdict(told))
    elif told.parts:
        _print_block(told)
    else:
        _print_key(told)


@app.command(epilog="Example: cadenza config migrate old.yaml --out new.yaml")
def migrate(
    file: Annotated[Path, typer.Argument(help="a stored config.yaml")],
    out: Annotated[Path | None, typer.Option(help="where to write; stdout without it")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="replace the file itself")] = False,
    trust: Trust = False,
) -> None:
    """Bring a stored config to today's schema version, and check it."""
    from cadenza.base.atomic import write_out
    from cadenza.config.convert import build
    from cadenza.config.load import as_yaml, dump
    from cadenza.config.migrate import migrate as upgrade
    from cadenza.config.schema import RunConfig
    from cadenza.config.spec import read_file
    from cadenza.errors import ConfigError, StorageError
    from cadenza.records.trust import code_named

    if out is not None and in_place:
        raise ConfigError("--out and --in-place exclude each other")
    if in_place and (file.parent / "manifest.json").is_file():
        raise ConfigError(f"{file} belongs to a run, which reads it as today's in any case: use --out")
    data = upgrade(read_file(file))
    named = [] if trust else code_named(data)
    if named:  # checking values would import it
        listed = ", ".join(f"'{path}'" for path in named)
        say(f"note: values are not checked, that would import {listed}: add --trust if you trust it", err=True)
    text = as_yaml(data) if named else dump(build(RunConfig, data))
    target = file if in_place else out
    if target is None:
        say(text, several=True, end="")
        return
    try:
        write_out(target, text.encode())
    except OSError as problem:
        raise StorageError(f"cannot write '{target}': {problem.strerror}") from None


def _print_block(told: Explanation) -> None:
    from cadenza.config.explain import text

    say(f"{told.key}: {told.doc}")
    width = max(len(part.key) for part in told.parts)
    for part in told.parts:
        shown = f"{part.doc} …" if part.parts else f"{text(part.value)}  ({part.source})"
        say(f"  {part.key:<{width}}  {shown}")


def _print_key(told: Explanation) -> None:
    from cadenza.config.explain import text

    rows = {"value": text(told.value), "set by": told.source, "default": text(told.default), "type": told.type}
    rows |= {"unit": told.unit} if told.unit else {}
    say(told.key)
    for name, shown in {**rows, "meaning": told.doc}.items():
        say(f"  {name:<8} {shown}")
