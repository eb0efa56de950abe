"""Datasets of the Minari library, read through it and converted to datasets of cadenza."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.config.schema import EnvironmentConfig, RunConfig
from cadenza.data.batches import Past
from cadenza.data.datasets import episode_rows, merged, write_dataset
from cadenza.envs.families.gym import as_dict_space
from cadenza.errors import ConfigError, MissingExtraError, install
from cadenza.types import SINGLE_GROUP, EnvSpec, GroupSpec


def convert(id: str, out: Path) -> None:
    """Write Minari's dataset `id`, which must be on this machine, as a dataset of cadenza."""
    where = f"training.dataset=minari:{id}"
    try:
        minari = import_module("minari")
    except ImportError:
        raise MissingExtraError(f"{where}: needs an extra: {install('minari')}") from None
    try:
        data = minari.load_dataset(id)
        env = data.env_spec
    except FileNotFoundError as problem:
        raise ConfigError(f"{where}: Minari has no such dataset here; `minari download {id}` fetches one") from problem
    except (ValueError, AssertionError, ImportError) as problem:
        raise ConfigError(f"{where}: Minari cannot read it ({problem})") from problem
    if env is None:
        raise ConfigError(f"{where}: names no environment, so it cannot be compared with this run's")
    if env.additional_wrappers:
        names = ", ".join(wrapper.name for wrapper in env.additional_wrappers)
        raise ConfigError(f"{where}: was recorded through wrappers ({names}), so its rewards may not be this run's")
    kwargs = {key: value for key, value in env.kwargs.items() if key != "render_mode"}
    group = GroupSpec((SINGLE_GROUP,), as_dict_space(data.observation_space), data.action_space)
    config = replace(RunConfig(algorithm=None), environment=EnvironmentConfig(id=env.id, kwargs=kwargs))
    spec = EnvSpec(env.id, {SINGLE_GROUP: group})
    episodes = [rows_of(episode, spec) for episode in data.iterate_episodes() if len(episode.rewards)]
    ends = np.cumsum([len(rows["flags"]) for rows, _ in episodes])
    partial = np.array([end - 1 for end, (_, whole) in zip(ends, episodes, strict=True) if not whole], np.int64)
    past = Past(merged(rows for rows, _ in episodes), partial)
    write_dataset(out, past, config, spec, {"minari": id, "what": "episodes"})


def rows_of(episode: Any, spec: EnvSpec) -> tuple[dict[str, np.ndarray], bool]:
    """Return an episode as rows by path, and whether it ended."""
    terminated, truncated = bool(episode.terminations[-1]), bool(episode.truncations[-1])
    cut = truncated or not terminated
    rows = episode_rows(spec, episode.observations, episode.actions, episode.rewards, terminated, cut)
    return rows, terminated or truncated
