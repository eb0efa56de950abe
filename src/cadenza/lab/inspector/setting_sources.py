"""Find the source of each value of a run's config.

Runs as a child process, `python -m cadenza.lab.inspector.setting_sources RUN`, since composing with Hydra is slow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cadenza.base.json_text import dumps
from cadenza.config.convert import describe, to_dict, walk
from cadenza.config.explain import NOBODY, source_of
from cadenza.config.interpolation import calls
from cadenza.config.load import compose, resolve, with_project
from cadenza.config.migrate import migrate
from cadenza.config.plugins import plugins_of
from cadenza.config.schema import RunConfig
from cadenza.config.spec import Layer, split, without_choice
from cadenza.errors import CadenzaError, ConfigError
from cadenza.records.folder import RunFolder
from cadenza.records.run_summary import changes
from cadenza.records.trust import code_named, require_trust
from cadenza.trees import leaves

OPTIONS = {
    "--seed": "seed",
    "--name": "name",
    "--tag": "tags",
    "--max-timesteps": "training.max_timesteps",
    "--max-updates": "training.max_updates",
    "--init-from": "training.init_from",
    "--debug": "debug.enabled",
}
CONFIG_DIR = "--config-dir"
FOR_HYDRA = re.compile(r"hydra\b")  # `hydra.searchpath` imports packages


def origins(folder: RunFolder, trust: bool = False) -> dict[str, Any]:
    """Return by dotted key the source, type, unit and doc of each value; `note` says why sources are uncertain."""
    stored, manifest = folder.settings(), folder.read_manifest()
    if not trust:
        require_trust(stored, manifest, folder.path)
    stored_command = manifest.get("command")
    command = [text for text in stored_command if isinstance(text, str)] if isinstance(stored_command, list) else []
    keys: dict[str, Any] = {}
    layers: list[Layer] = []
    today: dict[str, Any] = {}
    note = ""
    try:
        layers, today = _composed(str(manifest.get("spec")), command, stored, trust)
    except CadenzaError as problem:
        note = f"its spec is not composed here ({problem})"
    options = {text.partition("=")[0] for text in command}
    by_option = {key: option for option, key in OPTIONS.items() if option in options}
    fields = {key: (hint, field) for key, hint, field in walk(RunConfig, data=stored)}
    for key, value in leaves(stored):
        name = key
        while name not in fields and name:
            name = name.rpartition(".")[0]
        hint, field = fields.get(name, (None, None))
        source = source_of(key, layers) if layers else ""
        if key in by_option:
            source = f"command line: {by_option[key]}"
        elif key in today and dumps(today[key]) != dumps(value):
            source = "stored with the run; today's files give another value"
        keys[key] = {
            "source": source,
            "set": bool(source) and source != NOBODY,
            "type": "" if hint is None else describe(hint),
            "unit": "" if field is None else field.metadata.get("unit", ""),
            "doc": "" if field is None else field.metadata.get("doc", ""),
        }
    return {"keys": keys, "note": note}


def _composed(
    spec: str, command: Sequence[str], stored: dict[str, Any], trust: bool
) -> tuple[list[Layer], dict[str, Any]]:
    """Compose the run's spec and command with today's files; return the layers and the values by dotted key.

    Unlike a config, spec and command are not signed. So without `trust` nothing is imported except what the config
    names, and no file is read except cadenza's own.
    """
    settings, config_dir = changes(list(command)), next(_values(CONFIG_DIR, command), None)
    if not trust:
        path = Path(spec := without_choice(spec))
        if path.suffix in (".yaml", ".yml", ".json") or path.exists():
            raise ConfigError(f"'{spec}' is a file, which is read with --trust only")
        if config_dir is not None:
            raise ConfigError(f"{CONFIG_DIR} {config_dir} is read with --trust only")
        for setting in settings:
            if FOR_HYDRA.match(setting) or "../" in setting or any(calls(setting)):
                raise ConfigError(f"'{setting}' is honoured with --trust only")
        _require_named(plugins_of(settings) or [], stored)
        env, _, variant = split(spec)
        _require_named([part for part in (env, variant) if ":" in part], stored)
    folder = None if config_dir is None else Path(config_dir)
    if not trust:
        _require_named(code_named(compose(spec, settings, folder).data), stored)
    composed = resolve(spec, settings, folder, trace=True)
    return composed.layers, dict(leaves(to_dict(with_project(composed.config, spec))))


def _require_named(paths: Sequence[str], stored: dict[str, Any]) -> None:
    """Refuse import paths that the config, whose code is trusted, does not name."""
    trusted = code_named(migrate(stored))
    others = [path for path in paths if path not in trusted]
    if others:
        listed = ", ".join(f"'{path}'" for path in others)
        raise ConfigError(f"it would import {listed}, which its config does not name: that takes --trust")


def _values(option: str, command: Sequence[str]) -> Iterator[str]:
    """Yield the values of an option, from `--option value` and `--option=value`."""
    for text, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = text.partition("=")
        if name == option:
            yield value if equals else following


if __name__ == "__main__":
    try:
        result = origins(RunFolder(Path(sys.argv[1])), trust=sys.argv[2:] == ["trust"])
    except CadenzaError as problem:
        result = {"keys": {}, "note": str(problem)}
    sys.stdout.write(dumps(result) + "\n")
