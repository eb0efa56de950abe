"""The meaning, value and source of a key (`config explain`), and the reference page of all keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from cadenza.config import registry
from cadenza.config.checks import default
from cadenza.config.convert import describe, suggest, to_dict, walk
from cadenza.config.load import project_of, resolve
from cadenza.config.schedules import Schedule
from cadenza.config.schema import Hook, Phase, RunConfig
from cadenza.config.spec import Layer
from cadenza.errors import ConfigError

NOBODY = "default in the schema"


@dataclass(frozen=True)
class Explanation:
    """The meaning, value and source of a key in a config; a block of settings has `parts` instead of a source."""

    key: str
    value: Any
    default: Any
    source: str
    type: str
    unit: str
    doc: str
    parts: tuple[Explanation, ...] = ()


def explain(key: str, spec: str, overrides: Sequence[str] = (), config_dir: Path | None = None) -> Explanation:
    """Return the value of a key in the config of a spec, and the file or override that set it."""
    composed = resolve(spec, overrides, config_dir, trace=True)
    resolved, layers = to_dict(composed.config), composed.layers
    if resolved["logging"]["wandb_project"] is None:  # what the run will use is not in the config
        project, source = project_of(spec)
        resolved["logging"]["wandb_project"] = project
        layers = [*layers, Layer(source, {"logging.wandb_project": project})]
    settings = {name: (hint, field) for name, hint, field in walk(RunConfig, data=resolved)}
    return _explain(key, settings, resolved, layers)


def _explain(key: str, settings: Mapping[str, Any], resolved: Any, layers: Sequence[Layer]) -> Explanation:
    name = _documented_key(key, settings, resolved)
    hint, field = settings[name]
    inner = key != name
    value = _at(resolved, key)
    if value is MISSING and not inner and field.metadata.get("sparse"):  # left out at its default
        value = _default(hint, field)
    below = [other for other in settings if other.rpartition(".")[0] == key] if is_dataclass(hint) else []
    return Explanation(
        key=key,
        value=None if value is MISSING else value,  # a key of a block that is null
        default=None if inner else _default(hint, field),
        source="" if below else source_of(key, layers),
        type=f"part of {name}" if inner else "settings" if below else _type(hint, field),
        unit=field.metadata.get("unit", ""),  # a field of a user's algorithm may have no metadata
        doc=_meaning(field),
        parts=tuple(_explain(other, settings, resolved, layers) for other in below),
    )


def reference() -> str:
    """Return the page of all keys, in Markdown."""
    lines = [
        "# Configuration reference",
        "",
        "Generated from the schema. Set a key with `key=value` on the command line or in a YAML file;",
        "`cadenza config explain KEY` shows its value in a run, and the file or override that set it.",
    ]
    lines += _section("Run", RunConfig, "")
    for name in sorted(registry.ALGORITHMS):
        entry = registry.ALGORITHMS[name]
        lines += _section(f"Algorithm `{name}`", registry.load_object(entry.config), "algorithm", entry.summary)
    for title, cls in (
        ("A phase of `training.phases`", Phase),
        ("A hook of a phase", Hook),
        ("A schedule, in place of a number", Schedule),
    ):
        lines += _section(title, cls, "")
    return "\n".join(lines) + "\n"


def _documented_key(key: str, settings: Mapping[str, Any], resolved: Any) -> str:
    """Return the key, or the key it is part of (`environment.kwargs.x`, `algorithm.learning_rate.end_value`)."""
    name = key
    while name not in settings:
        name = name.rpartition(".")[0]
        if not name or _at(resolved, key) is MISSING:
            raise ConfigError(f"unknown key '{key}'{suggest(key, list(settings))}")
    return name


def _at(data: Any, key: str) -> Any:
    for part in key.split("."):
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, list) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            return MISSING
    return data


def _default(hint: Any, field: Field[Any]) -> Any:
    # the default of `algorithm` depends on the algorithm's class
    make: Any = hint if is_dataclass(hint) and field.default_factory is dict else None
    value = make() if make else default(field)
    return None if value is MISSING else to_dict(value)


def _type(hint: Any, field: Field[Any]) -> str:
    """Return a setting's type and bounds in plain words."""
    bounds = field.metadata.get("bounds")
    return describe(hint) if bounds is None else f"{describe(hint)}, {bounds}"


def _meaning(field: Field[Any]) -> str:
    """Return a setting's documentation, and what it needs to have an effect."""
    needs = " and ".join(field.metadata.get("needs", ())).replace("|", " or ")
    return f"{field.metadata.get('doc', '')}{f' (with {needs})' if needs else ''}"


def source_of(key: str, layers: Sequence[Layer]) -> str:
    """Return the source of the last layer that sets the key."""
    for layer in reversed(layers):
        if _sets(layer.data, key.split(".")):
            return layer.source
    return NOBODY


def _sets(data: Any, path: list[str]) -> bool:
    """Return whether a layer sets the key at `path`: the key itself, a part of it, or the whole it is part of."""
    if not path or not isinstance(data, Mapping):
        return True
    dotted = ".".join(path)
    for name, value in data.items():
        if dotted == name or dotted.startswith(f"{name}."):
            return _sets(value, dotted.removeprefix(name).lstrip(".").split(".") if dotted != name else [])
    return False


def _section(title: str, cls: Any, where: str, summary: str = "") -> Iterator[str]:
    yield from ("", f"## {title}", "", summary or (cls.__doc__ or "").splitlines()[0], "")
    yield from ("| key | type | default | unit | meaning |", "|---|---|---|---|---|")
    for key, hint, field in walk(cls, where):
        if is_dataclass(hint) or key == "algorithm":
            continue  # a block: its keys follow
        value = f"`{text(_default(hint, field))}`"
        cells = (f"`{key}`", _type(hint, field), value, field.metadata.get("unit", ""), _meaning(field))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def text(value: Any) -> str:
    """Return a plain value as YAML on one line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {text(item)}' for key, item in value.items())}}}"
    return "''" if value == "" else str(value)


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
