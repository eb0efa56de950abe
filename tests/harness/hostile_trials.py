"""Trials of commands on hostile folders: each in a forked child under an audit hook, with a time limit.

The parent imports what is heavy once and trains nothing; a trial copies a scene, replaces one name in it, calls
`cadenza.cli.main.run` in a child and looks at what the child did, printed and left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import stat
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from harness.hostile_kinds import FORGED, KINDS, MODULE, PERMITTED, PLANTED, SECRET, NotApplicableError, Spot
from harness.hostile_scenes import HEALTHY, VICTIM, Command, Scene, hold, places, role, use_in_process_engine

LIMIT = 8.0  # seconds of work until a child is killed: on a machine that is not busy, seconds
SLOW = 5.0  # seconds of work within which it must answer
IDLE = 2.0  # seconds asleep without any work, after which a child is taken to wait for ever
LONGEST = 120.0  # seconds until it is killed, however busy the machine is
MEMORY = 2 << 30  # bytes that a trial may ask for beside what the parent has
REFUSED = (2, 69, 73, 74, 78)
INTERNAL = 70
DISK = 74  # found while writing: what was written before stays
MACHINE = ("subprocess.Popen git, ['git', ", "subprocess.Popen uname, ['uname', ")  # which a new run's manifest asks
SINKS = ("tensorboard", "wandb")  # written, never read or deleted: they may be links

TICKS = os.sysconf("SC_CLK_TCK")
LINKS = {
    "link to a file",
    "link to its twin",
    "link to a folder",
    "link to .bashrc",
    "link to nothing",
    "link to itself",
}
IN_OPEN, IN_MODIFY, IN_ISDIR = 0x20, 0x2, 0x40000000


@dataclass(frozen=True)
class Trial:
    """One kind of replacement of one name under one command."""

    scene: Scene
    command: Command
    name: str
    kind: str

    @property
    def is_named_link(self) -> bool:
        """Whether the folder that the user named is the link: what it leads to is what was named."""
        return self.name == "." and self.kind in LINKS

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for trials that differ only in a number in the name."""
        return (self.scene.name, self.command.name, role(self.name), self.kind)

    @property
    def lot(self) -> float:
        """A number in [0, 1) by which samples are drawn, always the same."""
        return int.from_bytes(hashlib.sha256("|".join(self.key).encode()).digest()[:4]) / 2**32

    @property
    def title(self) -> str:
        return f"{self.scene.name}: {self.command.name} | {self.name} | {self.kind}"


@dataclass(frozen=True)
class Violation:
    rule: str
    detail: str


@dataclass
class Result:
    trial: Trial | None
    code: int | None  # None: killed
    seconds: float
    work: float  # seconds of processor time
    violations: list[Violation]
    error: str = ""


@dataclass
class Report:
    """Of all trials: how many, and what went wrong."""

    tried: int = 0
    skipped: int = 0
    broken: list[Result] = field(default_factory=list)  # on untouched folders
    seconds: float = 0.0
    failures: list[Result] = field(default_factory=list)
    excused: dict[str, list[str]] = field(default_factory=dict)

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter(
            (one.rule, result.trial.kind) for result in self.failures for one in unique(result) if result.trial
        )

    def plain(self) -> dict[str, Any]:
        failures = [
            {"trial": result.trial.title, "code": result.code, "error": result.error,
             "violations": [[one.rule, one.detail] for one in result.violations]}
            for result in self.failures
            if result.trial
        ]  # fmt: skip
        broken = [f"{one.error}: {one.violations}" for one in self.broken]
        return {
            "broken": broken,
            "tried": self.tried,
            "skipped": self.skipped,
            "seconds": self.seconds,
            "failures": failures,
        }


def unique(result: Result) -> list[Violation]:
    return list({one.rule: one for one in result.violations}.values())


# what is tried


