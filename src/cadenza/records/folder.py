"""A run on disk: where its files are, how it is created, and how a person names it."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from cadenza.base import atomic
from cadenza.base.files import SafePath, screen
from cadenza.base.json_text import is_intact, is_text, with_digest, without_digest
from cadenza.base.parsing import ParseError, json_object, yaml_data, yaml_settings
from cadenza.base.text import shell
from cadenza.errors import CheckpointError, ConfigError, NotFoundError, StorageError, nearest
from cadenza.records import validity
from cadenza.records.decisions import checked
from cadenza.records.lock import is_held

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cadenza.config.schema import RunConfig

LAST = "@last"
SHARED_INDEX = "CADENZA_INDEX"  # environment variable
INDEX_NAME = "index.sqlite"  # and what SQLite puts beside it, beginning so
VIDEOS = "videos"
BEST = "@best"
HUB = "hf:"  # a published run, `hf:user/repo` or `hf:user/repo@revision`
PLAIN = re.compile(r"[\w.-]+")  # an id that is no path and moves no cursor
EVENT_FILES = "cadenza.txt"  # in tensorboard/: names the event files that cadenza wrote
LONGEST_CONFIG = 4 << 20
STATUSES = ("running", "finished", "interrupted", "failed")


class RunPath:
    """A file or folder of a run, by its name in the run's folder."""

    def __init__(self, name: str) -> None:
        self._parts = tuple(name.split("/"))

    def __get__(self, run: RunFolder, kind: type[RunFolder]) -> SafePath:
        return SafePath(run.path, self._parts)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. Attributes are paths in it; `read_*` and `write_*` touch the disk."""

    path: Path
    published: str | None = None  # the id it was published under, of a copy in the Hub's cache, which stays as it is

    config = RunPath("config.yaml")
    manifest = RunPath("manifest.json")
    status = RunPath("status.json")
    decisions = RunPath("decisions.json")
    metrics = RunPath("metrics.jsonl")
    alerts = RunPath("alerts.jsonl")
    log = RunPath("logs/run.log")
    report = RunPath("report.md")
    curves = RunPath("curves.svg")
    checkpoints = RunPath("checkpoints")
    episodes = RunPath("episodes")
    videos = RunPath(VIDEOS)
    replay = RunPath("replay")

    @property
    def id(self) -> str:
        return self.published or self.path.name

    @property
    def handle(self) -> str:
        """The name that `find` accepts: the run's id, or its path if it lies outside the folder of runs."""
        by_id = self.published or self.path.parent.absolute() == runs_root().absolute()
        return self.id if by_id else str(self.path)

    @property
    def reference(self) -> str:
        """The handle, quoted for a shell."""
        return shell(self.handle)

    @property
    def outlet(self) -> SafePath:
        """The folder for videos and the like made of the run: its own, or the current one for a published run."""
        return SafePath(Path()) if self.published else self.files

    @property
    def files(self) -> SafePath:
        """The folder, to open files in it."""
        return SafePath(self.path)

    @property
    def best_or_last(self) -> str:
        """The checkpoint to show, or to start another run from."""
        return "best" if (self.checkpoints / "best").exists() else "last"

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest without its digest; refuse one that is damaged."""
        manifest = read_object(self.manifest)
        fault = "no config_hash" if "config_hash" not in manifest else validity.fault(manifest, validity.MANIFEST)
        if fault is None and not is_intact(manifest):
            fault = "wrong digest"
        if fault is not None:
            raise validity.damage(self.manifest, fault)
        return without_digest(manifest)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        atomic.write_json(self.manifest, with_digest(manifest))

    def read_status(self) -> dict[str, Any]:
        """Return the sound part of status.json; nothing if it is missing or damaged, as the next save replaces it."""
        try:
            return validity.status(read_object(self.status))
        except CheckpointError:
            return {}

    def update_status(self, **fields: Any) -> None:
        """Merge fields into status.json; names with a slash (`eval/return_mean`) go in as `**{name: value}`."""
        if fields.get("status", "running") not in STATUSES:
            raise ValueError(f"status '{fields['status']}' is none of {', '.join(STATUSES)}")
        atomic.write_json(self.status, self.read_status() | {"updated": timestamp()} | fields)

    def whereabouts(self) -> dict[str, Any]:
        """Return for status.json where the run is, and that this process trains it."""
        return {"dir": str(self.path.absolute()), "pid": os.getpid(), "host": platform.node()}

    def state(self) -> str:
        """Return the status as a person should see it: a run without a living process that seems to run has crashed."""
        return shown_state(self.path, self.read_status().get("status"))

    def read_decisions(self, changed: bool = False) -> dict[str, Any]:
        """Return the decisions; none only in a run that was stopped before it made any.

        `changed` accepts a file that does not match its digest, not one with unknown keys or impossible values.
        """
        decisions = checked(read_object(self.decisions), self.decisions, changed)
        if not decisions and self.checkpoints.glob("step-*"):
            raise validity.damage(self.decisions, "empty")
        return decisions

    def write_decisions(self, decisions: dict[str, Any]) -> None:
        atomic.write_json(self.decisions, with_digest(decisions))

    def read_config(self, trust: bool = False, changed: bool = False, training: bool = False) -> RunConfig:
        """Return the run's config; refuse one that names code, unless it was made here or is trusted.

        Before `training`, refuse in the same way one that publishes. `changed` accepts a config that was edited since
        the run began.
        """
        from cadenza.config.convert import build
        from cadenza.config.migrate import migrate
        from cadenza.config.registry import ORIGINS
        from cadenza.config.schema import RunConfig
        from cadenza.config.spec import read_file
        from cadenza.records.trust import require_trust

        stored, manifest = read_file(self.config), self.read_manifest()
        if not trust:  # first, because making the typed config imports the algorithm's settings
            require_trust(stored, manifest, self.path, training)
        ORIGINS.update(self._origins(manifest))
        config = build(RunConfig, migrate(stored))
        if not changed and not self.has_known_config():
            remedies = f"`cadenza train {self.config} --init-from {self.reference}` starts a new run from its weights"
            remedies += f", `cadenza resume {self.reference} --accept-changes` names the changes and goes on with them"
            raise ConfigError(f"{self.config} was changed after the run began; put it back ({remedies})")
        return config

    def _origins(self, manifest: dict[str, Any]) -> dict[str, str]:
        """Return by module what to do if it cannot be imported here, for the modules that the run's config names."""
        modules, folder = manifest.get("modules"), manifest.get("folder")
        if not isinstance(modules, dict):
            return {}
        there = f"the folder {folder}, where the run was made," if folder else "its folder"
        path = f"work in {there} or add it to PYTHONPATH"
        advice = {module: f"install {package}, or {path}" if package else path for module, package in modules.items()}
        return {module: f"{self.id} needs it: {words}" for module, words in advice.items()}

    def has_known_config(self) -> bool:
        """Return whether config.yaml is as this program wrote it."""
        return file_digest(self.config) in self.read_manifest().get("configs", ())

    def change_config(self, text: str) -> None:
        """Replace config.yaml by `text`, after adding its hash to the manifest.

        Earlier hashes stay valid, so an interruption leaves a run that can be read. If the present config was made
        here, the new one is signed, too.
        """
        from cadenza.config.spec import read_file
        from cadenza.records.trust import renewed

        manifest = self.read_manifest()
        manifest["configs"] = [*manifest["configs"], sha256(text.encode()).hexdigest()]
        if signatures := renewed(read_file(self.config), yaml_data(text), manifest):
            manifest["signatures"] = [*manifest["signatures"], *signatures]
        self.write_manifest(manifest)
        atomic.write_text(self.config, text)

    def settings(self) -> dict[str, Any]:
        """Return config.yaml as plain nested dicts for showing, not for running; nothing if it cannot be read."""
        try:
            # a date may be the run's name
            return validity.settings(yaml_settings(self.config.read_bytes(LONGEST_CONFIG)))
        except (OSError, ParseError):
            return {}


