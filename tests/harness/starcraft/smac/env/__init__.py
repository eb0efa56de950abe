"""`StarCraft2Env` with the arguments of the published class and cadenza's stand-in for the game."""

from __future__ import annotations

from cadenza.envs.families import starcraft_dummy


class StarCraft2Env(starcraft_dummy.StarCraft2Env):
    def __init__(
        self,
        map_name="8m",
        step_mul=8,
        difficulty="7",
        seed=None,
        continuing_episode=False,
        reward_sparse=False,
        reward_scale_rate=20,
        break_at=None,
    ):
        options = {"seed": seed, "continuing_episode": continuing_episode, "break_at": break_at}
        super().__init__(map_name, reward_sparse=reward_sparse, reward_scale_rate=reward_scale_rate, **options)
