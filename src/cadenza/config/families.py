"""The families of environments. Packaging, Makefile and docs are tested against this list.

Modules are import paths, so that a look-up imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

HERE = "cadenza.envs.families"  # where modules are that are named without a package


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
    Family("classic", "Gymnasium's classic control", "gym"),
    Family("toy_text", "Gymnasium's grid worlds and card games with discrete observations", "gym"),
    Family("box2d", "Gymnasium's landers, walkers and cars", "gym", "box2d", ("Box2D",)),
    Family("mujoco", "Gymnasium's robots (v5)", "gym", "mujoco", ("mujoco", "imageio")),
    Family("dmc", "DeepMind Control: states and pixels", "dmc", "dmc", ("dm_control", "mujoco")),
    Family("ALE", "Atari games: images, memory, objects", "atari", "atari", ("ale_py",)),
    Family("minigrid", "rooms, keys and doors (MiniGrid)", "minigrid", "minigrid", ("minigrid",)),
    Family("vizdoom", "Doom's scenarios", "vizdoom", "vizdoom", ("vizdoom",), prefix="VizDoom-"),
    Family("gym_pusht", "pushing a block into place", "pusht", "pusht", ("gym_pusht", "pymunk")),
    Family(
        "robotics",
        "mazes for a ball and an ant (Gymnasium-Robotics)",
        "robotics",
        "robotics",
        ("gymnasium_robotics", "mujoco", "imageio"),
    ),
    Family("Retro", "games of old consoles", "retro", "retro", ("stable_retro",)),
    Family("brax", "robots in JAX: Brax and MJX", "brax", "brax", ("brax", "jax"), prefix="brax/"),
    Family("Bandit", "arms with noisy rewards: fixed, wandering, or by context", "bandit"),
    Family("skirmish", "battles of unlike units against a scripted enemy", "cadenza.envs.skirmish.environment"),
    Family("toy", "tiny environments with known answers, for tests and first steps", "cadenza.envs.toys.toy"),
    Family("mpe", "particles that move and talk (MPE2)", "pettingzoo_families", "marl", ("mpe2", "pettingzoo")),
    Family("sisl", "walkers, pursuers", "pettingzoo_families", "marl", ("pettingzoo", "pygame", "scipy", "Box2D")),
    Family("butterfly", "games for teams", "pettingzoo_families", "marl", ("pettingzoo", "pygame", "pymunk")),
    Family("games", "classic/…: boards, cards", "pettingzoo_families", "marl", ("pettingzoo", "chess", "rlcard")),
    Family(
        "mamujoco",
        "Gymnasium's robots, each moved by several agents (MaMuJoCo)",
        "mamujoco",
        "marl",
        ("gymnasium_robotics", "pettingzoo", "mujoco", "imageio"),
    ),
    Family("vmas", "teams in physics that is batched in torch (VMAS)", "vmas", "vmas", ("vmas",)),
    Family(
        "smac",
        "StarCraft II's battles (SMAC)",
        "smac",
        requires=("pysc2", "smac"),
        by_hand="StarCraft II with SMAC's maps, and pip install git+https://github.com/oxwhirl/smac.git "
        "(smac_dummy/3m and other maps work without)",
    ),
    Family(
        "smacv2",
        "StarCraft II's battles with armies drawn at random (SMACv2)",
        "smac",
        requires=("pysc2", "smacv2"),
        by_hand="StarCraft II with SMACv2's maps, and pip install git+https://github.com/oxwhirl/smacv2.git "
        "(smacv2_dummy/terran_5_vs_5 and others work without)",
    ),
    Family("smac_dummy", "a stand-in for SMAC: its maps without StarCraft II", "starcraft_dummy"),
    Family("smacv2_dummy", "a stand-in for SMACv2 without StarCraft II", "starcraft_dummy"),
)
FAMILIES: dict[str, Family] = {
    family.name: family if "." in family.module else replace(family, module=f"{HERE}.{family.module}")
    for family in _FAMILIES
}
