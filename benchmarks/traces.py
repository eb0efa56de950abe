"""Compare digests of weights, metrics and episodes of many short runs: no change of code may change a result.

    python benchmarks/traces.py check                      # compare with tests/resume/traces.json
    python benchmarks/traces.py check --only 'sac*'
    python benchmarks/traces.py make --base COMMIT         # store what the code of that commit computes on this machine

Results are equal bit for bit only on one kind of processor and with the same libraries. Each entry of the file is
therefore stored under a key made of these facts. Where no entry has the key of this machine, nothing can be compared:
make an entry from the commit before the change, then check the change. What a run computes is read from its folder
on disk, and runs are started by the public names of the package alone, so that this file survives moves of modules.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[_variable] = "1"  # before NumPy and torch are imported

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from harness.run_digests import Digests, difference, digests
from harness.traced_runs import Preparation, Trace, traces

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "resume" / "fixtures"
FILE = ROOT / "tests" / "resume" / "traces.json"
# The version of what runs compute. Raise it in the commit that changes results on purpose, and make the entries again
# from that commit. A hash of sources would change with every comment and with every move of a file, and the check would
# then be skipped when it is needed.
NUMERICS = 2
PACKAGES = ("numpy", "torch", "gymnasium")
# Variables that choose kernels without a trace in what the libraries report.
VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def facts() -> dict[str, Any]:
    """Return everything that the bits of a result depend on besides the code and its settings."""
    import gymnasium
    import torch
    from threadpoolctl import threadpool_info

    modules = {"numpy": np, "torch": torch, "gymnasium": gymnasium}
    libraries = [info for info in threadpool_info() if info["user_api"] == "blas"]
    blas = [info for info in libraries if "scipy." not in info["filepath"]]  # SciPy's own is there only when imported
    return {
        "numerics": NUMERICS,
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: str(modules[name].__version__) for name in PACKAGES},
        "libc": " ".join(platform.libc_ver()) or platform.system(),  # sin, exp and the like of Python and of NumPy
        "cpu": _processor(),  # MKL selects kernels by the vendor
        "caches": _caches(),  # oneDNN and BLAS cut their blocks by them, and sums follow the blocks
        "torch capability": torch.backends.cpu.get_cpu_capability(),
        "numpy features": " ".join(np.show_config(mode="dicts")["SIMD Extensions"]["found"]),
        "blas": " ".join(sorted(f"{one['internal_api']} {one['version']} {one.get('architecture')}" for one in blas)),
        "variables": " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ),
    }


def key(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return f"{platform.machine()} {platform.processor()}"
    lines = [line.partition(":") for line in information.read_text().split("\n\n")[0].splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    return " ".join([platform.machine(), *(fields.get(name, "?") for name in ("vendor_id", "cpu family", "model"))])


def _caches() -> str:
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    return " ".join(path.read_text().strip() for path in sorted(folder.glob("index*/size")))


def run(trace: Trace, root: Path) -> Path:
    """Train in the runs folder `root` with all interruptions; return the folder of the run, which has finished."""
    import cadenza

    spec, settings = trace.spec, trace.settings
    if trace.fixture:
        shutil.copytree(FIXTURES / trace.fixture, root)
        cadenza.Run.find("@last", root).resume(trace.budget)
        return finished(root)
    if trace.before is not None:
        places = _prepared(trace.before, root.with_name(f"{root.name}-before"), settings)
        settings = tuple(_filled(setting, places) for setting in settings)
    for interruption in trace.interruptions:
        name, _, row = interruption.partition("@")
        begun = (root / "@last").exists()
        if name == "SIGKILL":
            train_until_killed("" if begun else spec, settings, root, int(row))
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _go_on(spec, settings, root, signal_at(int(row), getattr(signal, name)))
        expected = "running" if name == "SIGKILL" else "interrupted"
        assert status(root)["status"] == expected, f"{interruption} came too late: {status(root)}"
    _go_on(spec, settings, root)
    return finished(root)


def train(spec: str, settings: Iterable[str], root: Path, listener: Any = ()) -> None:
    import yaml

    import cadenza

    pairs = (setting.split("=", 1) for setting in settings)
    cadenza.train(spec, runs_dir=root, on_event=listener, **{name: yaml.safe_load(value) for name, value in pairs})


def _go_on(spec: str, settings: Iterable[str], root: Path, listener: Any = ()) -> None:
    """Resume the last run of a runs folder; train where there is none."""
    import cadenza

    if (root / "@last").exists():
        cadenza.Run.find("@last", root).resume(on_event=listener)
    else:
        train(spec, settings, root, listener)


def signal_at(row: int, number: int) -> Callable[[object], None]:
    """Return a listener that sends this process a signal at the row-th row of metrics."""
    import cadenza

    count = 0

    def listen(event: object) -> None:
        nonlocal count
        if isinstance(event, cadenza.events.Row):
            count += 1
            if count == row:
                os.kill(os.getpid(), number)

    return listen


def train_until_killed(spec: str, settings: Iterable[str], root: Path, row: int) -> None:
    """Train in a process of its own (resume, without a spec) and kill it at its row-th row of metrics."""
    line = [sys.executable, __file__, "kill", str(root), str(row), *([spec, *settings] if spec else [])]
    process = subprocess.run(line, env=os.environ | {"PYTHONPATH": _package()}, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, f"not killed: {process.returncode} {process.stderr}"


def _kill(root: Path, row: int, spec: str, settings: list[str]) -> None:
    """Train in this process until it kills itself, for `train_until_killed`."""
    _go_on(spec, settings, root, signal_at(row, signal.SIGKILL))


def _package() -> str:
    """Return the folder that the package was imported from."""
    import cadenza

    assert cadenza.__file__ is not None
    return str(Path(cadenza.__file__).parents[1])


def _prepared(before: Preparation, root: Path, settings: tuple[str, ...]) -> dict[str, str]:
    train(before.spec, before.settings, root)
    places = {"run": str(last(root))}
    if any("{dataset}" in setting for setting in settings):
        places["dataset"] = str(root / "dataset")
        command("export", "@last", "--runs-dir", root, "--format", "dataset", "--out", places["dataset"])
    return places


def _filled(setting: str, places: Mapping[str, str]) -> str:
    for name, path in places.items():
        setting = setting.replace(f"{{{name}}}", path)
    return setting


def command(*arguments: object) -> str:
    """Run the command line in this process; return what it printed. Refuse any exit code but 0."""
    from cadenza.cli.main import run as main_of_cadenza

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main_of_cadenza([str(argument) for argument in arguments])
    assert code == 0, f"`cadenza {' '.join(map(str, arguments))}` ended with {code}: {err.getvalue()}"
    return out.getvalue()


def finished(root: Path) -> Path:
    """Return the folder of the last run, which has finished."""
    assert status(root)["status"] == "finished", status(root)
    return last(root)


def last(root: Path) -> Path:
    return root / (root / "@last").read_text().strip()


def status(root: Path) -> dict[str, Any]:
    return dict(json.loads((last(root) / "status.json").read_text()))


def read(file: Path = FILE) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write(entries: Mapping[str, Any], file: Path = FILE) -> None:
    """Write entries with one line for each run, so that a change of one is a change of one line."""
    lines = ["{"]
    for number, (name, entry) in enumerate(sorted(entries.items())):
        lines += [f' "{name}": {{', f'  "facts": {json.dumps(entry["facts"])},', '  "traces": {']
        runs = [f"   {json.dumps(run)}: {json.dumps(entry['traces'][run])}" for run in sorted(entry["traces"])]
        lines += [",\n".join(runs), "  }", " }" + ("," if number < len(entries) - 1 else "")]
    file.write_text("\n".join([*lines, "}"]) + "\n")


def entry_here(entries: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[dict[str, Digests], str]:
    """Return the traces stored for a machine; where there are none, nothing and the reason with the next step."""
    if key(about) in entries:
        return entries[key(about)]["traces"], ""
    commit = next((run["commit"] for entry in entries.values() for run in entry["traces"].values()), "COMMIT")
    return {}, (
        f"{FILE.name} has no digests of this machine ({_nearest(entries, about)}); "
        f"make them from a commit with the right results: python benchmarks/traces.py make --base {commit}"
    )


def _nearest(entries: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Say in what this machine differs from the entry most like it."""
    differing = [[name for name in about if entry["facts"].get(name) != about[name]] for entry in entries.values()]
    if not differing:
        return "the file is empty"
    entry = list(entries.values())[differing.index(min(differing, key=len))]
    return "; ".join(
        f"{name}: {about[name]} here, {entry['facts'].get(name)} there" for name in min(differing, key=len)
    )


