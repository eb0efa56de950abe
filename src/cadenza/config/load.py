"""Compose a RunConfig from a spec, files and `key=value`. Only this module imports Hydra, and late."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from cadenza.base.files import SafePath
from cadenza.base.text import lines
from cadenza.config import plain
from cadenza.config.checks import default
from cadenza.config.convert import TARGET, build, from_hydra, suggest, to_dict, walk
from cadenza.config.interpolation import FREE, bounded, from_environment
from cadenza.config.migrate import migrate
from cadenza.config.networks import takes_arguments
from cadenza.config.plugins import plugins_of
from cadenza.config.registry import ALGORITHMS
from cadenza.config.schema import SCHEMA_VERSION, RunConfig
from cadenza.config.spec import (
    CONF,
    Base,
    Layer,
    bad_yaml,
    base_of,
    environment,
    experiments,
    first_line,
    read_file,
    without_choice,
)
from cadenza.errors import ConfigError, NotFoundError, UnknownKeyError, UnusedError, nearest

HOLDERS = ("algorithm.", "training.buffers.")  # of parts that may be exchanged
PART_KEYS = ("encoder", "name", "network", "schedule")  # settings that name a part
MARKS = "from_environment"  # the setting that lists the keys whose value came from an environment variable
FOR_EVERY_ALGORITHM = "cadenza/conf/pace/debug.yaml"
REFERENCE = re.compile(r"\$\{\s*([a-z_]\w*(?:\.\w+)*)\s*\}")  # to the value of another key
PROJECT_VARIABLE, DEFAULT_PROJECT = "WANDB_PROJECT", "cadenza"  # of Weights & Biases
SHIPPED = "cadenza/conf/"  # the folder of the settings of algorithms and of the experiments that are part of cadenza


@dataclass
class Composed:
    """The plain data of a config and, if traced, the layers that it was composed of."""

    data: dict[str, Any]
    layers: list[Layer] = field(default_factory=list)

    @cached_property
    def config(self) -> RunConfig:
        """The typed config, built once; building it imports code that the data names."""
        return finish(self.data)


def load(spec: str, overrides: Sequence[str] = (), config_dir: Path | None = None) -> RunConfig:
    """Return the config of `ENV:VARIANT`, of an experiment by name, or of a YAML or JSON file, with overrides."""
    try:
        return with_project(resolve(spec, overrides, config_dir).config, spec)
    except UnknownKeyError as unknown:
        from cadenza.config.explain import source_of

        source = source_of(unknown.key, compose(spec, overrides, config_dir, trace=True).layers)
        choices = [text for text in overrides if source.endswith(f"/{text.lstrip('+').replace('=', '/')}.yaml")]
        if not choices:
            raise
        raise ConfigError(
            f"{choices[0]} is not for this algorithm: it sets '{unknown.key}', a key that it lacks"
        ) from None


def with_project(config: RunConfig, spec: str) -> RunConfig:
    """Return the config of a file with the file's name as the project of Weights & Biases, where nothing names one."""
    logging = config.logging
    if not logging.wandb or logging.wandb_project or os.environ.get(PROJECT_VARIABLE) or not is_users_file(spec):
        return config
    return replace(config, logging=replace(logging, wandb_project=Path(without_choice(spec)).stem))


def is_users_file(spec: str) -> bool:
    """Return whether a spec is a file whose name means something: not `config.yaml`, as in every run folder."""
    path = Path(without_choice(spec))
    return path.name != "config.yaml" and os.path.isfile(path)


def project_of(spec: str) -> tuple[str, str]:
    """Return the project of Weights & Biases where the config of a spec names none, and where it comes from."""
    if project := os.environ.get(PROJECT_VARIABLE):
        return project, f"the environment variable {PROJECT_VARIABLE}"
    if is_users_file(spec):
        path = Path(without_choice(spec))
        return path.stem, f"the name of {path}"
    return DEFAULT_PROJECT, f"the default where neither {PROJECT_VARIABLE} nor a file names one"


