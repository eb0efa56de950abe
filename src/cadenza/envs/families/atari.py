"""Atari games through the Arcade Learning Environment (Machado et al. 2018); ids are `ALE/Pong-v5`.

Observations come from ALE's own vectorised code and equal those of Gymnasium's AtariPreprocessing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_choice, require_flag, require_whole
from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.native import MakeNative
from cadenza.envs.vector import Vector
from cadenza.envs.wrappers import RawReward, SignReward
from cadenza.errors import ConfigError, MissingExtraError
from cadenza.types import SINGLE_GROUP, EnvSpec

GAMES = (
    "Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis2 Atlantis Backgammon BankHeist BasicMath "
    "BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand "
    "CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro "
    "Entombed Et FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse "
    "Hero HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid "
    "Krull KungFuMaster LaserGates LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame "
    "Othello Pacman Phoenix Pitfall2 Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest "
    "SirLancelot Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris TicTacToe3D "
    "TimePilot Trondead Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess VideoCube VideoPinball WizardOfWor "
    "WordZapper YarsRevenge Zaxxon"
)
ObsType = Literal["grayscale", "rgb", "ram", "objects"]
SCREEN = (210, 160)  # height and width of the console's picture
MOST_FRAMES = 108_000  # half an hour of play, after which published results end an episode
FOREVER = 2**30
# Games that play alike after every reset, in long episodes too (benchmarks/repeatable.py). Others keep state over a
# reset, and in some it shows: Assault and BeamRider then continue differently than when just loaded.
STATELESS = frozenset(("breakout", "pong"))
NATIVE_DRESSING = ("frame_stack",)  # the wrapper settings that the native version applies itself
STRENGTH = [1.0]
OBJECTS = (
    "needs OCAtari, whose own requirements (numpy below 2) cannot be met here: pip install --no-deps ocatari, "
    "then opencv-python-headless and scikit-image"
)


def ids(family: str) -> list[str]:
    return [f"ALE/{game}-v5" for game in GAMES.split()]


@dataclasses.dataclass(frozen=True)
class AtariSettings:
    """Atari's `environment.kwargs`. Frames are the emulator's, 60 per second."""

    obs_type: ObsType = "grayscale"
    screen_size: int | None = 84  # height and width of images; none: the console's own
    frameskip: int = 4  # frames that an action is held; images show the brighter of the last two
    repeat_action_probability: float = 0.25  # sticky actions: the probability that a frame repeats the previous action
    noop_max: int = 30  # an episode starts with up to so many frames without an action
    terminal_on_life_loss: bool = False  # a lost life ends the episode, and the next starts a new game
    clip_rewards: bool = False  # -1, 0 or 1 to learn from; returns stay the game's own
    fire_reset: bool = False  # press FIRE first, where the game has it
    full_action_space: bool = False  # all 18 actions instead of those that the game uses

    def __post_init__(self) -> None:
        require_choice("obs_type", self.obs_type, get_args(ObsType))
        for key, least in (("screen_size", 1), ("frameskip", 1), ("noop_max", 0)):
            if key != "screen_size" or self.screen_size is not None:
                require_whole(key, getattr(self, key), least)
        value = self.repeat_action_probability
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ConfigError(f"environment.kwargs.repeat_action_probability={value}: must be at least 0 and below 1")
        for key in ("terminal_on_life_loss", "clip_rewards", "fire_reset", "full_action_space"):
            require_flag(key, getattr(self, key))

    @property
    def limit(self) -> int:
        return MOST_FRAMES // self.frameskip


def settings_of(config: EnvironmentConfig) -> AtariSettings:
    check_arguments(AtariSettings, config.kwargs, config.id)
    return AtariSettings(**config.kwargs)


def rom_of(id: str) -> str:
    """Return the ROM's name: `ALE/MsPacman-v5` is ms_pacman, `TicTacToe3D` tic_tac_toe_3d."""
    name = id.removeprefix("ALE/").removesuffix("-v5")
    return re.sub(r"(?<=[a-z])(?=[A-Z]|\d[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    settings = settings_of(config)
    env: gymnasium.Env[Any, Any]
    if settings.obs_type in ("grayscale", "rgb"):
        env = ScreenGame(rom_of(config.id), settings, render)
    else:
        env = MemoryGame(rom_of(config.id), settings)
        env = Objects(env, config.id) if settings.obs_type == "objects" else env
    if settings.clip_rewards:
        env = SignReward(RawReward(env))
    return Gym(env, config, settings.limit)


def native(config: EnvironmentConfig) -> MakeNative | None:
    """Return the vectorised version for images, which also stacks frames (`environment.frame_stack`)."""
    settings = settings_of(config)
    if settings.obs_type not in ("grayscale", "rgb"):
        return None
    from cadenza.envs.wrapping import wrap_all

    def make_spec() -> EnvSpec:
        env = wrap_all(make(config), config)
        env.close()
        return env.spec

    rom = rom_of(config.id)
    return MakeNative(lambda count, seeds: ScreenGames(make_spec(), rom, settings, count, seeds), 2, "replay")


def pool_options(config: EnvironmentConfig) -> dict[str, Any]:
    """Return the same settings as EnvPool's options; refuse those that EnvPool does otherwise."""
    settings = settings_of(config)
    if settings.clip_rewards or settings.obs_type not in ("grayscale", "rgb") or settings.screen_size is None:
        limits = "only images of some screen_size, and rewards as they are (clip_rewards=false)"
        raise ConfigError(f"environment.vectorize=envpool: for Atari {limits}")
    if settings.terminal_on_life_loss:
        reason = "EnvPool continues the game after a lost life, where a new one begins here"
        raise ConfigError(f"environment.kwargs.terminal_on_life_loss=true: {reason}; use environment.vectorize=auto")
    if not settings.noop_max:
        reason = "EnvPool begins with at least one frame without an action"
        raise ConfigError(f"environment.kwargs.noop_max=0: {reason}; give 1 or more, or environment.vectorize=auto")
    return {
        "stack_num": config.frame_stack or 1,
        "gray_scale": settings.obs_type == "grayscale",
        "img_height": settings.screen_size,
        "img_width": settings.screen_size,
        "frame_skip": settings.frameskip,
        "repeat_action_probability": settings.repeat_action_probability,
        "noop_max": settings.noop_max,
        "max_episode_steps": settings.limit,
        "use_fire_reset": settings.fire_reset,
        "full_action_space": settings.full_action_space,
    }


def seeded(rom: str, settings: AtariSettings) -> bool:
    """Return whether each episode is seeded by loading the game again: for sticky actions, or state that survives."""
    return settings.repeat_action_probability > 0 or rom not in STATELESS


def draws_noops(rom: str, settings: AtariSettings) -> bool:
    """Return whether the initial frames without an action are drawn here: ALE repeats its draw only with a seed."""
    return settings.noop_max > 0 and not seeded(rom, settings)


def interface(rom: str, settings: AtariSettings, count: int, *, height: int, width: int, gray: bool) -> Any:
    """Make ALE's vectorised interface for `count` games."""
    import ale_py
    from ale_py import roms

    path = roms.get_rom_path(rom)
    assert path is not None
    beginnings = settings.frameskip + settings.fire_reset  # ALE draws from so many: enough for every remainder
    return ale_py.ALEVectorInterface(
        rom_path=path,
        num_envs=count,
        num_threads=count,  # ALE uses at most as many as there are processors
        stack_num=1,
        img_height=height,
        img_width=width,
        grayscale=gray,
        frame_skip=settings.frameskip,
        maxpool=settings.frameskip > 1,
        noop_max=beginnings if draws_noops(rom, settings) else settings.noop_max,
        use_fire_reset=settings.fire_reset,
        episodic_life=settings.terminal_on_life_loss,
        life_loss_info=False,
        reward_clipping=False,
        max_episode_steps=FOREVER,
        repeat_action_probability=settings.repeat_action_probability,
        full_action_space=settings.full_action_space,
        batch_size=0,
        thread_affinity_offset=-1,
        autoreset_mode="NextStep",  # it is always reset before that step
    )


class Emulator:
    """One console with a thread of its own: `send` starts an action, `receive` waits for its result.

    `for_display` makes pictures in the console's size and colours.
    """

    def __init__(self, rom: str, settings: AtariSettings, for_display: bool = False) -> None:
        # A seed loads the game again, which takes as long as 300 steps. A stateless game needs it for sticky actions
        # alone; otherwise the initial frames without an action are drawn here.
        self._seeded, self._draws_noops = seeded(rom, settings), draws_noops(rom, settings)
        self._noop_max, self._skip, self._fires = settings.noop_max, settings.frameskip, int(settings.fire_reset)
        size = settings.screen_size
        height, width = SCREEN if for_display or size is None else (size, size)
        gray = settings.obs_type == "grayscale" and not for_display
        self._ale = interface(rom, settings, 1, height=height, width=width, gray=gray)
        self.actions = tuple(action.name for action in self._ale.get_action_set())
        self._choices = [[action] for action in range(len(self.actions))]
        shape = self._ale.get_observation_shape()  # the stack of one, then [H, W] or [H, W, C]
        self.channels_last = len(shape) == 4
        self.shape = (3, height, width) if self.channels_last else (1, height, width)

    def begin(self, seed: int) -> Array:
        """Start an episode, which depends on the seed alone; return its first picture [C, H, W]."""
        if not self._draws_noops:
            return self._reset(seed if self._seeded else -1)[0]
        frames = max(self._fires, int(np.random.default_rng(seed).integers(self._noop_max)))
        picture, passed = self._reset_before(frames)
        for _ in range((frames - passed) // self._skip):
            self.send(0)
            picture, _, over = self.receive()
            if over:
                picture, _ = self._reset_before(frames)
        return picture

    def _reset_before(self, frames: int) -> tuple[Array, int]:
        """Reset until a whole number of steps remains up to this frame; return the picture and the frames passed.

        A step cannot be shorter than the frame skip, and ALE draws by itself how many frames a reset passes.
        """
        while True:
            picture, passed = self._reset(-1)
            if (frames - passed) % self._skip == 0:
                return picture, passed

    def _reset(self, seed: int) -> tuple[Array, int]:
        """Reset the game; return the picture and the frames passed."""
        pictures, info = self._ale.reset(np.zeros(1, np.int64), np.array([seed]))
        return self._channels_first(pictures), int(info["episode_frame_number"][0])

    def send(self, action: int) -> None:
        self._ale.send(self._choices[action], STRENGTH)  # lists, which ALE reads twice as fast as arrays

    def receive(self) -> tuple[Array, float, bool]:
        """Return the picture [C, H, W], the reward, and whether the game ended."""
        pictures, reward, terminated, _, _ = self._ale.recv()
        return self._channels_first(pictures), float(reward[0]), bool(terminated[0])

    def _channels_first(self, pictures: Array) -> Array:
        picture: Array = pictures[0]
        return np.moveaxis(picture[0], -1, 0) if self.channels_last else picture


class ScreenGame(gymnasium.Env[Any, Any]):
    """One game, observed as images."""

    render_mode = "rgb_array"

    def __init__(self, rom: str, settings: AtariSettings, render: bool) -> None:
        self._emulator = Emulator(rom, settings)
        self._display = Emulator(rom, settings, for_display=True) if render else None  # plays the same game
        self._picture: Array | None = None
        self.observation_space = spaces.Box(0, 255, self._emulator.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._emulator.actions))

    def get_action_meanings(self) -> tuple[str, ...]:
        return self._emulator.actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        if self._display is not None:
            self._picture = self._display.begin(seed)
        return self._emulator.begin(seed), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for emulator in (self._emulator, self._display):
            if emulator is not None:
                emulator.send(int(action))
        picture, reward, over = self._emulator.receive()
        if self._display is not None:
            self._picture = self._display.receive()[0]
        return picture, reward, over, False, {}

    def render(self) -> Any:
        return None if self._picture is None else np.ascontiguousarray(np.moveaxis(self._picture, 0, -1))


class SeparateConsoles:
    """Games with a console each, so that one can act while the others stand still."""

    def __init__(self, rom: str, settings: AtariSettings, count: int) -> None:
        self._emulators = [Emulator(rom, settings) for _ in range(count)]
        self._playing: list[int] = []

    def begin(self, seeds: Mapping[int, int]) -> list[Array]:
        """Start an episode in each game of `seeds`; return their first pictures [C, H, W]."""
        return [self._emulators[index].begin(seed) for index, seed in seeds.items()]

    def send(self, actions: Sequence[int | None]) -> None:
        self._playing = [index for index, action in enumerate(actions) if action is not None]
        for index in self._playing:
            self._emulators[index].send(actions[index])  # type: ignore[arg-type]

    def receive(self, pictures: Array, reward: Array, over: Array) -> None:
        for index in self._playing:
            pictures[index], reward[index], over[index] = self._emulators[index].receive()


class SharedConsole:
    """Games in one ALE interface: as fast as ALE itself, but none can stand still while others play."""

    def __init__(self, rom: str, settings: AtariSettings, count: int) -> None:
        height, width = SCREEN if settings.screen_size is None else (settings.screen_size, settings.screen_size)
        self._gray, self._seeded = settings.obs_type == "grayscale", seeded(rom, settings)
        self._ale = interface(rom, settings, count, height=height, width=width, gray=self._gray)
        self._strengths = STRENGTH * count

    def begin(self, seeds: Mapping[int, int]) -> Array:
        """Start an episode in each game of `seeds`; return their first pictures [C, H, W]."""
        ale_seeds = list(seeds.values()) if self._seeded else [-1] * len(seeds)
        return self._channels_first(self._ale.reset(list(seeds), ale_seeds)[0])[list(seeds)]

    def send(self, actions: Sequence[int | None]) -> None:
        """Send actions to all games; those without one press nothing, and are reset before their pictures matter."""
        self._ale.send([action or 0 for action in actions], self._strengths)

    def receive(self, pictures: Array, reward: Array, over: Array) -> None:
        received, reward[:], over[:], _, _ = self._ale.recv()
        pictures[:] = self._channels_first(received)

    def _channels_first(self, pictures: Array) -> Array:
        """Return gray pictures [N, 1, H, W] as they are, and colour pictures [N, 1, H, W, 3] as [N, 3, H, W]."""
        return pictures if self._gray else np.moveaxis(pictures[:, 0], -1, 1)


class ScreenGames(Vector):
    """Many games stepped together, with the episodes of `ScreenGame`; frames are stacked in place."""

    def __init__(self, spec: EnvSpec, rom: str, settings: AtariSettings, num_envs: int, seeds: EpisodeSeeds) -> None:
        layout = Layout(spec, {}, raw_reward=settings.clip_rewards)
        buffers = [allocate_buffer(layout, num_envs) for _ in range(2)]
        self._limit = spec.max_episode_steps or FOREVER
        self._clip = settings.clip_rewards
        self._games = (SeparateConsoles if draws_noops(rom, settings) else SharedConsole)(rom, settings, num_envs)
        self._channels = 1 if settings.obs_type == "grayscale" else 3
        self._begin(buffers[0].step.obs[SINGLE_GROUP], {index: seeds(index, 0) for index in range(num_envs)})
        super().__init__(layout, num_envs, seeds, buffers)

    def close(self) -> None:
        vars(self).pop("_games", None)  # the consoles are closed with it; closing twice is allowed

    def _begin(self, obs: Array, seeds: Mapping[int, int]) -> None:
        """Start episodes; write their first pictures, repeated over the stack, into obs [N, 1, S*C, H, W]."""
        for index, picture in zip(seeds, self._games.begin(seeds), strict=True):
            obs[index, 0].reshape(-1, *picture.shape)[:] = picture

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        buffer, last = self._buffers[turn], self._buffers[1 - turn].step.obs[SINGLE_GROUP]
        step, channels = buffer.step, self._channels
        obs, reward = step.obs[SINGLE_GROUP], step.reward[SINGLE_GROUP]
        self._games.send(action[SINGLE_GROUP][:, 0].tolist())
        obs[:, 0, :-channels] = last[:, 0, channels:]
        self._games.receive(obs[:, 0, -channels:], reward[:, 0], step.terminated)
        np.greater_equal(self._ledger.lengths + 1, self._limit, out=step.truncated)
        np.logical_or(step.terminated, step.truncated, out=step.is_first)
        if self._clip:
            step.raw_reward[SINGLE_GROUP][...] = reward
            np.sign(reward, out=reward)
        if not step.is_first.any():
            return []
        ended: list[int] = np.flatnonzero(step.is_first).tolist()
        buffer.final_obs[SINGLE_GROUP][ended] = obs[ended]
        self._begin(obs, {index: self._ledger.seed(index, ahead=1) for index in ended})
        return ended

    def _restore(self, state: dict[str, Any] | None) -> None:
        """Repeat the running episodes together, started at different times so that all arrive at their last step."""
        running, obs = self._ledger.state_dict(), self._buffers[0].step.obs[SINGLE_GROUP]
        lengths, channels = running["lengths"], self._channels
        played = np.split(running["actions"][SINGLE_GROUP][:, 0], np.cumsum(lengths)[:-1])
        longest = int(lengths.max())
        starts: list[int] = (longest - lengths).tolist()
        rewards, over = np.empty(self.num_envs, np.float32), np.empty(self.num_envs, bool)
        for time in range(longest + 1):
            if new := {i: self._ledger.seed(i) for i, start in enumerate(starts) if start == time}:
                self._begin(obs, new)
            if time < longest:
                ages = [time - start for start in starts]
                self._games.send([int(log[age]) if age >= 0 else None for log, age in zip(played, ages, strict=True)])
                obs[:, 0, :-channels] = obs[:, 0, channels:].copy()
                self._games.receive(obs[:, 0, -channels:], rewards, over)


class MemoryGame(gymnasium.Env[Any, Any]):
    """One game, observed as the console's 128 bytes of memory."""

    render_mode = "rgb_array"

    def __init__(self, rom: str, settings: AtariSettings) -> None:
        import ale_py
        from ale_py.env import AtariEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else it prints a greeting
        self._env = AtariEnv(
            rom,
            obs_type="ram",
            frameskip=settings.frameskip,
            repeat_action_probability=settings.repeat_action_probability,
            full_action_space=settings.full_action_space,
        )
        self._settings, self._lives = settings, 0
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.get_action_meanings = self._env.get_action_meanings
        meanings = self.get_action_meanings()
        self._fire = meanings.index("FIRE") if settings.fire_reset and "FIRE" in meanings else None

    @property
    def ale(self) -> Any:
        return self._env.ale

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs: Any = self._env.reset(seed=seed)[0]
        if self._fire is not None:
            obs = self._env.step(self._fire)[0]
        noops = int(self.np_random.integers(self._settings.noop_max)) if self._settings.noop_max else 0
        for _ in range(noops):
            self.ale.act(0)
            if self.ale.game_over():
                self._env.reset()
            obs = self.ale.getRAM()
        self._lives = self.ale.lives()
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, over, _, _ = self._env.step(action)
        lives = self.ale.lives()
        lost, self._lives = lives < self._lives, lives
        return obs, float(reward), over or (lost and self._settings.terminal_on_life_loss), False, {}

    def render(self) -> Any:
        return self.ale.getScreenRGB()

    def close(self) -> None:
        self._env.close()


class Objects(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The objects that OCAtari (Delfosse et al. 2024) finds in memory: x, y, width and height of each, or zeros."""

    def __init__(self, env: MemoryGame, id: str) -> None:
        super().__init__(env)
        self._game = id.removeprefix("ALE/").removesuffix("-v5")
        try:
            from ocatari.ram import extract_ram_info
        except ImportError:
            raise MissingExtraError(f"environment.kwargs.obs_type=objects {OBJECTS}") from None
        self._reader = extract_ram_info
        try:
            self._objects: list[Any] = extract_ram_info.init_objects(self._game, False)
        except (KeyError, AttributeError):
            problem = f"OCAtari finds no objects in {self._game}"
            raise ConfigError(f"environment.kwargs.obs_type=objects: {problem}; use ram") from None
        self.observation_space = spaces.Box(-np.inf, np.inf, (4 * len(self._objects),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        memory, info = self.env.reset(seed=seed, options=options)
        self._objects = self._reader.init_objects(self._game, False)
        return self._read(memory), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        memory, reward, terminated, truncated, info = self.env.step(action)
        return self._read(memory), reward, terminated, truncated, info

    def _read(self, memory: Array) -> Array:
        self._reader.detect_objects_ram(self._objects, memory, self._game, False)
        boxes = [(*item.xy, *item.wh) if item else (0, 0, 0, 0) for item in self._objects]
        return np.array(boxes, np.float32).reshape(-1)
