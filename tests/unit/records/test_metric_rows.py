"""Rows of metrics.jsonl: the end, what is new, even samples, and everything."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from cadenza.base.json_text import dumps
from cadenza.errors import CheckpointError
from cadenza.lab.inspector.rows import curve
from cadenza.records import metric_rows, metrics
from cadenza.records.metric_rows import MetricRows
from harness.files import safe

COUNT, RARE = 20_000, 997


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write many rows, a few with one more metric, with a spike and an incomplete last row."""
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    with path.open("w") as file:
        for i in range(COUNT):
            row = {"env_steps": 10 * i, "train/loss": float(i % 7), "filler": "x" * 100}
            if i % RARE == 0:
                row["eval/return_mean"] = float(i)
            file.write(json.dumps(row) + "\n")
        file.write('{"env_steps": 999999999, "train/lo')
    assert path.stat().st_size > metric_rows.WHOLE
    return path


def test_long_files_are_sampled_evenly(long: Path) -> None:
    with MetricRows(safe(long)) as reader:
        rows = reader.sampled(reader.part(), 500)
    steps = [row["env_steps"] for row in rows]
    assert len(steps) == 501
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert steps[-1] == 10 * (COUNT - 1)
    assert max(b - a for a, b in pairwise(steps)) < 3 * 10 * COUNT / 500


@pytest.mark.parametrize("size", [1 << 16, 1 << 19, 1 << 30])
def test_the_last_values_are_those_of_the_whole_file(long: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_rows, "WHOLE", size)
    rows = metrics.read(safe(long))
    last, values = metrics.recent(safe(long), 30)
    assert last == rows[-1]
    assert values == {name: metrics.series(rows, name)[1][-30:] for name in metrics.names(rows)}
    assert len(values["eval/return_mean"]) == COUNT // RARE + 1


def test_the_last_values_need_the_end_of_a_long_file_alone(long: Path, tmp_path: Path) -> None:
    content = bytearray(long.read_bytes())
    path = tmp_path / "metrics.jsonl"
    content[100_000:200_000] = b"\xff" * 100_000
    path.write_bytes(content)
    assert metrics.recent(safe(path), 30)[1]["train/loss"] == metrics.recent(safe(long), 30)[1]["train/loss"]
    content[-100_000:-90_000] = b"\xff" * 10_000
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not JSON"):
        metrics.recent(safe(path), 30)


