from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy
import pytest
import threadpoolctl

from cadenza.base import blas
from cadenza.cli import main

FLAGS = "flags\t\t: fpu avx2 fma avx512f avx512dq avx512bw avx512vl avx512cd\n"


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    information = tmp_path / "cpuinfo"
    information.write_text(f"processor\t: 0\n{FLAGS}\nprocessor\t: 1\nflags\t\t: none\n")
    assert blas.processor_flags(information) >= blas.AVX512
    assert "none" not in blas.processor_flags(information)
    assert blas.processor_flags(tmp_path / "missing") == frozenset()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose NumPy has Haswell kernels, on a processor with AVX-512."""
    monkeypatch.setattr(blas, "may_start_again", True)
    monkeypatch.setattr(blas, "loaded", lambda: "Haswell")
    monkeypatch.setattr(blas, "processor_flags", lambda: blas.AVX512)
    monkeypatch.setattr(blas, "started_for", "")
    monkeypatch.setenv(blas.VARIABLE, "Haswell")


@pytest.mark.usefixtures("command")
def test_a_command_with_other_kernels_names_the_environment_that_has_them() -> None:
    with pytest.raises(blas.OtherKernelsError) as other:
        blas.require("SkylakeX")
    assert other.value.environment[blas.VARIABLE] == "SkylakeX"


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("kernels", ["Haswell", "Zen9", ""])
def test_kernels_that_are_loaded_or_unknown_start_nothing_again(kernels: str) -> None:
    blas.require(kernels)


@pytest.mark.usefixtures("command")
def test_a_command_that_was_started_again_in_vain_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "started_for", "SkylakeX")
    blas.require("SkylakeX")


@pytest.mark.usefixtures("command")
def test_no_kernels_are_asked_for_that_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "processor_flags", lambda: blas.AVX2)
    blas.require("SkylakeX")


@pytest.mark.usefixtures("command")
def test_a_process_that_is_no_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "may_start_again", False)
    blas.require("SkylakeX")


@pytest.mark.usefixtures("command")
def test_a_variable_that_slows_products_is_named() -> None:
    assert f"{blas.VARIABLE}=Haswell" in blas.slower_by_variable()


class Restarted(Exception):
    pass


def test_a_command_that_starts_again_has_printed_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its children do not inherit why it was started again."""

    def run(arguments: list[str]) -> int:
        print("before")
        assert blas.started_for == "Zen"
        assert blas.STARTED_FOR not in os.environ
        raise blas.OtherKernelsError("Haswell")

    def execve(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert environment[blas.VARIABLE] == environment[blas.STARTED_FOR] == "Haswell"
        raise Restarted(printed.read_text())

    for name in ("may_start_again", "started_for"):
        monkeypatch.setattr(blas, name, getattr(blas, name))
    monkeypatch.setenv(blas.STARTED_FOR, "Zen")
    monkeypatch.setattr(main, "mend_streams", lambda: None)
    monkeypatch.setattr(main, "run", run)
    monkeypatch.setattr(os, "execve", execve)
    printed = tmp_path / "out"
    with printed.open("w") as out, contextlib.redirect_stdout(out), pytest.raises(Restarted, match="before"):
        main.main()


def test_library_of_another_package_below_a_folder_called_numpy_is_not_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(numpy.__file__).parent
    paths = {
        "/opt/numpy-course/scipy.libs/libopenblas.so": "Zen",
        str(home.with_name("numpy.libs") / "b.so"): "Haswell",
    }
    facts = [{"user_api": "blas", "filepath": path, "architecture": kernels} for path, kernels in paths.items()]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: facts)
    assert blas.loaded.__wrapped__() == "Haswell"
