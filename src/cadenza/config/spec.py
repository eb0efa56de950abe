"""Specs of runs: `ENV:VARIANT`, the name of an experiment, or the path of a YAML or JSON file.

ENV and VARIANT are names or import paths `package.module:name`. ENV ends at the first colon if the text before it is
the id of an environment or cannot be the name of a module, else at the second: `CartPole-v1:my.algorithms:Mine`,
`my.envs:make:ppo`, `my.envs:make:my.algorithms:Mine`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from cadenza.base.files import SafePath
from cadenza.base.parsing import YAML_LIMIT, ParseError, json_data, read_user_file, yaml_data
from cadenza.base.text import printable
from cadenza.config import registry
from cadenza.config.convert import from_hydra
from cadenza.config.migrate import migrate
from cadenza.config.plugins import import_plugins
from cadenza.config.schema import RunConfig
from cadenza.errors import ConfigError, NotFoundError, nearest

ROOT = "cadenza"
CONF = "cadenza.conf"


@dataclass(frozen=True)
class Layer:
    """A source of settings and the keys it sets; a later layer wins."""

    source: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Base:
    """A spec before the overrides: the part for Hydra (none for a stored config), then layers on top."""

    root: str | None = ROOT
    choices: tuple[str, ...] = ()  # Hydra overrides that choose files
    groups: tuple[str, ...] = ()  # overrides that choose files of config groups
    folders: tuple[Path, ...] = ()  # the user's, searched before those of cadenza
    files: Mapping[str, Path] = field(default_factory=dict)  # files by names of their own, found before any other
    layers: tuple[Layer, ...] = ()


def base_of(spec: str, config_dir: Path | None, plugins: Sequence[Any] | None = None) -> Base:
    """Return the base of a spec; `config_dir` is a folder of the user's. `+experiment=` before a name means nothing.

    The modules that register its names are imported first: `plugins`, else those that its file lists.
    """
    path = Path(spec := without_choice(spec))
    if path.suffix in (".yaml", ".yml", ".json") or os.path.isfile(path):
        return _base_of_file(path, config_dir, plugins)
    if plugins is not None:
        import_plugins(plugins)
    return _base_of_name(spec, config_dir)


def without_choice(spec: str) -> str:
    """Return a spec without the `+experiment=` before it that Hydra's commands have."""
    return spec.removeprefix("+").removeprefix("experiment=")


def _base_of_name(spec: str, config_dir: Path | None) -> Base:
    folders = (config_dir.resolve(),) if config_dir is not None else ()
    tuned = experiments(*folders)
    if spec in tuned:
        return Base(choices=(f"experiment={spec}",), folders=folders)
    env, colon, variant = split(spec)
    variants = ", ".join(sorted(registry.ALGORITHMS))
    if not colon and spec:
        raise _no_variant(spec, tuned, variants)
    if not env or not variant:
        raise ConfigError(f"spec '{spec}' must be ENV:VARIANT, e.g. CartPole-v1:ppo (variants: {variants})")
    env = environment(env)
    if f"{env}/{variant}" in tuned:  # the experiment names its algorithm: `ppo_lstm` is a ppo
        layer = Layer(f"spec {spec}", {"environment": {"id": env}})
        return Base(choices=(f"experiment={env}/{variant}",), folders=folders, layers=(layer,))
    variant = registry.algorithm(variant, also=[name.removeprefix(f"{env}/") for name in tuned]).name
    layer = Layer(f"spec {spec}", {"environment": {"id": env}, "algorithm": {"name": variant}})
    has_file = files(CONF).joinpath("algorithm", f"{variant}.yaml").is_file()
    return Base(choices=(f"+algorithm={variant}",) if has_file else (), folders=folders, layers=(layer,))


def _base_of_file(path: Path, config_dir: Path | None, plugins: Sequence[Any] | None) -> Base:
    from cadenza.config.inheritance import is_in_run, name_of, named_file, parents

    data = read_file(path)
    whole = bool({"schema_version", "defaults"} & data.keys())  # building the typed config imports what these list
    import_plugins(data.get("plugins") if plugins is None and not whole else plugins)
    if "schema_version" in data:
        return Base(root=None, layers=(Layer(str(path), migrate(data)),))
    path = path.parent.resolve() / path.name
    if "defaults" in data or named_file(data.get("spec"), path) is not None:
        near = parents(path)
        places = [one.parent for one in (path, *near) if is_in_run(path) or not is_in_run(one)]  # as it is trusted
        places += [config_dir.resolve()] if config_dir else []
        names = {name_of(one): one for one in (path, *near)}
        return Base(root=path.stem, folders=tuple(dict.fromkeys(places)), files={**names, path.stem: path})
    data = from_hydra(data)
    base = named_base(data, path, config_dir)
    folders = base.folders if is_in_run(path) else (path.parent, *base.folders)
    groups, settings = separate(data, folders)
    settings.pop("spec", None)
    return replace(
        base,
        groups=tuple(f"{group}={option}" for group, option in groups.items()),
        folders=folders if groups else base.folders,
        layers=(*base.layers, Layer(str(path), settings)),
    )


