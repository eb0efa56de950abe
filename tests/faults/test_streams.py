"""Standard streams that are closed, full, left by their reader or unable to spell, and arguments that are no text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.records.folder import RunFolder
from harness.command import TOY, train


def cadenza(redirected: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The command line with its streams as a shell redirects them."""
    script = f'exec "$0" -m cadenza "$@" {redirected}'
    command = ["sh", "-c", script, sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=os.environ | variables, timeout=120, check=False)


@pytest.mark.parametrize("redirected", [">&-", "<&- >&- 2>&-", "<&-", "2>&-"])
def test_closed_streams_lead_nowhere(redirected: str, whole: RunFolder) -> None:
    done = cadenza(redirected, "list", "--runs-dir", whole.path.parent)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (whole.id.encode() in done.stdout) == (">&-" not in redirected.replace("2>&-", ""))


def test_training_without_any_stream(tmp_path: Path) -> None:
    assert cadenza("<&- >&- 2>&-", "train", *TOY, "--runs-dir", tmp_path).returncode == 0
    assert next(tmp_path.glob("toy_*/metrics.jsonl")).read_bytes().startswith(b"{")


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--version"]])
def test_a_reader_that_left_is_no_failure(arguments: list[str], whole: RunFolder) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"CADENZA_RUNS": str(whole.path.parent)}
    command = [sys.executable, "-m", "cadenza", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=120, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_letters_that_stdout_cannot_spell(whole: RunFolder, tmp_path: Path) -> None:
    root = tmp_path / "żółw"
    shutil.copytree(whole.path, root / whole.id)
    table = cadenza("", "list", "--runs-dir", root, PYTHONIOENCODING="ascii")
    assert table.returncode == 0, table.stderr
    assert b"-----" in table.stdout
    told = cadenza("", "list", "--json", "--runs-dir", root, PYTHONIOENCODING="ascii")
    assert json.loads(told.stdout)["runs"][0]["dir"] == str(root / whole.id)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    train(tmp_path / "runs", *TOY, "--name", "turtle\udcff").refused(2, r"'turtle\udcff' is not UTF-8 text")
    assert not (tmp_path / "runs").exists()


def test_a_folder_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "turtle\udcff"
    place.mkdir()
    monkeypatch.chdir(place)
    train(Path("runs"), *TOY).refused(2, "is not UTF-8 text")
    assert list(place.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_error_that_cannot_be_told_keeps_its_exit_code(tmp_path: Path) -> None:
    assert cadenza("2>/dev/full", "show", "nothing", "--runs-dir", tmp_path).returncode == 2
    assert cadenza("2>/dev/full", "list", "--runs-dir", tmp_path).returncode == 0
