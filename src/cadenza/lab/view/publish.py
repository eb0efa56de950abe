"""A run as others get it: weights, config, curve, film and a card, in a folder that cadenza opens like any run.

Nothing of the machine it was made on is in it: no host, command, path or user, and neither the run's name nor tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from cadenza.base import atomic
from cadenza.base.formatting import number
from cadenza.base.json_text import dumps
from cadenza.config.convert import build, config_hash, to_dict
from cadenza.config.load import dump
from cadenza.config.schema import MINARI, LoggingConfig, RunConfig
from cadenza.engine.checkpoint import Checkpoints, position
from cadenza.envs.catalog import make
from cadenza.envs.families.gym import Gym
from cadenza.errors import CadenzaError, ConfigError
from cadenza.lab import curves
from cadenza.lab.html import Block, Code, Heading, Media, Paragraph, Table, markdown
from cadenza.lab.report import highlights
from cadenza.lab.view.play import record
from cadenza.lab.view.video import can_mp4
from cadenza.records import metrics
from cadenza.records.folder import RunFolder, file_digest
from cadenza.records.trust import code_named
from cadenza.trees import leaves
from cadenza.types import SINGLE_GROUP

LONGEST_FILM = 1 << 30  # bytes
TOLD = ("run", "spec", "environment", "algorithm", "seed", "created", "versions")  # of the manifest
STANDING = ("status", "env_steps", "updates", "eval/return_mean", "best_return", "seconds", "return_threshold")
UNTOLD = ("training.dataset", "accepted")  # decisions that name places
BLANK = "***"  # for what came from an environment variable
PLACE = re.compile(r"(?:file:)?(?:/|~|\\\\|[A-Za-z]:[\\/])")  # how an absolute path begins


def prepare(
    folder: RunFolder, repo: str, out: Path, checkpoint: str, trust: bool = False, keep_film: bool = True
) -> list[str]:
    """Fill an empty folder with what is published; what could not be made or told, in words."""
    own = folder.read_config(trust)
    secrets = environment_values(own)
    plain = without_environment(own)
    config = without_places(plain)
    problems = [f"{place} is published as '{name}', which others do not have" for place, name in cut(plain)]
    problems += [f"{key} came from an environment variable and is not published" for key in own.from_environment]
    checkpoints = Checkpoints.of(folder)
    name = checkpoints.resolve(checkpoint)
    state = checkpoints.load(name, "workflow")
    published = RunFolder(out)
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ConfigError(f"{out} is not empty: give a new folder")
    atomic.write_text(published.config, dump(config))
    manifest, status = folder.read_manifest(), folder.read_status()
    told = {key: manifest.get(key) for key in TOLD}
    told = without(secrets, shortened(told))
    hashed = config_hash(config)
    published.write_manifest(told | {"config_hash": hashed, "configs": [file_digest(published.config)]})
    decisions = {key: value for key, value in folder.read_decisions().items() if key not in UNTOLD}
    published.write_decisions(without(secrets, shortened(decisions)))
    atomic.write_json(published.status, without(secrets, {key: status.get(key) for key in STANDING}))
    Checkpoints(published.checkpoints, hashed).save(state, *position(name), best=True)
    rows = metrics.read(folder.metrics)
    told_rows = [
        {key: without(secrets, value) for key, value in row.items() if not key.startswith("system/")} for row in rows
    ]
    atomic.write_text(published.metrics, "".join(dumps(row) + "\n" for row in told_rows))
    drawn = curves.draw(rows, published.curves, f"{told['spec']}, seed {told['seed']}", status.get("return_threshold"))
    kind = "mp4" if can_mp4() else "gif"
    film = folder.videos / f"replay-{name}.{kind}"  # kept: the encoder does not write the same bytes twice
    keep_film = keep_film and folder.published is None
    try:
        if keep_film and not film.exists():
            record(folder, name, trust, film)
        if film.exists():
            atomic.write_bytes(published.files / f"replay.{kind}", film.read_bytes(LONGEST_FILM))
        else:
            record(folder, name, trust, published.files / f"replay.{kind}")
    except CadenzaError as problem:
        problems.append(f"no video: {problem}")
    measured = evaluation_at(rows, position(name)[0])
    text = card(published, config, told, measured, drawn, use(plain, repo))
    atomic.write_text(published.files / "README.md", text)
    return problems


def without_environment(config: RunConfig) -> RunConfig:
    """The config with the schema's default, or nothing, wherever the value came from an environment variable."""
    keys = set(config.from_environment)
    needed = sorted(keys & {"environment", "environment.id", "algorithm", "algorithm.name"})
    if needed:
        way = "a run that names it as plain text can be published"
        raise ConfigError(f"{needed[0]} came from an environment variable, which is never published: {way}")
    return build(RunConfig, _left(to_dict(replace(config, from_environment=())), keys))


def _left(tree: Any, keys: set[str], where: str = "") -> Any:
    """Plain data without the keys and the items of lists that they name."""
    if isinstance(tree, dict):
        places = {key: f"{where}.{key}" if where else str(key) for key in tree}
        return {key: _left(value, keys, places[key]) for key, value in tree.items() if places[key] not in keys}
    if isinstance(tree, list):
        items = [(f"{where}.{index}", value) for index, value in enumerate(tree)]
        return [_left(value, keys, place) for place, value in items if place not in keys]
    return tree


def environment_values(config: RunConfig) -> tuple[str, ...]:
    """The texts of the config that came from environment variables."""
    keys, data = set(config.from_environment), to_dict(config)

    def texts(tree: Any, where: str, inside: bool) -> Iterator[str]:
        inside = inside or where in keys
        if isinstance(tree, dict | list):
            for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
                yield from texts(value, f"{where}.{key}" if where else str(key), inside)
        elif inside and isinstance(tree, str) and tree:
            yield tree

    return tuple(dict.fromkeys(texts(data, "", False)))


