"""The dataset that fills a run's replay before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cadenza.config.schema import Phase, RunConfig
from cadenza.data import lerobot
from cadenza.data.datasets import Dataset, converted, open_dataset, refuse_other
from cadenza.data.replay import ReplayStore
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec, Store


def configured_dataset(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any]) -> Dataset:
    """Open the dataset that `training.dataset` names, verified, and record its digest in `decisions`.

    Refuse one of another environment, and one whose digest differs from a recorded one.
    """
    name = str(config.training.dataset)
    if lerobot.recognised(name):
        dataset = converted(lambda out: lerobot.convert(name, out, config, spec))
    else:
        dataset = open_dataset(name)
    refuse_other(dataset, name, config, spec)
    counts = {key: dataset.facts[key] for key in ("transitions", "episodes")}
    recorded = decisions.setdefault("training.dataset", {"digest": dataset.digest, **counts})
    if recorded["digest"] != dataset.digest:
        raise ConfigError(f"training.dataset={name}: is not the dataset that the run began with, its digest differs")
    return dataset


def replay_for(dataset: Dataset, config: RunConfig, phases: tuple[Phase, ...], stores: Mapping[str, Store]) -> str:
    """Return the name of the store to fill, the first replay that the phases use; refuse one that is too small."""
    where = f"training.dataset={config.training.dataset}"
    for name in (*(phase.buffer for phase in phases), *stores):
        store = stores[name]
        if not isinstance(store, ReplayStore):
            continue
        stack, needed = dataset.facts["frame_stack"], dataset.rows_for(store.num_envs, store.stack)
        if stack != store.stack:
            raise ConfigError(f"{where}: holds stacks of {stack} frames, the replay of this run of {store.stack}")
        if needed > store.rows * store.num_envs:
            sizes = [item.name for item in fields(config.algorithm) if item.metadata.get("unit") == "rows"]
            key = f"algorithm.{sizes[0]}" if sizes else "a capacity"
            raise ConfigError(f"{where}: does not fit the replay; {key}={needed} would do")
        return name
    raise ConfigError(f"{where}: {config.algorithm.name} has no replay to put it in")


def fill(stores: Mapping[str, Store], datasets: dict[str, Dataset], spec: EnvSpec) -> None:
    """Fill each named store with its dataset, and empty `datasets`.

    This is done before the first checkpoint, which then holds the rows, so that the dataset is not needed again.
    """
    for name, dataset in datasets.items():
        store = stores[name]
        assert isinstance(store, ReplayStore)
        dataset.fill(store, spec)
        dataset.close()
    datasets.clear()
