from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.schema import EnvironmentConfig, RunConfig
from cadenza.records.folder import RunFolder, create
from cadenza.records.metrics import MetricsFile
from cadenza.workflows.ppo_config import PPOConfig

MakeRun = Callable[..., RunFolder]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes real run folders under `tmp_path / "runs"`; keyword arguments go into the status."""

    def make(
        env: str = "CartPole-v1",
        seed: int = 0,
        gamma: float = 0.99,
        tags: tuple[str, ...] = (),
        name: str = "",
        experiment: str | None = None,
        **status: Any,
    ) -> RunFolder:
        config = RunConfig(
            algorithm=PPOConfig(gamma=gamma),
            environment=EnvironmentConfig(id=env),
            seed=seed,
            tags=tags,
            name=name,
            experiment=experiment,
        )
        folder = create(tmp_path / "runs", config, ["cadenza", "train", f"{env}:ppo"])
        if status:
            folder.update_status(**status)
        return folder

    return make


@pytest.fixture
def make_curve(make_run: MakeRun) -> MakeRun:
    """Makes finished runs with a learning curve: a value of eval/return_mean every 100 env_steps."""

    def make(values: list[float], env: str = "CartPole-v1", seed: int = 0, pace: float = 1.0, **more: Any) -> RunFolder:
        folder = make_run(env, seed=seed, **more, status="finished", **{"eval/return_mean": values[-1]})
        file = MetricsFile(folder.metrics)
        for place, value in enumerate(values, 1):
            file.append(
                {
                    "env_steps": 100 * place,
                    "updates": place,
                    "eval/return_mean": value,
                    "train/loss": 1 / place,
                    "time/seconds": pace * place,
                }
            )
        file.close()
        return folder

    return make
