from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.schema import EnvironmentConfig, RunConfig
from cadenza.records.folder import RunFolder, create
from cadenza.workflows.ppo_config import PPOConfig

MakeRun = Callable[..., RunFolder]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes real run folders under `tmp_path / "runs"`; keyword arguments go into the status."""

    def make(
        env: str = "CartPole-v1", seed: int = 0, gamma: float = 0.99, tags: tuple[str, ...] = (), **status: Any
    ) -> RunFolder:
        config = RunConfig(
            algorithm=PPOConfig(gamma=gamma), environment=EnvironmentConfig(id=env), seed=seed, tags=tags
        )
        folder = create(tmp_path / "runs", config, ["cadenza", "train", f"{env}:ppo"])
        if status:
            folder.update_status(**status)
        return folder

    return make
