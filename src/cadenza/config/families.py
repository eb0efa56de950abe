"""The families of environments. Packaging, Makefile and docs are tested against this list.

Modules are import paths, so that a look-up imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass

HERE = "cadenza.envs.families"


@dataclass(frozen=True)
class Family:
    name: str
    summary: str
    module: str  # offers ids(family), make(config, render) -> Environment; perhaps native(config), composed(id)
    extra: str | None = None  # what to install: pip install 'cadenza[extra]'
    requires: tuple[str, ...] = ()  # packages of the extra that the module imports only when an environment is made
    by_hand: str | None = None  # how to install what pip alone cannot, instead of an extra
    prefix: str = "\0"  # the start of ids that cannot be listed without the packages


_FAMILIES = (
    Family("classic", "Gymnasium's classic control", f"{HERE}.gym"),
    Family("toy_text", "Gymnasium's grid worlds and card games with discrete observations", f"{HERE}.gym"),
    Family("box2d", "Gymnasium's landers, walkers and cars", f"{HERE}.gym", "box2d", ("Box2D",)),
    Family("mujoco", "Gymnasium's robots (v5)", f"{HERE}.gym", "mujoco", ("mujoco", "imageio")),
    Family("dmc", "DeepMind Control: states and pixels", f"{HERE}.dmc", "dmc", ("dm_control", "mujoco")),
    Family("ALE", "Atari games: images, memory, objects", f"{HERE}.atari", "atari", ("ale_py",)),
    Family("minigrid", "rooms, keys and doors (MiniGrid)", f"{HERE}.minigrid", "minigrid", ("minigrid",)),
    Family("vizdoom", "Doom's scenarios", f"{HERE}.vizdoom", "vizdoom", ("vizdoom",), prefix="VizDoom-"),
    Family("gym_pusht", "pushing a block into place", f"{HERE}.pusht", "pusht", ("gym_pusht", "pymunk")),
    Family(
        "robotics",
        "mazes for a ball and an ant (Gymnasium-Robotics)",
        f"{HERE}.robotics",
        "robotics",
        ("gymnasium_robotics", "mujoco", "imageio"),
    ),
    Family("Retro", "games of old consoles", f"{HERE}.retro", "retro", ("stable_retro",)),
    Family("brax", "robots in JAX: Brax and MJX", f"{HERE}.brax", "brax", ("brax", "jax"), prefix="brax/"),
    Family("Bandit", "arms with noisy rewards: fixed, wandering, or by context", f"{HERE}.bandit"),
    Family("skirmish", "battles of unlike units against a scripted enemy", "cadenza.envs.skirmish.environment"),
    Family("toy", "tiny environments with known answers, for tests and first steps", "cadenza.envs.toys.toy"),
    Family("mpe", "particles that move and talk (MPE2)", f"{HERE}.pettingzoo_families", "marl", ("mpe2", "pettingzoo")),
    Family(
        "sisl", "walkers, pursuers", f"{HERE}.pettingzoo_families", "marl", ("pettingzoo", "pygame", "scipy", "Box2D")
    ),
    Family("butterfly", "games for teams", f"{HERE}.pettingzoo_families", "marl", ("pettingzoo", "pygame", "pymunk")),
    Family(
        "games", "classic/…: boards, cards", f"{HERE}.pettingzoo_families", "marl", ("pettingzoo", "chess", "rlcard")
    ),
    Family(
        "mamujoco",
        "Gymnasium's robots, each moved by several agents (MaMuJoCo)",
        f"{HERE}.mamujoco",
        "marl",
        ("gymnasium_robotics", "pettingzoo", "mujoco", "imageio"),
    ),
    Family("vmas", "teams in physics that is batched in torch (VMAS)", f"{HERE}.vmas", "vmas", ("vmas",)),
    Family(
        "smac",
        "StarCraft II's battles (SMAC)",
        f"{HERE}.smac",
        requires=("pysc2", "smac"),
        by_hand="StarCraft II with SMAC's maps, and pip install git+https://github.com/oxwhirl/smac.git "
        "(smac_dummy/3m and other maps work without)",
    ),
    Family(
        "smacv2",
        "StarCraft II's battles with armies drawn at random (SMACv2)",
        f"{HERE}.smac",
        requires=("pysc2", "smacv2"),
        by_hand="StarCraft II with SMACv2's maps, and pip install git+https://github.com/oxwhirl/smacv2.git "
        "(smacv2_dummy/terran_5_vs_5 and others work without)",
    ),
    Family("smac_dummy", "a stand-in for SMAC: its maps without StarCraft II", f"{HERE}.starcraft_dummy"),
    Family("smacv2_dummy", "a stand-in for SMACv2 without StarCraft II", f"{HERE}.starcraft_dummy"),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