def combinations(scenes: Iterable[Scene]) -> Iterator[Trial]:
    """Every command with every name that it reads and every kind of replacement."""
    for scene in scenes:
        for command in scene.commands:
            for name in reversed(scene.names()):  # of checkpoints the newest first
                if command.reads_name(name.removeprefix("../")):
                    yield from (Trial(scene, command, name, kind) for kind in KINDS if applies(scene, name, kind))
            for name in scene.planted:
                if command.reads_name(name.removeprefix("../")):
                    yield from (Trial(scene, command, name, kind) for kind in PLANTED)


def permitted(scenes: Iterable[Scene], commands: Iterable[str]) -> Iterator[Trial]:
    """Commands on a run whose sinks, or whose runs folder, are links: these must go on working."""
    for scene in scenes:
        for command in scene.commands if scene.name == "run" else ():
            if command.name in commands:
                yield from (Trial(scene, command, ".", kind) for kind in PERMITTED)


def applies(scene: Scene, name: str, kind: str) -> bool:
    """Whether a kind says something about a name: sinks and the runs folder's parts may be links to folders."""
    if name.split("/")[0] in SINKS and kind in LINKS:
        return False
    if name == "." and kind in ("link to its twin", "hard link to its twin"):
        return False  # a run, sweep or dataset that is a link is what its user named
    path = scene.template / scene.attacked / name
    if path.is_dir():
        return kind in (*PLANTED, "link to its twin", "odd names")
    return kind != "odd names"


def sample(trials: Iterable[Trial], share: Callable[[Trial], float]) -> Iterator[Trial]:
    """One name of each role, and of these a share, always the same."""
    combinations_so_far: set[tuple[str, ...]] = set()
    for trial in trials:
        if trial.key not in combinations_so_far:
            combinations_so_far.add(trial.key)
            if trial.lot < share(trial):
                yield trial


# the folders of one trial


@dataclass
class Slot:
    """Where one trial at a time has its copies and its canaries."""

    place: Path
    watcher: Watcher = field(init=False)
    canaries: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.place.mkdir(parents=True)
        for name in ("state", "tmp", "here"):
            (self.place / name).mkdir()
        self.watcher = Watcher()
        self.lay_out()

    @property
    def outside(self) -> Path:
        return self.place / "outside"

    @property
    def copy(self) -> Path:
        return self.place / "copy"

    def lay_out(self) -> None:
        """Make the folder outside anew."""
        shutil.rmtree(self.outside, ignore_errors=True)
        files = {
            "secret.txt": f"{SECRET}\n",
            "home/.bashrc": f"# {SECRET}\nalias ls=ls\n",
            "weights/foreign.safetensors": SECRET,
            "weights/000000000001.safetensors": SECRET,
            "weights/state.json": f'{{"secret": "{SECRET}"}}',
            "weights/config.yaml": f"secret: {SECRET}\n",
            "weights/replay-x.gif": f"GIF89a{SECRET}",
            "weights/.tmp-status.json-1-1": SECRET,
            "weights/step-000000000001-000000000001/MANIFEST.json": f'{{"secret": "{SECRET}"}}',
            "weights/step-000000000001-000000000001/weights.safetensors": SECRET,
        }
        for name, text in files.items():
            path = self.outside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.outside / "twin").mkdir()
        (self.place / "here" / f"{MODULE}.py").write_text("raise SystemExit('imported from the current folder')\n")
        self.canaries = snapshot(self.outside)

    def prepare(self, scene: Scene) -> Path:
        """A fresh copy of a scene; the folder in it that is to be attacked."""
        for name in ("copy", "tmp"):
            remove(self.place / name)
        remove(self.place / "state")
        for name in ("tmp", "state"):
            (self.place / name).mkdir()
        twin = self.outside / "twin"
        if any(twin.iterdir()):
            remove(twin)
            twin.mkdir()
        shutil.copytree(scene.template, self.copy, symlinks=True)
        return self.copy / scene.attacked


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def snapshot(folder: Path) -> dict[str, Any]:
    """Every name below a folder with its kind and, of files of ordinary size, the content's hash."""
    result: dict[str, Any] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            facts = os.lstat(path)
            result[os.path.relpath(path, folder)] = (stat.S_IFMT(facts.st_mode), facts.st_mode, content_of(path, facts))
    facts = os.lstat(folder)
    result["."] = (stat.S_IFMT(facts.st_mode), facts.st_mode, content_of(str(folder), facts))
    return result


