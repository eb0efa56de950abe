"""The published form of a run: weights, config, learning curve, video and card, in a folder that cadenza can open.

It contains nothing of the author's machine: no host, command, path or user, nor the run's name and tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from cadenza.base import atomic
from cadenza.base.formatting import number
from cadenza.base.json_text import dumps
from cadenza.base.text import one_line, shell
from cadenza.config.convert import build, config_hash, to_dict
from cadenza.config.environments import family_of
from cadenza.config.load import dump
from cadenza.config.schema import MINARI, LoggingConfig, RunConfig
from cadenza.envs.catalog import make
from cadenza.envs.families.gym import Gym
from cadenza.errors import CadenzaError, ConfigError
from cadenza.lab import charts, svg_charts
from cadenza.lab.html import Block, Code, Heading, Media, Paragraph, Table, markdown
from cadenza.lab.report import highlights
from cadenza.lab.view.play import record_video
from cadenza.lab.view.video import can_mp4
from cadenza.records import metrics
from cadenza.records.checkpoint import Checkpoints, position
from cadenza.records.folder import RunFolder, file_digest
from cadenza.records.trust import code_named
from cadenza.trees import leaves
from cadenza.types import SINGLE_GROUP

MAX_VIDEO_BYTES = 1 << 30
MANIFEST_KEYS = ("run", "spec", "environment", "algorithm", "seed", "created", "versions", "modules")
STATUS_KEYS = ("status", "env_steps", "updates", "eval/return_mean", "best_return", "seconds", "return_threshold")
PRIVATE_DECISIONS = ("training.dataset", "accepted")  # they contain paths
CURVE = "curves.png"  # hubs show no SVG of a repository
REDACTED = "***"  # replaces values of environment variables
ABSOLUTE_PATH = re.compile(r"(?:file:)?(?:/|~|\\\\|[A-Za-z]:[\\/])")  # how one begins


def prepare(
    folder: RunFolder,
    repo: str,
    out: Path,
    checkpoint: str,
    trust: bool = False,
    store_video: bool = True,
    report: Callable[[str], object] = lambda line: None,
) -> list[str]:
    """Fill an empty folder with what is published; return a line about each part that is missing or shortened.

    With `store_video`, the run keeps its video: the encoder does not write the same bytes twice. `report` receives a
    line before each step.
    """
    original = folder.read_config(trust)
    secrets = environment_values(original)
    public = without_environment(original)
    config = without_paths(public)
    problems = [f"{key} is published as '{name}', which others do not have" for key, name in shortened_paths(public)]
    problems += [f"{key} came from an environment variable and is not published" for key in original.from_environment]
    checkpoints = Checkpoints.from_run(folder)
    name = checkpoints.resolve(checkpoint)
    report(f"reading {name} …")
    state = checkpoints.load(name, "workflow")
    published = RunFolder(out)
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ConfigError(f"{out} is not empty: give a new folder")
    rows = metrics.read(folder.metrics)
    facts = _write_records(folder, published, config, secrets, rows)
    Checkpoints(published.checkpoints, config_hash(config)).save(state, *position(name), best=True)
    title = f"{facts['spec']}, seed {facts['seed']}"
    report("drawing the learning curve …")
    chart = svg_charts.learning_curve(rows, title, folder.read_status().get("return_threshold"))
    if chart is not None:
        charts.write_chart(chart, published.files / CURVE)
    try:
        _write_video(folder, published, name, trust, store_video and folder.published is None, report)
    except CadenzaError as problem:
        problems.append(f"no video: {problem}")
    evaluation = evaluation_at(rows, position(name)[0])
    modules = facts.get("modules")
    usage = usage_blocks(public, repo, modules if isinstance(modules, dict) else {})
    blocks = _blocks(published, config, facts, evaluation, chart is not None, usage)
    page = front_matter(config, evaluation) + markdown(blocks, published.path)
    atomic.write_text(published.files / "README.md", page)
    return problems


def _write_records(
    folder: RunFolder, published: RunFolder, config: RunConfig, secrets: tuple[str, ...], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write config, manifest, decisions, status and metrics without secrets and paths; return the manifest's facts."""
    atomic.write_text(published.config, dump(config))
    manifest, status = folder.read_manifest(), folder.read_status()
    facts: dict[str, Any] = redact(secrets, without_folders({key: manifest.get(key) for key in MANIFEST_KEYS}))
    digests = {"config_hash": config_hash(config), "configs": [file_digest(published.config)]}
    published.write_manifest(facts | digests)
    decisions = {key: value for key, value in folder.read_decisions().items() if key not in PRIVATE_DECISIONS}
    published.write_decisions(redact(secrets, without_folders(decisions)))
    atomic.write_json(published.status, redact(secrets, {key: status.get(key) for key in STATUS_KEYS}))
    public_rows = [
        {key: redact(secrets, value) for key, value in row.items() if not key.startswith("system/")} for row in rows
    ]
    atomic.write_text(published.metrics, "".join(dumps(row) + "\n" for row in public_rows))
    return facts


