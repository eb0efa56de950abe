"""Configs that name code or publish: the user's own are accepted, others only with `--trust`.

A run made here whose config holds import paths, or sinks that send its rows to others, carries a signature, made with a
key in the user's state folder. It can be resumed without `--trust`, while the same config in a downloaded run is
refused. Everything here works on plain data, because building the typed config may already import what it names.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cadenza.base.atomic import temporary_beside
from cadenza.base.files import SafePath, screen
from cadenza.base.json_text import canonical
from cadenza.config import registry
from cadenza.config.convert import TARGET, is_choice, target_path, walk
from cadenza.config.interpolation import refuse_interpolations
from cadenza.config.migrate import migrate
from cadenza.config.schema import RunConfig
from cadenza.config.spec import read_file, without_choice
from cadenza.errors import CadenzaError, CheckpointError, ConfigError, StorageError
from cadenza.records.folder import read_object

KEY_BYTES = 32
REMEDY = "add --trust if you trust its author"
ELSEWHERE = "XDG_STATE_HOME takes another place"
SIGNED = ("environment", "algorithm")  # the blocks whose settings are used by the code they name
SIGNED_KEYS = (("logging", "sinks"), ("training", "buffers"))  # where they are set
PUBLISHING = ("wandb", "wandb_project", "wandb_entity", "sinks")  # settings of `logging`
SEPARATORS = ("/", "\\")


def code_named(config: dict[str, Any]) -> list[str]:
    """Return everything by which a config may run code: its import paths, and files that its environment opens."""
    return [*imports_named(config), *files_named(config)]


def imports_named(config: dict[str, Any]) -> list[str]:
    """Return every import path that may be used: of environment, wrappers, sinks, stores, and in the algorithm."""
    environment, algorithm = (_block(config, name) for name in SIGNED)
    places = [environment.get("id"), algorithm.get("name")]
    places += [one.get("id") if isinstance(one, dict) else one for one in _entries(config)]
    plugins = _plugins(config)
    # wherever it stands: no reader has to know which settings understand it
    texts = [(key, text) for key, text in _texts(config, "config") if TARGET in key.split(".") and text != TARGET]
    targets = [target_path(text, key) for key, text in texts]
    with contextlib.suppress(CadenzaError):
        if ":" not in str(algorithm.get("name")):
            registry.algorithm(str(algorithm.get("name")))  # imports that of another package, for its settings
    choices = {key for key, hint, _ in walk(RunConfig, data=config) if is_choice(hint)}
    parts = [text for key, text in _texts(algorithm, "algorithm") if key not in {"algorithm.name", *choices}]
    named = (str(place) for place in (*places, *parts) if ":" in str(place))
    return list(dict.fromkeys([*plugins, *targets, *named]))


def files_named(config: dict[str, Any]) -> list[str]:
    """Return arguments of environment, wrappers, sinks and stores that may be files: a scenario can start programs."""
    return [text for key, text in _arguments(config) if key.endswith("path") or _may_be_a_file(text)]


def _arguments(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts among the arguments of environment, wrappers, sinks and stores, and names that no code has."""
    environment = _block(config, "environment")
    entries = [one for one in _entries(config) if isinstance(one, dict)]
    # the id of a wrapper, sink or store is an import, not an argument
    keywords = [{name: value for name, value in entry.items() if name != "id"} for entry in entries]
    for arguments in (environment.get("kwargs"), *keywords):
        if not isinstance(arguments, dict):
            yield from _texts(arguments, "kwargs")
            continue
        for name, value in arguments.items():
            yield from _texts(value, f"kwargs.{name}")
            if not str(name).isidentifier():
                yield from _texts(name, f"kwargs.{name}")


def _may_be_a_file(text: str) -> bool:
    try:
        return any(sign in text for sign in SEPARATORS) or os.path.isfile(text)
    except (OSError, ValueError):  # longer than any name, or with a NUL
        return True