def content_of(path: str, facts: os.stat_result) -> Any:
    if stat.S_ISLNK(facts.st_mode):
        return os.readlink(path)
    if not stat.S_ISREG(facts.st_mode):
        return None
    if facts.st_size > 1 << 28:
        return facts.st_size
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def difference(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted(
        f"{'new' if name not in before else 'lost' if name not in after else 'changed'}: {name!r}"
        for name in {*before, *after}
        if before.get(name) != after.get(name)
    )


class Watcher:
    """Tells which files of a folder were opened, through whatever name a process reached them (inotify)."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.file = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.names: dict[int, str] = {}

    def watch(self, folder: Path) -> None:
        """Watch a folder and those below it; forget what happened so far."""
        for number in self.names:
            self.libc.inotify_rm_watch(self.file, number)
        self.names = {}
        for place, _, _ in os.walk(folder):
            number = self.libc.inotify_add_watch(self.file, os.fsencode(place), IN_OPEN | IN_MODIFY)
            self.names[number] = os.path.relpath(place, folder)
        self.events()

    def events(self) -> list[str]:
        events: list[Any] = []
        while True:
            try:
                data = os.read(self.file, 1 << 16)
            except BlockingIOError:
                return sorted(set(events))
            while data:
                number, mask, _, length = struct.unpack("iIII", data[:16])
                name = data[16 : 16 + length].rstrip(b"\0").decode(errors="replace")
                data = data[16 + length :]
                if mask & (IN_OPEN | IN_MODIFY) and number in self.names:
                    verb = "opened folder" if mask & IN_ISDIR else "opened"
                    events.append(f"{verb} {os.path.normpath(os.path.join(self.names[number], name))}")


# the child


class Auditor:
    """Notes, as JSON lines in a file, what a process does that no command on a hostile folder may do."""

    PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
    CHANGES: ClassVar[dict[str, tuple[tuple[int, int | None, bool], ...]]] = {
        # event: places of the path and of its directory's descriptor; whether a link at its end is followed
        "os.truncate": ((0, None, True),),
        "os.rename": ((0, 2, False), (1, 3, False)),
        "os.remove": ((0, 1, False),),
        "os.rmdir": ((0, 1, False),),
        "os.mkdir": ((0, 2, False),),
        "os.link": ((0, 2, False), (1, 3, False)),
        "os.symlink": ((1, 2, False),),
        "os.chmod": ((0, 2, True),),
        "os.chown": ((0, 3, True),),
        "os.utime": ((0, 3, True),),
        "shutil.rmtree": ((0, 1, False),),
        "shutil.move": ((0, None, False), (1, None, False)),
    }
    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    ALWAYS = ("/dev/null", "/dev/tty", "/proc/self/", "/dev/shm/sem.")

    def __init__(self, log: int, allowed: Iterable[Path], hostile: Path, sockets: bool) -> None:
        self.log = log
        self.named = {str(path) for path in allowed}
        self.allowed = tuple(f"{os.path.realpath(path)}/" for path in self.named)
        self.hostile = f"{os.path.realpath(hostile)}/"
        self.sockets = sockets
        self.busy = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.busy:
            return
        self.busy = True
        try:
            self.look(event, arguments)
        except Exception as problem:  # an auditor that fails is no answer of the command's
            self.note("audit", f"{event} {arguments!r}: {problem!r}")
        finally:
            self.busy = False

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if (isinstance(flags, int) and flags & self.WRITING) or (isinstance(mode, str) and set(mode) & set("wax+")):
                flags = flags if isinstance(flags, int) else 0
                if not isinstance(path, int):
                    self.check("write", path, None, not flags & (os.O_NOFOLLOW | os.O_EXCL), relative=True)
        elif event in self.CHANGES:
            for place, descriptor, follows in self.CHANGES[event]:
                folder = arguments[descriptor] if descriptor is not None and descriptor < len(arguments) else None
                self.check(event, arguments[place], folder, follows)
        elif event in self.PROCESSES:
            self.note("process", f"{event} {brief(arguments)}")
        elif event in ("socket.connect", "socket.bind", "socket.sendto") and not self.sockets:
            self.note("socket", f"{event} {brief(arguments[1:])}")
        elif event == "sqlite3.connect":
            self.check(event, arguments[0], None, True)
        elif event == "import" and str(arguments[0]).startswith(MODULE):
            self.note("import", str(arguments[0]))
        elif event == "ctypes.dlopen" and str(arguments[0]).startswith(self.hostile):
            self.note("import", f"library {arguments[0]}")
        elif event == "pickle.find_class":
            self.note("pickle", brief(arguments))

    def check(self, what: str, path: Any, descriptor: Any, follows: bool, relative: bool = False) -> None:
        """Note a change outside. A relative name in `open` may be meant below a descriptor, which no event tells."""
        if isinstance(path, int):
            return
        text = os.fsdecode(path)
        if text in ("", ":memory:") or text in self.named:
            return
        if not os.path.isabs(text):
            if isinstance(descriptor, int) and descriptor >= 0:
                text = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), text)
            elif relative:
                return  # the current folder is a canary of its own
        parent, name = os.path.split(text)
        real = os.path.realpath(text) if follows else os.path.join(os.path.realpath(parent), name)
        if not f"{real}/".startswith((*self.allowed, *self.ALWAYS)):
            self.note("change outside", f"{what} {text} -> {real}" if real != text else f"{what} {text}")

    def note(self, rule: str, detail: str) -> None:
        os.write(self.log, (json.dumps([rule, detail[:300]]) + "\n").encode())


def brief(arguments: Any) -> str:
    return ", ".join(str(one)[:160] for one in arguments if one is not None)[:240]


def child(slot: Slot, scene: Scene, command: Command, files: tuple[int, int, int], listing: bool) -> None:
    """Be the command; never return. With `listing`, write the names of all modules that are imported at its end."""
    code = 71
    try:
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *files[:2])):
            os.dup2(file, number)
        os.chdir(slot.place / "here")
        for name, where in (("XDG_STATE_HOME", "state"), ("XDG_CACHE_HOME", "state"), ("XDG_CONFIG_HOME", "state")):
            os.environ[name] = str(slot.place / where)
        os.environ["TMPDIR"], os.environ["HOME"] = str(slot.place / "tmp"), str(slot.outside / "home")
        import tempfile

        tempfile.tempdir = None
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        from cadenza.cli import main

        main.mend_streams()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        ceiling = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
        use_in_process_engine()
        loaded = len(sys.modules)
        modules = os.open(slot.place / "modules", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if listing else None
        paths = places(scene, slot.copy, slot.place / "tmp")
        allowed = [slot.copy / "runs", slot.place / "tmp", slot.place / "state", Path(os.environ["MPLCONFIGDIR"])]
        if scene.name == "published":
            allowed.append(slot.copy / scene.attacked)
        if command.name == "export dataset over it":
            allowed.append(slot.copy)
        sys.addaudithook(Auditor(files[2], allowed, slot.copy, command.name == "inspect"))
        code = look_around(slot.copy / "runs") if command.name == "inspect" else main.run(command.line(paths))
        note_imports(files[2], slot.copy, loaded)
        if modules is not None:
            os.write(modules, "\n".join(sys.modules).encode())
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def note_imports(log: int, hostile: Path, loaded: int) -> None:
    """Note modules from the hostile folders among those imported since there were `known`."""
    for name, module in list(sys.modules.items())[loaded:] if len(sys.modules) > loaded else ():
        if str(getattr(module, "__file__", "") or "").startswith(f"{hostile}/"):
            os.write(log, (json.dumps(["import", name]) + "\n").encode())


def look_around(root: Path) -> int:
    """Ask the inspector's server what the page asks it; print its answers. 70 where one is an internal error."""
    from harness.inspecting import inspecting

    run, code = VICTIM, 0
    with inspecting(root) as client:

        def ask(target: str) -> bytes:
            nonlocal code
            began = time.monotonic()
            status, _, content = client.send(target)
            if time.monotonic() - began > SLOW:
                print(f"slow: {target}", file=sys.stderr)
            if b"this cannot be shown" in content:
                code = INTERNAL
                print(f"internal error: {target}: {content[:300]!r}", file=sys.stderr)
            if SECRET.encode() in content:
                print(SECRET)
            return content if status == 200 else b""

        ask("/api/runs")
        listed = ask("/api/runs")
        if HEALTHY.encode() not in listed:
            print("the healthy run is not listed")
        ask(f"/api/sparks?run={run}&run={HEALTHY}")
        detail = ask(f"/api/run?run={run}")
        ask(f"/api/stand?run={run}&metric=rollout/return_mean")
        ask(f"/api/curves?run={run}&metric=rollout/return_mean&metric=eval/return_mean")
        ask(f"/api/episodes?run={run}")
        ask(f"/api/compare?run={run}&run={HEALTHY}")
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            from urllib.parse import quote

            for name in json.loads(detail)["media"][:8]:
                ask(f"/api/media?run={run}&name={quote(name if isinstance(name, str) else name['name'])}")
        for name in ("curves.png", "../secret.txt", "config.yaml", "videos/replay.gif"):
            ask(f"/api/media?run={run}&name={name}")
    return code


# the parent


@dataclass
class Running:
    trial: Trial | None
    command: Command
    scene: Scene
    slot: Slot
    pid: int
    log: Path
    out: Path
    err: Path
    began: float
    before: dict[str, Any]
    here: dict[str, Any]
    holding: Iterator[None] | None
    spent: float = -1.0  # seconds of work when last looked
    since: float = 0.0  # when it last worked
    look_again: float = 0.0


class Harness:
    """Runs trials, so many at a time; those that hang wait beside those that work."""

    def __init__(self, place: Path, jobs: int = 1) -> None:
        self.place = place
        self.jobs = jobs
        self.slots = [Slot(place / f"slot{number}") for number in range(jobs)]
        self.excused: dict[str, set[str]] = {}
        self.baseline_codes: dict[str, int | None] = {}
        self.modules: set[str] = set()  # that commands import

    def baseline(self, scenes: Iterable[Scene], used: set[tuple[str, str]]) -> list[Result]:
        """Run the used commands, by scene and name, on an untouched copy; return those that break a rule even there.

        Processes that a command starts there (git, say) are its habit and no violation later.
        """
        broken = []
        for scene in scenes:
            for command in scene.commands:
                if (scene.name, command.name) not in used:
                    continue
                running = self.begin(self.slots[0], scene, command, None)
                assert running is not None
                self.wait(running)
                result = self.end(running)
                key = f"{scene.name}: {command.name}"
                self.excused[key] = {
                    habit(one) for one in result.violations if one.rule in ("process", "socket", "pickle")
                }
                result.violations = [
                    one for one in result.violations if one.rule not in ("process", "socket", "pickle")
                ]
                result.error = f"{key}: {result.error}"
                self.baseline_codes[key] = result.code
                if result.violations or result.code != command.code:
                    broken.append(result)
                self.modules |= set((self.slots[0].place / "modules").read_text().split("\n"))
        preload(self.modules - set(sys.modules))
        return broken

    def run(
        self, trials: Iterable[Trial], report: Report, note: Callable[[Result], None] = lambda result: None
    ) -> Report:
        began = time.monotonic()
        free, waiting = list(self.slots), iter(trials)
        busy: list[Any] = []
        exhausted = False
        while busy or not exhausted:
            while free and not exhausted:
                trial = next(waiting, None)
                if trial is None:
                    exhausted = True
                    break
                running = self.begin(free[-1], trial.scene, trial.command, trial)
                if running is None:
                    report.skipped += 1
                else:
                    free.pop()
                    busy.append(running)
            for running in list(busy):
                if self.is_over(running):
                    busy.remove(running)
                    result = self.end(running)
                    free.append(running.slot)
                    report.tried += 1
                    if result.violations:
                        report.failures.append(result)
                    note(result)
            if not free or exhausted:
                time.sleep(0.001)
        report.seconds += time.monotonic() - began
        return report

    def begin(self, slot: Slot, scene: Scene, command: Command, trial: Trial | None) -> Running | None:
        attacked = slot.prepare(scene)
        if command.running:
            mark_running(attacked)
        if trial is not None:
            try:
                (KINDS | PERMITTED)[trial.kind](Spot(attacked / trial.name, trial.name, slot.outside, attacked))
            except (NotApplicableError, ValueError, KeyError, TypeError):
                return None
        before = snapshot(attacked) if os.path.lexists(attacked) else {}
        here = snapshot(slot.place / "here")
        holding = hold(attacked / "lock") if command.running else None
        if holding is not None:
            next(holding)
        slot.canaries = snapshot(slot.outside)
        slot.watcher.watch(slot.outside)
        log, out, err = (slot.place / name for name in ("log", "out", "err"))
        files = tuple(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) for path in (out, err, log))
        pid = os.fork()
        if pid == 0:
            os.setsid()
            child(slot, scene, command, (files[0], files[1], files[2]), trial is None)
        for file in files:
            os.close(file)
        now = time.monotonic()
        return Running(trial, command, scene, slot, pid, log, out, err, now, before, here, holding, since=now)

    def wait(self, running: Running) -> None:
        while not self.is_over(running):
            time.sleep(0.001)

    def is_over(self, running: Running) -> bool:
        """Whether the child has ended; one past its time is killed first."""
        if os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        now = time.monotonic()
        if now < running.look_again:
            return False
        running.look_again = now + 0.05
        spent, sleeping = work_of(running.pid)
        if spent != running.spent or not sleeping:
            running.spent, running.since = spent, now
        if spent > LIMIT or now - running.since > IDLE or now - running.began > LONGEST:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
            return True
        return False

    def end(self, running: Running) -> Result:
        seconds = time.monotonic() - running.began
        _, status, usage = os.wait4(running.pid, 0)
        work = usage.ru_utime + usage.ru_stime
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)  # what it may have left behind
        if running.holding is not None:
            next(running.holding, None)
        code = os.waitstatus_to_exitcode(status)
        out, err = running.out.read_bytes(), running.err.read_bytes()
        violations = list(self.judge(running, code, work, out, err))
        if running.trial is not None and running.trial.kind in PERMITTED:
            violations += judge_permitted(running, code)
        if running.trial is not None and running.trial.is_named_link:
            violations = [one for one in violations if "outside" not in one.rule and one.rule != "leak"]
        if running.trial is not None and running.trial.kind.startswith("hard link"):
            violations = [one for one in violations if one.rule != "leak"]  # it is one of the folder's own files
        lines = err.decode(errors="replace").strip().splitlines()
        return Result(running.trial, code, seconds, work, violations, lines[-1][:400] if lines else "")

    def judge(self, running: Running, code: int, work: float, out: bytes, err: bytes) -> Iterator[Violation]:
        """Everything in which the child broke a rule."""
        yield from self.judge_end(code, work)
        yield from judge_output(running.command, out, err)
        key = f"{running.scene.name}: {running.command.name}"
        for line in running.log.read_text().splitlines():
            rule, detail = json.loads(line)
            one = Violation(rule, detail)
            if habit(one) not in self.excused.get(key, set()) and not one.detail.startswith(MACHINE):
                yield one
        yield from self.judge_disk(running, code)
        if running.command.name.startswith("list"):
            yield from judge_list(running, code, out)

    def judge_end(self, code: int, work: float) -> Iterator[Violation]:
        if code == -signal.SIGKILL:
            yield Violation("hang" if work < LIMIT else "too long", f"killed after {work:.1f} s of work")
        elif code < 0:
            yield Violation("crash", signal.Signals(-code).name)
        elif work > SLOW:
            yield Violation("slow", f"{work:.1f} s of work")
        if code == INTERNAL:
            yield Violation("exit code 70", "")

    def judge_disk(self, running: Running, code: int) -> Iterator[Violation]:
        slot, attacked = running.slot, running.slot.copy / running.scene.attacked
        opened = [event for event in slot.watcher.events() if event != "opened folder ."]
        allowed = running.trial is not None and running.trial.kind.startswith("hard link")
        if opened and not allowed:
            yield Violation("read outside", ", ".join(opened[:4]))
        changed = difference(slot.canaries, snapshot(slot.outside))
        if changed:
            yield Violation("outside changed", ", ".join(changed[:4]))
            slot.lay_out()
        strays = difference(running.here, snapshot(slot.place / "here"))
        if strays:
            yield Violation("outside changed", f"current folder: {', '.join(strays[:3])}")
            for path in (slot.place / "here").iterdir():
                if path.name != f"{MODULE}.py":
                    remove(path)
        if code in REFUSED and not (code == DISK and running.trial and running.trial.kind == "other type"):
            after = snapshot(attacked) if os.path.lexists(attacked) else {}
            touched = [one for one in difference(running.before, after) if not one.endswith(": 'lock'")]
            if touched:
                yield Violation("changed though refused", ", ".join(touched[:4]))
        elif code in (0, 1):
            yield from judge_pages(running)


