"""`cadenza train`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.output import ConfigDir, Json, Overrides, Quiet, RunsDir, Spec, Trust, print_json, say
from cadenza.errors import CadenzaError, ConfigError

if TYPE_CHECKING:
    from cadenza.config.schema import RunConfig

MOST_DIGITS = 28  # of an amount: what Decimal multiplies exactly
UNITS = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "b": 1_000_000_000}


def amount(text: str | int) -> int:
    """Return a whole number that is written as 100000, 100_000, 1e5, 100k or 0.1M."""
    plain = str(text).lower()
    unit = UNITS.get(plain[-1:], 1)
    with suppress(ArithmeticError):
        value = Decimal(plain[:-1] if unit > 1 else plain) * unit  # exact: as floats, 4.1 * 1e6 is no whole number
        if value.is_finite() and value.adjusted() < MOST_DIGITS and value == int(value):
            return int(value)
    raise typer.BadParameter(f"'{text}' is not a whole number, such as 100000, 100_000, 1e5 or 100k")


def positive(text: str | int) -> int:
    """Return an amount above 0."""
    if (value := amount(text)) < 1:
        raise typer.BadParameter(f"{value}: must be at least 1")
    return value


# The settings of `--debug`, which overrides may change: the beginning of the run, with a row for every cycle.
DEBUG = ("debug.enabled=true", "logging.every_steps=1", "logging.every_updates=1", "evaluation.episodes=4")
DEBUG_BUDGETS = {"max_timesteps": 5000, "max_updates": 500}


def train(
    spec: Spec,
    overrides: Overrides = None,
    seed: Annotated[str | None, typer.Option(help="Train with this seed, or with several: 1,2,3.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Train so many seeds at the same time.")] = 1,
    max_timesteps: Annotated[
        int | None, typer.Option(parser=amount, metavar="N", help="Stop after N env_steps: 100000, 1e5, 100k.")
    ] = None,
    max_updates: Annotated[
        int | None, typer.Option(parser=amount, metavar="N", help="Stop after N gradient steps.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name the run.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag the run, to find it by; repeatable.")] = None,
    init_from: Annotated[str | None, typer.Option(help="Start from the weights of this run.")] = None,
    config_dir: ConfigDir = None,
    runs_dir: RunsDir = None,
    trust: Trust = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Make a short run that checks and measures everything.")
    ] = False,
    multirun: Annotated[
        bool, typer.Option("--multirun", "-m", help="Train every combination of settings `key=a,b`, as a sweep.")
    ] = False,
    cfg: Annotated[bool, typer.Option("--cfg", help="Print the resolved config and train nothing.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train an agent, and leave a run folder.

    Example: cadenza train CartPole-v1:ppo algorithm.gamma=0.98 --seed 1
    Example: cadenza train CartPole-v1:ppo -m algorithm.gamma=0.9,0.99 --jobs 2
    """
    from cadenza.config.load import dump, load, override
    from cadenza.records.folder import find, runs_root
    from cadenza.records.trust import require_trust_of_file

    root, seeds = runs_root(runs_dir), parse_seeds(seed)
    if cfg:
        overrides = [text for text in overrides or () if text != "job"]  # Hydra's `--cfg job`
    flags = {
        "training.max_timesteps": max_timesteps,
        "training.max_updates": max_updates,
        "training.init_from": str(find(root, init_from).path.resolve()) if init_from else None,
        "name": name,
        "tags": tag,
        "seed": seeds[0] if len(seeds) == 1 else None,
    }
    changes = [override(key, value) for key, value in flags.items() if value is not None]
    if max_updates is not None and max_timesteps is None:
        changes.insert(0, "training.max_timesteps=null")  # the run is then counted in updates
    is_short = debug and not any(setting.startswith("training.max_") for setting in (*(overrides or ()), *changes))
    if not trust:
        require_trust_of_file(spec)
    if multirun:
        from cadenza.cli.sweep import SweepOptions, begin
        from cadenza.lab.sweeps.sweep_file import of_overrides

        fixed = [change for change in changes if not change.startswith(("name=", "seed="))]
        texts = [*(DEBUG if debug else ()), *(overrides or ()), *fixed]
        file, others = of_overrides(spec, texts, seeds=seeds, parallel_jobs=jobs, name=name or spec)
        if is_short:
            others += short_length(load(spec, others, config_dir))
        return begin(file, others, SweepOptions("local", config_dir, runs_dir, trust, False, cfg, quiet, json))
    swept: list[str] = []
    if os.environ.get("WANDB_SWEEP_ID"):
        from cadenza.lab.sweeps.wandb_agent import agent_overrides

        swept = agent_overrides(os.environ)
    if swept:
        say(f"from the W&B sweep's agent: {' '.join(swept)}", err=True)
        if len(seeds) > 1:  # all of them would write into it
            raise ConfigError("--seed: a W&B agent trains one run; make the seed a parameter of the sweep")
    config = load(spec, [*(DEBUG if debug else ()), *(overrides or ()), *swept, *changes], config_dir)
    if is_short:
        config = shortened(config)
    if cfg:
        say(dump(with_amounts(config)), several=True, end="")
        return
    if len(seeds) > 1:
        from cadenza.cli.seeds import train_seeds

        raise typer.Exit(train_seeds(seeds, jobs, quiet, json))
    from cadenza.lab.session import train as launch

    result = launch(config, root, ["cadenza", *sys.argv[1:]], quiet)
    if json:
        print_json(result.summary())
    finish(result.signal, result.why)