def sinks_named(config: dict[str, Any]) -> list[str]:
    """Return the settings by which a run sends its rows to others: W&B unless it is offline, and sinks of packages."""
    logging = _block(config, "logging")
    online = logging.get("wandb") not in (None, False, "offline")
    return [*(["logging.wandb"] if online else []), *(["logging.sinks"] if logging.get("sinks") else [])]


def signatures(stored: dict[str, Any]) -> list[str]:
    """Return the signatures by this user's key of what needs trust in a config, as it is stored."""
    return [signature for sign in (_signature_of_code, _signature_of_sinks) if (signature := sign(stored))]


def _signature_of_code(stored: dict[str, Any]) -> str:
    """Return the signature of the blocks that may name code; nothing if none does.

    Any text among an environment's arguments counts: whether it is a file's name depends on the current folder.
    """
    config = migrate(stored)
    if not imports_named(config) and not any(_arguments(config)):
        return ""
    blocks = {block: stored.get(block) for block in SIGNED}
    single = {f"{block}.{key}": _block(stored, block).get(key) for block, key in SIGNED_KEYS}
    single["plugins"] = _plugins(stored)
    return _signature(blocks | {key: value for key, value in single.items() if value})


def _signature_of_sinks(stored: dict[str, Any]) -> str:
    """Return the signature of the sinks that publish and of what is trained; nothing without such a sink or a key."""
    if not sinks_named(migrate(stored)):
        return ""
    sinks = {key: _block(stored, "logging").get(key) for key in PUBLISHING}
    names = [_block(stored, "environment").get("id"), _block(stored, "algorithm").get("name")]
    with contextlib.suppress(StorageError):  # a run is made all the same; resuming it then needs --trust
        return _signature({"sinks": sinks, "of": names})
    return ""


def _signature(content: dict[str, Any]) -> str:
    try:
        return hmac.new(_key(), canonical(content).encode(), "sha256").hexdigest()
    except TypeError:  # YAML has dates and the like, which no config of cadenza holds
        return ""


def is_own(
    stored: dict[str, Any], manifest: dict[str, Any], sign: Callable[[dict[str, Any]], str] = _signature_of_code
) -> bool:
    """Return whether the config's code, or with another `sign` what else it signs, was signed here."""
    listed = manifest.get("signatures")
    theirs = [str(one) for one in listed] if isinstance(listed, list) else []
    ours = sign(stored)
    return bool(ours) and any(hmac.compare_digest(one, ours) for one in theirs)