def judge_permitted(running: Running, code: int) -> Iterator[Violation]:
    """The command did what it always does, and nothing in a sink is lost."""
    if code != running.command.code:
        yield Violation("refused what is permitted", f"exit code {code}")
    sinks = running.slot.place / "tmp" / "sinks"
    for folder in sinks.iterdir() if sinks.is_dir() else ():
        if not (folder / "kept.txt").is_file():
            yield Violation("outside changed", f"kept.txt in {folder.name} is lost")


def judge_output(command: Command, out: bytes, err: bytes) -> Iterator[Violation]:
    for name, content in (("stdout", out), ("stderr", err)):
        if SECRET.encode() in content:
            yield Violation("leak", f"{name}: {line_with(content, SECRET.encode())}")
        text = content.decode(errors="replace")
        odd = sorted({character for character in text if is_control(character)})
        if odd:
            yield Violation("control characters", f"{name}: {odd}")
        if b"Traceback (most recent call last)" in content:
            yield Violation("traceback", f"{name}: {text.strip().splitlines()[-1][:200]}")
        if f"\n{FORGED}" in f"\n{text}" and not command.many_bytes:
            yield Violation("forged line", name)
        if "out of memory" in text:
            yield Violation("memory", text.strip().splitlines()[-1][:200])
    errors = [
        line for line in err.decode(errors="replace").splitlines() if line.startswith(("error:", "internal error:"))
    ]
    if len(errors) > 1 and command.name != "inspect" and any(FORGED not in line for line in errors[1:]):
        yield Violation("several errors", f"{len(errors)} lines")


