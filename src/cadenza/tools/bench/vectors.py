"""Measure every method of stepping environments together: env_steps per second with random actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from cadenza.config.environments import resolve
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import CadenzaError
from cadenza.tools.bench.part_speeds import per_call

Method = Literal["in_process", "native", "workers", "gymnasium"]
BARE = "Gymnasium's Sync"  # for scale: it does less than cadenza's
STEPS = 64


def rates(id: str, counts: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return {method: {number of environments: env_steps per second, or why there are none}}."""
    methods: dict[str, Callable[[str, int, float], float]] = {name: partial(ours, name) for name in get_args(Method)}
    id, speeds = resolve(id), {}
    for name, measure in {**methods, BARE: bare}.items():
        row: dict[int, float | str] = {}
        for count in counts:
            try:
                row[count] = measure(id, count, seconds)
            except CadenzaError as problem:
                row[count] = str(problem)
        speeds[name] = row
    return speeds


def ours(method: Method, id: str, count: int, seconds: float) -> float:
    """Measure one of cadenza's vector environments."""
    config = EnvironmentConfig(id=id, num_envs=count, vectorize=method)
    with closing(make_vector(config, EpisodeSeeds(0, TRAIN))) as env:
        random = np.random.default_rng(0)
        actions = [random_actions(env.spec.groups, env.current, random) for _ in range(STEPS)]

        def work() -> None:
            for action in actions:
                env.step(action)
            env.episodes()

        return STEPS * count / per_call(work, seconds)


def bare(id: str, count: int, seconds: float) -> float:
    """Measure Gymnasium's own vector environment."""
    import gymnasium
    from gymnasium.vector import SyncVectorEnv

    if id not in gymnasium.registry:
        raise CadenzaError(f"{id} is not one of Gymnasium's environments")
    with closing(SyncVectorEnv([lambda: gymnasium.make(id)] * count)) as env:
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(STEPS)]

        def work() -> None:
            for action in actions:
                env.step(action)

        return STEPS * count / per_call(work, seconds)
