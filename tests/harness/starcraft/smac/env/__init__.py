"""`StarCraft2Env` as published: what is called, returned and asserted is as there.

Actions that are not available are refused; the dead may only do nothing, which the living may not; a time limit is told
apart only with `continuing_episode`; a game that breaks down ends the episode with a reward of 0 and an empty info.
"""

from __future__ import annotations

import numpy as np

LIMITS = {"3m": 60, "8m": 120, "2s3z": 120}
SIDES = {"3m": (3, 3), "8m": (8, 8), "2s3z": (5, 5)}
NO_ATTACK = 6  # no-op, stop, and four ways to go


class StarCraft2Env:
    launches = 0  # of the game, by all

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
        self.n_agents, self.n_enemies = SIDES[map_name]
        self.episode_limit = LIMITS[map_name]
        self.n_actions = NO_ATTACK + self.n_enemies
        self.continuing_episode, self.reward_sparse = continuing_episode, reward_sparse
        self.reward_scale_rate = reward_scale_rate
        self.max_reward = self.n_enemies * (10 + 10) + 200
        self._seed, self._break_at = seed, break_at
        self._episode_count = self._episode_steps = 0
        self._launched = False
        self.battles_won = 0

    def reset(self):
        self._episode_steps = 0
        if self._episode_count == 0:
            type(self).launches += 1
            self._launched = True
            self._random = np.random.default_rng(self._seed)
        self.health = np.full(self.n_agents, 10.0)
        self.enemy_health = np.full(self.n_enemies, 10.0)
        self.place = self._random.uniform(0, 4, self.n_agents)  # the enemy is at 8, reach is 6
        return self.get_obs(), self.get_state()

    def step(self, actions):
        actions_int = [int(action) for action in actions]
        for agent, action in enumerate(actions_int):
            assert self.get_avail_agent_actions(agent)[action] == 1, f"Agent {agent} cannot perform action {action}"
        if self._break_at is not None and self._episode_steps + 1 == self._break_at:
            self._episode_steps += 1
            return 0, True, {}
        self._episode_steps += 1
        before, standing = self.enemy_health.sum(), (self.enemy_health > 0).sum()
        for agent, action in enumerate(actions_int):
            if action >= NO_ATTACK:
                self.enemy_health[action - NO_ATTACK] = max(0.0, self.enemy_health[action - NO_ATTACK] - 4)
            self.place[agent] += {4: 1, 5: -1}.get(action, 0)
        for _ in range((self.enemy_health > 0).sum()):
            alive = np.flatnonzero(self.health > 0)
            if len(alive):
                self.health[self._random.choice(alive)] -= 1
        reward = before - self.enemy_health.sum() + 10 * (standing - (self.enemy_health > 0).sum())
        info = {"battle_won": False}
        info["dead_allies"] = int((self.health <= 0).sum())
        info["dead_enemies"] = int((self.enemy_health <= 0).sum())
        won, lost = not (self.enemy_health > 0).any(), not (self.health > 0).any()
        terminated = False
        if won or lost:
            terminated = True
            if won:
                self.battles_won += 1
                info["battle_won"] = True
                reward = 1 if self.reward_sparse else reward + 200
        elif self._episode_steps >= self.episode_limit:
            terminated = True
            if self.continuing_episode:
                info["episode_limit"] = True
        if terminated:
            self._episode_count += 1
        return reward / (self.max_reward / self.reward_scale_rate), terminated, info

    def get_avail_agent_actions(self, agent_id):
        if self.health[agent_id] <= 0:
            return [1] + [0] * (self.n_actions - 1)
        reach = abs(8 - self.place[agent_id]) <= 6
        return [0, 1, 1, 1, 1, 1] + [int(reach and health > 0) for health in self.enemy_health]

    def get_avail_actions(self):
        return [self.get_avail_agent_actions(agent) for agent in range(self.n_agents)]

    def get_obs(self):
        return [self.get_obs_agent(agent) for agent in range(self.n_agents)]

    def get_obs_agent(self, agent_id):
        if self.health[agent_id] <= 0:
            return np.zeros(self.get_obs_size(), np.float32)
        values = [self.health[agent_id] / 10, self.place[agent_id] / 8, *(self.enemy_health / 10)]
        return np.array(values, np.float32)

    def get_obs_size(self):
        return 2 + self.n_enemies

    def get_state(self):
        return np.concatenate([self.health / 10, self.place / 8, self.enemy_health / 10]).astype(np.float32)

    def get_state_size(self):
        return 2 * self.n_agents + self.n_enemies

    def get_total_actions(self):
        return self.n_actions

    def get_env_info(self):
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.get_total_actions(),
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
        }

    def render(self, mode="human"):
        return np.zeros((40, 60, 3), np.uint8) if mode == "rgb_array" else None

    def close(self):
        self._launched = False