def separate(data: Mapping[str, Any], folders: Iterable[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the choices of config groups in a file (`networks: large`), and the rest."""
    settings = {field.name for field in fields(RunConfig)}
    roots = (files(CONF), *folders)
    groups = {
        key: value
        for key, value in data.items()
        if key not in settings and str(key).isidentifier() and isinstance(value, str | int)
        if any(root.joinpath(key).is_dir() for root in roots)
    }
    return groups, {key: value for key, value in data.items() if key not in groups}


def named_base(data: Mapping[str, Any], path: Path, config_dir: Path | None = None) -> Base:
    """Return what a plain file builds on: its `spec`, its `experiment`, or its environment and algorithm."""
    for key in ("spec", "experiment"):
        if isinstance(data.get(key), str):
            return _base_of_name(data[key], config_dir)
    parts: list[str] = []
    for block, name in (("environment", "id"), ("algorithm", "name")):
        settings = data.get(block)
        part = settings.get(name) if isinstance(settings, dict) else data.get(f"{block}.{name}")
        if not isinstance(part, str) or not part:
            raise ConfigError(f"{path}: {block}.{name} is missing; add it, or 'spec: ENV:VARIANT'")
        parts.append(part)
    return _base_of_name(":".join(parts), config_dir)


def split(spec: str) -> tuple[str, str, str]:
    """Split a spec into ENV, the colon and VARIANT; without a colon the last two are empty."""
    first, colon, rest = spec.partition(":")
    if ":" not in rest or not all(part.isidentifier() for part in first.split(".")) or _is_known(first):
        return first, colon, rest
    name, colon, variant = rest.partition(":")
    return f"{first}:{name}", colon, variant


def _is_known(env: str) -> bool:
    try:
        return bool(environment(env))
    except NotFoundError:
        return False


def _no_variant(spec: str, tuned: list[str], variants: str) -> ConfigError | NotFoundError:
    try:
        env = environment(spec)
    except NotFoundError:
        hint = nearest(spec, tuned)
        return NotFoundError(
            f"'{spec}' is no experiment or file{hint} (a spec is ENV:VARIANT, the name of an experiment, or a file)"
        )
    return ConfigError(f"spec '{spec}' names no variant: write {env}:VARIANT (variants: {variants})")


def environment(env: str) -> str:
    """Return the full id of an environment."""
    from cadenza.config import environments

    return environments.resolve(env)


def experiments(*folders: Path) -> list[str]:
    """Return the names of the tuned experiments, those of cadenza and those in the user's folders."""
    names = set()
    for root in (files(CONF), *folders):
        pending = [("", root.joinpath("experiment"))]
        while pending:
            prefix, folder = pending.pop()
            for entry in folder.iterdir() if folder.is_dir() else ():
                if entry.is_dir():
                    pending.append((f"{prefix}{entry.name}/", entry))
                elif entry.name.endswith(".yaml"):
                    names.add(prefix + entry.name.removesuffix(".yaml"))
    return sorted(names)


def read_file(path: Path | SafePath) -> dict[str, Any]:
    """Return the mapping in a YAML or JSON file that the user named."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        content = "nothing" if data is None else "a list" if isinstance(data, list) else "one value"
        raise ConfigError(f"{path}: must hold settings (key: value), not {content}")
    return data


def read_yaml(path: Path | SafePath) -> Any:
    """Return the value in a YAML file, or in a JSON file by its name; a ConfigError names the line."""
    try:
        content = path.read_bytes(YAML_LIMIT) if isinstance(path, SafePath) else read_user_file(path)
    except FileNotFoundError:
        raise NotFoundError(f"no file '{path}'") from None
    except (OSError, ParseError) as problem:
        raise ConfigError(f"cannot read '{path}': {first_line(problem)}") from None
    try:
        return json_data(content, unique=True, limit=YAML_LIMIT) if path.suffix == ".json" else yaml_data(content)
    except ParseError as problem:
        place = "" if problem.line is None else f", line {problem.line}"
        raise ConfigError(f"{path}{place}: {problem.reason}") from None


def bad_yaml(problem: yaml.YAMLError, where: str) -> ConfigError:
    """Return PyYAML's error as a ConfigError that names file and line."""
    mark = getattr(problem, "problem_mark", None)
    reason = str(getattr(problem, "problem", None) or "not valid YAML")
    if mark is None:
        return ConfigError(f"{where}: {reason}")
    name = where if mark.name.startswith("<") else mark.name
    return ConfigError(f"{name}, line {mark.line + 1}: {reason}")


def first_line(problem: BaseException) -> str:
    """Return the first line of an error's message, or of its cause's."""
    while not str(problem).strip() and problem.__cause__ is not None:
        problem = problem.__cause__
    line = (str(problem).strip() or type(problem).__name__).splitlines()[0]
    line = line.removeprefix("ConfigError raised while resolving interpolation: ")
    key = getattr(problem, "full_key", None)  # an attribute of OmegaConf's errors
    return printable(f"{line} (at {key})" if key and key not in line else line)
