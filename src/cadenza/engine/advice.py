"""Warnings about a run before it starts, and circumstances in which it does not start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from cadenza.config.schema import Phase, RunConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


def no_updates_warning(config: RunConfig, phases: Iterable[Phase]) -> str | None:
    """Return a warning if phases that only collect use up the whole budget of env_steps."""
    from cadenza.engine.build import length_of

    budget, before = config.training.max_timesteps, 0
    for phase in phases:
        if {hook.name for hook in phase.hooks} - {"collect", "evaluate"}:
            if budget is None or not 0 < budget <= before:
                return None
            warning = f"training.max_timesteps={budget} ends before anything is learned: {before} steps come before"
            return f"{warning} phase {phase.name}"
        before += length_of(phase, collects=True)
    return None


def end_note(config: RunConfig, phases: Iterable[Phase]) -> str | None:
    """Return where a run ends if it is not at its budget, since it ends with a cycle; None where that is open."""
    training, num_envs, reached = config.training, config.environment.num_envs, 0
    budget = training.max_timesteps
    if budget is None or training.max_updates is not None or training.exact_budget:
        return None
    for phase in phases:
        if phase.type != "online":
            continue
        amounts = [hook.steps for hook in phase.hooks if hook.name == "collect"]
        if None in amounts or phase.duration_updates is not None:
            return None
        cycle = sum(-(-amount // num_envs) * num_envs for amount in amounts if amount is not None)
        lengths = [budget - reached, phase.duration_steps or inf, cycle * (phase.duration_cycles or inf)]
        reached += -int(-min(lengths) // cycle) * cycle
        if reached >= budget:
            rounding = f"the budget of {budget:,}, rounded up to a cycle of {cycle:,}"
            return None if reached == budget else f"ends at step {reached:,}: {rounding}"
    return None


def threads_note(config: RunConfig, decisions: Mapping[str, Any]) -> str | None:
    """Return that fewer threads are used than configured, or None."""
    threads, used = config.runtime.threads, decisions["runtime.threads"]
    if threads == "auto" or threads <= used:
        return None
    return f"runtime.threads={threads}: {used} is used, the products of this run are too small to gain from more"


def time_limit_warning(config: RunConfig, spec: EnvSpec) -> str | None:
    """Return a warning if nothing limits an episode, which may then never end. Games in turns end by their rules."""
    if spec.max_episode_steps is not None or spec.turns:
        return None
    return (
        f"{spec.id} has no time limit, so an episode may never end; environment.max_episode_steps=N sets one "
        f"(evaluations truncate episodes after {config.evaluation.episode_limit(None):,} steps)"
    )


def refuse_several_processes(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several processes of `torchrun`: each would train the same run."""
    processes = environ.get("WORLD_SIZE", "1")
    if "RANK" in environ and processes.isdecimal() and int(processes) > 1:
        raise ConfigError(
            f"torchrun started {processes} processes, and a run is trained by one: each would train the same run; "
            "start `cadenza train` alone (--seed 1,2,3 --jobs 3 trains several seeds side by side)"
        )
