"""ViZDoom (Kempka et al. 2016): Doom's scenarios seen by the player; ids are `VizDoom-basic`, after their files.

Scenarios are the `.cfg` files of the package, of `VIZDOOM_SCENARIOS_DIR`, and `environment.kwargs.config_path`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_whole
from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Array
from cadenza.errors import ConfigError, nearest

PREFIX = "VizDoom-"
FOLDER = "VIZDOOM_SCENARIOS_DIR"
# The package's scenarios for one player; its other files are whole games without rewards, or for several players.
SHIPPED = (
    "basic basic_audio basic_notifications deadly_corridor deathmatch defend_the_center defend_the_line "
    "health_gathering health_gathering_supreme my_way_home predict_position rocket_basic simpler_basic take_cover"
)
RULE = re.compile(r"\+sv_\w+ [\w.]+")  # a rule of the game: the only arguments that a scenario may pass to the program
# A game would outlive this process. Its launcher asks the kernel to kill it with its parent, then becomes the game.
LAUNCHER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == {parent} or sys.exit(1); os.execv({program!r}, [{program!r}, *sys.argv[1:]])"
)
WAD = re.compile(r"^\s*doom_(?:scenario|game)_path\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)


def ids(family: str) -> list[str]:
    users = sorted(path.stem for path in _user_folder().glob("*.cfg")) if os.environ.get(FOLDER) else []
    return [PREFIX + name for name in dict.fromkeys((*SHIPPED.split(), *users))]


def composed(id: str) -> bool:
    """Return whether it is `VizDoom-custom`, the scenario that `environment.kwargs.config_path` names."""
    return id == PREFIX + "custom"


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    check_arguments(Doom, config.kwargs, config.id, positional=1)
    kwargs = dict(config.kwargs)
    env = Doom(_scenario(config.id, kwargs.pop("config_path", None)), **kwargs)
    return Gym(env, config, env.max_episode_steps)


def _user_folder() -> Path:
    return Path(os.environ[FOLDER]).expanduser()


def _package() -> Path:
    spec = importlib.util.find_spec("vizdoom")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _scenario(id: str, config_path: str | None) -> Path:
    """Return a scenario's file: `config_path`, or the file of that name in the user's folder or the package.

    Refuse a file that is missing, that needs a missing .wad file, or that has the name of a scenario of the package.
    """
    if config_path is None and composed(id):
        raise ConfigError(f"environment.kwargs.config_path: {id} needs it, the .cfg file of a scenario")
    name = id.removeprefix(PREFIX) + ".cfg"
    places = [Path(config_path).expanduser()] if config_path is not None else [_package() / "scenarios" / name]
    if config_path is None and os.environ.get(FOLDER):
        places.insert(0, _user_folder() / name)
    files = [place for place in places if place.is_file()]
    if len(files) > 1:
        raise ConfigError(f"{id}: {files[0]} has the name of a scenario of the package; rename yours")
    path = files[0] if files else None
    if path is None:
        key = "environment.kwargs.config_path" if config_path is not None else id
        near = nearest(places[-1].name, [each.name for each in places[-1].parent.glob("*.cfg")])
        raise ConfigError(f"{key}: no file '{places[-1]}'{near}")
    for wad in WAD.findall(path.read_text()):
        if not any((folder / wad).is_file() for folder in (path.parent, _package())):
            raise ConfigError(f"{path} names {wad}, which is neither beside it nor in the package")
    return path


class Doom(gymnasium.Env[Any, Any]):
    """A scenario for one player. An action holds up to `max_buttons` buttons, or none, for `frame_skip` tics.

    Buttons that turn by an amount are left out. The adapter counts the scenario's time limit, in actions.
    """

    render_mode = "rgb_array"

    def __init__(
        self,
        path: Path,
        frame_skip: int = 4,
        max_buttons: int = 1,
        resolution: str = "RES_160X120",
        variables: bool = False,
        config_path: str | None = None,
    ) -> None:
        import vizdoom

        require_whole("frame_skip", frame_skip, 1)
        require_whole("max_buttons", max_buttons, 1)
        sizes = list(vizdoom.ScreenResolution.__members__)
        if resolution not in sizes:
            allowed = f"must be one of ViZDoom's resolutions{nearest(str(resolution), sizes)}"
            raise ConfigError(f"environment.kwargs.resolution={resolution}: {allowed}")
        self._game = game = vizdoom.DoomGame()
        program, settings = game.get_vizdoom_path(), game.get_doom_config_path()
        game.load_config(str(path))
        game.set_vizdoom_path(program)  # a scenario's file may name any other program
        game.set_doom_config_path(settings)
        game.set_game_args(" ".join(RULE.findall(game.get_game_args())))
        game.set_window_visible(False)
        game.set_sound_enabled(False)
        game.set_audio_buffer_enabled(False)
        game.set_mode(vizdoom.Mode.PLAYER)
        game.set_screen_format(vizdoom.ScreenFormat.CRCGCB)
        game.set_screen_resolution(getattr(vizdoom.ScreenResolution, resolution))
        buttons = [button for button in game.get_available_buttons() if not vizdoom.is_delta_button(button)]
        if not buttons:
            raise ConfigError(f"{path}: defines no binary buttons (available_buttons)")
        game.set_available_buttons(buttons)
        sets = [
            subset
            for size in range(min(max_buttons, len(buttons)) + 1)
            for subset in itertools.combinations(range(len(buttons)), size)
        ]
        self._presses = [[float(button in subset) for button in range(len(buttons))] for subset in sets]
        self._meanings = ["+".join(buttons[button].name for button in subset) or "nothing" for subset in sets]
        self._skip = frame_skip
        timeout = game.get_episode_timeout()
        self.max_episode_steps = -(-timeout // frame_skip) if timeout else None
        game.set_episode_timeout(0)  # the game's own limit would hide the last observation
        self.action_space = spaces.Discrete(len(sets))
        screen = spaces.Box(0, 255, (3, game.get_screen_height(), game.get_screen_width()), np.uint8)
        self._variables = len(game.get_available_game_variables()) if variables else 0
        if variables and not self._variables:
            raise ConfigError(f"environment.kwargs.variables: {path.stem} defines none (available_game_variables)")
        numbers = spaces.Box(-np.inf, np.inf, (self._variables,), np.float32)
        self.observation_space = spaces.Dict({"screen": screen, "variables": numbers}) if variables else screen
        self._obs: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="cadenza-doom-")  # the game writes files where it is started

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.set_seed(int(self.np_random.integers(2**31)))
        if self._game.is_running():
            self._game.new_episode()
        else:
            self._start()
        return self._observe(), {}

    def get_action_meanings(self) -> list[str]:
        return self._meanings

    def _start(self) -> None:
        """Start the game in a folder of its own, and on Linux so that it does not outlive this process."""
        folder = Path(self._folder.name)
        if sys.platform == "linux":
            code = LAUNCHER.format(parent=os.getpid(), program=str(_package() / "vizdoom"))
            launcher = folder / "launch"
            launcher.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-ISc", code])} "$@"\n')
            launcher.chmod(0o700)
            if os.access(launcher, os.X_OK):  # false where temporary files may not be executed
                self._game.set_vizdoom_path(str(launcher))
        with contextlib.chdir(folder):
            self._game.init()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        game = self._game
        reward = game.make_action(self._presses[int(action)], self._skip)
        return self._observe(), reward, game.is_episode_finished(), False, {}

    def _observe(self) -> Any:
        """Return the observation; after the end the game has none, and the last one is returned again."""
        state = self._game.get_state()
        if state is not None:
            screen = state.screen_buffer  # a new array for every state
            if self._variables:
                self._obs = {"screen": screen, "variables": np.asarray(state.game_variables, np.float32)}
            else:
                self._obs = screen
        return self._obs

    def render(self) -> Array:
        screen: Array = self._obs["screen"] if self._variables else self._obs
        return np.ascontiguousarray(np.moveaxis(screen, 0, -1))

    def close(self) -> None:
        self._game.close()
        self._folder.cleanup()
