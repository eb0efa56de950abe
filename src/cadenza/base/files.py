"""Safe access to the files of a run's folder, whose content may come from a stranger.

A `SafePath` is a root folder and a relative path below it. The root and its parents may be links, as on clusters.
Below the root no link is followed: each component is opened relative to the folder before it, and only regular files
are read or written. A file that is written to must have no second name (hard link).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path, PurePath
from typing import IO, Any

from cadenza.errors import UnsafeFileError

LIMIT = 64 << 20  # default limit in bytes of a file that is read as a whole
SINKS = ("tensorboard", "wandb")  # folders of a run that cadenza writes for others and never reads or deletes
DEPTH = 16  # levels of folders in a run; it makes four itself
RELATIVE = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd  # not on Windows
CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
BINARY = getattr(os, "O_BINARY", 0)
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
WRITING = os.O_WRONLY | os.O_RDWR
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # names that need no further check


class _KeptOpen(threading.local):
    """Descriptors of the folders that `SafePath.hold` keeps open in a thread, by root and parts."""

    def __init__(self) -> None:
        self.folders: dict[tuple[Path, tuple[str, ...]], int | str] = {}


_kept_open = _KeptOpen()


@dataclass(frozen=True)
class SafePath:
    """A file or folder below `root`, with the methods of a Path that runs need; none of them follows a link.

    It is deliberately no `os.PathLike`: `open(safe_path)` is a TypeError.
    """

    root: Path
    parts: tuple[str, ...] = ()

    def __truediv__(self, name: str) -> SafePath:
        parts = tuple(name.split("/"))
        if not all(PLAIN.fullmatch(part) or is_name(part) for part in parts):
            raise UnsafeFileError(f"{name!r} is no name of a file in {self}")
        return SafePath(self.root, (*self.parts, *parts))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The plain path, for messages and for entries that are not opened here."""
        return self.root.joinpath(*self.parts)

    @property
    def name(self) -> str:
        """The last component."""
        return self.parts[-1] if self.parts else self.root.name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePath(self.name).stem

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot."""
        return PurePath(self.name).suffix

    @property
    def parent(self) -> SafePath:
        """The folder that holds the entry; the root has none."""
        if not self.parts:
            raise UnsafeFileError(f"{self} is the root: what lies beside it is not opened from here")
        return SafePath(self.root, self.parts[:-1])

    def with_name(self, name: str) -> SafePath:
        """Return the entry of that name in the same folder."""
        return self.parent / name

    def relative_to(self, folder: SafePath) -> str:
        """Return the path relative to a folder above, with `/` between names."""
        above = len(folder.parts)
        if self.root != folder.root or self.parts[:above] != folder.parts:
            raise ValueError(f"{self} is not in {folder}")
        return "/".join(self.parts[above:])

    # status

    def stat(self) -> os.stat_result:
        """Return the status of the entry itself, also if it is a link."""
        if not self.parts:
            return os.stat(self.root)
        with self._entry() as (name, at):
            return os.stat(name, follow_symlinks=False, **at)

    def exists(self) -> bool:
        return self._mode() != 0

    def is_file(self) -> bool:
        return stat.S_ISREG(self._mode())

    def is_dir(self) -> bool:
        return stat.S_ISDIR(self._mode())

    def names(self) -> list[str]:
        """Return the names of the folder's entries, sorted."""
        with self.inside() as folder:
            return folder.names()

    def folders(self, pattern: str) -> list[str]:
        """Return the names of the folders in this one that match a pattern, sorted; none if it does not exist."""
        try:
            with self.inside() as folder:
                modes = folder.modes()
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name, mode in modes.items() if stat.S_ISDIR(mode) and fnmatchcase(name, pattern))

    def glob(self, pattern: str) -> list[SafePath]:
        """Return the entries whose names match a pattern, sorted; none if the folder does not exist."""
        if "/" in pattern:
            raise ValueError(f"{pattern!r} reaches beyond one folder")
        try:
            names = self.names()
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [SafePath(self.root, (*self.parts, name)) for name in names if fnmatchcase(name, pattern)]

    # reading

    def open(self, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        """Return a descriptor of the regular file, which must have no second name if opened for writing.

        O_TRUNC is refused: truncate the file after this check.
        """
        with self._entry() as (name, at):
            return self._open(name, at, flags, mode)

    def _open(self, name: str, at: dict[str, Any], flags: int, mode: int = 0o644) -> int:
        if flags & os.O_TRUNC:
            raise ValueError("truncate a file after it was opened and checked")
        writes = bool(flags & WRITING)
        if not flags & os.O_EXCL:  # a new file replaces nothing, and opens neither link nor device
            with suppress(FileNotFoundError):  # first, because opening a device may already do something
                self._check(os.stat(name, follow_symlinks=False, **at), writes)
        file = os.open(name, flags | CAREFUL | BINARY, mode, **at)
        try:
            self._check(os.fstat(file), writes)
        except BaseException:
            os.close(file)
            raise
        return file

    def reading(self) -> BufferedReader:
        """Return the file, opened for reading."""
        return os.fdopen(self.open(), "rb")

    def read_bytes(self, limit: int = LIMIT) -> bytes:
        """Return the content; refuse a file of more than `limit` bytes."""
        with self.reading() as file:
            size = os.fstat(file.fileno()).st_size
            if size <= limit:
                content = file.read(size + 1)  # not `limit`: so much memory would be set aside for every small file
                if len(content) > size:  # it has grown, or is one of /proc, which have no size
                    content += file.read(limit + 1 - len(content))
                if len(content) <= limit:
                    return content
        raise UnsafeFileError(f"{self} has more than {limit:,} bytes, the limit for such a file")

    def read_text(self, limit: int = LIMIT, errors: str = "strict") -> str:
        """Return the content as UTF-8 text; refuse a file of more than `limit` bytes."""
        return self.read_bytes(limit).decode(errors=errors)

    @contextmanager
    def named(self) -> Iterator[str]:
        """Yield a name under which a library can open the checked file."""
        file = self.open()
        try:
            names = (f"/proc/self/fd/{file}", f"/dev/fd/{file}")
            yield next((name for name in names if os.path.exists(name)), str(self))
        finally:
            os.close(file)

    # writing

    def appending(self) -> IO[bytes]:
        """Return the file, opened for appending and created if it does not exist."""
        return os.fdopen(self.open(os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")

    def append(self, content: bytes) -> None:
        """Append to the file, which is created if it does not exist."""
        with self.appending() as file:
            file.write(content)

    def mkdir(self) -> None:
        """Create the folder, and those between it and the root, if they do not exist."""
        if not self.parts:
            return
        with suppress(FileNotFoundError, NotADirectoryError):  # mostly, only the folder itself is missing
            self._mkdir()
            return
        for count in range(1, len(self.parts) + 1):
            SafePath(self.root, self.parts[:count])._mkdir()

    def _mkdir(self) -> None:
        with self._entry() as (name, at):
            try:
                os.mkdir(name, **at)
            except FileExistsError:
                mode = os.stat(name, follow_symlinks=False, **at).st_mode
                if not stat.S_ISDIR(mode):
                    raise UnsafeFileError(f"{self} is {kind(mode)}, not a folder") from None

    def nameless(self) -> IO[bytes]:
        """Return a file in this folder that has no name and vanishes when it is closed."""
        with self._folder() as folder:
            if isinstance(folder, int) and hasattr(os, "O_TMPFILE"):
                with suppress(OSError):  # a disk without such files, or without room: the fallback below tells which
                    file = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
                    return os.fdopen(file, "w+b")
        named = self / f".tmp-nameless-{os.getpid()}-{secrets.token_hex(4)}"
        # Windows deletes no open file, but a temporary one when it is closed
        file = named.open(os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_TEMPORARY", 0), 0o600)
        if not hasattr(os, "O_TEMPORARY"):
            named.unlink()
        return os.fdopen(file, "w+b")

    def replace(self, target: SafePath) -> None:
        """Rename the entry to `target` atomically, replacing an existing file."""
        with self._entry() as (name, at), target._entry() as (new, there):
            os.replace(name, new, src_dir_fd=at.get("dir_fd"), dst_dir_fd=there.get("dir_fd"))

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the file."""
        with suppress(FileNotFoundError) if missing_ok else nullcontext(), self._entry() as (name, at):
            os.unlink(name, **at)

    def rmdir(self) -> None:
        """Delete the empty folder."""
        with self._entry() as (name, at):
            os.rmdir(name, **at)

    def sync(self) -> None:
        """Make changes to the names in this folder durable."""
        with self.inside() as folder:
            folder.sync()

    @contextmanager
    def inside(self) -> Iterator[OpenFolder]:
        """Open this folder once for several operations on its entries."""
        with self._folder() as folder:
            yield OpenFolder(self, folder)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep this folder open, so that this thread reaches what is below it without opening its parents again.

        While it is held it must not be renamed. A folder that does not exist yet is not held.
        """
        kept_open, key = _kept_open.folders, (self.root, self.parts)
        with ExitStack() as opened:
            if RELATIVE and key not in kept_open:
                with suppress(FileNotFoundError):
                    kept_open[key] = opened.enter_context(self._folder())
                    opened.callback(kept_open.pop, key)
            yield

    # opening, one component after the other

    def _mode(self) -> int:
        """Return the mode; 0 if nothing can be reached without following a link."""
        try:
            return self.stat().st_mode
        except OSError:
            return 0

    def _check(self, status: os.stat_result, writes: bool) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFileError(f"{self} is {kind(status.st_mode)}, not a file")
        if writes and status.st_nlink > 1:
            raise UnsafeFileError(f"{self} has {status.st_nlink} names (hard links), so it is not written to: copy it")

    @contextmanager
    def _entry(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the arguments that name the entry to a system call: its name, and the descriptor of its folder."""
        if not self.parts:
            raise UnsafeFileError(f"{self} is a folder")
        with self.parent._folder() as folder:
            if not isinstance(folder, int):
                yield str(self), {}
                return
            with _full_names(self):
                yield self.name, {"dir_fd": folder}

    @contextmanager
    def _folder(self) -> Iterator[int | str]:
        """Yield a descriptor of this folder, or its path where system calls cannot be relative to a descriptor."""
        if not RELATIVE:
            for count in range(1, len(self.parts) + 1):
                self._refuse_link(count, os.lstat(self.root.joinpath(*self.parts[:count])).st_mode)
            yield str(self)
            return
        nearest, depth = self._nearest_open()
        folder = os.open(self.root, FOLDER) if nearest is None else nearest
        try:
            for count, name in enumerate(self.parts[depth:], depth + 1):
                try:
                    inner = os.open(name, FOLDER | CAREFUL, dir_fd=folder)
                except OSError as problem:
                    problem.filename = str(self.root.joinpath(*self.parts[:count]))
                    with suppress(FileNotFoundError, PermissionError):
                        self._refuse_link(count, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
                    raise
                if folder != nearest:
                    os.close(folder)
                folder = inner
            yield folder
        finally:
            if folder != nearest:
                os.close(folder)

    def _nearest_open(self) -> tuple[int | None, int]:
        """Return the descriptor of the deepest folder on the way here that is held open, and its depth."""
        for depth in range(len(self.parts), -1, -1) if _kept_open.folders else ():
            folder = _kept_open.folders.get((self.root, self.parts[:depth]))
            if isinstance(folder, int):
                return folder, depth
        return None, 0

    def _refuse_link(self, count: int, mode: int) -> None:
        if not stat.S_ISDIR(mode):
            place = SafePath(self.root, self.parts[:count])
            if stat.S_ISREG(mode):
                raise NotADirectoryError(20, "not a folder", str(place))
            raise UnsafeFileError(f"{place} is {kind(mode)}, not a folder")


class OpenFolder:
    """An open folder of a run, whose entries are reached by their names without opening its parents again."""

    def __init__(self, place: SafePath, descriptor: int | str) -> None:
        self._place, self._descriptor = place, descriptor

    def names(self) -> list[str]:
        """Return the names of the entries, sorted."""
        return sorted(os.listdir(self._descriptor))

    def modes(self) -> dict[str, int]:
        """Return the type of each entry as the bits of a mode; links are not followed."""
        with os.scandir(self._descriptor) as entries:
            return {entry.name: _type_of(entry) for entry in entries}

    def readable(self, name: str) -> int:
        """Return the size of a file; raise the error that `SafePath.open` would raise for reading."""
        path, (entry, at) = self._entry(name)
        with _full_names(path):
            status = os.stat(entry, follow_symlinks=False, **at)
            path._check(status, writes=False)
            if not os.access(entry, os.R_OK, **at):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), entry)
        return status.st_size

    def create(self, name: str, content: bytes, before_sync: Callable[[], None]) -> None:
        """Write a new file durably; its folder is not synced. `before_sync` is called between the two."""
        path, entry = self._entry(name)
        with _full_names(path):
            descriptor = path._open(*entry, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            before_sync()
            os.fsync(file.fileno())

    def replace(self, name: str, target: str) -> None:
        """Rename an entry atomically, replacing an existing file."""
        path, (old, at) = self._entry(name)
        other, (new, _) = self._entry(target)
        with _full_names(path, other):
            os.replace(old, new, src_dir_fd=at.get("dir_fd"), dst_dir_fd=at.get("dir_fd"))

    def unlink(self, name: str) -> None:
        """Delete a file."""
        path, (entry, at) = self._entry(name)
        with _full_names(path):
            os.unlink(entry, **at)

    def sync(self) -> None:
        """Make changes to the names durable. Windows opens no folders and needs no such call."""
        if isinstance(self._descriptor, int):
            os.fsync(self._descriptor)

    def _entry(self, name: str) -> tuple[SafePath, tuple[str, dict[str, Any]]]:
        path = self._place / name
        if path.parent != self._place:
            raise UnsafeFileError(f"{name!r} is no name of a file in {self._place}")
        descriptor = self._descriptor
        return path, (path.name, {"dir_fd": descriptor}) if isinstance(descriptor, int) else (str(path), {})


@contextmanager
def _full_names(*paths: SafePath) -> Iterator[None]:
    """Let an error of a system call name the paths that the user knows, not the entries of an open folder."""
    try:
        yield
    except OSError as problem:
        for path in paths:
            if problem.filename == path.name:
                problem.filename = str(path)
            if problem.filename2 == path.name:
                problem.filename2 = str(path)
        raise


def _type_of(entry: os.DirEntry[str]) -> int:
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else entry.stat(follow_symlinks=False).st_mode


def is_name(part: str) -> bool:
    """Return whether a text names an entry of one folder, on this system."""
    return part not in ("", ".", "..") and "\0" not in part and PurePath(part).name == part


def kind(mode: int) -> str:
    """Return the kind of an entry, by its mode, in words."""
    names = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return names.get(stat.S_IFMT(mode), "a file" if stat.S_ISREG(mode) else "a device")


def screen(folder: Path) -> None:
    """Refuse a run folder that holds anything but files and folders, except below the folders of sinks.

    Each file is checked again when it is opened; this check names a strange entry before anything is done.
    """
    pending = [SafePath(folder)]
    while pending:
        place = pending.pop()
        with place._folder() as opened, os.scandir(opened) as entries:
            for entry in entries:
                if not place.parts and entry.name in SINKS:
                    continue
                below = SafePath(folder, (*place.parts, entry.name))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(below)
                elif not entry.is_file(follow_symlinks=False):
                    what = kind(entry.stat(follow_symlinks=False).st_mode)
                    raise UnsafeFileError(
                        f"{below} is {what}: the folder of a run or a sweep may hold only files and folders"
                    )
        if len(place.parts) > DEPTH:
            raise UnsafeFileError(f"{place}: folders within folders, more than {DEPTH} deep")
