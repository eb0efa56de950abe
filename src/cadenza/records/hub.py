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
from cadenza.errors import ConfigError, HubError, MissingExtraError, NotFoundError, install

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
NEEDED = ("config.yaml", "manifest.json", "status.json", "decisions.json", "metrics.jsonl")  # in a published run
PRESENTATION = ("README.md", "curves.png", "replay.mp4", "replay.gif")
CHECKPOINT = ("checkpoints/best", "checkpoints/last", "checkpoints/step-*.json", "checkpoints/step-*.safetensors")
UNTOUCHED = (".gitattributes",)  # files of the Hub itself
OUTSIDE = "*..*"  # names that lead out of the folder


def check_repo(name: str) -> str:
    if not REPO.fullmatch(name) or ".." in name or "--" in name:
        raise ConfigError(f"'{name}' is no repository of the Hub: give user/name")
    return name


def upload(folder: Path, repo: str, private: bool, message: str) -> dict[str, Any]:
    """Make the repository hold what the folder does; commit only if something differs.

    Leave files alone that no run has, and refuse a repository that holds something else than a run.
    """
    with _plain_errors(repo):
        hub = require_api()
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        hub.create_repo(repo, private=private, exist_ok=True)
        info = hub.model_info(repo)
        if private and not info.private:
            remedy = "make it private in its settings on the Hub, or give a new name"
            raise ConfigError(f"--private: {repo} exists already and is public ({remedy})")
        present = [name for name in hub.list_repo_files(repo) if name not in UNTOUCHED]
        if present and not _holds_a_run(hub, repo, present):
            raise ConfigError(f"{repo} holds something that is no run of cadenza ({present[0]} …): give a new name")
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        patterns = (*NEEDED, *PRESENTATION, *CHECKPOINT)
        stale = [name for name in present if name not in files and any(fnmatchcase(name, one) for one in patterns)]
        operations: list[Any] = [CommitOperationAdd(name, folder / name) for name in files]
        operations += [CommitOperationDelete(name) for name in stale]
        commit = hub.create_commit(repo, operations, commit_message=message)
        return {"url": f"{hub.endpoint}/{repo}", "commit": commit.oid, "changed": commit.oid != info.sha}


def download(ref: str) -> Path:
    """Download a run published as `user/repo` or `user/repo@revision`; return its folder in the Hub's own cache."""
    repo, _, revision = ref.partition("@")
    check_repo(repo)
    with _plain_errors(repo, revision):
        hub = require_api()
        selection = {"allow_patterns": [*NEEDED, *CHECKPOINT], "ignore_patterns": [OUTSIDE]}
        path = without_links(Path(hub.snapshot_download(repo, revision=revision or None, **selection)))
    for name in ("config.yaml", "manifest.json"):
        if not (path / name).is_file():
            raise NotFoundError(f"hf:{ref} is no run published by cadenza: it has no {name}")
    return path


def without_links(snapshot: Path) -> Path:
    """Return a folder with hard links to the files of a snapshot: the Hub's symbolic links are refused in a run.

    Leave out a link that leads anywhere but to a blob of the same cache.
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
        with TemporaryDirectory(prefix="cadenza-hub-") as place:  # in the cache, it would pass for a whole snapshot
            path = Path(hub.hf_hub_download(repo, "manifest.json", local_dir=place))
            manifest = json_data(path.read_bytes())
    except ParseError:
        return False
    return isinstance(manifest, dict) and "config_hash" in manifest


def require_api() -> Any:
    """Return the Hub's interface; refuse where its package is not installed. No request is sent."""
    try:
        utils: Any = import_module("huggingface_hub.utils")
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtraError(f"the Hugging Face Hub needs an extra: {install('hub')}") from None
    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="cadenza")


@contextmanager
def _plain_errors(repo: str, revision: str = "") -> Iterator[None]:
    """Turn errors of the Hub and of the network into one line each."""
    try:
        yield
    except Exception as problem:
        module, name = type(problem).__module__, type(problem).__name__
        if not module.startswith(("huggingface_hub", "httpx", "httpcore", "requests")):
            raise
        status = getattr(getattr(problem, "response", None), "status_code", None)
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else name
        if status in (401, 403) or "Token" in name:
            remedy = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"
            raise ConfigError(f"the Hub does not let you use {repo}: {remedy}") from problem
        if name in ("RevisionNotFoundError", "HFValidationError") and revision:
            raise NotFoundError(f"{repo} has no revision '{revision}' on the Hub") from problem
        if name in ("RepositoryNotFoundError", "RevisionNotFoundError", "LocalEntryNotFoundError") and status == 404:
            raise NotFoundError(f"the Hub knows no {repo}, or does not show it to you") from problem
        next_step = "check the network, HF_ENDPOINT and https://status.huggingface.co"
        raise HubError(f"the Hub cannot be reached or fails for {repo} ({reason}): {next_step}") from problem