def is_control(character: str) -> bool:
    return (character < " " and character not in "\n\t") or "\x7f" <= character <= "\x9f"


def line_with(content: bytes, word: bytes) -> str:
    return next(line for line in content.splitlines() if word in line).decode(errors="replace")[:200]


def judge_list(running: Running, code: int, out: bytes) -> Iterator[Violation]:
    """`list` always answers, with the healthy run, and with the attacked one where it is a folder."""
    if code != 0:
        yield Violation("list failed", f"exit code {code}")
        return
    if HEALTHY.encode() not in out:
        yield Violation("list lost the healthy run", "")
    replaced = running.trial is not None and running.trial.name == "." and running.trial.kind != "odd names"
    if running.scene.name == "run" and VICTIM.encode() not in out and not replaced:
        yield Violation("list lost the run", "")


def judge_pages(running: Running) -> Iterator[Violation]:
    """Pages that were written hold no secret and no markup of a value's."""
    folders = [running.slot.place / "tmp", running.slot.copy / running.scene.attacked]
    for folder in folders:
        for pattern in ("*.html", "*.md"):
            for path in folder.rglob(pattern) if folder.is_dir() and not folder.is_symlink() else ():
                if path.is_symlink() or not path.is_file():
                    continue
                name = path.relative_to(folder).as_posix()
                if running.trial is not None and name == running.trial.name:
                    continue  # the attacked file itself
                text = path.read_text(errors="replace")
                if SECRET in text:
                    yield Violation("leak", name)
                if "<img src=x onerror" in text or "<script>alert('hostile" in text:
                    yield Violation("markup", f"{name}: HTML")
                prose = re.sub(r"(?ms)^```.*?^```$|`[^`\n]+`", "", text)
                link = re.search(r"(?<!\\)\]\(javascript:alert", prose)
                if path.suffix == ".md" and ("\n# hostile heading" in prose or link):
                    yield Violation("markup", f"{name}: Markdown")


