"""SafePath: what is opened below a root, whatever a stranger put there, also between the check and the opening."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cadenza.base import files
from cadenza.base.files import SafePath, screen
from cadenza.errors import UnsafeFileError

pytestmark = pytest.mark.skipif(not files.RELATIVE, reason="links and pipes of POSIX")


@pytest.fixture(autouse=True, params=["relative", "absolute"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open relative to a folder's descriptor, or by absolute paths without the flags of POSIX, as on Windows."""
    if request.param == "absolute":
        monkeypatch.setattr(files, "RELATIVE", False)
        monkeypatch.setattr(files, "CAREFUL", 0)
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return request.param


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    return outside


@pytest.fixture
def root(tmp_path: Path) -> SafePath:
    (tmp_path / "real" / "logs").mkdir(parents=True)
    (tmp_path / "run").symlink_to("real")  # a root may be a link
    return SafePath(tmp_path / "run")


def actions(path: SafePath) -> list[Any]:
    return [path.read_bytes, lambda: path.append(b"x"), lambda: path.open(os.O_RDWR | os.O_CREAT)]


def test_file_is_read_and_written_below_a_root_that_is_a_link(root: SafePath) -> None:
    (root / "logs/run.log").append(b"a")
    (root / "logs/run.log").append(b"b")
    assert (root / "logs/run.log").read_text() == "ab"


def test_link_at_the_end_of_a_path_is_not_followed(root: SafePath, outside: Path) -> None:
    (root.path / "lock").symlink_to(outside / "secret")
    for action in actions(root / "lock"):
        with pytest.raises(UnsafeFileError, match="lock is a link"):
            action()
    assert (outside / "secret").read_text() == "secret"


def test_link_in_the_middle_of_a_path_is_not_followed(root: SafePath, outside: Path) -> None:
    (root.path / "replay").symlink_to(outside)
    for action in (*actions(root / "replay/secret"), (root / "replay/secret").unlink, (root / "replay").names):
        with pytest.raises(UnsafeFileError, match="replay is a link"):
            action()
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_link_that_is_put_there_after_the_check_is_not_followed(
    root: SafePath, outside: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "absolute":
        pytest.skip("needs O_NOFOLLOW")
    (root.path / "lock").symlink_to(outside / "secret")
    monkeypatch.setattr(SafePath, "_check", lambda *_: None)
    for action in actions(root / "lock"):
        with pytest.raises(OSError, match="symbolic link"):
            action()
    assert (outside / "secret").read_text() == "secret"


def test_file_with_a_second_name_is_read_and_not_written(root: SafePath, outside: Path) -> None:
    os.link(outside / "secret", root.path / "lock")
    read, *writes = actions(root / "lock")
    assert read() == b"secret"
    for write in writes:
        with pytest.raises(UnsafeFileError, match="2 names"):
            write()


def test_pipe_and_socket_are_not_opened(root: SafePath, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root.path / "pipe")
    monkeypatch.chdir(root.path)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    for name in ("pipe", "socket"):
        for action in actions(root / name):
            with pytest.raises(UnsafeFileError, match=f"{name} is a {name}, not a file"):
                action()
        with pytest.raises(UnsafeFileError, match=r"is a (pipe|socket)"):
            screen(root.path)


def test_file_above_the_limit_is_not_read(root: SafePath) -> None:
    (root / "a").append(b"12345")
    assert (root / "a").read_bytes(5) == b"12345"
    with pytest.raises(UnsafeFileError, match="more than 4 bytes"):
        (root / "a").read_bytes(4)


@pytest.mark.parametrize("name", ["../outside/secret", "..", "a/../../b", "/etc/passwd", "a//b", ".", "", "a\0b"])
def test_name_that_leads_elsewhere_is_refused(root: SafePath, name: str) -> None:
    with pytest.raises(UnsafeFileError, match="is no name of a file"):
        root / name


def test_screen_looks_into_all_folders_but_those_of_sinks(root: SafePath, outside: Path) -> None:
    for sink in files.SINKS:
        (root.path / sink).symlink_to(outside)
    screen(root.path)
    (root.path / "logs" / "wandb").symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="logs/wandb is a link"):
        screen(root.path)


def test_folder_is_made_with_those_above_it_and_may_exist(root: SafePath) -> None:
    for place in (root, root / "logs", root / "a" / "b" / "c", root / "a" / "b" / "c"):
        place.mkdir()
        assert place.is_dir()
    (root / "a" / "file").append(b"1")
    for place in (root / "a" / "file", root / "a" / "file" / "below"):
        with pytest.raises((UnsafeFileError, NotADirectoryError)):
            place.mkdir()


def test_entry_is_renamed_within_and_between_folders(root: SafePath) -> None:
    (root / "a").mkdir()
    (root / "one").append(b"1")
    (root / "one").replace(root / "two")
    (root / "two").replace(root / "a" / "three")
    assert (root / "a" / "three").read_bytes() == b"1"
    assert not (root / "one").exists()
    assert not (root / "two").exists()


def test_held_folder_is_used_without_opening_its_parents_and_followed_by_no_link(
    root: SafePath, outside: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What takes the place of a held folder meanwhile is not reached, and after the block nothing stays open."""
    if way == "absolute":
        pytest.skip("needs openat")
    opened: list[Any] = []
    real_open, descriptors = os.open, len(os.listdir("/dev/fd"))
    (root / "logs/run.log").append(b"a")
    with root.hold(), (root / "logs").hold(), (root / "absent").hold():
        monkeypatch.setattr(os, "open", lambda *all, **named: opened.append(all[0]) or real_open(*all, **named))
        (root / "logs/run.log").append(b"b")
        assert opened == ["run.log"]
        (root.root / "logs").rename(root.root / "old")
        (root.root / "logs").symlink_to(outside)
        (root / "logs/secret").append(b"c")
        assert (outside / "secret").read_text() == "secret"
    monkeypatch.undo()
    assert (root / "old/run.log").read_bytes() == b"ab"
    assert (root / "old/secret").read_bytes() == b"c"
    with pytest.raises(UnsafeFileError, match="is a link"):
        (root / "logs/secret").append(b"d")
    assert len(os.listdir("/dev/fd")) == descriptors


def test_folder_held_in_one_thread_is_not_held_in_another(root: SafePath, outside: Path) -> None:
    problems: list[BaseException] = []

    def append() -> None:
        try:
            (root / "logs/secret").append(b"c")
        except UnsafeFileError as problem:
            problems.append(problem)

    with (root / "logs").hold():
        (root.root / "logs").rename(root.root / "old")
        (root.root / "logs").symlink_to(outside)
        other = Thread(target=append)
        other.start()
        other.join()
    assert len(problems) == 1


def test_an_error_names_the_whole_path(root: SafePath) -> None:
    here, there, gone = root / "here", root / "logs/there", root / "none/name"
    (root.path / "here").touch()
    with root.inside() as folder:
        attempts: list[tuple[Any, list[SafePath]]] = [
            (lambda: there.replace(here), [there, here]),
            (lambda: (root / "one").replace(root / "two"), [root / "one", root / "two"]),
            (gone.unlink, [root / "none"]),
            (lambda: folder.unlink("one"), [root / "one"]),
            (lambda: folder.replace("one", "two"), [root / "one", root / "two"]),
            (lambda: folder.create("here", b"", lambda: None), [here]),
        ]
        for act, paths in attempts:
            with pytest.raises(OSError) as caught:
                act()
            named = [caught.value.filename, caught.value.filename2]
            assert [name for name in named if name is not None] == list(map(str, paths))