def finish(data: dict[str, Any]) -> RunConfig:
    """Return the typed config of composed data, with the full id of the environment."""
    config = build(RunConfig, data)
    if config.schema_version != SCHEMA_VERSION:
        raise ConfigError(f"schema_version={config.schema_version}: is always {SCHEMA_VERSION} here")
    if not config.environment.id:
        raise ConfigError("environment.id is missing: name an environment, e.g. environment.id=CartPole-v1")
    config = replace(config, environment=replace(config.environment, id=environment(config.environment.id)))
    tuned_for, named, _ = (config.experiment or "").rpartition("/")
    if named and tuned_for != config.environment.id:  # an experiment ENV/VARIANT is not tuned for another ENV
        return replace(config, experiment=None)
    return config


def read(path: Path | SafePath) -> RunConfig:
    """Return the config that a run stored; this needs no Hydra."""
    return build(RunConfig, migrate(read_file(path)))


def dump(config: RunConfig) -> str:
    """Return the config as YAML, which `read` reads."""
    return as_yaml(to_dict(config))


def as_yaml(data: dict[str, Any]) -> str:
    """Return data as YAML that a terminal can show: with YAML's escapes if it holds control characters."""
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text if lines(text) == text else yaml.safe_dump(data, sort_keys=False)


def override(key: str, value: Any) -> str:
    """Return `key=value` in Hydra's grammar, for any value that a config can hold."""
    try:
        return f"{key}={_grammar(value)}"
    except TypeError as problem:
        raise ConfigError(f"{key}: {problem}") from None


def _grammar(value: Any) -> str:
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy and torch
        value = value.tolist()
    if isinstance(value, Mapping):
        keys = [re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key)) for key in value]  # Hydra has no quotes for keys
        return "{" + ",".join(f"{key}:{_grammar(item)}" for key, item in zip(keys, value.values(), strict=True)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_grammar, value)) + "]"
    if isinstance(value, str | Path):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    if not isinstance(value, bool | int | float | None):
        raise TypeError(f"{value!r} is no value for a setting; give numbers, text, or lists and dicts of them")
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def resolve(
    spec: str, overrides: Sequence[str] = (), config_dir: Path | None = None, *, trace: bool = False
) -> Composed:
    """Return what `compose` returns, without settings of cadenza's own files that have no effect here.

    These belong to a part that an override has replaced, or to other algorithms than this one (`pace=debug`). Building
    the config finds them.
    """
    composed = compose(spec, overrides, config_dir, trace=trace)
    try:
        composed.config  # noqa: B018 - for its errors
    except (UnusedError, UnknownKeyError) as problem:
        from cadenza.config.explain import source_of

        layers = composed.layers if trace else compose(spec, overrides, config_dir, trace=True).layers
        if isinstance(problem, UnusedError):
            removals = [f"~{key}" for key in problem.keys if source_of(key, layers).startswith(SHIPPED)]
        else:
            keys = {name for name, _, _ in walk(RunConfig, data=composed.data)}
            general = [layer.data["algorithm"] for layer in layers if layer.source == FOR_EVERY_ALGORITHM]
            unknown = {key for settings in general for key in unknown_keys(settings, "algorithm", keys)}
            unknown = {key for key in unknown if source_of(key, layers) == FOR_EVERY_ALGORITHM}  # and not the user's
            removals = [f"~{key}" for key in unknown] if problem.key in unknown else []
            removals = removals or _other_networks(problem.key, keys, layers)
        if not removals:
            raise
        return resolve(spec, [*overrides, *removals], config_dir, trace=trace)
    return composed


def unknown_keys(settings: Mapping[str, Any], where: str, keys: Collection[str]) -> Iterator[str]:
    """Yield the dotted keys in a block of settings that are not among `keys`; of a block without any other, its own."""
    for name, value in settings.items():
        key = f"{where}.{name}"
        below = list(unknown_keys(value, key, keys)) if isinstance(value, Mapping) else []
        if key not in keys or (below and len(below) == len(value)):
            yield key
        else:
            yield from below


def _other_networks(key: str, keys: Collection[str], layers: Sequence[Layer]) -> list[str]:
    """Return the removal of those of the blocks of `networks` that the algorithm has not, if it has others of them."""
    from cadenza.config.explain import source_of

    if not (source := source_of(key, layers)).startswith(f"{SHIPPED}networks/"):
        return []
    blocks = next(layer.data["algorithm"] for layer in reversed(layers) if layer.source == source)
    others = [block for block in blocks if f"algorithm.{block}.hidden_sizes" not in keys]
    return [f"~algorithm.{block}" for block in others] if len(others) < len(blocks) else []