def without(secrets: tuple[str, ...], tree: Any) -> Any:
    """Plain data with *** in place of the secrets; one of up to three characters only where it is the whole text."""
    if isinstance(tree, dict):
        return {key: without(secrets, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [without(secrets, value) for value in tree]
    if not isinstance(tree, str):
        return tree
    for secret in sorted(secrets, key=len, reverse=True):
        tree = BLANK if tree == secret else tree.replace(secret, BLANK) if len(secret) > 3 else tree
    return tree


def without_places(config: RunConfig) -> RunConfig:
    """Without paths of the machine the run was made on, and without what one calls one's own runs and accounts."""
    training = config.training
    dataset = training.dataset
    if dataset is not None and not dataset.startswith(MINARI):
        dataset = Path(dataset).name
    source = None if training.init_from is None else Path(training.init_from).name
    training = replace(training, dataset=dataset, init_from=source)
    plain = replace(config, training=training, logging=LoggingConfig(), name="", tags=())
    return build(RunConfig, shortened(to_dict(plain)))


def shortened(tree: Any) -> Any:
    """Plain data with every absolute path cut to its last name."""
    if isinstance(tree, dict):
        return {key: shortened(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [shortened(value) for value in tree]
    return re.split(r"[\\/]", tree.rstrip("\\/"))[-1] if isinstance(tree, str) and PLACE.match(tree) else tree


def cut(config: RunConfig) -> list[tuple[str, str]]:
    """Keys of the environment and the algorithm whose value is a path, with what is left of it."""
    parts = {"environment": to_dict(config.environment), "algorithm": to_dict(config.algorithm)}
    return [(key, short) for key, value in leaves(parts) if (short := shortened(value)) != value]


def use(own: RunConfig, repo: str) -> list[Block]:
    """How to load and run it: in Python where a single agent acts in an environment of Gymnasium's kind."""
    trusted = bool(code_named(to_dict(own)))
    tail = " --trust" if trusted else ""
    commands = [f"cadenza evaluate hf:{repo} --episodes 100{tail}", f"cadenza play hf:{repo}{tail}"]
    blocks: list[Block] = [Code("\n".join(("pip install 'cadenza[hub]'", *commands)))]
    try:
        with closing(make(own.environment)) as env:
            single, gym = list(env.spec.groups) == [SINGLE_GROUP], isinstance(env, Gym)
    except CadenzaError:  # it cannot be made here: nobody knows
        return blocks
    given, why = (
        ("", "  # executes nothing but cadenza") if not trusted else (", trust=True", "  # it names code or files")
    )
    if single:
        lines = ["import cadenza", "", f'policy = cadenza.load("hf:{repo}"{given}){why}']
        lines += ["env = policy.make_env()", "obs, info = env.reset(seed=0)", "action = policy(obs)"] if gym else []
    else:
        lines = ["import cadenza", "", f'run = cadenza.Run.find("hf:{repo}")']
        lines.append(f"print(run.evaluate(episodes=100{given}))")
    return [Code("\n".join(lines)), *blocks]


def evaluation_at(rows: list[dict[str, Any]], env_steps: int) -> dict[str, Any]:
    """The evaluation of the weights that are published; empty where none was made there."""
    found = [row for row in rows if row["env_steps"] == env_steps and row.get("eval/return_mean") is not None]
    return found[-1] if found else {}


def card(
    folder: RunFolder,
    config: RunConfig,
    told: dict[str, Any],
    measured: dict[str, Any],
    drawn: bool,
    usage: list[Block],
) -> str:
    """README.md: what the Hub reads, then what people do."""
    environment = str(told["environment"])
    facts: dict[str, Any] = {
        "library_name": "cadenza",
        "pipeline_tag": "reinforcement-learning",
        "tags": sorted({"reinforcement-learning", "cadenza", str(told["algorithm"]), environment}),
    }
    if measured:
        spread = measured.get("eval/return_std")
        value = f"{measured['eval/return_mean']:.2f}" + ("" if spread is None else f" +/- {spread:.2f}")
        facts["model-index"] = [
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
    front = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    return f"---\n{front}---\n\n{markdown(_blocks(folder, config, told, measured, drawn, usage), folder.path)}"


def _blocks(
    folder: RunFolder,
    config: RunConfig,
    told: dict[str, Any],
    measured: dict[str, Any],
    drawn: bool,
    usage: list[Block],
) -> list[Block]:
    steps, updates = position(Checkpoints(folder.checkpoints, "").resolve("last"))
    summary = [("trained for", f"{steps:,} env_steps, {updates:,} updates"), ("seed", str(told["seed"]))]
    if measured:
        text = f"{number(measured['eval/return_mean'])} ± {number(measured.get('eval/return_std') or 0.0)}"
        summary.append(("return", f"{text}, {measured.get('eval/episodes', '?')} episodes"))
    blocks: list[Block] = [
        Heading(str(told["spec"]), level=1),
        Paragraph(f"{config.variant} in {told['environment']}, trained with cadenza."),
        Table(("", ""), summary),
    ]
    film = next(iter(folder.files.glob("replay.*")), None)
    if film is not None:
        blocks.append(Media(film, "an episode of the policy"))
    if drawn:
        blocks += [Heading("Learning curve"), Media(folder.curves, "return over env_steps")]
    versions = [(name, str(version)) for name, version in (told.get("versions") or {}).items() if version]
    return [
        *blocks,
        Heading("Use"),
        *usage,
        Heading("Settings"),
        Table(("key", "value"), highlights(folder.settings())),
        Heading("Made with"),
        Table(("", ""), versions),
    ]
