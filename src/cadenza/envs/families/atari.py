"""Atari games through the Arcade Learning Environment (Machado et al. 2018); ids are `ALE/Pong-v5`.

What is seen is made by ALE's own vectorised code, as Gymnasium's AtariPreprocessing makes it.
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
from cadenza.envs.families.gym import Gym, check_arguments
from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.native import MakeNative
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.envs.vector import Vector
from cadenza.envs.wrappers import RawReward, SignReward
from cadenza.errors import ConfigError, MissingExtraError, nearest
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
Sees = Literal["grayscale", "rgb", "ram", "objects"]
SCREEN = (210, 160)  # height and width of a television, for pictures that people look at
MOST_FRAMES = 108_000  # half an hour of play, after which published results end an episode
FOREVER = 2**30
# Games that play alike from every reset, in long episodes too (benchmarks/repeatable.py). Others keep something over a
# reset, and some show it: Assault and BeamRider then go on otherwise than when just loaded.
UNKEEPING = frozenset(("breakout", "pong"))
NATIVE_DRESSING = ("frame_stack",)  # what the native version does itself
STRENGTH = [1.0]
OBJECTS = (
    "needs OCAtari, whose own requirements (numpy below 2) cannot be met here: pip install --no-deps ocatari, "
    "then opencv-python-headless and scikit-image"
)


def ids(family: str) -> list[str]:
    return [f"ALE/{game}-v5" for game in GAMES.split()]


@dataclasses.dataclass(frozen=True)
class Settings:
    """`environment.kwargs`. Frames are the emulator's, 60 in a second."""

    obs_type: Sees = "grayscale"
    screen_size: int | None = 84  # height and width of images; none: as on a television
    frameskip: int = 4  # frames that an action is held; of images, the brighter of the last two
    repeat_action_probability: float = 0.25  # sticky actions: how likely a frame takes the action before
    noop_max: int = 30  # an episode begins with up to so many frames of nothing
    terminal_on_life_loss: bool = False  # a lost life ends the episode, and the next begins a new game
    clip_rewards: bool = False  # -1, 0 or 1 to learn from; returns stay the game's own
    fire_reset: bool = False  # press FIRE first, where the game has it
    full_action_space: bool = False  # all 18 actions instead of those the game knows

    def __post_init__(self) -> None:
        where = "environment.kwargs"
        if self.obs_type not in get_args(Sees):
            allowed = f"must be one of {', '.join(get_args(Sees))}{nearest(str(self.obs_type), get_args(Sees))}"
            raise ConfigError(f"{where}.obs_type={self.obs_type}: {allowed}")
        for key, least in (("screen_size", 1), ("frameskip", 1), ("noop_max", 0)):
            value = getattr(self, key)
            if (value is None and key == "screen_size") or (type(value) is int and value >= least):
                continue
            raise ConfigError(f"{where}.{key}={value}: must be a whole number, at least {least}")
        value = self.repeat_action_probability
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ConfigError(f"{where}.repeat_action_probability={value}: must be at least 0 and below 1")
        for key in ("terminal_on_life_loss", "clip_rewards", "fire_reset", "full_action_space"):
            if not isinstance(getattr(self, key), bool):
                raise ConfigError(f"{where}.{key}={getattr(self, key)}: must be true or false")

    @property
    def limit(self) -> int:
        return MOST_FRAMES // self.frameskip


def settings_of(config: EnvironmentConfig) -> Settings:
    check_arguments(Settings, config.kwargs, config.id)
    return Settings(**config.kwargs)


