"""Games of old consoles through stable-retro; ids are `Retro/Airstriker-Genesis-v0`, whose ROM the package contains.

Others need their ROMs imported (`python -m stable_retro.import FOLDER`). A process can hold one game at a time.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_choice
from cadenza.envs.families.gym import Gym
from cadenza.errors import EnvironmentFault

PREFIX = "Retro/"
BUILT_IN = "Airstriker-Genesis-v0"
ONE_PER_PROCESS = True  # the emulators keep their state in globals
ActionKind = Literal["discrete", "buttons"]


def ids(family: str) -> list[str]:
    """Return the games whose ROM is installed, found by their files, since importing the package takes a while."""
    games = _games()
    return [PREFIX + name for name, rom in games.items() if rom] if games else [PREFIX + BUILT_IN]


def composed(id: str) -> bool:
    """Return whether the package knows the game, even without its ROM."""
    return id.startswith(PREFIX) and id.removeprefix(PREFIX) in _games()


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    game = config.id.removeprefix(PREFIX)
    if not _games().get(game, True):
        raise EnvironmentFault(f"{config.id} needs its ROM: python -m stable_retro.import FOLDER")
    check_arguments(_make, config.kwargs, config.id, positional=1)
    return Gym(_make(game, **config.kwargs), config)


def _make(game: str, actions: ActionKind = "discrete", state: str | None = None, scenario: str | None = None) -> Any:
    """Make a game; `actions` are sensible combinations of buttons by number, or every button on its own."""
    require_choice("actions", actions, get_args(ActionKind))
    import stable_retro

    kinds = {"discrete": stable_retro.Actions.DISCRETE, "buttons": stable_retro.Actions.FILTERED}
    return stable_retro.make(
        game,
        state=stable_retro.State.DEFAULT if state is None else state,
        scenario=scenario,
        use_restricted_actions=kinds[actions],
        render_mode="rgb_array",
    )


def _games() -> dict[str, bool]:
    """Return every game of the package, and whether its ROM is installed; empty without the package."""
    spec = importlib.util.find_spec("stable_retro")
    return _scan(Path(spec.origin).parent / "data" / "stable") if spec is not None and spec.origin else {}


@lru_cache
def _scan(folder: Path) -> dict[str, bool]:
    """Scan the folders of games once per process: there are a thousand, and ids are needed often."""
    games = sorted(path for path in folder.iterdir() if path.is_dir())
    return {game.name: any(path.suffix != ".sha" for path in game.glob("rom.*")) for game in games}
