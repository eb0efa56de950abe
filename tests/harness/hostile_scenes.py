"""Scenes to attack (a run beside a healthy one, a sweep, a dataset, a published run), with commands that read them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cadenza.base.json_text import with_digest
from harness.hostile_kinds import MODULE

VICTIM = "victim"
HEALTHY = "healthy"
EVERY = ["checkpoint.every_steps=128", "evaluation.every_steps=128", "evaluation.episodes=1", "logging.every_steps=64"]
STEPS = 256
DQN = [
    "CartPole-v1:dqn",
    "environment.num_envs=2",
    "algorithm.buffer_size=200",
    "algorithm.buffer_on_disk=true",
    "algorithm.warmup_steps=32",
    "algorithm.batch_size=8",
    "algorithm.train_every=8",
    "algorithm.update_ratio=0.25",
    "algorithm.priority_alpha=0.6",
    "algorithm.hidden.hidden_sizes=[8]",
    "logging.tensorboard=true",
    "checkpoint.keep=2",
    *EVERY,
    "--max-timesteps",
    str(STEPS),
]
PPO = [
    "toy/identity:ppo", "algorithm.n_steps=16", "algorithm.n_epochs=1", "algorithm.batch_size=64", *EVERY,
    "--max-timesteps", "128",
]  # fmt: skip
SWEEP = """\
base: toy/identity:ppo
name: tried
sweep:
  algorithm.n_steps: 8
  algorithm.n_epochs: 1
  environment.num_envs: 2
  evaluation.episodes: 1
  evaluation.num_envs: 1
  evaluation.every_steps: 16
  checkpoint.every_steps: 0
  algorithm.gamma: [0.9, 0.99]