def _write_video(
    folder: RunFolder,
    published: RunFolder,
    checkpoint: str,
    trust: bool,
    store: bool,
    report: Callable[[str], object],
) -> None:
    """Copy the run's video of the checkpoint, recorded first if it is to be stored there; else record one."""
    suffix = "mp4" if can_mp4() else "gif"
    stored = folder.videos / f"replay-{checkpoint}.{suffix}"
    target = published.files / f"replay.{suffix}"
    if not stored.exists():
        report("recording an episode …")
        record_video(folder, checkpoint, trust, stored if store else target)
    if stored.exists():
        atomic.write_bytes(target, stored.read_bytes(MAX_VIDEO_BYTES))


def without_environment(config: RunConfig) -> RunConfig:
    """Return the config with defaults, or nothing, in place of values that came from environment variables."""
    keys = set(config.from_environment)
    needed = sorted(keys & {"environment", "environment.id", "algorithm", "algorithm.name"})
    if needed:
        next_step = "a run that names it as plain text can be published"
        raise ConfigError(f"{needed[0]} came from an environment variable, which is never published: {next_step}")
    return build(RunConfig, _without_keys(to_dict(replace(config, from_environment=())), keys))


def _without_keys(tree: Any, keys: set[str], prefix: str = "") -> Any:
    """Return plain data without the entries and list items at these dotted keys."""
    if isinstance(tree, dict):
        paths = {key: f"{prefix}.{key}" if prefix else str(key) for key in tree}
        return {key: _without_keys(value, keys, paths[key]) for key, value in tree.items() if paths[key] not in keys}
    if isinstance(tree, list):
        items = [(f"{prefix}.{index}", value) for index, value in enumerate(tree)]
        return [_without_keys(value, keys, path) for path, value in items if path not in keys]
    return tree


def environment_values(config: RunConfig) -> tuple[str, ...]:
    """Return the texts of the config that came from environment variables."""
    keys, data = set(config.from_environment), to_dict(config)

    def texts(tree: Any, path: str, from_environment: bool) -> Iterator[str]:
        from_environment = from_environment or path in keys
        if isinstance(tree, dict | list):
            for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
                yield from texts(value, f"{path}.{key}" if path else str(key), from_environment)
        elif from_environment and isinstance(tree, str) and tree:
            yield tree

    return tuple(dict.fromkeys(texts(data, "", False)))


