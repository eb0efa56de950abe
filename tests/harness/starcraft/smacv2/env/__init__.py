"""As SMAC's, with armies that `capability_config` draws. The published wrapper may reset twice and return nothing."""

from __future__ import annotations

from smac.env import NO_ATTACK
from smac.env import StarCraft2Env as First


class StarCraft2Env(First):
    def __init__(
        self,
        capability_config,
        map_name="8m",
        seed=None,
        continuing_episode=False,
        conic_fov=False,
        num_fov_actions=12,
        obs_own_pos=False,
        use_unit_ranges=False,
        min_attack_range=2,
        difficulty="7",
    ):
        assert map_name in ("10gen_terran", "10gen_protoss", "10gen_zerg")
        super().__init__("3m", seed=seed, continuing_episode=continuing_episode)
        self.n_agents, self.n_enemies = capability_config["n_units"], capability_config["n_enemies"]
        self.n_actions = NO_ATTACK + self.n_enemies
        self.episode_limit = 200

    def reset(self, episode_config=None):
        assert episode_config is not None
        return super().reset()


class StarCraftCapabilityEnvWrapper:
    def __init__(self, **kwargs):
        config = kwargs["capability_config"]
        for key in ("team_gen", "start_positions"):
            assert config[key]["dist_type"] in ("weighted_teams", "surrounded_and_reflect")
        assert len(config["team_gen"]["unit_types"]) == len(config["team_gen"]["weights"])
        self.env = StarCraft2Env(**kwargs)

    def reset(self):
        self.env.reset({})

    def __getattr__(self, name):
        return getattr(self.env, name)
