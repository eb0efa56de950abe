"""Files that build on others: defaults lists that name files in any folder, and parents of any form.

Hydra composes files of its own form from the folders on its search path. Here a file of another form (with a `spec`,
dotted keys, choices of config groups, or the config of a run) is put into that form, and a parent that is named by its
path gets a name that Hydra finds.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from cadenza.base.parsing import JSON_LIMIT, ParseError, json_object, read_user_file
from cadenza.config import spec
from cadenza.config.migrate import migrate
from cadenza.config.plugins import import_plugins
from cadenza.config.schema import RunConfig

SUFFIXES = (".yaml", ".yml", ".json")
HEADER = re.compile(r"\s*#\s*@package\b")  # names the block that a file is for
PATHS = ("/", "./", "../", "~")  # beginnings of an entry that may be the path of a file


def parents(path: Path) -> list[Path]:
    """Return the files that a file builds on, by its defaults list or its `spec`, and those that they build on."""
    start = path.parent.resolve() / path.name
    pending, near = [start], {start: None}
    while pending:
        file = pending.pop()
        data = spec.read_yaml(file)
        for entry in _entries(data) if isinstance(data, dict) else ():
            target = named_file(entry, file) or file.parent / f"{entry}.yaml"
            if target not in near and os.path.isfile(target):
                near[target] = None
                pending.append(target)
    return list(near)[1:]


def named_file(entry: Any, file: Path, above: tuple[Path, ...] = ()) -> Path | None:
    """Return the file that an entry in `file` names, by its path or as a parent; None for one that Hydra looks for.

    `above` are the files that lead to this one.
    """
    if not isinstance(entry, str) or not entry.strip("./~"):
        return None
    place = file.parent / Path(entry).expanduser()
    places = [place] if place.suffix in SUFFIXES else [place.with_name(place.name + suffix) for suffix in SUFFIXES]
    match = next((one.parent.resolve() / one.name for one in places if os.path.isfile(one)), None)
    by_path = entry.endswith(SUFFIXES) or entry.startswith(PATHS)
    return match if match is not None and (by_path or is_whole(match, (*above, file))) else None


def is_whole(file: Path, above: tuple[Path, ...] = ()) -> bool:
    """Return whether a file holds settings of a run under their full names, and not those of one block."""
    data = spec.read_yaml(file)
    if not isinstance(data, dict) or file in above or HEADER.match(file.read_text(encoding="utf-8")):
        return False
    blocks = {field.name for field in fields(RunConfig) if field.default is MISSING}
    named = {"spec", "experiment", "schema_version", *blocks} & {str(key).partition(".")[0] for key in data}
    return bool(named) or any(named_file(entry, file, above) for entry in _entries(data))


def is_in_run(file: Path) -> bool:
    """Return whether a file, or the one that it links to, lies in the folder of a run, which others may have made.

    Such a file is read where its path is named, after a check by `records/trust.py`, but never found in a search.
    """
    for place in (file, file.resolve()):
        manifest = place.with_name("manifest.json")
        if not os.path.lexists(manifest):
            continue
        if place.name == "config.yaml":
            return True
        with suppress(ParseError, OSError):
            return "config_hash" in json_object(read_user_file(manifest, JSON_LIMIT))
    return False


def name_of(path: Path) -> str:
    """Return the name that a parent gets if it is named by its path."""
    return f"{path.stem}-{zlib.crc32(str(path).encode()):08x}"


def _entries(data: Mapping[str, Any]) -> list[str]:
    listed = data.get("defaults")
    entries = [*(listed if isinstance(listed, list) else ()), data.get("spec")]
    return [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]


def in_hydras_form(data: dict[str, Any], file: Path, names: Mapping[str, Path]) -> Any:
    """Return the content of a file as Hydra composes it; `names` holds the parents that are named by their paths."""
    from omegaconf import OmegaConf

    if "schema_version" in data:
        return OmegaConf.create(migrate(data))
    listed = data.get("defaults", [])
    if not isinstance(listed, list):
        return OmegaConf.create(data)  # Hydra refuses it
    defaults = [_entry(entry, file, names) for entry in listed]
    layers: list[Mapping[str, Any]] = []
    named = "spec" in data or ("defaults" not in data and isinstance(data.get("experiment"), str))
    if named and (first := _entry(data.get("spec"), file, names)) != data.get("spec"):
        defaults.insert(0, first)
    elif named:
        import_plugins(data.get("plugins"))
        base = spec.named_base(data, file)
        layers = [layer.data for layer in base.layers]
        for choice in base.choices:
            group, _, option = choice.lstrip("+").partition("=")
            defaults.insert(0, f"/{group}/{option}")
            layers += [{"experiment": option}] if group == "experiment" else []
    if named or listed:
        groups, data = spec.separate(data, {place.parent: None for place in (file, *names.values())})
        place = defaults.index("_self_") if "_self_" in defaults else len(defaults)
        defaults[place:place] = [f"/{group}/{option}" for group, option in groups.items()]
    config = OmegaConf.create({"defaults": defaults} if defaults else {})
    for layer in (*layers, {key: value for key, value in data.items() if key not in ("defaults", "spec")}):
        for key, value in layer.items():
            OmegaConf.update(config, str(key), value, merge=isinstance(value, Mapping), force_add=True)
    return config


def _entry(entry: Any, file: Path, names: Mapping[str, Path]) -> Any:
    """Return an entry of a defaults list, with the name of a parent in place of its path."""
    target = named_file(entry, file)
    return f"/{name_of(target)}" if target is not None and name_of(target) in names else entry