def redact(secrets: tuple[str, ...], tree: Any) -> Any:
    """Return plain data with the secrets in its texts replaced by ***, but not in keys.

    A secret of up to three characters is replaced only where it is the whole of a text.
    """
    if isinstance(tree, dict):
        return {key: redact(secrets, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [redact(secrets, value) for value in tree]
    if not isinstance(tree, str):
        return tree
    for secret in sorted(secrets, key=len, reverse=True):
        if tree == secret:
            return REDACTED
        if len(secret) > 3:
            tree = tree.replace(secret, REDACTED)
    return tree


def without_paths(config: RunConfig) -> RunConfig:
    """Return the config without folders of this machine, names of runs and accounts, and logging."""
    training = config.training
    dataset = training.dataset
    if dataset is not None and not dataset.startswith(MINARI):
        dataset = Path(dataset).name
    source = None if training.init_from is None else Path(training.init_from).name
    training = replace(training, dataset=dataset, init_from=source)
    public = replace(config, training=training, logging=LoggingConfig(), name="", tags=())
    return build(RunConfig, without_folders(to_dict(public)))


def without_folders(tree: Any) -> Any:
    """Cut every absolute path in plain data to its last name."""
    if isinstance(tree, dict):
        return {key: without_folders(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [without_folders(value) for value in tree]
    if isinstance(tree, str) and ABSOLUTE_PATH.match(tree):
        return re.split(r"[\\/]", tree.rstrip("\\/"))[-1]
    return tree


def shortened_paths(config: RunConfig) -> list[tuple[str, str]]:
    """Return the keys of environment and algorithm whose value is an absolute path, with its last name."""
    parts = {"environment": to_dict(config.environment), "algorithm": to_dict(config.algorithm)}
    return [(key, name) for key, value in leaves(parts) if (name := without_folders(value)) != value]


def installation(config: RunConfig, modules: dict[str, str | None]) -> list[str]:
    """Return the commands that install what the run needs, and comments on what they cannot install."""
    family, _ = family_of(config.environment.id) or (None, None)
    extras = sorted({"hub", family.extra or "hub"} if family else {"hub"})
    packages = sorted({shell(one_line(str(package)).replace(" ", "==")) for package in modules.values() if package})
    lines = [" ".join(["pip install", f"'cadenza[{','.join(extras)}]'", *packages])]
    lines += [f"# needs {family.by_hand}"] if family and family.by_hand else []
    lines += [
        f"# {one_line(module)} belongs to no package: put it on PYTHONPATH"
        for module in sorted(modules)
        if not modules[module]
    ]
    return lines


def usage_blocks(config: RunConfig, repo: str, modules: dict[str, str | None]) -> list[Block]:
    """Return the commands, and Python code where a single agent acts in a Gymnasium environment."""
    needs_trust = bool(code_named(to_dict(config)))
    option = " --trust" if needs_trust else ""
    commands = [f"cadenza evaluate hf:{repo} --episodes 100{option}", f"cadenza play hf:{repo}{option}"]
    blocks: list[Block] = [Code("\n".join((*installation(config, modules), *commands)))]
    try:
        with closing(make(config.environment)) as env:
            single, gym = list(env.spec.groups) == [SINGLE_GROUP], isinstance(env, Gym)
    except CadenzaError:  # it cannot be made here, so its agents are unknown
        return blocks
    argument, comment = (
        (", trust=True", "  # it names code or files") if needs_trust else ("", "  # executes nothing but cadenza")
    )
    if single:
        lines = ["import cadenza", "", f'policy = cadenza.load("hf:{repo}"{argument}){comment}']
        lines += ["env = policy.make_env()", "obs, info = env.reset(seed=0)", "action = policy(obs)"] if gym else []
    else:
        lines = ["import cadenza", "", f'run = cadenza.Run.find("hf:{repo}")']
        lines.append(f"print(run.evaluate(episodes=100{argument}))")
    return [Code("\n".join(lines)), *blocks]


def evaluation_at(rows: list[dict[str, Any]], env_steps: int) -> dict[str, Any]:
    """Return the row with the evaluation of the published weights, or an empty one if there was none."""
    matches = [row for row in rows if row["env_steps"] == env_steps and row.get("eval/return_mean") is not None]
    return matches[-1] if matches else {}


def front_matter(config: RunConfig, evaluation: dict[str, Any]) -> str:
    """Return the beginning of README.md, metadata for the Hub."""
    environment = config.environment.id
    metadata: dict[str, Any] = {
        "library_name": "cadenza",
        "pipeline_tag": "reinforcement-learning",
        "tags": sorted({"reinforcement-learning", "cadenza", config.algorithm.name, environment}),
    }
    if evaluation:
        spread = evaluation.get("eval/return_std")
        value = f"{evaluation['eval/return_mean']:.2f}" + ("" if spread is None else f" +/- {spread:.2f}")
        metadata["model-index"] = [
            {
                "name": config.variant,
                "results": [
                    {
                        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                        "dataset": {"name": environment, "type": environment},
                        "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}],
                    }
                ],
            }
        ]
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n"


def _blocks(
    folder: RunFolder,
    config: RunConfig,
    facts: dict[str, Any],
    evaluation: dict[str, Any],
    has_curve: bool,
    usage: list[Block],
) -> list[Block]:
    """Return the text for people."""
    steps, updates = position(Checkpoints(folder.checkpoints, "").resolve("last"))
    summary = [("trained for", f"{steps:,} env_steps, {updates:,} updates"), ("seed", str(facts["seed"]))]
    if evaluation:
        text = f"{number(evaluation['eval/return_mean'])} ± {number(evaluation.get('eval/return_std') or 0.0)}"
        summary.append(("return", f"{text}, {evaluation.get('eval/episodes', '?')} episodes"))
    blocks: list[Block] = [
        Heading(str(facts["spec"]), level=1),
        Paragraph(f"{config.variant} in {facts['environment']}, trained with cadenza."),
        Table(("", ""), summary),
    ]
    video = next(iter(folder.files.glob("replay.*")), None)
    if video is not None:
        blocks.append(Media(video, "an episode of the policy"))
    if has_curve:
        blocks += [Heading("Learning curve"), Media(folder.files / CURVE, "return over env_steps")]
    versions = [(name, str(version)) for name, version in (facts.get("versions") or {}).items() if version]
    return [
        *blocks,
        Heading("Use"),
        *usage,
        Heading("Settings"),
        Table(("key", "value"), highlights(folder.settings())),
        Heading("Made with"),
        Table(("", ""), versions),
    ]