def short_length(config: RunConfig) -> list[str]:
    """Return the overrides that make a run as short as `--debug` does."""
    from cadenza.config.load import override

    training = shortened(config).training
    lengths = {key: getattr(training, key) for key in ("max_timesteps", "max_updates", "horizon")}
    return [override(f"training.{key}", value) for key, value in lengths.items() if value is not None]


def with_amounts(config: RunConfig) -> RunConfig:
    """Return the config with its own phases as the run resolves them: amounts of `collect`, the names of updates."""
    hooks = [hook for phase in config.training.phases or () for hook in phase.hooks]
    if not any(hook.without_amount or hook.name.startswith("update_") for hook in hooks):
        return config
    from cadenza.engine.build import phases_of
    from cadenza.engine.launch import check

    return replace(config, training=replace(config.training, phases=phases_of(config, check(config))))


def shortened(config: RunConfig) -> RunConfig:
    """Return the config with a budget for `--debug`, and schedules that keep the length of the whole run."""
    training = config.training
    offline = training.phases is not None and all(phase.type != "online" for phase in training.phases)
    unit = "max_updates" if offline or training.max_timesteps is None else "max_timesteps"
    budget = getattr(training, unit)
    if budget is None or budget <= DEBUG_BUDGETS[unit]:
        return config
    shorter: dict[str, Any] = {unit: DEBUG_BUDGETS[unit], "horizon": training.horizon or budget}
    return replace(config, training=replace(training, **shorter))


def finish(signal: str | None, why: str = "") -> None:
    """Exit with the code of the signal that interrupted a run, or as a failure if an alert (`why`) stopped it."""
    if why:
        raise CadenzaError(f"{why} stopped the run; it is saved, and `cadenza resume` goes on with it")
    if signal:
        from cadenza.engine.signals import EXIT_CODES

        raise typer.Exit(EXIT_CODES[signal])


def parse_seeds(text: str | None) -> list[int]:
    """Parse `1,2,3`; return an empty list without a text."""
    if text is None:
        return []
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a seed or a list like 1,2,3", param_hint="--seed") from None
    if min(seeds) < 0:
        raise typer.BadParameter(f"'{text}': a seed cannot be negative", param_hint="--seed")
    if len(set(seeds)) < len(seeds):
        raise typer.BadParameter(f"'{text}' names a seed twice", param_hint="--seed")
    return seeds
