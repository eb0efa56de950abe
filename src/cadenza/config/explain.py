"""What a key means and who set it (`config explain`), and the reference page of all keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from cadenza.config import registry
from cadenza.config.convert import describe, suggest, to_dict, walk
from cadenza.config.load import finish, resolve
from cadenza.config.schedules import Schedule
from cadenza.config.schema import Hook, Phase, RunConfig
from cadenza.config.spec import Layer
from cadenza.errors import ConfigError

NOBODY = "default in the schema"


@dataclass(frozen=True)
class Explanation:
    """Everything known about one key of one config; a block of settings has `parts` instead of a source."""

    key: str
    value: Any
    default: Any
    source: str
    type: str
    unit: str
    doc: str
    parts: tuple[Explanation, ...] = ()


def explain(key: str, spec: str, overrides: Sequence[str] = (), config_dir: Path | None = None) -> Explanation:
    """What the key is in the config of this spec, and which file or override made it so."""
    composed = resolve(spec, overrides, config_dir, trace=True)
    resolved = to_dict(finish(composed.data))
    known = {name: (hint, field) for name, hint, field in walk(RunConfig, data=resolved)}
    return _explain(key, known, resolved, composed.layers)


def _explain(key: str, known: Mapping[str, Any], resolved: Any, layers: Sequence[Layer]) -> Explanation:
    name = _documented(key, known, resolved)
    hint, field = known[name]
    inner = key != name
    value = _at(resolved, key)
    if value is MISSING and not inner and field.metadata.get("sparse"):  # left out at its default
        value = _default(hint, field)
    below = [other for other in known if other.rpartition(".")[0] == key] if is_dataclass(hint) else []
    return Explanation(
        key=key,
        value=None if value is MISSING else value,  # a key of a block that is null
        default=None if inner else _default(hint, field),
        source="" if below else source_of(key, layers),
        type=f"part of {name}" if inner else "settings" if below else describe(hint),
        unit=field.metadata.get("unit", ""),  # a field of someone else's algorithm may say nothing
        doc=field.metadata.get("doc", ""),
        parts=tuple(_explain(other, known, resolved, layers) for other in below),
    )


def reference() -> str:
    """The page of all keys, in Markdown."""
    lines = [
        "# Configuration reference",
        "",
        "Generated from the schema. Set a key with `key=value` on the command line or in a YAML file;",
        "`cadenza config explain KEY` says what it is in a given run and who set it.",
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


def _documented(key: str, known: Mapping[str, Any], resolved: Any) -> str:
    """The key itself, or the one it is a part of (`environment.kwargs.x`, `algorithm.learning_rate.end_value`)."""
    name = key
    while name not in known:
        name = name.rpartition(".")[0]
        if not name or _at(resolved, key) is MISSING:
            raise ConfigError(f"unknown key '{key}'{suggest(key, list(known))}")
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
    if field.default is not MISSING:
        return to_dict(field.default)
    if field.default_factory is MISSING:
        return None
    make: Any = hint if is_dataclass(hint) else field.default_factory  # the algorithm's block has its own class
    return to_dict(make())


def source_of(key: str, layers: Sequence[Layer]) -> str:
    """The last layer that says something about the key."""
    for layer in reversed(layers):
        if _sets(layer.data, key.split(".")):
            return layer.source
    return NOBODY


def _sets(data: Any, path: list[str]) -> bool:
    """Whether a layer says something about the key: it, a part of it, or the whole that it is a part of."""
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
        default = f"`{text(_default(hint, field))}`"
        cells = (f"`{key}`", describe(hint), default, field.metadata.get("unit", ""), field.metadata.get("doc", ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def text(value: Any) -> str:
    """A plain value as YAML would have it, on one line."""
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
