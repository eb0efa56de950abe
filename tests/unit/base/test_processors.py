"""The number of processors, with made-up files of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cadenza.base import processors

V1, V2 = {"quota": "cpu.cfs_quota_us", "period": "cpu.cfs_period_us"}, "cpu.max"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the control groups of a process that is bound to eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(processors, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(processors, "CGROUPS", tmp_path / "cgroup")
    return tmp_path / "cgroup"


def write(groups: Path, membership: str, **files: str) -> None:
    (groups.parent / "membership").write_text(membership)
    for path, content in files.items():
        file = groups / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


@pytest.mark.parametrize(
    ("limit", "count"),
    [("max 100000", 8), ("50000 100000", 1), ("150000 100000", 1), ("300000 100000", 3), ("9000000 100000", 8)],
)
def test_quota_of_version_2_limits_the_processors(groups: Path, limit: str, count: int) -> None:
    write(groups, "0::/\n", **{V2: f"{limit}\n"})
    assert processors.usable() == count


def test_the_smallest_quota_of_nested_groups_counts(groups: Path) -> None:
    write(groups, "0::/a/b\n", **{f"a/b/{V2}": "400000 100000\n", f"a/{V2}": "200000 100000\n", V2: "max 100000\n"})
    assert processors.usable() == 2


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("where", ["job/", ""], ids=["own group", "path of the host, not in this container"])
def test_quota_of_version_1_limits_the_processors(groups: Path, mount: str, where: str) -> None:
    files = {f"{mount}/{where}{V1['quota']}": "250000\n", f"{mount}/{where}{V1['period']}": "100000\n"}
    write(groups, f"4:memory:/job\n3:{mount}:/job\n0::/\n", **files)
    assert processors.usable() == 2


def test_no_quota_leaves_the_processors_that_the_process_is_bound_to(groups: Path) -> None:
    assert processors.usable() == 8  # without control groups
    write(groups, "1:cpu:/\n0::/\n", **{f"cpu/{V1['quota']}": "-1\n", f"cpu/{V1['period']}": "100000\n"})
    assert processors.usable() == 8
    write(groups, "0::/\n", **{V2: "damaged\n"})
    assert processors.usable() == 8