def compose(
    spec: str, overrides: Sequence[str] = (), config_dir: Path | None = None, *, trace: bool = False
) -> Composed:
    """Return the plain data of a spec with its overrides and, with `trace`, its layers.

    No code that the data names is imported but `plugins`, which may register what the spec names.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise NotFoundError(f"no folder '{config_dir}'")
    modules = plugins_of(overrides) if any("plugins=" in text for text in overrides) else None
    base = base_of(spec, config_dir, modules)
    if base.root is None and not overrides:
        return Composed(dict(base.layers[0].data), list(base.layers))
    if (result := plain.composed(base, overrides)) is not None:
        return Composed(*result)
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with _hydra(base) as loader, warnings.catch_warnings():
            # where `_self_` is missing, Hydra puts it last, as expected
            warnings.filterwarnings("ignore", ".*Defaults list is missing `_self_`")
            warnings.filterwarnings("error", "provider=.* is not available")
            with bounded() as names:
                return _compose(loader, base, overrides, trace, names)
    except yaml.YAMLError as problem:
        raise bad_yaml(problem, spec) from None
    except (HydraException, OmegaConfBaseException, ValueError, UserWarning) as problem:
        raise ConfigError(f"'{spec}' cannot be composed: {first_line(problem)}") from None
    except RecursionError:
        raise ConfigError(f"'{spec}' cannot be composed: its defaults list leads back to itself") from None


@contextmanager
def _hydra(base: Base) -> Iterator[Any]:
    """Yield Hydra's config loader for the user's files and ours; restore the Hydra of a surrounding program."""
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.plugins import Plugins
    from hydra.core.singleton import Singleton
    from hydra.core.utils import JobRuntime
    from omegaconf.basecontainer import BaseContainer

    Plugins.instance()  # searched once per process, not once per load
    instances, resolvers = Singleton._instances, BaseContainer._resolvers
    replaced = {GlobalHydra, HydraConfig, JobRuntime, version.VersionBase}
    Singleton._instances = {cls: instance for cls, instance in instances.items() if cls not in replaced}
    # The other program's stored schemas would be merged into our files of the same name: keep only those of Hydra.
    repo, store = ConfigStore.instance().repo, type.__call__(ConfigStore)
    store.repo = {name: repo[name] for name in ("hydra", "_dummy_empty_config_.yaml")}
    Singleton._instances[ConfigStore] = store
    sources = type.__call__(SourcesRegistry)
    sources.types = {**SourcesRegistry.instance().types, "file": _user_files(base)}
    Singleton._instances[SourcesRegistry] = sources
    BaseContainer._resolvers = dict(resolvers)
    try:
        version.setbase("1.3")
        search_path = create_config_search_path(f"pkg://{CONF}")
        for folder in reversed(base.folders):
            search_path.prepend("user", f"file://{folder}", anchor="main")
        yield Hydra.create_main_hydra2("cadenza", search_path).config_loader
    finally:
        Singleton._instances, BaseContainer._resolvers = instances, resolvers


def _user_files(base: Base) -> Any:
    """Return Hydra's source of files, for files of any form within limits; those in `base.files` have own names."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import OmegaConf

    names = base.files

    class UserFiles(FileConfigSource):
        def is_config(self, config_path: str) -> bool:
            return config_path in names or super().is_config(config_path)

        def load_config(self, config_path: str) -> Any:
            path = names.get(config_path) or Path(self.path, self._normalize_file_name(config_path))
            if not path.exists():
                return super().load_config(config_path)  # which reports what is missing
            from cadenza.config.inheritance import in_hydras_form, is_in_run, is_whole

            root = names.get(str(base.root))
            is_trusted = root is not None and is_in_run(root)
            if config_path not in names and is_in_run(path) and not is_trusted:
                step = "a file builds on it by its path: 'spec: PATH', or 'defaults: [PATH, _self_]'"
                raise ConfigError(f"{path} is in a run's folder and no choice of a config group: {step}")
            data: Any = read_file(path)
            header: dict[str, str | None] = {"package": "_global_"}
            if not is_whole(path):
                header = self._get_header_dict(path.read_text(encoding="utf-8")[:512])
            if path.suffix != ".json":
                data = OmegaConf.to_container(OmegaConf.load(path))  # 1e-4 is a number to OmegaConf
            if TARGET in str(data):
                package = header.get("package") or config_path.rpartition("/")[0].replace("/", ".")
                data = from_hydra(data, package.removeprefix("_global_").strip("."))
            config = in_hydras_form(data, path, names)
            return ConfigResult(self.provider, f"file://{self.path}", config, header)

    return UserFiles


