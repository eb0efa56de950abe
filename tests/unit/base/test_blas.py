from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import threadpoolctl

from cadenza.base import blas
from cadenza.cli import main
from cadenza.tools.bench.contestants import CADENZA, PEERS, environment

FLAGS = "flags\t\t: fpu avx2 fma avx512f avx512dq avx512bw avx512vl avx512cd\n"


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    information = tmp_path / "cpuinfo"
    information.write_text(f"processor\t: 0\n{FLAGS}\nprocessor\t: 1\nflags\t\t: none\n")
    assert blas.processor_flags(information) >= blas.AVX512
    assert "none" not in blas.processor_flags(information)
    assert blas.processor_flags(tmp_path / "missing") == frozenset()


@pytest.fixture(autouse=True)
def no_variables_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "own_variables", set())


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose NumPy has Haswell kernels, on a processor with AVX-512."""
    monkeypatch.setattr(blas, "may_start_again", True)
    monkeypatch.setattr(blas, "loaded", lambda: "Haswell")
    monkeypatch.setattr(blas, "processor_flags", lambda: blas.AVX512)
    monkeypatch.setattr(blas, "started_for", "")
    monkeypatch.setenv(blas.VARIABLE, "Haswell")


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("kernels", ["SkylakeX", "Katmai"])  # the latter of a run from before cadenza chose
def test_a_command_with_other_kernels_names_the_environment_that_has_them(kernels: str) -> None:
    with pytest.raises(blas.OtherKernelsError) as other:
        blas.require(kernels)
    assert other.value.environment[blas.VARIABLE] == kernels


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
def test_slower_kernels_are_remarked_with_their_variable_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"{blas.VARIABLE}=Haswell" in blas.remark()
    assert "SkylakeX kernels are up to twice as fast here" in blas.remark()
    monkeypatch.setattr(blas, "processor_flags", lambda: blas.AVX2)
    assert blas.remark() == ""


@pytest.mark.parametrize(
    ("setting", "variable", "flags", "choice"),
    [
        ("auto", None, blas.AVX512, "SkylakeX"),
        ("auto", None, blas.AVX2, "Haswell"),
        ("auto", None, frozenset({"avx"}), "Sandybridge"),
        ("auto", None, frozenset({"neon"}), None),  # left to OpenBLAS
        ("auto", "Haswell", blas.AVX512, "Haswell"),  # the user's word
        ("fastest", "Haswell", blas.AVX512, "SkylakeX"),
        ("Sandybridge", "Haswell", blas.AVX512 | {"avx"}, "Sandybridge"),
        ("SkylakeX", None, blas.AVX2, None),  # which this processor lacks: it is refused later
    ],
)
def test_kernels_are_chosen_by_the_processor_unless_somebody_names_them(
    setting: str, variable: str | None, flags: frozenset[str], choice: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(blas, "processor_flags", lambda: flags)
    monkeypatch.setattr(blas, "is_wheel", lambda: True)
    monkeypatch.delenv(blas.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(blas.VARIABLE, variable)
    blas.choose(setting)
    assert os.environ.get(blas.VARIABLE) == choice


def test_other_builds_of_numpy_choose_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(blas, "is_wheel", lambda: False)
    monkeypatch.delenv(blas.VARIABLE, raising=False)
    blas.choose()
    assert blas.VARIABLE not in os.environ


def test_threads_of_torch_sleep_unless_a_variable_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for before, after in (("active", "active"), (None, "passive")):
        monkeypatch.setenv(blas.WAIT_POLICY, before or "")
        if before is None:
            monkeypatch.delenv(blas.WAIT_POLICY)
        blas.let_threads_sleep()
        assert os.environ[blas.WAIT_POLICY] == after


def test_variables_that_a_command_chose_are_not_passed_to_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(blas.WAIT_POLICY, "passive")
    monkeypatch.setattr(blas, "own_variables", {blas.WAIT_POLICY})
    assert environment(CADENZA)[blas.WAIT_POLICY] == "passive"
    assert blas.WAIT_POLICY not in environment(PEERS["sb3"])
    assert environment(PEERS["sb3"])["PATH"] == os.environ["PATH"]


def test_commands_import_no_numpy_before_they_choose_its_kernels() -> None:
    code = "import sys, cadenza.cli.main, cadenza.cli.train; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_setting_on_the_command_line_is_chosen_before_numpy_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    choices: list[str] = []
    for name in ("may_start_again", "started_for"):
        monkeypatch.setattr(blas, name, getattr(blas, name))
    monkeypatch.setattr(blas, "choose", choices.append)
    monkeypatch.setattr(blas, "let_threads_sleep", lambda: None)
    monkeypatch.setattr(main, "mend_streams", lambda: None)
    monkeypatch.setattr(main, "run", lambda arguments: 0)
    monkeypatch.setattr(sys, "argv", ["cadenza", "train", "CartPole-v1:ppo", "runtime.blas=Haswell"])
    with pytest.raises(SystemExit):
        main.main()
    assert choices == ["Haswell"]


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
    monkeypatch.setattr(blas, "let_threads_sleep", lambda: None)
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
