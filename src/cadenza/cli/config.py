"""`cadenza config`: explain a key and where its value comes from; upgrade old config files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import Json, Overrides, Spec, Trust, print_json, say

if TYPE_CHECKING:
    from cadenza.config.explain import Explanation

DEFAULT_SPEC = "CartPole-v1:ppo"

app = typer.Typer(help="Explain config keys, upgrade stored configs.", rich_markup_mode=None)


@app.command(epilog="Example: cadenza config explain algorithm.learning_rate CartPole-v1:ppo")
def explain(
    key: Annotated[str, typer.Argument(help="A dotted key, as algorithm.gamma, or a block, as algorithm.")],
    spec: Spec = DEFAULT_SPEC,
    overrides: Overrides = None,
    json: Json = False,
    trust: Trust = False,
) -> None:
    """Show a key's value, where it comes from, its default, type, unit and meaning."""
    from dataclasses import asdict

    from cadenza.config.explain import explain as explain_key
    from cadenza.records.trust import require_trust_of_file

    settings = list(overrides or ())
    if "=" in spec or spec.startswith("~"):  # an override right after the key
        spec, settings = DEFAULT_SPEC, [spec, *settings]
    require_trust_of_file(spec, trust)
    explanation = explain_key(key, spec, settings)
    if json:
        print_json(asdict(explanation))
    elif explanation.parts:
        _print_block(explanation)
    else:
        _print_key(explanation)


@app.command(epilog="Example: cadenza config migrate old.yaml --out new.yaml")
def migrate(
    file: Annotated[Path, typer.Argument(help="A stored config.yaml.")],
    out: Annotated[Path | None, typer.Option(help="Write to this file. Default: stdout.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Replace the file itself.")] = False,
    trust: Trust = False,
) -> None:
    """Upgrade a stored config to the current schema version, and check it."""
    from cadenza.base.atomic import write_out
    from cadenza.config.convert import build
    from cadenza.config.load import as_yaml, dump
    from cadenza.config.migrate import migrate as upgrade
    from cadenza.config.schema import RunConfig
    from cadenza.config.spec import read_file
    from cadenza.errors import ConfigError, StorageError
    from cadenza.records.trust import code_named, screen_run_of

    screen_run_of(file)
    if out is not None and in_place:
        raise ConfigError("--out and --in-place exclude each other")
    if in_place and (file.parent / "manifest.json").is_file():
        raise ConfigError(f"{file} belongs to a run, which reads it as upgraded in any case: use --out")
    data = upgrade(read_file(file))
    code = [] if trust else code_named(data)
    if code:  # checking values would import it
        paths = ", ".join(f"'{path}'" for path in code)
        say(f"note: values are not checked, that would import {paths}: add --trust if you trust it", err=True)
    text = as_yaml(data) if code else dump(build(RunConfig, data))
    target = file if in_place else out
    if target is None:
        say(text, several=True, end="")
        return
    try:
        write_out(target, text.encode())
    except OSError as problem:
        raise StorageError(f"cannot write '{target}': {problem.strerror}") from None


def _print_block(explanation: Explanation) -> None:
    from cadenza.config.explain import text

    say(f"{explanation.key}: {explanation.doc}")
    width = max(len(part.key) for part in explanation.parts)
    for part in explanation.parts:
        entry = f"{part.doc} …" if part.parts else f"{text(part.value)}  ({part.source})"
        say(f"  {part.key:<{width}}  {entry}")


def _print_key(explanation: Explanation) -> None:
    from cadenza.config.explain import text

    rows = {"value": text(explanation.value), "set by": explanation.source, "default": text(explanation.default)}
    rows |= {"type": explanation.type, "unit": explanation.unit, "meaning": explanation.doc}
    say(explanation.key)
    for name, entry in rows.items():
        if entry or name != "unit":
            say(f"  {name:<8} {entry}")
