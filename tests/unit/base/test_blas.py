from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.base import blas

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
    monkeypatch.delenv(blas.STARTED_FOR, raising=False)
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
    monkeypatch.setenv(blas.STARTED_FOR, "SkylakeX")
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
