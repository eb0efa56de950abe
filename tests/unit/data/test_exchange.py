from __future__ import annotations

from typing import Any

import pytest

from cadenza.config import plugins
from cadenza.config.convert import build
from cadenza.config.schema import TrainingConfig
from cadenza.data.exchange import StoreMaker
from cadenza.data.replay import ReplayStore
from cadenza.data.rollout import RolloutStore
from cadenza.errors import ConfigError


class Recent(ReplayStore):
    """A replay of the last rows."""

    def __init__(self, capacity: int, num_envs: int, *, window: int = 100, **settings: Any) -> None:
        super().__init__(min(capacity, window), num_envs, **settings)


@pytest.mark.parametrize("entry", [f"{__name__}:Recent", {"id": "recent", "window": 50}])
def test_a_named_store_is_made_with_the_arguments_of_the_one_it_replaces(
    entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins._registered["buffer"], "recent", Recent)
    maker = StoreMaker({"replay": entry})
    store = maker("replay", ReplayStore, 1000, 2, stack=3)
    assert isinstance(store, Recent)
    assert (store.rows * store.num_envs, store.stack) == (100 if isinstance(entry, str) else 50, 3)
    assert type(maker("rollout", RolloutStore, 8)) is RolloutStore
    maker.check("ppo", ["replay", "rollout"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": f"{__name__}:Recent", "windw": 1}, "replay: '.*Recent' cannot be made with the arguments .*windw"),
        ("builtins:dict", "cannot be made"),
        ("cadenza.data.rollout:RolloutStore", "cannot be made with the arguments of the store it replaces"),
    ],
)
def test_a_store_that_does_not_fit_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StoreMaker({"replay": entry})("replay", ReplayStore, 1000, 2, stack=3)


def test_a_name_that_no_store_has_and_one_that_the_algorithm_ignores_are_refused() -> None:
    maker = StoreMaker({"replay": f"{__name__}:Recent"})
    with pytest.raises(ConfigError, match=r"training\.buffers\.replay: climb does not make it with context\.store"):
        maker.check("climb", ["replay"])
    with pytest.raises(ConfigError, match=r"training\.buffers\.replay: ppo has no such store \(known: rollout\)"):
        maker.check("ppo", ["rollout"])


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ({"replay": "recnt"}, "training.buffers.replay='recnt': must be an import path"),
        ({"replay": {"window": 5}}, "training.buffers.replay={'window': 5}: must be a name, or a mapping with an id"),
        ("my:Store", "training.buffers='my:Store': must be a mapping of names to values"),
    ],
)
def test_mistakes_in_the_config_name_the_place(buffers: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(TrainingConfig, {"buffers": buffers}, "training")
    assert str(caught.value).startswith(message)