def _compose(loader: Any, base: Base, overrides: Sequence[str], trace: bool, names: list[str]) -> Composed:
    """Compose with Hydra; add the names of the environment variables that are read to `names`."""
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf, open_dict

    parsed = [_parse(text, loader) for text in (*base.groups, *overrides)]
    for change in parsed:
        if change.is_sweep_override():
            _check_deletion(change)
            key = change.input_line.partition("=")[0]
            step = f"a list is written {key}=[a,b], a sweep is a separate file, or `train -m`"
            raise ConfigError(f"{change.input_line!r} gives several values: {step}")
    values, layers = parsed, []
    config = OmegaConf.create({})
    if base.root is not None:
        choices, values = _split(loader, base, parsed)
        config = hydra_compose(base.root, choices, return_hydra_config=True)
        OmegaConf.set_struct(config, False)
        with open_dict(config):
            experiment = config.pop("hydra").runtime.choices.get("experiment")
        if trace:
            layers = _file_layers(loader, base, choices)
        if any(change.key_or_group == "algorithm" for change in parsed if change not in values):
            experiment = None  # settings tuned for one algorithm are not tuned for another
            config.pop("experiment", None)
        if experiment is not None:
            base = replace(base, layers=(Layer("the choice of experiment", {"experiment": experiment}), *base.layers))
    for layer in base.layers:
        for key, value in layer.data.items():
            _set(config, str(key), value)
    layers += base.layers
    layers += [_apply(config, change) for change in values]
    unresolved = _add_defaults_of_references(config)
    marked = [key for key in from_environment(config, names) if key.partition(".")[0] not in FREE]
    data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    data = _with_keys_of(unresolved, data)
    assert isinstance(data, dict)
    for block in FREE:
        if not isinstance(data.pop(block, {}), dict):
            raise ConfigError(f"{block}: must be a mapping of names to values, which others use as ${{{block}.NAME}}")
    if marked:
        stored = data.get(MARKS)
        data[MARKS] = sorted({*marked, *(stored if isinstance(stored, list) else ())})
    return Composed({str(key): value for key, value in data.items()}, layers)


def _add_defaults_of_references(config: Any) -> Any:
    """Set keys that others refer to (`${seed}`) and that nothing sets to their defaults; return the data from before.

    The defaults are in the schema, which OmegaConf does not know.
    """
    from omegaconf import OmegaConf

    data = OmegaConf.to_container(config)
    references = set(REFERENCE.findall(str(data)))
    for key, hint, setting in walk(RunConfig, data=data) if references else ():
        value = MISSING if is_dataclass(hint) or key not in references else default(setting)
        if value is not MISSING and OmegaConf.select(config, key, default=MISSING) is MISSING:
            _set(config, key, to_dict(value))
    return data


def _with_keys_of(shape: Any, data: Any) -> Any:
    """Return plain data without the keys that `shape` has not."""
    if isinstance(shape, dict) and isinstance(data, dict):
        return {key: _with_keys_of(shape[key], value) for key, value in data.items() if key in shape}
    return data