def runs_root(option: Path | None = None) -> Path:
    """Return the folder of runs: the option, else CADENZA_RUNS, else ./runs."""
    return option or Path(os.environ.get("CADENZA_RUNS") or "runs")


def root_to_list(option: Path | None = None) -> Path:
    """Return the folder of runs for a command that lists them: one that does not exist has none, a file is refused."""
    root = runs_root(option)
    if root.is_file():
        raise NotFoundError(f"--runs-dir {root}: it is a file, and runs are in a folder")
    return root


def shared_url() -> str | None:
    """Return the URL of a team's index from CADENZA_INDEX, or None."""
    return os.environ.get(SHARED_INDEX) or None


def create(
    root: Path, config: RunConfig, command: list[str], run_id: str | None = None, facts: Mapping[str, Any] | None = None
) -> RunFolder:
    """Create a run folder with its config, manifest and status, whole or not at all, and make `@last` name it.

    The manifest holds `facts` about the environment.
    """
    from cadenza.records.manifest import describe_run

    if not is_text(str(root.absolute())):
        raise ConfigError(f"{str(root.absolute())!r} is not UTF-8 text (--runs-dir takes another place)")
    try:
        root.mkdir(parents=True, exist_ok=True)
        described = describe_run(config, command) | ({"facts": dict(facts)} if facts else {})
        folder = _publish(root, config, described, run_id)
    except OSError as problem:
        reason = "it is a file" if root.is_file() else problem.strerror or problem
        raise StorageError(f"cannot create a run in {root}: {reason} (--runs-dir takes another place)") from problem
    try:
        atomic.write_text(root / LAST, folder.id + "\n")
    except OSError as problem:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise StorageError(f"cannot write {root / LAST}: {problem.strerror or problem}") from problem
    return folder


