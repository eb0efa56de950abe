"""Replace every name of a run, a sweep, a dataset and a published run by something hostile, and run every command.

    python benchmarks/hostile_folders.py                        # all combinations, 8 at a time
    python benchmarks/hostile_folders.py --sample               # what `make test` does
    python benchmarks/hostile_folders.py --only 'resume|list' --names 'config.yaml' --kinds 'link'
    python benchmarks/hostile_folders.py --show 'resume | config.yaml | bomb'

Prints the number of combinations and a table of failures. The exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
MEMORY_DISK = Path("/dev/shm")
# Share of each command's combinations in the sample: about 40 seconds on two idle cores.
SHARES = {
    "run: list": 0.5, "run: show": 0.25, "run: resume": 0.12, "run: train FILE": 0.4, "run: train FILE key=value": 0.2,
    "run: cleanup --keep-best 0": 0.02,
}  # fmt: skip
SHARE = 0.004
ONCE_FAILED = (  # always in the sample
    "run: publish | manifest.json | markup",
    "run: export dataset | checkpoints/step-000000000256-000000000056/state.json | infinities",
    "run: export dataset | checkpoints/step-000000000256-000000000056/state.json | half characters",
    "run: resume | episodes | hard link",
    "run: resume | episodes/SHA256SUMS | hard link to its twin",
    "published: resume PATH | checkpoints | odd names",
    "sweep: sweep sweep.yaml | sweep.yaml | link to its twin",
    "sweep: train best.yaml | best.yaml | link to a file",
)
LINKED = (
    "resume", "list", "show", "evaluate", "report", "compare", "verify", "export dataset", "cleanup --keep-best 0",
    "train --init-from",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="the part that `make test` runs")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the sample's shares")
    parser.add_argument("--links", action="store_true", help="permitted links instead")
    parser.add_argument("--roles", action="store_true", help="of names that differ only in a number, the newest")
    parser.add_argument("--minutes", type=float, help="stop after this time, with the combinations in random order")
    parser.add_argument("--jobs", type=int, default=8, help="trials at a time")
    parser.add_argument("--only", default="", help="commands that match this expression (`run: resume`)")
    parser.add_argument("--names", default="", help="names that match")
    parser.add_argument("--kinds", default="", help="kinds that match")
    parser.add_argument("--show", default="", help="the one combination of this title, with its output")
    parser.add_argument("--json", type=Path, help="write all failures here")
    parser.add_argument("--examples", type=int, default=4, help="of each kind of failure")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="cadenza-hostile-", dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None))
    surroundings(place)
    try:
        return attack(options, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def surroundings(place: Path) -> None:
    """Set the variables that must be set before anything is imported."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": str(place / "matplotlib"),
        "XDG_STATE_HOME": str(place / "state"),
        "SDL_VIDEODRIVER": "dummy",
        "SDL_AUDIODRIVER": "dummy",
    }
    sys.dont_write_bytecode = True
    for name in ("CADENZA_RUNS", "CADENZA_INDEX", "CADENZA_TRACEBACK"):
        os.environ.pop(name, None)


