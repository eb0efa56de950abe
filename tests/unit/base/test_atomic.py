from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.base import atomic, failpoints
from cadenza.base.files import SafePath
from cadenza.errors import ConfigError

WRITE = """
import sys
from pathlib import Path
from cadenza.base.atomic import write_text
write_text(Path(sys.argv[1]), "new")
"""


def write_under(failpoint: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CADENZA_FAILPOINT": failpoint}
    return subprocess.run([sys.executable, "-c", WRITE, str(path)], env=environment, capture_output=True, text=True)


def test_writes_replace_the_file_and_leave_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    atomic.write_json(path, {"x": float("nan"), "y": 0.1, "z": (1, 2)})
    assert json.loads(path.read_text()) == {"x": None, "y": 0.1, "z": [1, 2]}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_paths_named_by_the_user_may_be_links_or_devices(tmp_path: Path) -> None:
    link, device = tmp_path / "link", Path(os.devnull)
    link.symlink_to(tmp_path / "file")
    atomic.write_out(link, b"some")
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"some"
    atomic.write_out(device, b"some")
    assert device.is_char_device()


@pytest.mark.parametrize(
    ("failpoint", "content"),
    [("atomic:before_fsync", "old"), ("atomic:before_rename", "old"), ("atomic:after_rename", "new")],
)
def test_a_killed_writer_leaves_the_old_or_the_new_content(tmp_path: Path, failpoint: str, content: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    process = write_under(failpoint, path)
    assert process.returncode == -signal.SIGKILL
    assert path.read_text() == content
    atomic.remove_leftovers(SafePath(tmp_path), [path.name])
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_disk_error_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    process = write_under("atomic:before_fsync@1:enospc", path)
    assert "No space left" in process.stderr
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("text", "fires"),
    [("place@2:eio", [2]), ("place:eio@2:eio", []), ("place@2+:enospc", [2, 3, 4]), ("other@1:eio", [])],
)
def test_failpoints_fire_at_the_hits_they_name(monkeypatch: pytest.MonkeyPatch, text: str, fires: list[int]) -> None:
    monkeypatch.setattr(failpoints, "armed", failpoints.parse(text))
    fired = []
    for hit in range(1, 5):
        try:
            failpoints.failpoint("place")
        except OSError:
            fired.append(hit)
    assert fired == fires


@pytest.mark.parametrize("text", ["place@0", "place@x", "place@1:explode", "@1"])
def test_a_malformed_failpoint_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="CADENZA_FAILPOINT"):
        failpoints.parse(text)


def test_failpoint_names_may_contain_colons() -> None:
    failpoint = failpoints.parse("ckpt:after_write@3:eio")
    assert failpoint is not None
    assert (failpoint.name, failpoint.at, failpoint.action) == ("ckpt:after_write", 3, "eio")


def test_an_oserror_names_the_requested_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "nowhere" / "x", tmp_path / "file" / "x"):
        with pytest.raises(OSError) as caught:
            atomic.write_text(place, "text")
        assert caught.value.filename == str(place)
