"""Games of old consoles through stable-retro: ids are `Retro/Airstriker-Genesis-v0`, whose ROM comes with the package.

Others need their ROMs imported (`python -m stable_retro.import FOLDER`). A process can hold one game at a time.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families.gym import Gym, check_arguments
from cadenza.errors import ConfigError, EnvironmentFault, nearest

PREFIX = "Retro/"
BUILT_IN = "Airstriker-Genesis-v0"
ONE_PER_PROCESS = True  # the emulators keep their state in globals
Pressed = Literal["discrete", "buttons"]


def ids(family: str) -> list[str]:
    """Those whose ROM is here; looked up as files, since importing the package takes a while."""
    games = _games()
    return [PREFIX + name for name, rom in games.items() if rom] if games else [PREFIX + BUILT_IN]


def composed(id: str) -> bool:
    """Known, its ROM here or not."""
    return id.startswith(PREFIX) and id.removeprefix(PREFIX) in _games()


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    game = config.id.removeprefix(PREFIX)
    if not _games().get(game, True):
        raise EnvironmentFault(f"{config.id} needs its ROM: python -m stable_retro.import FOLDER")
    check_arguments(_made, config.kwargs, config.id, positional=1)
    env = _made(game, **config.kwargs)
    return Gym(env, id=config.id, max_episode_steps=config.max_episode_steps, clip_actions=config.clip_actions)


def _made(game: str, actions: Pressed = "discrete", state: str | None = None, scenario: str | None = None) -> Any:
    """`actions`: combinations of buttons that make sense as numbers, or every button on its own."""
    if actions not in get_args(Pressed):
        near = nearest(str(actions), get_args(Pressed))
        raise ConfigError(f"environment.kwargs.actions={actions}: must be discrete or buttons{near}")
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
    """Every game that the package knows, and whether its ROM is here; nothing without the package."""
    found = importlib.util.find_spec("stable_retro")
    return _looked_up(Path(found.origin).parent / "data" / "stable") if found is not None and found.origin else {}


@lru_cache
def _looked_up(folder: Path) -> dict[str, bool]:
    """Once in a process: there are a thousand folders, and ids are asked for often."""
    games = sorted(path for path in folder.iterdir() if path.is_dir())
    return {game.name: any(path.suffix != ".sha" for path in game.glob("rom.*")) for game in games}
