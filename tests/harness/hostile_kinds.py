"""Hostile replacements of one name in a folder: links, pipes, devices, huge files, bombs, deep nesting, odd text.

Each kind is a function of a `Spot`: the path to replace and a folder outside the runs that nothing may touch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cadenza.base.json_text import with_digest
from cadenza.records.checkpoint import manifest_digest
from cadenza.records.run_summary import stamp

SECRET = "canary-5f0c1d-secret"  # stands in every file outside; no output may hold it
FORGED = "error: forged by a value"
CONTROL = f"x\x1b[2J\x1b]0;title\x07\r\x08\x9b31m\n{FORGED}\n"
MARKUP = (
    "</script><script>alert('hostile-markup')</script><img src=x onerror=alert(1)>"
    "[hostile](javascript:alert(1))![x](file:///etc/passwd) | a | `b` \n\n# hostile heading\n"
)
SURROGATE = "half \ud800 character"
HUGE = 1 << 30
DEPTH = 20_000
MODULE = "hostile_module"  # a module of this name lies in every hostile folder
FREE = {
    "name",
    "tags",
    "message",
    "command",
    "host",
    "created",
    "commit",
    "group",
    "spec",
    "environment",
    "dirty",
    "what",
    "hint",
    "explanation",
    "rule",
    "severity",
}
LEVELS = 12


class NotApplicableError(Exception):
    """The kind says nothing about this name."""


@dataclass(frozen=True)
class Spot:
    """One name of a copied folder, and where outside things lie."""

    path: Path
    name: str
    outside: Path
    root: Path  # the copied folder: the run, the sweep, the dataset

    @property
    def is_folder(self) -> bool:
        return self.path.is_dir() and not self.path.is_symlink()

    def remove(self) -> None:
        if self.is_folder:
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def twin(self) -> Path:
        """A copy outside of what lies here."""
        twin = self.outside / "twin" / self.path.name
        if self.is_folder:
            shutil.copytree(self.path, twin)
        elif self.path.is_file():
            shutil.copyfile(self.path, twin)
        else:
            raise NotApplicableError
        return twin


def link_to_secret(spot: Spot) -> None:
    spot.remove()
    spot.path.symlink_to(spot.outside / "secret.txt")


def link_to_twin(spot: Spot) -> None:
    twin = spot.twin()
    spot.remove()
    spot.path.symlink_to(twin)


def link_to_folder(spot: Spot) -> None:
    spot.remove()
    spot.path.symlink_to(spot.outside / "weights")


def link_to_home(spot: Spot) -> None:
    """A link to the user's shell start-up file."""
    spot.remove()
    spot.path.symlink_to(spot.outside / "home" / ".bashrc")


def link_to_nothing(spot: Spot) -> None:
    spot.remove()
    spot.path.symlink_to(spot.outside / "nothing")


def link_to_itself(spot: Spot) -> None:
    spot.remove()
    spot.path.symlink_to(spot.path.name)


def fifo(spot: Spot) -> None:
    spot.remove()
    os.mkfifo(spot.path)


def device(spot: Spot) -> None:
    """`/dev/zero` under another name; root alone may make one."""
    spot.remove()
    try:
        os.mknod(spot.path, 0o020666, os.makedev(1, 5))
    except PermissionError:
        raise NotApplicableError from None


def unix_socket(spot: Spot) -> None:
    spot.remove()
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.open(".", os.O_RDONLY)
        try:
            os.chdir(spot.path.parent)  # a socket's path has at most 107 bytes
            listener.bind(spot.path.name if len(spot.path.name.encode()) < 100 else ".")
        except OSError:
            raise NotApplicableError from None
        finally:
            os.fchdir(before)
            os.close(before)


def hard_link_to_secret(spot: Spot) -> None:
    spot.remove()
    os.link(spot.outside / "secret.txt", spot.path)


def hard_link_to_twin(spot: Spot) -> None:
    if spot.is_folder:
        raise NotApplicableError
    twin = spot.twin()
    spot.remove()
    os.link(twin, spot.path)


def other_type(spot: Spot) -> None:
    """A folder with a file in it where a file belongs; a file where a folder belongs."""
    was_folder = spot.is_folder
    spot.remove()
    if was_folder:
        spot.path.write_text("a file\n")
    else:
        spot.path.mkdir()
        (spot.path / "inside.txt").write_text("inside\n")