def _publish(root: Path, config: RunConfig, manifest: dict[str, Any], run_id: str | None) -> RunFolder:
    while True:
        folder = RunFolder(root / (run_id or new_id(config)))
        draft = RunFolder(atomic.temporary_beside(folder.path))
        try:
            _fill(draft, folder, config, manifest)
            draft.path.rename(folder.path)
        except OSError:
            shutil.rmtree(draft.path, ignore_errors=True)
            if folder.path.exists() and run_id is None:  # another process took the same id
                continue
            raise
        atomic.sync_dir(root)
        return folder


def _fill(draft: RunFolder, folder: RunFolder, config: RunConfig, manifest: dict[str, Any]) -> None:
    import yaml

    from cadenza.config.convert import to_dict

    draft.path.mkdir()
    for directory in (draft.log.parent, draft.checkpoints, draft.episodes, draft.videos):
        directory.mkdir()
    atomic.write_text(draft.config, yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True))
    draft.write_manifest({"run": folder.id, **manifest, "configs": [file_digest(draft.config)]})
    draft.write_decisions({})
    status = {"run": folder.id, **folder.whereabouts(), "status": "running", "env_steps": 0, "updates": 0}
    status |= {"eval/return_mean": None, "best_return": None, "seconds": 0.0}
    status |= {**dict.fromkeys(("started", "updated"), manifest["created"]), "message": ""}
    atomic.write_json(draft.status, status)


