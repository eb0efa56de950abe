"""The Hugging Face Hub: a folder to a repository in one commit, and back. Nothing that comes from there is executed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cadenza.base.parsing import ParseError, json_data
from cadenza.errors import ConfigError, MissingExtraError, NotFoundError, StorageError, install

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
USED = ("config.yaml", "manifest.json", "status.json", "decisions.json", "metrics.jsonl")  # of a published run
SHOWN = ("README.md", "curves.png", "replay.mp4", "replay.gif")
CHECKPOINT = ("checkpoints/best", "checkpoints/last", "checkpoints/step-*.json", "checkpoints/step-*.safetensors")
UNTOUCHED = (".gitattributes",)  # the Hub's own
STRANGE = "*..*"  # names that lead elsewhere


def check_repo(name: str) -> str:
    if not REPO.fullmatch(name) or ".." in name or "--" in name:
        raise ConfigError(f"'{name}' is no repository of the Hub: give user/name")
    return name


def upload(folder: Path, repo: str, private: bool, message: str) -> dict[str, Any]:
    """Make the repository hold what the folder does; a commit only where something differs.

    Files that no run has are left alone, and so is a repository that holds something else than a run.
    """
    with _told(repo):
        hub = _api()
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        hub.create_repo(repo, private=private, exist_ok=True)
        found = hub.model_info(repo)
        if private and not found.private:
            way = "make it private in its settings on the Hub, or give a new name"
            raise ConfigError(f"--private: {repo} is there already, and everybody sees it ({way})")
        there = [name for name in hub.list_repo_files(repo) if name not in UNTOUCHED]
        if there and not _holds_a_run(hub, repo, there):
            raise ConfigError(f"{repo} holds something that is no run of cadenza ({there[0]} …): give a new name")
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        ours = (*USED, *SHOWN, *CHECKPOINT)
        stale = [name for name in there if name not in files and any(fnmatchcase(name, one) for one in ours)]
        operations: list[Any] = [CommitOperationAdd(name, folder / name) for name in files]
        operations += [CommitOperationDelete(name) for name in stale]
        commit = hub.create_commit(repo, operations, commit_message=message)
        return {"url": f"{hub.endpoint}/{repo}", "commit": commit.oid, "changed": commit.oid != found.sha}


def download(ref: str) -> Path:
    """The folder, in the Hub's own cache, of a run published as `user/repo` or `user/repo@revision`."""
    repo, _, revision = ref.partition("@")
    check_repo(repo)
    with _told(repo, revision):
        hub = _api()
        wanted = {"allow_patterns": [*USED, *CHECKPOINT], "ignore_patterns": [STRANGE]}
        path = without_links(Path(hub.snapshot_download(repo, revision=revision or None, **wanted)))
    for name in ("config.yaml", "manifest.json"):
        if not (path / name).is_file():
            raise NotFoundError(f"hf:{ref} is no run published by cadenza: it has no {name}")
    return path


def without_links(snapshot: Path) -> Path:
    """The same files under a second name: the Hub's cache has links to its blobs, which no run folder may have.

    A link that leads anywhere else, or a file too many folders down, is left out.
    """
    if not any(path.is_symlink() for path in snapshot.rglob("*")):
        return snapshot
    cache = snapshot.parent.parent
    target = cache / "cadenza" / snapshot.name
    blobs = (cache / "blobs").resolve()
    for link in snapshot.rglob("*"):
        blob = link.resolve()
        place = target / link.relative_to(snapshot)
        if link.is_dir() or blob.parent != blobs or not blob.is_file():
            continue
        if place.exists() and place.samefile(blob):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            os.link(blob, place)
        except OSError:  # a disk without second names
            shutil.copyfile(blob, place)
    return target


def _holds_a_run(hub: Any, repo: str, names: list[str]) -> bool:
    if not {"config.yaml", "manifest.json"} <= set(names):
        return False
    try:
        with TemporaryDirectory(prefix="cadenza-hub-") as place:  # part of a run would be taken for all in the cache
            path = Path(hub.hf_hub_download(repo, "manifest.json", local_dir=place))
            manifest = json_data(path.read_bytes())
    except ParseError:
        return False
    return isinstance(manifest, dict) and "config_hash" in manifest


def _api() -> Any:
    try:
        utils: Any = import_module("huggingface_hub.utils")
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtraError(f"the Hugging Face Hub needs an extra: {install('hub')}") from None
    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="cadenza")


@contextmanager
def _told(repo: str, revision: str = "") -> Iterator[None]:
    """What may go wrong between here and the Hub, in one line."""
    try:
        yield
    except Exception as problem:
        module, name = type(problem).__module__, type(problem).__name__
        if not module.startswith(("huggingface_hub", "httpx", "httpcore", "requests")):
            raise
        status = getattr(getattr(problem, "response", None), "status_code", None)
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else name
        if status in (401, 403) or "Token" in name:
            way = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"
            raise ConfigError(f"the Hub does not let you use {repo}: {way}") from problem
        if name in ("RevisionNotFoundError", "HFValidationError") and revision:
            raise NotFoundError(f"{repo} has no revision '{revision}' on the Hub") from problem
        if name in ("RepositoryNotFoundError", "RevisionNotFoundError", "LocalEntryNotFoundError") and status == 404:
            raise NotFoundError(f"the Hub knows no {repo}, or does not show it to you") from problem
        raise StorageError(f"the Hub did not answer as it should ({reason})") from problem