def renewed(stored: dict[str, Any], changed: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
    """Return the signatures of a config that the engine changed, of the kinds that it had."""
    kinds = [sign for sign in (_signature_of_code, _signature_of_sinks) if is_own(stored, manifest, sign)]
    return [signature for sign in kinds if (signature := sign(changed))]


def require_trust(stored: dict[str, Any], manifest: dict[str, Any], where: Path, training: bool = False) -> None:
    """Refuse a config that names code, or before `training` one that publishes, and was not signed here."""
    config, effects = migrate(stored), dict[str, list[str]]()
    if code_named(config) and not is_own(stored, manifest):
        effects = {"import": imports_named(config), "open": files_named(config)}
    if training and not is_own(stored, manifest, _signature_of_sinks):
        effects["publish by"] = sinks_named(config)
    if any(effects.values()):
        actions = [f"{verb} '" + "', '".join(names) + "'" for verb, names in effects.items() if names]
        raise ConfigError(f"{where} would {' and '.join(actions)} and was not made here: {REMEDY}")


def require_trust_of_file(spec: str, trust: bool = False) -> None:
    """Refuse a spec or sweep file in a run's folder that names code, publishes, or reads the user's files or variables.

    With `trust`, refuse nothing. Such a file is its author's; a file anywhere else counts as the user's. In the run's
    stored config, the signed blocks may be the user's. Any other file in the folder may name files and packages in a
    defaults list, so it is refused as a whole. The files that it builds on count like itself.
    """
    if trust:
        return
    path = Path(without_choice(spec))
    _require_trust_of(path)
    if os.path.isfile(path):
        from cadenza.config.inheritance import parents

        for parent in parents(path):
            _require_trust_of(parent)


def _require_trust_of(path: Path) -> None:
    screen_run_of(path)
    facts = _run_beside(path)
    if facts is None:
        return
    stored = read_file(path)
    is_stored = "schema_version" in stored or _is_stored_config(path)  # one of version 0 has no version
    if not is_stored or {"defaults", "spec"} & stored.keys() or any("." in str(key) for key in stored):  # set values
        raise ConfigError(f"{path} is in a run's folder and no config that a run stores: {REMEDY}")
    require_trust(stored, facts, path, training=True)
    signed = SIGNED if is_own(stored, facts) else ()
    refuse_interpolations({key: value for key, value in stored.items() if key not in signed}, path)


def screen_run_of(file: Path) -> None:
    """Refuse a file that lies in the folder of a run or a sweep with links, pipes or devices in it."""
    for marks in (("config.yaml", "manifest.json"), ("sweep.yaml", "journal.jsonl")):
        if all(os.path.lexists(file.parent / name) for name in marks):
            screen(file.parent)


def _is_stored_config(path: Path) -> bool:
    return "config.yaml" in (path.name, path.resolve().name)


def _run_beside(path: Path) -> dict[str, Any] | None:
    """Return the manifest of the run in whose folder a file lies, or the file that it links to; None if in no run's.

    Any manifest.json makes a config.yaml a run's; beside another file, it must have a config_hash.
    """
    if not os.path.isfile(path):
        return None
    for folder in dict.fromkeys((path.parent, path.resolve().parent)):
        manifest = folder / "manifest.json"
        if not os.path.lexists(manifest):
            continue
        if _is_stored_config(path):
            return read_object(SafePath(folder) / manifest.name)
        with contextlib.suppress(CheckpointError):
            facts = read_object(SafePath(folder) / manifest.name)
            if "config_hash" in facts:
                return facts
    return None


def _block(config: dict[str, Any], name: str) -> dict[str, Any]:
    block = config.get(name)
    return block if isinstance(block, dict) else {}


def _plugins(config: dict[str, Any]) -> list[str]:
    """Return the modules that a config would import; making the typed config refuses anything but a list of names."""
    modules = config.get("plugins")
    return [module for module in modules if isinstance(module, str)] if isinstance(modules, list) else []


def _entries(config: dict[str, Any]) -> Iterator[Any]:
    """Yield each `Name` and `{id: Name, its arguments}` of wrappers, sinks and stores."""
    for block, key in (("environment", "wrappers"), *SIGNED_KEYS):
        entries = _block(config, block).get(key)
        if isinstance(entries, list | dict):  # else building the typed config refuses it
            yield from entries.values() if isinstance(entries, dict) else entries


def _texts(tree: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for every text in plain data, including keys of mappings, and YAML's bytes and sets."""
    if isinstance(tree, bytes):
        tree = tree.decode("utf-8", "replace")
    if isinstance(tree, str):
        yield where, tree
    elif isinstance(tree, dict):
        for key, part in tree.items():
            yield from _texts(part, f"{where}.{key}")
            yield from _texts(key, f"{where}.{key}")
    elif isinstance(tree, list | tuple | set | frozenset):
        for index, part in enumerate(tree):
            yield from _texts(part, f"{where}.{index}")


def _key() -> bytes:
    try:
        path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "cadenza" / "key"
    except RuntimeError as problem:
        raise StorageError(f"no place for the key that signs runs: {problem} ({ELSEWHERE})") from problem
    try:
        if not path.exists():
            _make_key(path)
        key = path.read_bytes()
    except OSError as problem:
        reason = problem.strerror or problem
        raise StorageError(f"no place for the key that signs runs, {path}: {reason} ({ELSEWHERE})") from problem
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} is damaged: remove it (runs that name code then need --trust)")
    return key


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = temporary_beside(path)
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