def rom_of(id: str) -> str:
    """`ALE/MsPacman-v5` is ms_pacman, `UpNDown` up_n_down, `TicTacToe3D` tic_tac_toe_3d."""
    name = id.removeprefix("ALE/").removesuffix("-v5")
    return re.sub(r"(?<=[a-z])(?=[A-Z]|\d[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    settings = settings_of(config)
    env: gymnasium.Env[Any, Any]
    if settings.obs_type in ("grayscale", "rgb"):
        env = Screen(rom_of(config.id), settings, render)
    else:
        env = Memory(rom_of(config.id), settings)
        env = Objects(env, config.id) if settings.obs_type == "objects" else env
    if settings.clip_rewards:
        env = SignReward(RawReward(env))
    limit = config.max_episode_steps or settings.limit
    return Gym(env, id=config.id, max_episode_steps=limit, clip_actions=config.clip_actions)


def native(config: EnvironmentConfig) -> MakeNative | None:
    """Emulators that work at the same time, for images; what they stack themselves is `environment.frame_stack`."""
    settings = settings_of(config)
    if settings.obs_type not in ("grayscale", "rgb"):
        return None
    from cadenza.envs.wrapping import wrap_all

    def facts() -> EnvSpec:
        env = wrap_all(make(config), config)
        env.close()
        return env.spec

    rom = rom_of(config.id)
    return MakeNative(lambda count, seeds: Screens(facts(), rom, settings, count, seeds), 2, "replay")


def pool_options(config: EnvironmentConfig) -> dict[str, Any]:
    """The same settings in EnvPool's words."""
    settings = settings_of(config)
    if settings.clip_rewards or settings.obs_type not in ("grayscale", "rgb") or settings.screen_size is None:
        few = "only images of some screen_size, and rewards as they are (clip_rewards=false)"
        raise ConfigError(f"environment.vectorize=envpool: for Atari {few}")
    if settings.terminal_on_life_loss:
        its = "EnvPool goes on with the game after a lost life, where a new one begins here"
        raise ConfigError(f"environment.kwargs.terminal_on_life_loss=true: {its}; use environment.vectorize=auto")
    if not settings.noop_max:
        its = "EnvPool begins with one frame of nothing at least"
        raise ConfigError(f"environment.kwargs.noop_max=0: {its}; give 1 or more, or environment.vectorize=auto")
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


def seeded(rom: str, settings: Settings) -> bool:
    """Whether a game takes a seed for every episode, and so is loaded for it."""
    return settings.repeat_action_probability > 0 or rom not in UNKEEPING


def drawn_here(rom: str, settings: Settings) -> bool:
    """Whether how long an episode begins with nothing is not left to ALE, which would not draw it by a seed."""
    return settings.noop_max > 0 and not seeded(rom, settings)


def interface(rom: str, settings: Settings, count: int, *, height: int, width: int, gray: bool) -> Any:
    """ALE's vectorised code for so many games."""
    import ale_py
    from ale_py import roms

    path = roms.get_rom_path(rom)
    assert path is not None
    beginnings = settings.frameskip + settings.fire_reset  # of which ALE draws one, enough for every remainder
    return ale_py.ALEVectorInterface(
        rom_path=path,
        num_envs=count,
        num_threads=count,  # it takes no more than there are processors
        stack_num=1,
        img_height=height,
        img_width=width,
        grayscale=gray,
        frame_skip=settings.frameskip,
        maxpool=settings.frameskip > 1,
        noop_max=beginnings if drawn_here(rom, settings) else settings.noop_max,
        use_fire_reset=settings.fire_reset,
        episodic_life=settings.terminal_on_life_loss,
        life_loss_info=False,
        reward_clipping=False,
        max_episode_steps=FOREVER,
        repeat_action_probability=settings.repeat_action_probability,
        full_action_space=settings.full_action_space,
        batch_size=0,
        thread_affinity_offset=-1,
        autoreset_mode="NextStep",  # but it is reset before that step comes
    )


class Emulator:
    """One console with a thread of its own: told what to do at one time, asked what came of it at another."""

    def __init__(self, rom: str, settings: Settings, people: bool = False) -> None:
        # A seed loads the game anew, which takes as long as 300 steps. A game that keeps nothing needs it for sticky
        # actions alone; how many frames nothing is done is then drawn here.
        self._seeded, self._drawn_here = seeded(rom, settings), drawn_here(rom, settings)
        self._noop_max, self._skip, self._fires = settings.noop_max, settings.frameskip, int(settings.fire_reset)
        size = settings.screen_size
        height, width = SCREEN if people or size is None else (size, size)
        gray = settings.obs_type == "grayscale" and not people
        self._ale = interface(rom, settings, 1, height=height, width=width, gray=gray)
        self.actions = tuple(action.name for action in self._ale.get_action_set())
        self._choices = [[action] for action in range(len(self.actions))]
        shape = self._ale.get_observation_shape()  # the stack of one, then [H, W] or [H, W, C]
        self.channels_last = len(shape) == 4
        self.shape = (3, height, width) if self.channels_last else (1, height, width)

    def begin(self, seed: int) -> Array:
        """The first picture of an episode, which follows from the seed alone."""
        if not self._drawn_here:
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
        """Anew, until whole steps are left up to this frame; no step is shorter, and ALE's draw cannot be told."""
        while True:
            picture, passed = self._reset(-1)
            if (frames - passed) % self._skip == 0:
                return picture, passed

    def _reset(self, seed: int) -> tuple[Array, int]:
        """The picture, and the frames that have passed."""
        pictures, told = self._ale.reset(np.zeros(1, np.int64), np.array([seed]))
        return self._seen(pictures), int(told["episode_frame_number"][0])

    def send(self, action: int) -> None:
        self._ale.send(self._choices[action], STRENGTH)  # lists, which it reads twice as fast as arrays

    def receive(self) -> tuple[Array, float, bool]:
        """The picture [C, H, W], the reward, and whether that was the end."""
        pictures, reward, terminated, _, _ = self._ale.recv()
        return self._seen(pictures), float(reward[0]), bool(terminated[0])

    def _seen(self, pictures: Array) -> Array:
        picture: Array = pictures[0]
        return np.moveaxis(picture[0], -1, 0) if self.channels_last else picture


class Screen(gymnasium.Env[Any, Any]):
    """One game, seen as images."""

    render_mode = "rgb_array"

    def __init__(self, rom: str, settings: Settings, render: bool) -> None:
        self._emulator = Emulator(rom, settings)
        self._shown = Emulator(rom, settings, people=True) if render else None  # plays along, for people to look at
        self._picture: Array | None = None
        self.observation_space = spaces.Box(0, 255, self._emulator.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._emulator.actions))

    def get_action_meanings(self) -> tuple[str, ...]:
        return self._emulator.actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        if self._shown is not None:
            self._picture = self._shown.begin(seed)
        return self._emulator.begin(seed), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for emulator in (self._emulator, self._shown):
            if emulator is not None:
                emulator.send(int(action))
        picture, reward, over = self._emulator.receive()
        if self._shown is not None:
            self._picture = self._shown.receive()[0]
        return picture, reward, over, False, {}

    def render(self) -> Any:
        return None if self._picture is None else np.ascontiguousarray(np.moveaxis(self._picture, 0, -1))