seeds: [1]
max_timesteps: 32
"""
OFFLINE = [
    "CartPole-v1:dqn",
    "environment.num_envs=2",
    "algorithm.buffer_size=600",
    "algorithm.batch_size=8",
    "algorithm.hidden.hidden_sizes=[8]",
    "evaluation.every_steps=0",
    "evaluation.episodes=1",
    "training.phases=[{name: offline, type: offline, buffer: replay, hooks: [{name: update, times: 4}],"
    " duration_updates: 8}]",
]
ALERT = {
    "rule": "loss_spike", "env_steps": 128, "severity": "warning", "what": "train/loss is 900",
    "explanation": "too fast",
    "hint": "a smaller algorithm.learning_rate",
}  # fmt: skip
OUTPUTS = ("report.md", "report.html", "curves.svg", "metrics.csv")  # files of a run that others look at

EVERYWHERE = ("config.yaml", "manifest.json", "status.json", "decisions.json", ".", "lock")
MEASURED = ("metrics.jsonl", "alerts.jsonl")
WEIGHTS = ("checkpoints", "checkpoints/*")
RECORDED = ("episodes", "episodes/*")
STORED = ("replay", "replay/*")
LOOKS = ("videos", "videos/*", *OUTPUTS)
INDEX = ("@last", "index.sqlite*")
ALL = ("*",)


@dataclass(frozen=True)
class Command:
    """A command line over a scene; `reads` are the names (patterns) that it may open."""

    name: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...] = ALL
    running: bool = False  # the run is held by another process, which `top` shows
    code: int = 0  # the exit code on an untouched folder
    many_bytes: bool = False  # writes a table or a file to stdout, where quoted line breaks belong to the format

    def line(self, places: dict[str, str]) -> list[str]:
        return [argument.format(**places) for argument in self.arguments]

    def reads_name(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.reads)


@dataclass
class Scene:
    """A folder to be copied for each trial, the folder in it that is attacked, and its names."""

    name: str
    template: Path
    attacked: str  # below the copy
    commands: list[Command]
    planted: list[str] = field(default_factory=list)  # names that are not there yet, or only while something is written

    def names(self) -> list[str]:
        """Every name in the attacked folder, and those beside it that belong to the scene."""
        folder = self.template / self.attacked
        inside = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
        beside = ["../@last", "../index.sqlite"] if self.name == "run" else []
        return [".", *(name for name in inside if MODULE not in name), *beside]


def command(line: str, reads: tuple[str, ...] = ALL, name: str = "", **facts: Any) -> Command:
    """A command from a line whose words are split at spaces; the runs folder is added."""
    words = line.split(" ")
    rooted = [] if words[0] == "config" else ["--runs-dir", "{runs}"]
    return Command(name or line.replace("{victim}", "RUN"), (*words, *rooted), reads, **facts)


RUN_READS = (*EVERYWHERE, *MEASURED)
PLAY_READS = (*EVERYWHERE, *WEIGHTS)
RUN_COMMANDS = [
    command("list", (*RUN_READS, *INDEX)),
    command("list --json", (*RUN_READS, *INDEX)),
    command("list --rebuild", (*RUN_READS, *INDEX)),
    command("show victim", (*RUN_READS, *WEIGHTS), "show"),
    command("show @last --json", (*RUN_READS, *WEIGHTS, *INDEX), "show @last"),
    command("resume victim --quiet --max-timesteps 288", ALL, "resume"),
    command("train {victim}/config.yaml --quiet", ("config.yaml", "manifest.json", "."), "train FILE"),
    command(
        "train {victim}/config.yaml training.max_timesteps=32 --quiet",
        ("config.yaml", "manifest.json", "."),
        "train FILE key=value",
    ),
    command(
        "train CartPole-v1:dqn algorithm.hidden.hidden_sizes=[8] evaluation.episodes=1 --init-from victim --quiet"
        " --max-timesteps 32",
        (*PLAY_READS,),
        "train --init-from",
    ),
    command("evaluate victim --episodes 1", PLAY_READS, "evaluate"),
    command("play victim --video {tmp}/played.gif", PLAY_READS, "play --video"),
    command("play victim --episode 0 --video {tmp}/played.gif", (*PLAY_READS, *RECORDED), "play --episode"),
    command("top --once", (*RUN_READS, *INDEX), running=True),
    command("compare victim healthy", (*RUN_READS, *INDEX), "compare"),
    command("compare victim healthy --plot {tmp}/page.html", (*RUN_READS, *INDEX), "compare --plot"),
    command("diff victim healthy", (*RUN_READS, *RECORDED, *WEIGHTS), "diff"),
    command("report victim", (*RUN_READS, *WEIGHTS, *LOOKS, *RECORDED), "report"),
    command("report victim --html", (*RUN_READS, *WEIGHTS, *LOOKS, *RECORDED), "report --html"),
    command("report victim healthy --out {tmp}/compared", (*RUN_READS, *WEIGHTS), "report --out"),
    command("verify victim --steps 64", (*RUN_READS, *WEIGHTS, *RECORDED), "verify"),
    command("export victim --format csv", (*RUN_READS, *INDEX), "export csv", many_bytes=True),
    command("export victim --format dataset --out {tmp}/dataset", (*RUN_READS, *WEIGHTS, *STORED), "export dataset"),
    command("cleanup --keep-best 0 --dry-run", ALL),
    command("cleanup --keep-best 0", ALL),
    command("publish victim --dry-run --out {tmp}/published user/name", (*RUN_READS, *WEIGHTS, *LOOKS), "publish"),
    command("debug victim --steps 64", (*PLAY_READS, *MEASURED, *STORED, "debug*"), "debug"),
    command("config migrate {victim}/config.yaml", ("config.yaml",), "config migrate"),
    command("inspect", (*RUN_READS, *WEIGHTS, *RECORDED, *LOOKS, *INDEX)),
]
SWEEP_COMMANDS = [
    command("sweep {base}/file.yaml --quiet", ALL, "sweep FILE"),
    command("sweep {attacked}/sweep.yaml --quiet --dry-run", ("sweep.yaml", "."), "sweep sweep.yaml"),
    command("report {sweep}", ALL, "report SWEEP"),
    command("list", ("journal.jsonl", ".")),
    command("cleanup --keep-best 0 --dry-run", ("journal.jsonl", "."), "cleanup --dry-run"),
    command("cleanup --keep-best 0", ("journal.jsonl", "."), "cleanup"),
    command("train {attacked}/best.yaml --cfg", ("best.yaml", "."), "train best.yaml"),
]
DATASET_COMMANDS = [
    Command("train training.dataset", ("train", *(text.replace("{", "{{").replace("}", "}}") for text in OFFLINE),
            "training.dataset={attacked}", "--quiet", "--runs-dir", "{runs}")),
    Command("export dataset over it", ("export", "healthy", "--format", "dataset", "--out", "{attacked}", "--episodes",
            "1", "--runs-dir", "{runs}"), (".",), code=2),
]  # fmt: skip
PUBLISHED_COMMANDS = [
    command("show {attacked}", (*RUN_READS, *WEIGHTS), "show PATH"),
    command("evaluate {attacked} --episodes 1", PLAY_READS, "evaluate PATH"),
    command("play {attacked} --video {tmp}/played.gif", PLAY_READS, "play PATH"),
    command("publish {attacked} --dry-run --out {tmp}/published user/name", ALL, "publish PATH"),
    command("report {attacked} --html", ALL, "report PATH"),
    command("resume {attacked} --quiet --max-timesteps 288", ALL, "resume PATH", code=78),  # it holds weights alone
    command("compare {attacked} healthy", RUN_READS, "compare PATH"),
    command("export {attacked} --format csv", RUN_READS, "export csv PATH", many_bytes=True),
    command(
        "train CartPole-v1:dqn algorithm.hidden.hidden_sizes=[8] evaluation.episodes=1 --init-from {attacked} --quiet"
        " --max-timesteps 32",
        PLAY_READS,
        "train --init-from PATH",
    ),
    command(
        "train {attacked}/config.yaml --quiet --max-timesteps 32",
        ("config.yaml", "manifest.json", "."),
        "train PATH",
    ),
]  # fmt: skip
# Names that appear only while something is written, or in runs of another kind.
PLANTED = [
    "alerts.jsonl", "debug", "debug/diagnosis.json", "debug/failure", "logs/wandb.log", "videos/replay.gif",
    "videos/eval-000000000256.gif",
    "../index.sqlite-journal", "../index.sqlite-wal", "checkpoints/.old-step-000000000256-000000000056",
    "checkpoints/.staging-step-000000000288-000000000064", "checkpoints/.tmp-best-1-0", 
    "checkpoints/rejected-step-000000000256-000000000056", "replay/replay/.tmp-x-1-0",
    "replay/other", "replay/replay/000000000999-000000001999.safetensors", ".tmp-status.json-1-0",
    "checkpoints/step-000000000999-000000000999", "episodes/000000000999.safetensors", "notes.txt",
]  # fmt: skip


def build(place: Path) -> list[Scene]:
    """Train and write the pristine folders below `place`; call it in a process that trains nothing afterwards."""
    from harness.command import cadenza, last, train

    runs = place / "run" / "runs"
    for name, line in ((HEALTHY, PPO), (VICTIM, DQN)):
        train(runs, *line).succeeded()
        rename(last(runs).path, name)
    victim = runs / VICTIM
    cadenza("report", VICTIM, "--html", "--runs-dir", runs).succeeded()
    published, dataset = place / "published" / "published", place / "dataset" / "dataset"
    cadenza("publish", VICTIM, "user/name", "--dry-run", "--out", published, "--runs-dir", runs).succeeded()
    (film,) = published.glob("replay.*")
    for file in (f"replay-{max(victim.glob('checkpoints/step-*')).name}", f"eval-{STEPS:012d}"):
        shutil.copyfile(film, victim / "videos" / f"{file}{film.suffix}")
    (victim / "alerts.jsonl").write_text(json.dumps(ALERT) + "\n")
    cadenza("export", VICTIM, "--format", "dataset", "--out", dataset, "--runs-dir", runs).succeeded()
    (runs / "@last").write_text(VICTIM + "\n")
    for folder in ("published", "dataset"):
        shutil.copytree(runs / HEALTHY, place / folder / "runs" / HEALTHY)
    swept = place / "sweep"
    swept.mkdir()
    (swept / "file.yaml").write_text(SWEEP)
    use_in_process_engine()
    cadenza("sweep", swept / "file.yaml", "--quiet", "--runs-dir", swept / "runs").succeeded()
    shutil.copytree(runs / HEALTHY, swept / "runs" / HEALTHY)
    (sweep,) = [path for path in (swept / "runs" / "sweeps").iterdir()]
    for hostile in (victim, published, dataset, sweep):
        (hostile / f"{MODULE}.py").write_text("raise SystemExit('imported from a hostile folder')\n")
    cadenza("list", "--runs-dir", runs).succeeded()
    return scenes(place)


def scenes(place: Path) -> list[Scene]:
    (sweep,) = [path.name for path in (place / "sweep" / "runs" / "sweeps").iterdir()]
    return [
        Scene("run", place / "run", f"runs/{VICTIM}", RUN_COMMANDS, list(PLANTED)),
        Scene("sweep", place / "sweep", f"runs/sweeps/{sweep}", SWEEP_COMMANDS, ["lock", ".tmp-journal-1-0"]),
        Scene("dataset", place / "dataset", "dataset", DATASET_COMMANDS, ["meta", "meta/info.json"]),
        Scene("published", place / "published", "published", PUBLISHED_COMMANDS,
              ["replay", "lock", "videos", "report.md"]),
    ]  # fmt: skip


def rename(run: Path, name: str) -> None:
    """Give a run's folder a name that does not change from day to day."""
    for file in ("status.json", "manifest.json"):
        facts = json.loads((run / file).read_text())
        facts |= {"run": name} | ({"dir": str(run.with_name(name))} if "dir" in facts else {})
        facts = with_digest(facts) if "digest" in facts else facts
        (run / file).write_text(json.dumps(facts, indent=2) + "\n")
    run.rename(run.with_name(name))
    (run.parent / "@last").write_text(name + "\n")


def use_in_process_engine() -> None:
    """Let a sweep's runs train in this process: nothing is started for them."""
    from cadenza.lab.sweeps import conduct
    from harness.sweeping import InProcess

    conduct.open_backend = lambda on, jobs: InProcess()


def places(scene: Scene, copy: Path, tmp: Path) -> dict[str, str]:
    """What a command line's placeholders stand for."""
    attacked = copy / scene.attacked
    return {
        "base": str(copy),
        "runs": str(copy / "runs"),
        "victim": str(copy / "runs" / VICTIM),
        "attacked": str(attacked),
        "sweep": attacked.name,
        "tmp": str(tmp),
    }


def role(name: str) -> str:
    """What a name is, whatever number stands in it: `checkpoints/step-N/state.json`."""
    return re.sub(r"\d{4,}", "N", name)


def hold(path: Path) -> Iterator[None]:
    """Hold the lock of a run as a living process does."""
    import fcntl

    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except OSError:
        yield
    finally:
        os.close(file)
