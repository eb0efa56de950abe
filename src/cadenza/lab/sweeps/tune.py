"""The next trial by Optuna's tree-structured Parzen estimator. It keeps no state: all of it is in the journal."""

from __future__ import annotations

from typing import Any

import numpy as np

from cadenza.base.json_text import canonical
from cadenza.errors import MissingExtraError, install
from cadenza.lab.sweeps.journal import Journal, Trial
from cadenza.lab.sweeps.space import Choices, Dimension, Params
from cadenza.lab.sweeps.sweep_plan import RANDOM_TRIALS, Plan

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError as problem:
    raise MissingExtraError(f"method=tpe needs an extra: {install('tune')}") from problem

STATES = {"open": "RUNNING", "finished": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}


def suggest(plan: Plan, journal: Journal, number: int) -> Params:
    """Return the values of the next trial; the same journal and number give the same values again."""
    space, file = plan.space, plan.file
    earlier = [trial for trial in journal.trials.values() if trial.number < number]
    if len([trial for trial in earlier if trial.state in ("finished", "pruned")]) < RANDOM_TRIALS:
        return space.draw(file.sampler_seed, number)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = int(np.random.SeedSequence([file.sampler_seed, number]).generate_state(1)[0])
    sampler = optuna.samplers.TPESampler(n_startup_trials=0, seed=seed, constant_liar=file.parallel_jobs > 1)
    study = optuna.create_study(direction=file.objective.direction, sampler=sampler)
    distributions = {key: _distribution(dimension) for key, dimension in space.dimensions.items()}
    for trial in earlier:
        study.add_trial(_frozen(trial, plan, distributions))
    suggestion = study.ask(distributions).params
    return {key: _from_optuna(dimension, suggestion[key]) for key, dimension in space.dimensions.items()}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Choices):
        # by index: a value may be a list or a mapping
        return CategoricalDistribution(tuple(range(len(dimension.values))))
    if dimension.step is not None:  # by index as well: sums of steps are not exact
        return IntDistribution(0, dimension.steps)
    if dimension.whole:
        return IntDistribution(int(dimension.min), int(dimension.max), log=dimension.log)
    return FloatDistribution(dimension.min, dimension.max, log=dimension.log)


def _frozen(trial: Trial, plan: Plan, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    return create_trial(
        state=TrialState[STATES[trial.state]],
        value=trial.value if trial.state == "finished" else None,
        params={key: _to_optuna(dimension, trial.params[key]) for key, dimension in plan.space.dimensions.items()},
        distributions=distributions,
        intermediate_values=dict(enumerate(trial.rungs)),
    )


def _to_optuna(dimension: Dimension, value: Any) -> float:
    if isinstance(dimension, Choices):  # compared as JSON: 1 and true differ
        return [canonical(choice) for choice in dimension.values].index(canonical(value))
    return float(value) if dimension.step is None else dimension.index_of(value)


def _from_optuna(dimension: Dimension, value: float) -> object:
    if isinstance(dimension, Choices):
        return dimension.values[int(value)]
    return dimension.round(value) if dimension.step is None else dimension.value_at(int(value))
