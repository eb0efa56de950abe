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
from cadenza.base.parsing import ParseError, json_data, yaml_data
from cadenza.base.text import shell
from cadenza.errors import CheckpointError, ConfigError, NotFoundError, StorageError, nearest
from cadenza.records import validity
from cadenza.records.decisions import checked
from cadenza.records.lock import is_held

if TYPE_CHECKING:
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
# what readers of manifest.json take for granted
MANIFEST: dict[str, Any] = {
    **dict.fromkeys(("spec", "environment", "algorithm", "created", "config_hash"), str),
    **dict.fromkeys(("command", "tags", "configs"), list),
    **dict.fromkeys(("versions", "variables", "machine"), dict),
    "git": dict | None,
    "name": str | None,
    "seed": int,
}


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. Attributes are paths in it; `read_*` and `write_*` touch the disk."""

    path: Path
    published: str | None = None  # the id it was published under, of a copy in the Hub's cache, which stays as it is

    @property
    def id(self) -> str:
        return self.published or self.path.name

    @property
    def handle(self) -> str:
        """What `find` knows the run by here: its id, or its path where runs are not looked for."""
        usual = self.published or self.path.parent.absolute() == runs_root().absolute()
        return self.id if usual else str(self.path)

    @property
    def reference(self) -> str:
        """The same as it is typed in a command."""
        return shell(self.handle)

    @property
    def outlet(self) -> SafePath:
        """Where to put what is made of the run: its own folder, or the current one for a published run."""
        return SafePath(Path()) if self.published else self.files

    @property
    def files(self) -> SafePath:
        """What is in it, to be opened."""
        return SafePath(self.path)

    @property
    def config(self) -> SafePath:
        return self.files / "config.yaml"

    @property
    def manifest(self) -> SafePath:
        return self.files / "manifest.json"

    @property
    def status(self) -> SafePath:
        return self.files / "status.json"

    @property
    def decisions(self) -> SafePath:
        return self.files / "decisions.json"

    @property
    def metrics(self) -> SafePath:
        return self.files / "metrics.jsonl"

    @property
    def alerts(self) -> SafePath:
        return self.files / "alerts.jsonl"

    @property
    def log(self) -> SafePath:
        return self.files / "logs/run.log"

    @property
    def report(self) -> SafePath:
        return self.files / "report.md"

    @property
    def curves(self) -> SafePath:
        return self.files / "curves.png"

    @property
    def checkpoints(self) -> SafePath:
        return self.files / "checkpoints"

    @property
    def best_or_last(self) -> str:
        """The checkpoint to show, or to start another run from."""
        return "best" if (self.checkpoints / "best").exists() else "last"

    @property
    def episodes(self) -> SafePath:
        return self.files / "episodes"

    @property
    def videos(self) -> SafePath:
        return self.files / VIDEOS

    @property
    def replay(self) -> SafePath:
        return self.files / "replay"

    def read_manifest(self) -> dict[str, Any]:
        found = read_object(self.manifest)
        if "config_hash" not in found:
            raise CheckpointError(f"{self.manifest} is damaged (no config_hash): put it back from a copy of the run")
        for name, kind in MANIFEST.items():
            if name in found and not isinstance(found[name], kind):
                told = f"{name}={str(found[name])[:20]!r}"
                raise CheckpointError(f"{self.manifest} is damaged ({told}): put it back from a copy of the run")
        if not is_intact(found):
            raise CheckpointError(f"{self.manifest} is damaged (wrong digest): put it back from a copy of the run")
        if fault := validity.manifest_fault(found):
            raise CheckpointError(f"{self.manifest} is damaged ({fault}): put it back from a copy of the run")
        return without_digest(found)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        atomic.write_json(self.manifest, with_digest(manifest))

    def read_status(self) -> dict[str, Any]:
        """Empty where it is missing or damaged: the next save writes it anew."""
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
        """Where the run is and which process has it in hand: this one."""
        return {"dir": str(self.path.absolute()), "pid": os.getpid(), "host": platform.node()}

    def state(self) -> str:
        """The status as a person should see it: a run that claims to be running while nobody holds it has crashed."""
        return shown_state(self.path, self.read_status().get("status"))

    def read_decisions(self, changed: bool = False) -> dict[str, Any]:
        """Return what was decided; empty only in a run that was stopped before it decided anything.

        `changed` accepts a file that does not match its digest, not one with unknown keys or impossible values.
        """
        decisions = checked(read_object(self.decisions), self.decisions, changed)
        if not decisions and self.checkpoints.glob("step-*"):
            raise CheckpointError(f"{self.decisions} is damaged (empty): put it back from a copy of the run")
        return decisions

    def write_decisions(self, decisions: dict[str, Any]) -> None:
        atomic.write_json(self.decisions, with_digest(decisions))

    def read_config(self, trust: bool = False, changed: bool = False) -> RunConfig:
        """The config the run was started with; one that names code only if it was made here or is trusted.

        `changed` accepts one that was edited since.
        """
        from cadenza.config.convert import build
        from cadenza.config.migrate import migrate
        from cadenza.config.schema import RunConfig
        from cadenza.config.spec import read_file
        from cadenza.records.trust import require_trust

        stored, manifest = read_file(self.config), self.read_manifest()
        if not trust:  # first, because making the typed config imports the algorithm's settings
            require_trust(stored, manifest, self.path)
        config = build(RunConfig, migrate(stored))
        if not changed and not self.has_known_config():
            way = f"`cadenza train {self.config} --init-from {self.reference}` starts a new run from its weights"
            way += f", `cadenza resume {self.reference} --accept-changes` names the changes and goes on with them"
            raise ConfigError(f"{self.config} was changed after the run began; put it back ({way})")
        return config

    def has_known_config(self) -> bool:
        """Return whether config.yaml is as this program wrote it."""
        return file_digest(self.config) in self.read_manifest().get("configs", ())

    def change_config(self, text: str) -> None:
        """Replace config.yaml, as only the engine may; interrupted anywhere, what lies there is allowed."""
        from cadenza.config.spec import read_file
        from cadenza.records.trust import is_own, signatures

        manifest = self.read_manifest()
        manifest["configs"] = [*manifest["configs"], sha256(text.encode()).hexdigest()]
        if is_own(read_file(self.config), manifest):
            manifest["signatures"] = [*manifest["signatures"], *signatures(yaml_data(text))]
        self.write_manifest(manifest)
        atomic.write_text(self.config, text)

    def settings(self) -> dict[str, Any]:
        """config.yaml as plain nested dicts, unchecked: for showing, not for running."""
        try:
            content = self.config.read_bytes(LONGEST_CONFIG)
            found = yaml_data(content, unique=False, texts=True)  # a date may be the run's name
        except (OSError, ParseError):
            return {}
        return validity.settings(found)


def runs_root(option: Path | None = None) -> Path:
    """Where runs live: the option, else CADENZA_RUNS, else ./runs."""
    return option or Path(os.environ.get("CADENZA_RUNS") or "runs")


def shared_url() -> str | None:
    """Return the URL of a team's index from CADENZA_INDEX, or None."""
    return os.environ.get(SHARED_INDEX) or None