def record(trace: Trace) -> Digests:
    """Return the digests of a run made in a temporary folder."""
    with tempfile.TemporaryDirectory() as root:
        return digests(run(trace, Path(root) / "runs"))


def selection(pattern: str, sample: bool) -> dict[str, Trace]:
    """Return the runs whose name matches; exit where there is none."""
    runs = {name: trace for name, trace in traces().items() if fnmatch.fnmatch(name, pattern)}
    if not runs:
        sys.exit(f"error: --only {pattern!r}: no run has such a name; one is {next(iter(traces()))!r}")
    return {name: trace for name, trace in runs.items() if trace.sample or not sample}


def make(base: str, pattern: str, sample: bool, file: Path) -> None:
    """Store the digests of runs by the code of a commit under the key of this machine; leave all others alone."""
    with tempfile.TemporaryDirectory() as place:
        out, options = Path(place) / "digests.json", ["--only", pattern, *(["--sample"] if sample else [])]
        commit = by_code_of(base, [__file__, "record", str(out), *options])
        runs = json.loads(out.read_text())
    entries, about = read(file), facts()
    entry = entries.setdefault(key(about), {"facts": about, "traces": {}})
    others = {name: trace for name, trace in entry["traces"].items() if name in traces()}
    entry["traces"] = others | {name: {"commit": commit, **trace} for name, trace in runs.items()}
    write(entries, file)
    print(f"{len(runs)} runs of commit {commit} in {file}, under {key(about)}")
    if failed := selection(pattern, sample).keys() - runs.keys():
        sys.exit(f"error: {len(failed)} runs failed: {'; '.join(sorted(failed))}")