def sparse(spot: Spot) -> None:
    """One GiB of zeros, which takes no room on the disk."""
    require_file(spot)
    spot.remove()
    spot.path.touch()
    os.truncate(spot.path, HUGE)


def bomb(spot: Spot) -> None:
    """A few lines that expand to billions of values: YAML aliases, and for safetensors a header of 2**62 bytes."""
    require_file(spot)
    suffix = spot.path.suffix
    if suffix in (".yaml", ".json"):  # JSON is read as YAML in places
        lines = ["bomb0: &b0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"bomb{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]" for i in range(1, LEVELS)]
        text = spot.path.read_text() if suffix == ".yaml" else ""
        spot.path.write_text("\n".join(lines) + f"\n{text}" + f"\ntags: *b{LEVELS - 1}\n")
    elif suffix == ".safetensors":
        spot.path.write_bytes(struct.pack("<Q", 1 << 62) + spot.path.read_bytes()[8:])
    else:
        raise NotApplicableError
    seal(spot)


def deep(spot: Spot) -> None:
    """Lists in lists, 20,000 deep, as one more value of what is there."""
    require_file(spot)
    nested = "[" * DEPTH + "]" * DEPTH
    suffix, content = spot.path.suffix, spot.path.read_bytes()
    if suffix == ".json":
        spot.path.write_text(f'{{"deep": {nested}, ' + content.decode().lstrip()[1:])
    elif suffix == ".jsonl":
        spot.path.write_text(content.decode() + f'{{"env_steps": 1, "deep": {nested}}}\n')
    elif suffix == ".yaml":
        spot.path.write_text(content.decode() + f"\ndeep: {nested}\n")
    elif suffix == ".safetensors":
        header = f'{{"__metadata__": {nested}}}'.encode()
        spot.path.write_bytes(struct.pack("<Q", len(header)) + header)
    elif not suffix:  # pointers
        spot.path.write_text(nested)
    else:
        raise NotApplicableError
    seal(spot)


def invalid_utf8(spot: Spot) -> None:
    require_file(spot)
    content = spot.path.read_bytes()
    if spot.path.suffix in (".safetensors", ".sqlite", ".png", ".gif"):
        raise NotApplicableError
    middle = len(content) // 2
    spot.path.write_bytes(content[:middle] + b"\xff\xfe\xc3(" + content[middle:])
    seal(spot)


def control(spot: Spot) -> None:
    """ESC, CR, BEL, C1 and line breaks in every text, and in a key more."""
    rewrite(spot, lambda key, text: text + CONTROL, {f"key{CONTROL}": f"value{CONTROL}"})


def control_free(spot: Spot) -> None:
    """The same in texts that may be anything: names, tags, messages, commands."""
    rewrite(spot, lambda key, text: text + CONTROL if key in FREE else text, {})


def markup(spot: Spot) -> None:
    """HTML and Markdown in texts that may be anything, and in a key more."""
    rewrite(spot, lambda key, text: MARKUP if key in FREE else text, {f"train/{MARKUP}": 1.0})


def surrogate(spot: Spot) -> None:
    """Half a character, which JSON can name and no file can hold."""
    if spot.path.suffix not in (".json", ".jsonl"):
        raise NotApplicableError
    rewrite(spot, lambda key, text: SURROGATE if key in FREE else text, {f"train/{SURROGATE}": SURROGATE})


def numbers(spot: Spot) -> None:
    """Every number larger than any machine's."""
    rewrite(spot, lambda key, text: text, {}, 10**400)


def infinities(spot: Spot) -> None:
    rewrite(spot, lambda key, text: text, {}, float("inf"))


def traversal(spot: Spot) -> None:
    """Names of files and runs that lead outside."""
    there = "../../../outside/weights/foreign.safetensors"
    if spot.path.name in ("best", "last", "@last"):
        spot.path.write_text(f"../../../outside/weights{CONTROL}" if spot.path.name == "best" else "../outside/weights")
        return
    names = {"run", "dir", "name", "file", "path", "files", "beside"}

    def elsewhere(tree: Any, key: str = "") -> Any:
        if isinstance(tree, dict):
            named = {
                there if key in ("files", "beside") else name: elsewhere(value, name) for name, value in tree.items()
            }
            return named
        if isinstance(tree, list):
            return [elsewhere(value, key) for value in tree]
        return there if isinstance(tree, str) and (key in names or tree.endswith(".safetensors")) else tree

    change(spot, elsewhere)


def code(spot: Spot) -> None:
    """A config that names a module which lies in the folder."""
    if spot.path.suffix != ".yaml":
        raise NotApplicableError
    place = f"{MODULE}:Thing"

    def named(tree: Any) -> Any:
        config = dict(tree)
        if "sweep" in config:
            return config | {"base": f"{place}:ppo"}
        if isinstance(config.get("environment"), dict):
            config["environment"] = config["environment"] | {"wrappers": [place], "id": place}
        return config

    change(spot, named)


def odd_names(spot: Spot) -> None:
    """Files and folders inside whose names hold control characters, or are no text at all."""
    if not spot.is_folder:
        raise NotApplicableError
    for name in ("\x1b[31mred\r\nerror: forged by a value.safetensors", "replay-\x1b[2J.gif", "<img src=x>.png"):
        (spot.path / name.replace("/", "_")).write_bytes(b"x")
    for name in (
        "step-\x1b[31m\n",
        "step-000000000999-000000000999\nerror: forged by a value",
        ".old-step-x",
        "a\x9bb",
    ):
        (spot.path / name).mkdir()
    with suppress(OSError):  # not on every file system
        (Path(os.fsdecode(os.fsencode(spot.path) + b"/\xff\xfe.json"))).write_bytes(b"{}")


KINDS: dict[str, Callable[[Spot], None]] = {
    "link to a file": link_to_secret,
    "link to its twin": link_to_twin,
    "link to a folder": link_to_folder,
    "link to .bashrc": link_to_home,
    "link to nothing": link_to_nothing,
    "link to itself": link_to_itself,
    "fifo": fifo,
    "device": device,
    "socket": unix_socket,
    "hard link": hard_link_to_secret,
    "hard link to its twin": hard_link_to_twin,
    "other type": other_type,
    "1 GiB of zeros": sparse,
    "bomb": bomb,
    "deep": deep,
    "invalid UTF-8": invalid_utf8,
    "control characters": control,
    "control characters in free text": control_free,
    "markup": markup,
    "half characters": surrogate,
    "huge numbers": numbers,
    "infinities": infinities,
    "traversal": traversal,
    "code": code,
    "odd names": odd_names,
}
# What also makes sense of a name that is not there yet.
PLANTED = [
    "link to a file", "link to a folder", "link to .bashrc", "link to nothing", "link to itself",
    "fifo", "device", "socket", "hard link", "other type",
]  # fmt: skip


def linked_sinks(spot: Spot) -> None:
    """Folders that are written only lead elsewhere, where nothing may be read or deleted."""
    for name in ("tensorboard", "wandb"):
        there = spot.outside.parent / "tmp" / "sinks" / name
        there.mkdir(parents=True)
        (there / "kept.txt").write_text("kept\n")
        shutil.rmtree(spot.root / name, ignore_errors=True)
        (spot.root / name).symlink_to(there)


def linked_runs(spot: Spot) -> None:
    """The runs folder and a folder above it are links."""
    runs = spot.root.parent
    elsewhere = runs.parent / "elsewhere"
    elsewhere.mkdir()
    runs.rename(elsewhere / "runs")
    (runs.parent / "above").symlink_to("elsewhere")
    runs.symlink_to(Path("above") / "runs")


# What must go on working.
PERMITTED: dict[str, Callable[[Spot], None]] = {"linked sinks": linked_sinks, "linked runs folder": linked_runs}


def require_file(spot: Spot) -> None:
    if not spot.path.is_file():
        raise NotApplicableError


def rewrite(
    spot: Spot, text: Callable[[str, str], str], more: dict[str, Any], number: float | int | None = None
) -> None:
    """Map every text and number in a file, and add keys."""

    def mapped(tree: Any, key: str = "") -> Any:
        if isinstance(tree, dict):
            return {name: mapped(value, name) for name, value in tree.items()}
        if isinstance(tree, list):
            return [mapped(value, key) for value in tree]
        if isinstance(tree, str):
            return text(key, tree)
        if number is not None and isinstance(tree, int | float) and not isinstance(tree, bool):
            return number
        return tree

    def whole(tree: Any) -> Any:
        result = mapped(tree)
        if isinstance(result, dict) and spot.path.name != "config.yaml":
            return result | {key: number if number is not None else value for key, value in more.items()}
        return result

    change(spot, whole, more)


def change(spot: Spot, function: Callable[[Any], Any], more: dict[str, Any] | None = None) -> None:
    """Pass what a file holds through a function; hashes that the author of a folder can forge fit again."""
    require_file(spot)
    path, suffix = spot.path, spot.path.suffix
    before = path.read_bytes()
    if suffix == ".json":
        path.write_text(json.dumps(function(json.loads(before))))
    elif suffix == ".jsonl":
        lines = [json.dumps(function(json.loads(line))) for line in before.splitlines()]
        path.write_text("".join(line + "\n" for line in lines))
    elif suffix == ".yaml":
        path.write_text(yaml.safe_dump(function(yaml.safe_load(before)), sort_keys=False))
    elif suffix == ".safetensors":
        change_header(path, function)
    elif suffix == ".sqlite":
        change_index(path, function)
    elif suffix in (".csv", ".md", ".html", ".log", "") and more:
        path.write_bytes(before + "".join(f"{key}\n{value}\n" for key, value in more.items()).encode())
    if path.read_bytes() == before:
        raise NotApplicableError
    seal(spot)


def change_header(path: Path, function: Callable[[Any], Any]) -> None:
    """Rename the tensors of a safetensors file as the function changes a text; add what it adds as metadata."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    changed = function({"name": "x"})
    extra = changed.pop("name")
    if extra == "x" and not changed:
        raise NotApplicableError
    named = {name if name == "__metadata__" or extra == "x" else name + extra: value for name, value in header.items()}
    if changed:
        named["__metadata__"] = {str(key): str(value) for key, value in changed.items()}
    packed = json.dumps(named).encode()
    packed += b" " * (-len(packed) % 8)
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + content[8 + length :])


def change_index(path: Path, function: Callable[[Any], Any]) -> None:
    """Change the facts in the index, which then vouches for them by a stamp that fits."""
    with closing(sqlite3.connect(path)) as database, database:
        for run, facts in database.execute("SELECT run, facts FROM runs").fetchall():
            changed = json.dumps(function(json.loads(facts)))
            where = stamp(str(path.parent / run))
            database.execute("UPDATE runs SET stamp = ?, facts = ? WHERE run = ?", (where, changed, run))


def seal(spot: Spot) -> None:
    """Let the hashes of the folder vouch for the changed file, as whoever made the folder could."""
    path = spot.path
    content = path.read_bytes() if path.is_file() and path.stat().st_size < HUGE else b""
    digest = hashlib.sha256(content).hexdigest()
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        beside = path.parent / "MANIFEST.json"
        if path.name == "MANIFEST.json":
            manifest = json.loads(content)
            manifest["digest"] = manifest_digest(manifest)
            path.write_text(json.dumps(manifest))
        elif beside.is_file():
            manifest = json.loads(beside.read_bytes())
            manifest["files"][path.name] = {"size": len(content), "sha256": digest}
            manifest["digest"] = manifest_digest(manifest)
            beside.write_text(json.dumps(manifest))
        elif path.name == "config.yaml":
            of_run = path.parent / "manifest.json"
            facts = json.loads(of_run.read_bytes())
            of_run.write_text(json.dumps(with_digest(facts | {"configs": [*facts["configs"], digest]})))
        elif path.name in ("manifest.json", "decisions.json"):
            path.write_text(json.dumps(with_digest(json.loads(content))))
        elif (path.parent / "dataset.json").is_file():
            seal_dataset(path, digest)


def seal_dataset(path: Path, sha256: str) -> None:
    file = path.parent / "dataset.json"
    facts = json.loads(file.read_bytes())
    if path != file:
        facts["files"][path.name] = sha256
    file.write_text(json.dumps(with_digest(facts)))