class Apart:
    """Games with a console each: one can be told to do nothing while the others stand still."""

    def __init__(self, rom: str, settings: Settings, count: int) -> None:
        self._emulators = [Emulator(rom, settings) for _ in range(count)]
        self._playing: list[int] = []

    def begin(self, seeds: Mapping[int, int]) -> list[Array]:
        """The first pictures [C, H, W] of episodes, by the games that begin them."""
        return [self._emulators[index].begin(seed) for index, seed in seeds.items()]

    def send(self, actions: Sequence[int | None]) -> None:
        self._playing = [index for index, action in enumerate(actions) if action is not None]
        for index in self._playing:
            self._emulators[index].send(actions[index])  # type: ignore[arg-type]

    def receive(self, pictures: Array, reward: Array, over: Array) -> None:
        for index in self._playing:
            pictures[index], reward[index], over[index] = self._emulators[index].receive()


class Joined:
    """Games with one console for all: as quick as ALE is by itself, but none can stand still while others play."""

    def __init__(self, rom: str, settings: Settings, count: int) -> None:
        height, width = SCREEN if settings.screen_size is None else (settings.screen_size, settings.screen_size)
        self._gray, self._seeded = settings.obs_type == "grayscale", seeded(rom, settings)
        self._ale = interface(rom, settings, count, height=height, width=width, gray=self._gray)
        self._strengths = STRENGTH * count

    def begin(self, seeds: Mapping[int, int]) -> Array:
        given = list(seeds.values()) if self._seeded else [-1] * len(seeds)
        return self._seen(self._ale.reset(list(seeds), given)[0])[list(seeds)]

    def send(self, actions: Sequence[int | None]) -> None:
        """Those that are not told anything press nothing; they begin anew before they are looked at."""
        self._ale.send([action or 0 for action in actions], self._strengths)

    def receive(self, pictures: Array, reward: Array, over: Array) -> None:
        seen, reward[:], over[:], _, _ = self._ale.recv()
        pictures[:] = self._seen(seen)

    def _seen(self, pictures: Array) -> Array:
        """[N, 1, H, W] of gray ones stay, [N, 1, H, W, 3] are turned."""
        return pictures if self._gray else np.moveaxis(pictures[:, 0], -1, 1)