def attack(options: argparse.Namespace, place: Path) -> int:
    from harness.hostile_scenes import build, scenes
    from harness.hostile_trials import (
        Harness,
        Report,
        Result,
        Trial,
        combinations,
        import_everything,
        in_child,
        permitted,
        sample,
    )

    import_everything()
    began = time.monotonic()
    in_child(lambda: build(place / "pristine"))
    pristine = scenes(place / "pristine")
    harness = Harness(place / "slots", options.jobs)

    def is_selected(trial: Trial) -> bool:
        pairs = ((options.only, full_name(trial)), (options.names, trial.name))
        if options.show and options.show not in trial.title:
            return False
        return all(re.search(text, value) for text, value in (*pairs, (options.kinds, trial.kind)))

    trials: Iterable[Trial] = filter(
        is_selected, permitted(pristine, LINKED) if options.links else combinations(pristine)
    )
    if options.sample:
        trials = drawn(list(trials), options.scale)
    elif options.roles:
        trials = sample(trials, lambda trial: 1.0)
    trials = list(trials)
    print(f"{len(trials)} combinations", flush=True)
    used = {
        (trial.scene.name, trial.command.name) for trial in trials if not options.sample or full_name(trial) in SHARES
    }
    broken = harness.baseline(pristine, used)
    print(f"pristine folders and {len(harness.baseline_codes)} commands on them: {time.monotonic() - began:.1f} s")
    for result in broken:
        print(f"  not attacked at all, yet: code {result.code}, {result.error}, {result.violations}")
    for key, habits in harness.excused.items():
        if habits:
            print(f"  habits of {key}: {sorted(habits)}")

    if options.minutes is not None:
        trials = until(time.monotonic() + 60 * options.minutes, sorted(trials, key=lambda trial: trial.lot))
    seconds: Counter[str] = Counter()
    numbers: Counter[str] = Counter()

    def note(result: Result) -> None:
        assert result.trial is not None
        seconds[result.trial.command.name] += result.seconds
        numbers[result.trial.command.name] += 1
        if options.show:
            print(result.trial.title, result.code, f"{result.seconds:.2f} s", result.error, result.violations)

    report = harness.run(trials, Report(broken=broken), note)
    rate = report.tried / report.seconds if report.seconds else 0
    print(
        f"{report.tried} combinations tried in {report.seconds:.0f} s ({rate:.0f} a second),"
        f" {len(report.failures)} failed"
    )
    print(
        "slowest commands:",
        ", ".join(f"{name} {seconds[name] / numbers[name]:.2f} s" for name, _ in seconds.most_common(8)),
    )
    tables(report.failures, options.examples)
    if options.json:
        options.json.write_text(json.dumps(report.plain(), indent=1))
    return 1 if report.failures or broken else 0


def drawn(trials: list[Any], scale: float) -> list[Any]:
    """Return the sample that `make test` runs: those that once failed, and a share of each command's."""
    from harness.hostile_trials import sample

    chance = sample(trials, lambda trial: scale * SHARES.get(full_name(trial), SHARE))
    once_failed = {trial.title: trial for trial in trials if trial.title in ONCE_FAILED}
    return list((once_failed | {trial.title: trial for trial in chance}).values())


def full_name(trial: Any) -> str:
    return f"{trial.scene.name}: {trial.command.name}"


def until(end: float, trials: Iterable[Any]) -> Iterable[Any]:
    for trial in trials:
        if time.monotonic() > end:
            return
        yield trial


def tables(failures: list[Any], examples: int) -> None:
    from harness.hostile_trials import unique

    by_rule: dict[str, list[Any]] = {}
    for result in failures:
        for one in unique(result):
            by_rule.setdefault(one.rule, []).append((result, one))
    width = max([len(rule) for rule in by_rule], default=0)
    print("\nfailures by rule")
    for rule, results in sorted(by_rule.items(), key=lambda pair: -len(pair[1])):
        kinds = Counter(result.trial.kind for result, _ in results)
        print(f"  {rule:<{width}} {len(results):>5}   " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common(7)))
    print("\nfailures by command")
    for command, count in Counter(
        f"{one.trial.scene.name}: {one.trial.command.name}" for one in failures
    ).most_common():
        print(f"  {command:<32} {count:>5}")
    print("\nfailures by kind of replacement")
    for kind, count in Counter(one.trial.kind for one in failures).most_common():
        print(f"  {kind:<32} {count:>5}")
    print("\nexamples")
    for rule, results in sorted(by_rule.items(), key=lambda pair: -len(pair[1])):
        print(f"  {rule}")
        spread = {(result.trial.command.name, result.trial.kind): (result, one) for result, one in reversed(results)}
        for result, one in list(spread.values())[-examples:]:
            print(
                f"    {result.trial.title}: {one.detail[:240]}" + (f"  [{result.error[:160]}]" if result.error else "")
            )


if __name__ == "__main__":
    sys.exit(main())
