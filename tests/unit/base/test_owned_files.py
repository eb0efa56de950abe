"""cadenza deletes only what it can show that it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.base import owned_files
from harness.files import safe


@pytest.mark.parametrize("name", ["step-1", ".staging-step-1"])
def test_discarded_checkpoint_keeps_what_its_manifest_does_not_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "outside.txt").write_text("mine")
    for file in ("state.json", "thesis.txt"):
        (tmp_path / name / file).write_text("{}")
    files: dict[str, dict[str, str]] = {"state.json": {}, "../outside.txt": {}, "lost.safetensors": {}}
    (tmp_path / name / owned_files.MANIFEST).write_text(json.dumps({"files": files}))
    owned_files.discard(safe(tmp_path / name))
    assert [path.name for path in (tmp_path / name).iterdir()] == ["thesis.txt"]
    assert (tmp_path / "outside.txt").read_text() == "mine"


def test_list_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    folder = safe(tmp_path)
    (tmp_path / owned_files.NAME).write_text(f"{'0' * 64}  a\n{'1' * 64}  ../b\n{'2' * 64}  c\x1bd\nx  e\n")
    assert owned_files.listed(folder) == {"a": "0" * 64}