def by_code_of(base: str, line: list[str]) -> str:
    """Run a Python command line with the package as it is in a commit; return the commit's id."""
    commit = _git("rev-parse", "--short=12", f"{base}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "src"))) as archive:
            archive.extractall(place, filter="data")
        process = subprocess.run([sys.executable, *line], env=os.environ | {"PYTHONPATH": f"{place}/src"})
    if process.returncode:
        sys.exit(f"error: the runs by the code of {commit} failed (above)")
    return commit


def _git(*arguments: str) -> bytes:
    process = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    if process.returncode:
        sys.exit(f"error: git {' '.join(arguments)}: {process.stderr.decode().strip()}")
    return process.stdout


def record_all(out: Path, runs: Mapping[str, Trace]) -> None:
    """Write the digests of all runs; those of a run that failed are missing."""
    digests_of = {}
    for name, trace in runs.items():
        began = time.monotonic()
        try:
            digests_of[name], outcome = record(trace), ""
        except Exception as problem:
            outcome = f": {type(problem).__name__}: {problem}"
        print(f"{time.monotonic() - began:6.2f} s  {name}{outcome}", flush=True)
    out.write_text(json.dumps(digests_of))


def check(runs: Mapping[str, Trace], file: Path) -> int:
    """Compare runs by the present code with the file; return the exit code: 1 where one differs."""
    stored, reason = entry_here(read(file), facts())
    if reason:
        print(f"skipped: {reason}")
        return 0
    failures = 0
    for name, trace in runs.items():
        began = time.monotonic()
        message = difference(stored[name], record(trace)) if name in stored else "has no stored digests: make them"
        print(f"{time.monotonic() - began:6.2f} s  {name}: {message or 'equal'}", flush=True)
        failures += bool(message)
    print(f"{len(runs) - failures} of {len(runs)} runs equal, by the code in {_package()}")
    return int(failures > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("make", "store digests"), ("check", "compare with them"), ("record", "for `make`")):
        options = commands.add_parser(name, description=text)
        options.add_argument("--only", default="*", metavar="PATTERN", help="runs whose name matches, as in a shell")
        options.add_argument("--sample", action="store_true", help="the sample of `make test` alone")
        if name == "record":
            options.add_argument("out", type=Path)
        else:
            options.add_argument("--file", type=Path, default=FILE)
        if name == "make":
            options.add_argument("--base", default="HEAD", metavar="COMMIT", help="whose code runs (HEAD)")
    kill = commands.add_parser("kill")
    kill.add_argument("root", type=Path)
    kill.add_argument("row", type=int)
    kill.add_argument("spec", nargs="?", default="")
    kill.add_argument("settings", nargs="*")
    arguments = parser.parse_args()
    if arguments.command == "kill":
        _kill(arguments.root, arguments.row, arguments.spec, arguments.settings)
    elif arguments.command == "make":
        make(arguments.base, arguments.only, arguments.sample, arguments.file)
    elif arguments.command == "record":
        record_all(arguments.out, selection(arguments.only, arguments.sample))
    else:
        sys.exit(check(selection(arguments.only, arguments.sample), arguments.file))


if __name__ == "__main__":
    main()