def combinations(overrides: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the values of every override that gives several (`key=a,b`, `key=range(1,4)`) by key, and the others.

    Of a key with several values no other override may follow, since it would undo them.
    """
    from hydra.core.override_parser.types import Transformer
    from hydra.errors import HydraException

    grid: dict[str, list[Any]] = {}
    others = []
    for text in overrides:
        parsed = _parse(text)
        key = parsed.input_line.partition("=")[0].lstrip("+~")
        if key in grid:
            raise ConfigError(f"{text!r}: {key} has several values already; give each key once")
        if not parsed.is_sweep_override():
            others.append(text)
            continue
        _check_deletion(parsed)
        try:
            values = list(parsed.sweep_iterator(Transformer.identity))
        except HydraException as problem:
            raise ConfigError(f"{text!r}: {first_line(problem)}; a search over ranges is a sweep file") from None
        grid[key] = [parsed._convert_value(value) for value in values]
    return grid, others


def _check_deletion(override: Any) -> None:
    """Refuse the removal of several values, `~key=a,b`."""
    if override.is_delete():
        key = override.input_line.partition("=")[0]
        raise ConfigError(f"{override.input_line!r} removes a key, which has one value: write {key}")


def _parse(text: str, loader: Any = None) -> Any:
    """Return Hydra's parsed override of one `key=value`, `+key=value`, `++key=value` or `~key`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, value = text.partition("=")
    if not key.strip("+~ ") or not (equals or key.startswith("~")):
        raise ConfigError(f"{text!r} is no override: write key=value, without blanks")
    if equals and not value.strip():
        raise ConfigError(f"{text!r} has no value: write null for none, '\"\"' for empty text")
    try:
        return OverridesParser.create(config_loader=loader).parse_override(text)
    except HydraException as problem:
        raise ConfigError(f"{text!r} cannot be read ({first_line(problem)}); quote special characters") from None


def _split(loader: Any, base: Base, overrides: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Return the overrides that choose files, as texts with those of the spec, and the overrides that set values."""
    from hydra.types import RunMode

    choices = [*(change.input_line for change in overrides if change.is_hydra_override()), *base.choices]
    _, repository = loader._parse_overrides_and_create_caching_repo(base.root, choices)
    groups = [change for change in overrides if not change.is_hydra_override() and _is_choice(repository, change)]
    if groups:
        defaults = loader.compute_defaults_list(base.root, choices, RunMode.RUN)
        listed = {str(key): choice for key, choice in defaults.overrides.known_choices.items()}
        current = dict(listed)
        for change in groups:
            place, _, text = change.input_line.lstrip("+~").partition("=")
            option = _names(change.value())
            if change.is_delete():
                if place not in current or (text and current[place] != option):
                    choice = f"chosen is {current[place]}" if place in current else "nothing of it is chosen"
                    raise ConfigError(f"{change.input_line!r} removes what is not there: {choice}")
                choices.append(f"~{place}")
                continue
            _check_choice(repository, change, base.folders)
            choices = [choice for choice in choices if not choice.startswith(f"+{place}=")]  # of an earlier override
            choices.append(f"{'' if place in listed else '+'}{place}={_grammar(option)}")
            current[place] = option
    return choices, [change for change in overrides if change not in groups and not change.is_hydra_override()]


def _names(value: Any) -> Any:
    """Return the names of a choice as Hydra takes them: texts, also for a file named by a number."""
    return [_names(item) for item in value] if isinstance(value, list) else None if value is None else str(value)


def _is_choice(repository: Any, override: Any) -> bool:
    """Return whether an override chooses a file of a config group rather than sets a value."""
    group = override.key_or_group
    if override.package is not None or "/" in group:
        return True
    value = override.value()
    is_file = isinstance(value, int) and repository.config_exists(f"{group}/{value}")  # a file named by a number
    is_setting = group in {field.name for field in fields(RunConfig)}
    return repository.group_exists(group) and (is_file or not is_setting or isinstance(value, str | list | None))


def _check_choice(repository: Any, override: Any, folders: Sequence[Path]) -> None:
    from hydra.core.object_type import ObjectType

    group, option = override.key_or_group, override.value()
    if not repository.group_exists(group):
        names = [name for name in repository.get_group_options("", ObjectType.GROUP) if name != "hydra"]
        raise NotFoundError(f"{override.input_line!r}: no config group '{group}'{nearest(group, names)}")
    options = option if isinstance(option, list) and option else [option]
    unknown = [name for name in options if not repository.config_exists(f"{group}/{name}")]
    if not unknown:
        return
    names = experiments(*folders) if group == "experiment" else repository.get_group_options(group)
    hint = nearest(str(unknown[0]), names)
    raise NotFoundError(f"{override.input_line!r}: no such choice{hint} (choices: {', '.join(names)})")


def _set(config: Any, key: str, value: Any) -> None:
    """Set the value of a dotted key; merge a mapping into an existing one."""
    from omegaconf import OmegaConf

    if key.endswith(f".{TARGET}"):
        key, value = key.removesuffix(f".{TARGET}"), {TARGET: value, "kwargs": {}}
    value, parts = from_hydra(value, key), key.split(".")
    block, _, leaf = key.rpartition(".")
    if leaf in PART_KEYS and block.startswith(HOLDERS) and _names_part(OmegaConf.select(config, block)):
        OmegaConf.update(config, block, {leaf: value}, merge=False, force_add=True)  # another part, without arguments
        return
    for length in range(1, len(parts)):
        parent = ".".join(parts[:length])
        value_above = OmegaConf.select(config, parent)
        holds_part = parent != "algorithm.name" and parent.startswith(HOLDERS)
        if holds_part and takes_arguments(value_above):  # of which `key` is one
            OmegaConf.update(config, parent, from_hydra({TARGET: value_above}, parent))
        elif isinstance(value_above, str | int | float):
            name = parts[-1] if parts[-1] in {field.name for field in fields(RunConfig)} else ""
            hint = f"did you mean '{name}'?" if name else f"set {parent} as a whole"
            raise ConfigError(f"{key}: {parent} is {value_above!r} and has no parts; {hint}")
    merges = isinstance(value, Mapping)
    if merges and any(name in value for name in PART_KEYS) and _names_part(OmegaConf.select(config, key)):
        merges = False
    OmegaConf.update(config, key, value, merge=merges, force_add=True)


def _names_part(value: Any) -> bool:
    """Return whether a value names a part: in short, or with its arguments."""
    return takes_arguments(value) or (isinstance(value, Mapping) and TARGET in value)


def _apply(config: Any, override: Any) -> Layer:
    """Apply an override that sets or removes a value; return the layer it makes."""
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    key, value = override.key_or_group, override.value()
    source = f"override {override.input_line}"
    try:
        before = OmegaConf.select(config, "algorithm.name")
        if key == "algorithm.name" and value in ALGORITHMS and ":" not in value and before not in (None, value):
            raise ConfigError(f"algorithm.name={value}: the spec says {before}; write ENV:{value} instead")
        if not override.is_delete():
            _set(config, key, value)
            return Layer(source, _nested(key, value))
        keys = [name for name, _, _ in walk(RunConfig, data=OmegaConf.to_container(config))]
        if key not in keys and OmegaConf.select(config, key) is None:
            raise ConfigError(f"{override.input_line!r} removes an unknown key{suggest(key, keys)}")
        present = to_dict(OmegaConf.select(config, key))
        if "=" in override.input_line and present != value:
            raise ConfigError(f"{override.input_line!r} removes what is not there: {key} is {present!r}; write ~{key}")
        parent, _, leaf = key.rpartition(".")
        with open_dict(config):
            (OmegaConf.select(config, parent) if parent else config).pop(leaf, None)
        return Layer(f"{source} (back to the default)", _nested(key, None))
    except (OmegaConfBaseException, AttributeError, TypeError, ValueError) as problem:
        raise ConfigError(f"{override.input_line!r} cannot be applied: {first_line(problem)}") from None


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _file_layers(loader: Any, base: Base, choices: list[str]) -> list[Layer]:
    """Return the settings of each file of Hydra's defaults list, in the order in which they are merged."""
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    layers = []
    _, repository = loader._parse_overrides_and_create_caching_repo(base.root, choices)
    for file in loader.compute_defaults_list(base.root, choices, RunMode.RUN).defaults:
        if file.config_path is None or file.config_path.startswith("hydra/"):
            continue
        place = repository.load_config(file.config_path).path
        content = OmegaConf.to_container(loader._load_single_config(file, repository).config)
        assert isinstance(content, dict)
        folder = place.removeprefix("file://").replace(f"pkg://{CONF}", "cadenza/conf")
        keys = {str(key): value for key, value in content.items() if key not in ("defaults", "hydra")}
        layers.append(Layer(str(base.files.get(file.config_path, f"{folder}/{file.config_path}.yaml")), keys))
    return layers