def test_the_search_for_rare_metrics_ends_after_some_bytes(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = metrics.read(safe(long))
    monkeypatch.setattr(metric_rows, "WHOLE", 1 << 14)
    monkeypatch.setattr(metric_rows, "SEARCHED", 1 << 18)
    _, values = metrics.recent(safe(long), 30)
    whole = metrics.series(rows, "eval/return_mean")[1]
    assert 0 < len(values["eval/return_mean"]) < 30
    assert values["eval/return_mean"] == whole[-len(values["eval/return_mean"]) :]
    with MetricRows(safe(long)) as reader:
        assert reader.latest(["collect/none", "train/loss"], 3) == {"collect/none": [], "train/loss": rows[-3:]}


def test_no_file_has_no_last_values(tmp_path: Path) -> None:
    assert metrics.recent(safe(tmp_path / "metrics.jsonl"), 30) == (None, {})


def test_a_range_has_every_row_and_one_beyond_each_end(long: Path) -> None:
    with MetricRows(safe(long)) as reader:
        part = reader.part(100_005, 100_995)
        steps = [row["env_steps"] for row in reader.sampled(part)]
    inside = [step for step in steps if 100_005 <= step <= 100_995]
    assert inside == list(range(100_010, 101_000, 10))
    assert min(steps) <= 100_000
    assert max(steps) >= 101_000
    assert len(steps) < 200


def test_a_sampled_range_has_no_row_beyond_its_ends(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the rows would be squeezed at the left edge of an axis that reaches to the end of the file."""
    monkeypatch.setattr(metric_rows, "WHOLE", 1 << 18)
    with MetricRows(safe(long)) as reader:
        part = reader.part(50_000, 100_000)
        assert not part.small
        rows = reader.sampled(part)
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(steps)
    assert 49_000 <= steps[0] <= 50_000
    assert 99_000 <= steps[-1] <= 101_000
    x, _ = curve(rows, "train/loss", "env_steps", points=400)
    assert len(x) > 300
    assert max(b - a for a, b in pairwise(x)) < 1500


def test_metrics_that_few_rows_have_are_all_found(long: Path) -> None:
    with MetricRows(safe(long)) as reader:
        rows = reader.having("eval/return_mean", reader.part())
        dense = reader.having("train/loss", reader.part(), 300)
        nothing = reader.having('"}\n', reader.part())
    assert [row["eval/return_mean"] for row in rows] == list(range(0, COUNT, RARE))
    assert 150 <= len(dense) <= 310
    steps = [row["env_steps"] for row in dense]
    assert steps[0] == 0
    assert steps[-1] == 10 * (COUNT - 1)
    assert max(b - a for a, b in pairwise(steps)) < 3 * 10 * COUNT / 300
    assert nothing == []


def test_all_rows_with_a_metric_are_returned_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"env_steps": i, "loss": i, "filler": "x" * (i % 9)}) + "\n" for i in range(60)))
    with MetricRows(safe(path)) as reader:
        assert [row["loss"] for row in reader.having("loss", reader.part(), 60)] == list(range(60))


def test_the_tail_and_appended_rows_are_read(long: Path) -> None:
    with MetricRows(safe(long)) as reader:
        last = reader.last(3)
        assert [row["env_steps"] for row in last] == [10 * (COUNT - i) for i in (3, 2, 1)]
        end = long.read_bytes().rfind(b"\n") + 1
        assert reader.size == end


@pytest.mark.parametrize("content", ["", "\n", '{"env_steps": 1', "no json\n", '{"env_steps": 1}\nnull\n[1]\n7\n'])
def test_empty_and_damaged_files_are_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    with MetricRows(safe(path)) as reader:
        rows = reader.sampled(reader.part(0, 5))
        assert rows == ([{"env_steps": 1}] if content.endswith("7\n") else [])
        assert reader.having("x", reader.part()) == []


def test_some_quantities_of_all_rows_are_those_of_the_whole_rows(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"env_steps": 1, "updates": 0, "eval/x": 1.5e-7, "train/eval/x": 2.0},
        {"env_steps": 2, "train/loss": 3},
        {"env_steps": 3, "eval/x": None, "eval/y": -7},
        {"env_steps": 4, "phase": 'a, "eval/x": 5, b', "train/loss": 1.0},
        {"env_steps": 5, "phase": "ü", "eval/y": True, "time/seconds": 2.25},
        {"env_steps": 6, "eval/x": 4.0},
        {"env_steps": 7, "train/loss": 1.0},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(dumps(row) + "\n" for row in rows) + '{"env_steps": 8, "eval/x": 1.')
    names = ("eval/x", "eval/y")
    kept = {*names, "env_steps", "updates", "time/seconds"}
    having = [row for row in rows if any(name in row for name in names)]
    expected = [{key: value for key, value in row.items() if key in kept} for row in [*having, rows[-1]]]
    with MetricRows(safe(path)) as reader:
        assert reader.columns(names) == expected
    path.write_text('{"env_steps": 1, "eval/x": 2.0}\n{"env_steps": 2, "eval/x": [1]}\n')
    with MetricRows(safe(path)) as reader, pytest.raises(CheckpointError, match=r"eval/x='\[1\]', which is no number"):
        reader.columns(names)


@pytest.mark.parametrize("place", ["", '"env_steps": -5, ', '"env_steps": Infinity, ', f'"env_steps": {10**400}, '])
def test_a_row_without_a_sound_place_is_refused_and_not_sampled(place: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 1, "eval/x": 1.0}\n{' + place + '"eval/x": 2.0}\n')
    with MetricRows(safe(path)) as reader, pytest.raises(CheckpointError):
        reader.columns(["eval/x"])
    assert [row["env_steps"] for row in metrics.sample(safe(path))] == [1]


def test_quantities_with_any_name_are_read(tmp_path: Path) -> None:
    path, name = tmp_path / "metrics.jsonl", 'mine/a\\b"c'
    path.write_text(dumps({"env_steps": 1, name: 1.5}) + "\n")
    with MetricRows(safe(path)) as reader:
        assert reader.columns([name]) == [{"env_steps": 1, name: 1.5}]