def create(root: Path, config: RunConfig, command: list[str], run_id: str | None = None) -> RunFolder:
    """A new run folder with its config, manifest and status; it appears whole or not at all, then `@last` names it."""
    from cadenza.records.manifest import describe_run

    if not is_text(str(root.absolute())):
        raise ConfigError(f"{str(root.absolute())!r} is not UTF-8 text (--runs-dir takes another place)")
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = _publish(root, config, describe_run(config, command), run_id)
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
    atomic.write_json(draft.status, _first_status(folder, manifest))


def _first_status(folder: RunFolder, manifest: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": folder.id,
        **folder.whereabouts(),
        "status": "running",
        "env_steps": 0,
        "updates": 0,
        "eval/return_mean": None,
        "best_return": None,
        "seconds": 0.0,
        "started": manifest["created"],
        "updated": manifest["created"],
        "message": "",
    }


def new_id(config: RunConfig) -> str:
    """`<environment>-<variant>-s<seed>-<UTC date>-<time>-<4 hex>`, fit for a file name everywhere."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{config.environment.id}-{config.variant}-s{config.seed}")
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def run_ids(root: Path) -> list[str]:
    """Folders that are runs (they have a config), by name."""
    try:
        with os.scandir(root) as entries:
            found = [entry.name for entry in entries if _is_name(entry.name) and _is_folder(entry)]
    except OSError:
        return []
    return sorted(name for name in found if os.path.lexists(f"{root}/{name}/config.yaml"))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _is_name(name: str) -> bool:
    return not name.startswith((".", INDEX_NAME)) and is_text(name)


def find(root: Path, ref: str) -> RunFolder:
    """The run that an id, a unique prefix, a path, `@last`, `@best[:SPEC]` or `hf:user/repo` names.

    One whose folder holds links, pipes or devices is refused.
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
        told = read_object(SafePath(path) / "manifest.json").get("run")
        return RunFolder(path, told if isinstance(told, str) and PLAIN.fullmatch(told) else ref)
    if ref == BEST or ref.startswith(f"{BEST}:"):
        return _best(root, ref[len(BEST) + 1 :])
    if ref.startswith("@"):
        known = f"({LAST}, {BEST} and {BEST}:ENV:VARIANT exist)"
        raise NotFoundError(f"unknown run '{ref}'{nearest(ref, (LAST, BEST))} {known}")
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

    known = rows(root)
    specs = sorted({row["spec"] for row in known})
    if spec and spec not in specs:
        raise NotFoundError(f"no run of '{spec}' in {root}{nearest(spec, specs)}")
    evaluated = [row for row in known if row["return"] is not None and spec in ("", row["spec"])]
    scored = [row for row in evaluated if not row.get("cleaned")]  # of the others nothing is left to use
    if not scored:
        where = f"{'of ' + spec + ' ' if spec else ''}in {root}"
        cleaned = f"every run {where} that was evaluated has been cleaned up"
        raise NotFoundError(cleaned if evaluated else f"no run {where} has been evaluated yet")
    return RunFolder(root / max(scored, key=lambda row: (row["return"], row["created"] or ""))["run"])


def shown_state(run: Path, status: str | None) -> str:
    """`crashed` for a run that left no last word; else what its status says."""
    if status in (None, "running"):
        return "running" if is_held(run) else "crashed"
    return str(status)


def read_object(path: SafePath) -> dict[str, Any]:
    """A JSON object that every run has on disk."""
    try:
        found = json_data(path.read_bytes(LONGEST_CONFIG))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: put it back from a copy of the run") from None
    except ParseError as problem:
        why = "not JSON" if problem.line is not None else problem.reason
        raise CheckpointError(f"{path} is damaged ({why}): put it back from a copy of the run") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged (no JSON object): put it back from a copy of the run")
    return found


def evaluation_video(folder: RunFolder, env_steps: int) -> SafePath | None:
    """The film of the evaluation at this step, where one was made (`evaluation.video_every`)."""
    name = evaluation_video_name(env_steps)
    return next((path for kind in (".gif", ".mp4") if (path := folder.videos / f"{name}{kind}").exists()), None)


def evaluation_video_name(env_steps: int) -> str:
    return f"eval-{env_steps:012d}"


def file_digest(path: SafePath) -> str:
    return sha256(path.read_bytes(LONGEST_CONFIG)).hexdigest()


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
