from __future__ import annotations

import csv
import errno
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.base import failpoints
from cadenza.errors import CheckpointError, NotFoundError
from cadenza.records import metrics
from cadenza.records.metrics import MetricBuffer, MetricsFile
from harness.files import safe


def row(steps: int, **more: Any) -> dict[str, Any]:
    return {"train/loss": 0.1 * steps, "env_steps": steps, "updates": steps // 2, "time/seconds": 1.5, **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def written(path: Path, steps: range) -> MetricsFile:
    file = MetricsFile(safe(path))
    for step in steps:
        assert file.append(row(step))
    return file


def test_rows_have_a_fixed_order_and_exact_numbers(path: Path) -> None:
    values = {"b/x": float("nan"), "a/y": float("-inf"), "a/z": np.float32(0.1), "a/t": torch.tensor(0.5), "flag": True}
    MetricsFile(safe(path)).append({**values, "updates": 1, "env_steps": 2})
    line = path.read_text()
    assert line.startswith(
        '{"env_steps": 2, "updates": 1, "a/t": 0.5, "a/y": null, "a/z": 0.10000000149011612, "b/x": null, "flag": true'
    )
    assert line.endswith('"}\n')


def test_digests_are_chained_and_leave_out_times_and_machine(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    for path, seconds, loss in ((a, 1.0, 0.5), (b, 2.0, 0.5), (c, 1.0, 0.25)):
        file = MetricsFile(safe(path))
        file.append(row(1, **{"time/seconds": seconds, "system/memory": seconds, "train/loss": loss}))
        file.append(row(2))
    digests = [[entry["digest"] for entry in metrics.read(safe(path))] for path in (a, b, c)]
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[2][0]
    assert digests[0][1] != digests[2][1], "the second row is equal, what came before it is not"
    assert digests[0][0] != digests[0][1]


def test_a_digest_is_of_the_one_before_and_the_rows_canonical_text(path: Path) -> None:
    written(path, range(1, 3))
    texts = ('{"env_steps":1,"train/loss":0.1,"updates":0}', '{"env_steps":2,"train/loss":0.2,"updates":1}')
    first = sha256(texts[0].encode()).hexdigest()[:16]
    second = sha256((first + texts[1]).encode()).hexdigest()[:16]
    assert [entry["digest"] for entry in metrics.read(safe(path))] == [first, second]


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    written(whole, range(6))
    file = written(cut, range(3))
    state = json.loads(json.dumps(file.state_dict()))
    file.append(row(3, **{"train/loss": 77.0}))
    file.append(row(4))
    with open(cut, "ab") as stream:
        stream.write(b'{"env_steps": 5, "upd')
    again = MetricsFile(safe(cut))
    again.load_state_dict(state)
    assert [entry["env_steps"] for entry in metrics.read(safe(cut))] == [0, 1, 2]
    for step in range(3, 6):
        again.append(row(step))
    assert cut.read_bytes() == whole.read_bytes()


def test_a_file_that_goes_on_without_a_checkpoint_drops_the_broken_tail(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    written(whole, range(4))
    written(cut, range(2)).close()
    with open(cut, "ab") as stream:
        stream.write(b"\0" * 1000 + b'\n{"env_st')
    file = MetricsFile(safe(cut))
    file.append(row(2))
    file.append(row(3))
    assert cut.read_bytes() == whole.read_bytes()


def test_opening_alone_changes_nothing(path: Path) -> None:
    written(path, range(2)).close()
    with open(path, "ab") as stream:
        stream.write(b"half a li")
    before = path.read_bytes()
    MetricsFile(safe(path))
    assert path.read_bytes() == before


def test_a_changed_file_is_refused(path: Path) -> None:
    state = written(path, range(4)).state_dict()
    good = path.read_bytes()
    path.write_bytes(good[:-10])
    with pytest.raises(CheckpointError, match="bytes"):
        MetricsFile(safe(path)).load_state_dict(state)
    path.write_bytes(good.replace(b'"updates": 1,', b'"updates": 7,'))
    with pytest.raises(CheckpointError, match="row 3 was changed"):
        MetricsFile(safe(path)).load_state_dict(state)
    path.write_bytes(good)
    with pytest.raises(CheckpointError, match="another history"):
        MetricsFile(safe(path)).load_state_dict(state | {"digest": "0" * 16})
    MetricsFile(safe(path)).load_state_dict(state)


def test_a_resumed_file_is_hashed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, calls, chained = written(path, range(9)).state_dict(), [], metrics.chained
    monkeypatch.setattr(metrics, "chained", lambda *pair: calls.append(pair) or chained(*pair))
    MetricsFile(safe(path)).load_state_dict(state)
    assert len(calls) == 9


def test_a_full_disk_loses_no_row(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(path, range(2))
    monkeypatch.setattr(failpoints, "armed", failpoints.parse("metrics:append@1+:enospc"))
    assert not file.append(row(2))
    assert not file.append(row(3))
    assert file.pending == 2
    state = file.state_dict()
    monkeypatch.setattr(failpoints, "armed", None)
    assert file.append(row(4))
    assert file.pending == 0
    written(tmp_path / "whole", range(5))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    resumed = MetricsFile(safe(path))
    resumed.load_state_dict(state)
    assert resumed.pending == 2
    resumed.append(row(4))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


def test_half_a_row_left_by_a_full_disk_is_overwritten(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(path, range(1))
    real = os.write
    calls = []

    def tearing(descriptor: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            return real(descriptor, data[:7])
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as torn:
        torn.setattr(os, "write", tearing)
        assert not file.append(row(1))
    assert len(metrics.read(safe(path))) == 1
    assert file.append(row(2))
    written(tmp_path / "whole", range(3))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


def test_other_errors_are_not_swallowed(path: Path) -> None:
    file = written(path, range(1))
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append(row(1))


def test_reading_tolerates_a_cut_last_line_only(path: Path) -> None:
    written(path, range(3))
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert [entry["env_steps"] for entry in metrics.read(safe(path))] == [0, 1]
    path.write_bytes(b"junk\n" + content)
    with pytest.raises(CheckpointError, match="not JSON"):
        metrics.read(safe(path))
    assert metrics.read(safe(path.with_name("missing"))) == []


def test_means_of_the_buffer_restart_after_a_row() -> None:
    buffer = MetricBuffer()
    buffer.add({"a": 1, "t": torch.tensor(2.0)})
    buffer.add({"a": 4.0, "t": torch.tensor(4.0)}, count=3)
    assert buffer.means() == {"a": 3.25, "t": 3.5}
    assert buffer.means() == {}


def test_buffer_keeps_its_own_tensors() -> None:
    buffer, scratch = MetricBuffer(), torch.tensor(1.0)
    buffer.add({"t": scratch})
    scratch.fill_(100.0)
    assert buffer.means() == {"t": 1.0}


def test_buffer_resumes_in_the_middle_exactly() -> None:
    values = [torch.tensor(x, dtype=torch.float32) for x in np.random.default_rng(0).normal(size=40)]
    whole, first, second = MetricBuffer(), MetricBuffer(), MetricBuffer()
    for value in values:
        whole.add({"t": value, "f": float(value)})
    for value in values[:17]:
        first.add({"t": value, "f": float(value)})
    state = first.state_dict()
    assert isinstance(state["sums"]["t"], torch.Tensor)
    second.load_state_dict(state)
    for value in values[17:]:
        second.add({"t": value, "f": float(value)})
    assert second.means() == whole.means()


def test_series_and_aliases_of_metrics_are_resolved() -> None:
    rows: list[dict[str, Any]] = [
        {"env_steps": 1, "updates": 3, "collect/return_mean": 5.0, "train/loss": 1.0, "phase": "main"},
        {"env_steps": 2, "eval/return_mean": 7.0, "train/loss": None},
    ]
    assert metrics.series(rows, "train/loss") == ([1], [1.0])
    assert metrics.series(rows, "train/loss", "updates") == ([3], [1.0])
    assert metrics.series(rows, "phase") == ([], [])
    assert metrics.numeric(rows) == set(metrics.names(rows)) - {"phase"}
    names = metrics.names(rows)
    assert metrics.resolve("val/return_mean", names) == metrics.resolve("test/return_mean", names) == "eval/return_mean"
    assert metrics.resolve("train/return_mean", names) == "collect/return_mean"
    with pytest.raises(NotFoundError, match="did you mean 'train/loss'"):
        metrics.resolve("train/los", names)


def test_first_difference_names_row_step_and_quantity(tmp_path: Path) -> None:
    a = [{"env_steps": n * 10, "x": 1.0, "y": 2.0, "time/s": n, "digest": f"d{n}"} for n in range(4)]
    b = [entry | {"time/s": 99} for entry in a]
    assert metrics.first_difference(a, b) is None
    b[2] = b[2] | {"y": 2.5, "digest": "other"}
    assert metrics.first_difference(a, b) == {"row": 2, "env_steps": 20, "quantity": "y", "a": 2.0, "b": 2.5}
    assert metrics.first_difference(a, b, limit=15) is None
    c = [*a[:1], {key: value for key, value in a[1].items() if key != "x"}]
    assert metrics.first_difference(a, c) == {"row": 1, "env_steps": 10, "quantity": "x", "a": 1.0, "b": None}
    assert metrics.first_difference(a, a[:3]) == {"row": 3, "env_steps": 30, "quantity": "rows", "a": 4, "b": 3}
    d = [a[0] | {"digest": "tampered"}]
    assert metrics.first_difference(a, d) == {
        "row": 0,
        "env_steps": 0,
        "quantity": "digest",
        "a": "d0",
        "b": "tampered",
    }


def test_csv_has_a_column_per_quantity(path: Path, tmp_path: Path) -> None:
    file = MetricsFile(safe(path))
    file.append(row(1))
    file.append(row(2, **{"eval/return_mean": 9.5}))
    metrics.export_csv(metrics.read(safe(path)), safe(tmp_path / "metrics.csv"))
    with open(tmp_path / "metrics.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert list(table[0]) == ["env_steps", "updates", "time/seconds", "train/loss", "eval/return_mean"]
    assert [entry["eval/return_mean"] for entry in table] == ["", "9.5"]
