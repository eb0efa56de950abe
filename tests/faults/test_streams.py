"""Standard streams that are closed, full, broken or unable to encode text, and undecodable arguments."""

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
def test_list_works_with_closed_standard_streams(redirected: str, whole: RunFolder) -> None:
    process = cadenza(redirected, "list", "--runs-dir", whole.path.parent)
    assert (process.returncode, process.stderr) == (0, b"")
    assert (whole.id.encode() in process.stdout) == (">&-" not in redirected.replace("2>&-", ""))


def test_training_works_without_standard_streams(tmp_path: Path) -> None:
    assert cadenza("<&- >&- 2>&-", "train", *TOY, "--runs-dir", tmp_path).returncode == 0
    assert next(tmp_path.glob("toy_*/metrics.jsonl")).read_bytes().startswith(b"{")


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--version"]])
def test_a_closed_pipe_is_no_failure(arguments: list[str], whole: RunFolder) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"CADENZA_RUNS": str(whole.path.parent)}
    command = [sys.executable, "-m", "cadenza", *arguments]
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=120, check=False)
    os.close(writing)
    assert (process.returncode, process.stderr) == (0, b"")


def test_characters_that_stdout_cannot_encode_are_escaped(whole: RunFolder, tmp_path: Path) -> None:
    root = tmp_path / "żółw"
    shutil.copytree(whole.path, root / whole.id)
    table = cadenza("", "list", "--runs-dir", root, PYTHONIOENCODING="ascii")
    assert table.returncode == 0, table.stderr
    assert b"-----" in table.stdout
    process = cadenza("", "list", "--json", "--runs-dir", root, PYTHONIOENCODING="ascii")
    assert json.loads(process.stdout)["runs"][0]["dir"] == str(root / whole.id)


def test_undecodable_arguments_are_refused_in_one_line(tmp_path: Path) -> None:
    train(tmp_path / "runs", *TOY, "--name", "turtle\udcff").refused(2, r"'turtle\udcff' is not UTF-8 text")
    assert not (tmp_path / "runs").exists()


def test_a_current_folder_with_an_undecodable_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "turtle\udcff"
    place.mkdir()
    monkeypatch.chdir(place)
    train(Path("runs"), *TOY).refused(2, "is not UTF-8 text")
    assert list(place.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(tmp_path: Path) -> None:
    assert cadenza("2>/dev/full", "show", "nothing", "--runs-dir", tmp_path).returncode == 2
    assert cadenza("2>/dev/full", "list", "--runs-dir", tmp_path).returncode == 0