def habit(one: Violation) -> str:
    """What kind of process or connection it is, whatever its numbers."""
    return f"{one.rule} {re.sub(r'[0-9]+', 'N', one.detail)[:60]}"


def work_of(pid: int) -> tuple[float, bool]:
    """Seconds of processor time of a process so far, and whether all of it is asleep."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS, fields[0] in "SDT"
    except (OSError, ValueError, IndexError):
        return -1.0, False


def mark_running(run: Path) -> None:
    """Let the status say what a run's does while it trains."""
    facts = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(facts | {"status": "running"}))


# all of it


HEAVY = (
    "torch", "torch._dynamo", "matplotlib.figure", "matplotlib.backends.backend_agg", "hydra._internal.hydra", "yaml",
    "pygame", "gymnasium.envs.classic_control.cartpole", "safetensors.numpy", "safetensors.torch", "av",
    "tensorboard.summary.writer.event_file_writer", "cadenza.cli.main", "cadenza.engine.launch",
    "cadenza.engine.build", "cadenza.tools.verify", "cadenza.tools.diagnose",
    "cadenza.lab.playback", "cadenza.workflows.ppo", "cadenza.workflows.dqn", "cadenza.envs.toys.toy",
    "cadenza.lab.report", "cadenza.lab.compare", "cadenza.lab.comparison_page", "cadenza.lab.cleanup",
    "cadenza.lab.comparison_report", "cadenza.lab.diff", "cadenza.lab.view.publish", "cadenza.lab.view.play",
    "cadenza.lab.sweeps.sweep_loop", "cadenza.lab.sweeps.sweep_report", "cadenza.lab.inspector.server",
    "cadenza.lab.inspector.comparison",
    "harness.inspecting", "harness.sweeping", "cadenza.config.migrate", "rich.table", "rich.live",
)  # fmt: skip


def import_everything() -> None:
    """Import what commands import, once for all children. Nothing is computed: a fork of busy threads would hang."""
    import io

    import typer.main

    preload(HEAVY)
    from matplotlib.figure import Figure

    from cadenza.cli import main

    if not isinstance(main.app, typer.core.TyperGroup):  # the same commands, without building them for each call
        main.app = typer.main.get_command(main.app)  # type: ignore[assignment]
    figure = Figure()
    figure.subplots().plot([1, 2], label="fonts are read once")
    figure.savefig(io.BytesIO())


def preload(names: Iterable[str]) -> None:
    import gc
    from importlib import import_module

    for name in sorted(names):
        with contextlib.suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()


def in_child(function: Callable[[], object]) -> None:
    """Call a function in a forked process and wait for it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError("the pristine folders could not be made")