class Screens(Vector):
    """Many games at the same time, each as `Screen` plays it; frames are stacked in place."""

    def __init__(self, spec: EnvSpec, rom: str, settings: Settings, num_envs: int, seeds: EpisodeSeeds) -> None:
        layout = Layout(spec, {}, raw_reward=settings.clip_rewards)
        buffers = [allocate_buffer(layout, num_envs) for _ in range(2)]
        self._limit = spec.max_episode_steps or FOREVER
        self._clip = settings.clip_rewards
        self._games = (Apart if drawn_here(rom, settings) else Joined)(rom, settings, num_envs)
        self._channels = 1 if settings.obs_type == "grayscale" else 3
        self._begin(buffers[0].step.obs[SINGLE_GROUP], {index: seeds(index, 0) for index in range(num_envs)})
        super().__init__(layout, num_envs, seeds, buffers)

    def close(self) -> None:
        vars(self).pop("_games", None)  # the consoles end with it; there may be none any more

    def _begin(self, obs: Array, seeds: Mapping[int, int]) -> None:
        """An episode begins with its first picture repeated. obs: [N, 1, S*C, H, W]"""
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
        """The running episodes played once more at the same time, begun such that all arrive at the end together."""
        running, obs = self._ledger.state_dict(), self._buffers[0].step.obs[SINGLE_GROUP]
        lengths, channels = running["lengths"], self._channels
        played = np.split(running["actions"][SINGLE_GROUP][:, 0], np.cumsum(lengths)[:-1])
        longest = int(lengths.max())
        starts: list[int] = (longest - lengths).tolist()
        earned, over = np.empty(self.num_envs, np.float32), np.empty(self.num_envs, bool)
        for at in range(longest + 1):
            if begun := {i: self._ledger.seed(i) for i, start in enumerate(starts) if start == at}:
                self._begin(obs, begun)
            if at < longest:
                now = [at - start for start in starts]
                self._games.send([int(done[t]) if t >= 0 else None for done, t in zip(played, now, strict=True)])
                obs[:, 0, :-channels] = obs[:, 0, channels:].copy()
                self._games.receive(obs[:, 0, -channels:], earned, over)


class Memory(gymnasium.Env[Any, Any]):
    """One game, seen as the console's 128 bytes of memory."""

    render_mode = "rgb_array"

    def __init__(self, rom: str, settings: Settings) -> None:
        import ale_py
        from ale_py.env import AtariEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # before it says hello
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
        nothing = int(self.np_random.integers(self._settings.noop_max)) if self._settings.noop_max else 0
        for _ in range(nothing):
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
    """The memory read as things, by OCAtari (Delfosse et al. 2024): x, y, width and height of each, zeros if absent."""

    def __init__(self, env: Memory, id: str) -> None:
        super().__init__(env)
        self._game = id.removeprefix("ALE/").removesuffix("-v5")
        try:
            from ocatari.ram import extract_ram_info
        except ImportError:
            raise MissingExtraError(f"environment.kwargs.obs_type=objects {OBJECTS}") from None
        self._reader = extract_ram_info
        try:
            self._things: list[Any] = extract_ram_info.init_objects(self._game, False)
        except (KeyError, AttributeError):
            problem = f"OCAtari knows no objects in {self._game}"
            raise ConfigError(f"environment.kwargs.obs_type=objects: {problem}; use ram") from None
        self.observation_space = spaces.Box(-np.inf, np.inf, (4 * len(self._things),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        memory, info = self.env.reset(seed=seed, options=options)
        self._things = self._reader.init_objects(self._game, False)
        return self._read(memory), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        memory, reward, terminated, truncated, info = self.env.step(action)
        return self._read(memory), reward, terminated, truncated, info

    def _read(self, memory: Array) -> Array:
        self._reader.detect_objects_ram(self._things, memory, self._game, False)
        found = [(*thing.xy, *thing.wh) if thing else (0, 0, 0, 0) for thing in self._things]
        return np.array(found, np.float32).reshape(-1)
