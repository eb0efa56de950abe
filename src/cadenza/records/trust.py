"""Configs that name code. One's own are honoured; a stranger's only when told to.

A run made here whose config holds import paths carries a signature made with a key in the user's own state folder, so
that it can be resumed without further ado, while the same config in a downloaded run is refused. All of this looks at
plain data: making the typed config may already import what it names.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cadenza.config import registry
from cadenza.config.convert import is_choice, walk
from cadenza.config.migrate import migrate
from cadenza.config.schema import RunConfig
from cadenza.config.spec import read_file
from cadenza.errors import CadenzaError, ConfigError, StorageError
from cadenza.records.atomic import temporary_beside
from cadenza.records.folder import read_object
from cadenza.records.json_text import canonical

KEY_BYTES = 32
ELSEWHERE = "XDG_STATE_HOME takes another place"
SIGNED = ("environment", "algorithm")  # the blocks whose settings are used by the code they name
SEPARATORS = ("/", "\\")


def code_named(config: dict[str, Any]) -> list[str]:
    """Whatever may make a config run somebody's code: what it imports, and files its environment is made from."""
    return [*imports_named(config), *files_named(config)]


def imports_named(config: dict[str, Any]) -> list[str]:
    """Every import path where one may be honoured: the environment, its wrappers, the algorithm and its networks."""
    environment, algorithm = (_block(config, name) for name in SIGNED)
    wrappers = environment.get("wrappers")
    places = [environment.get("id"), algorithm.get("name")]
    if isinstance(wrappers, list):  # else making the typed config refuses it
        places += [one.get("id") if isinstance(one, dict) else one for one in wrappers]
    with contextlib.suppress(CadenzaError):
        if ":" not in str(algorithm.get("name")):
            registry.algorithm(str(algorithm.get("name")))  # one of another package's has to be loaded to be known
    choices = {key for key, hint, _ in walk(RunConfig, data=config) if is_choice(hint)}
    parts = [text for key, text in _texts(algorithm, "algorithm") if key not in {"algorithm.name", *choices}]
    return [str(place) for place in (*places, *parts) if ":" in str(place)]


def files_named(config: dict[str, Any]) -> list[str]:
    """Texts among the arguments of the environment and its wrappers that may be files: a scenario starts programs."""
    return [text for key, text in _arguments(config) if key.endswith("path") or _may_be_a_file(text)]


def _arguments(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    environment = _block(config, "environment")
    wrappers = environment.get("wrappers")
    arguments = [one for one in wrappers if isinstance(one, dict)] if isinstance(wrappers, list) else []
    given = [{key: value for key, value in one.items() if key != "id"} for one in arguments]
    return _texts([environment.get("kwargs"), *given], "kwargs")


def _may_be_a_file(text: str) -> bool:
    try:
        return any(sign in text for sign in SEPARATORS) or os.path.isfile(text)
    except (OSError, ValueError):  # longer than any name, or with a NUL
        return True


def signatures(stored: dict[str, Any]) -> list[str]:
    """What this user's key makes of the blocks that may name code, as they are stored; nothing where none does.

    Any text given to an environment may be a file's name, which depends on where one stands.
    """
    config = migrate(stored)
    if not imports_named(config) and not any(_arguments(config)):
        return []
    try:
        signed = canonical({block: stored.get(block) for block in SIGNED})
    except TypeError:  # YAML knows dates and the like, which no config of ours holds
        return []
    return [hmac.new(_key(), signed.encode(), "sha256").hexdigest()]


def is_own(stored: dict[str, Any], manifest: dict[str, Any]) -> bool:
    """Whether the config was signed here."""
    listed = manifest.get("signatures")
    given = [str(one) for one in listed] if isinstance(listed, list) else []
    return any(hmac.compare_digest(one, ours) for ours in signatures(stored) for one in given)


def require_trust(stored: dict[str, Any], manifest: dict[str, Any], where: Path) -> None:
    config = migrate(stored)
    does = {"import": imports_named(config), "open": files_named(config)}
    if any(does.values()) and not is_own(stored, manifest):
        told = [f"{verb} '" + "', '".join(named) + "'" for verb, named in does.items() if named]
        way = "add --trust if you trust its author"
        raise ConfigError(f"{where} would {' and '.join(told)} and was not made here: {way}")


def require_trust_of_file(spec: str) -> None:
    """The same for a run's stored config that is given as a spec: it is the run's author's, not the user's own."""
    path = Path(spec)
    manifest = path.parent / "manifest.json"
    if path.name == "config.yaml" and os.path.isfile(path) and os.path.isfile(manifest):
        require_trust(read_file(path), read_object(manifest), path)


def _block(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _texts(tree: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every text in plain data with its dotted key."""
    if isinstance(tree, str):
        yield where, tree
    elif isinstance(tree, dict | list):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _texts(part, f"{where}.{key}")


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