def new_id(config: RunConfig) -> str:
    """Return `<environment>-<variant>-s<seed>-<UTC date>-<time>-<4 hex>`, a file name on every system."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{config.environment.id}-{config.variant}-s{config.seed}")
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def run_ids(root: Path) -> list[str]:
    """Return the names of the folders that are runs, which have a config, in order."""
    try:
        names = [name for name in os.listdir(root) if _is_name(name)]
    except OSError:
        return []
    return sorted(name for name in names if os.path.lexists(f"{root}/{name}/config.yaml"))


def _is_name(name: str) -> bool:
    return not name.startswith((".", INDEX_NAME)) and name != LAST and is_text(name)


def find(root: Path, ref: str) -> RunFolder:
    """Return the run that an id, a unique prefix, a path, `@last`, `@best[:SPEC]` or `hf:user/repo` names.

    Refuse a folder that holds links, pipes or devices.
    """
    folder = _named(root, ref)
    screen(folder.path)
    return folder


def _named(root: Path, ref: str) -> RunFolder:
    if ref == LAST:
        return _last(root)
    if ref.startswith(HUB):
        from cadenza.records.hub import download

        path = download(ref.removeprefix(HUB))
        name = read_object(SafePath(path) / "manifest.json").get("run")
        return RunFolder(path, name if isinstance(name, str) and PLAIN.fullmatch(name) else ref)
    if ref == BEST or ref.startswith(f"{BEST}:"):
        return _best(root, ref[len(BEST) + 1 :])
    if ref.startswith("@"):
        allowed = f"({LAST}, {BEST} and {BEST}:ENV:VARIANT exist)"
        raise NotFoundError(f"unknown run '{ref}'{nearest(ref, (LAST, BEST))} {allowed}")
    if not ref:
        raise NotFoundError(f"a run needs a name: an id, a unique prefix, a path, {LAST} or {BEST}")
    ids = run_ids(root)
    if ref in ids:
        return RunFolder(root / ref)
    if os.path.lexists(f"{ref}/config.yaml"):  # which a name too long for any file is not
        return RunFolder(Path(ref).resolve())
    matches = [run for run in ids if run.startswith(ref)]
    if len(matches) == 1:
        return RunFolder(root / matches[0])
    if matches:
        listed = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
        raise NotFoundError(f"'{ref}' could be any of {len(matches)} runs: {listed}")
    if not ids:
        raise NotFoundError(f"no run '{ref}': there are no runs in {root}")
    hint = nearest(ref, ids) or nearest(ref, {run[: len(ref)] for run in ids})
    raise NotFoundError(f"no run '{ref}' in {root}{hint} (`cadenza list` shows all)")


def _last(root: Path) -> RunFolder:
    try:
        run = (SafePath(root) / LAST).read_text(validity.LONGEST_POINTER, errors="replace").strip()
    except FileNotFoundError:
        raise NotFoundError(f"no {LAST}: there are no runs in {root}") from None
    folder = RunFolder(root / run)
    if not run or PurePath(run).name != run or not folder.config.exists():
        raise NotFoundError(f"{LAST} names run '{run}', which is not in {root} any more")
    return folder


def _best(root: Path, spec: str) -> RunFolder:
    from cadenza.records.index import rows

    runs = rows(root)
    specs = sorted({row["spec"] for row in runs})
    if spec and spec not in specs:
        raise NotFoundError(f"no run of '{spec}' in {root}{nearest(spec, specs)}")
    evaluated = [row for row in runs if row["return"] is not None and spec in ("", row["spec"])]
    usable = [row for row in evaluated if not row.get("cleaned")]
    if not usable:
        where = f"{'of ' + spec + ' ' if spec else ''}in {root}"
        cleaned = f"every run {where} that was evaluated has been cleaned up"
        raise NotFoundError(cleaned if evaluated else f"no run {where} has been evaluated yet")
    return RunFolder(root / max(usable, key=lambda row: (row["return"], row["created"] or ""))["run"])


def shown_state(run: Path, status: str | None) -> str:
    """Return a run's status, or `crashed` for one whose process ended without writing how."""
    if status in (None, "running"):
        return "running" if is_held(run) else "crashed"
    return str(status)


def read_object(path: SafePath) -> dict[str, Any]:
    """Return the JSON object in a file that every run has."""
    try:
        return json_object(path.read_bytes(LONGEST_CONFIG))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {validity.REMEDY}") from None
    except ParseError as problem:
        raise validity.damage(path, "not JSON" if problem.line is not None else problem.reason) from None


def evaluation_video(folder: RunFolder, env_steps: int) -> SafePath | None:
    """Return the video of the evaluation at this step, or None if there is none (`evaluation.video_every`)."""
    name = evaluation_video_name(env_steps)
    return next((path for kind in (".gif", ".mp4") if (path := folder.videos / f"{name}{kind}").exists()), None)


def evaluation_video_name(env_steps: int) -> str:
    return f"eval-{env_steps:012d}"


def file_digest(path: SafePath) -> str:
    return sha256(path.read_bytes(LONGEST_CONFIG)).hexdigest()


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
