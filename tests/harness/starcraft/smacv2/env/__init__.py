"""As SMAC's, with armies that `capability_config` draws. The published wrapper may reset twice and return nothing."""

from __future__ import annotations

from cadenza.envs.families import starcraft_dummy


class StarCraft2Env(starcraft_dummy.StarCraftCapabilityEnvWrapper):
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
        for key in ("team_gen", "start_positions"):
            assert capability_config[key]["dist_type"] in ("weighted_teams", "surrounded_and_reflect")
        assert len(capability_config["team_gen"]["unit_types"]) == len(capability_config["team_gen"]["weights"])
        options = {"seed": seed, "continuing_episode": continuing_episode}
        super().__init__(capability_config, map_name, obs_own_pos, **options)


class StarCraftCapabilityEnvWrapper:
    def __init__(self, **kwargs):
        self.env = StarCraft2Env(**kwargs)

    def reset(self):
        self.env.reset()

    def __getattr__(self, name):
        return getattr(self.env, name)
