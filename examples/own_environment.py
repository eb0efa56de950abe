"""Train in an environment of your own: any gymnasium.Env, passed as its class.

python examples/own_environment.py [ENV_STEPS]
"""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

import cadenza

HEATER, WINDOW = 1.5, 0.8  # degrees per step


class Thermostat(gymnasium.Env):
    """Keep a room at a target temperature by heating, waiting, or opening the window."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(-50.0, 50.0, (2,), np.float32)  # distance to the target, outside temperature

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        # all randomness comes from self.np_random: then a resumed run repeats the same episodes
        self.target, self.outside = self.np_random.uniform(18, 22), self.np_random.uniform(-5, 15)
        self.room = self.outside
        return self._observation(), {}

    def step(self, action):
        self.room += 0.1 * (self.outside - self.room) + (HEATER if action == 1 else -WINDOW if action == 2 else 0.0)
        reward = -abs(self.room - self.target)
        return self._observation(), float(reward), False, False, {}  # the time limit below ends episodes

    def get_action_meanings(self):
        return ["wait", "heat", "open the window"]

    def _observation(self):
        return np.array([self.room - self.target, self.outside], np.float32)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    run = cadenza.train(Thermostat, "ppo", **{"environment.max_episode_steps": 100, "training.max_timesteps": steps})
    print(f"mean return {run.result['eval/return_mean']:.1f}")

    policy = run.load()
    for distance in (-5.0, 0.0, 5.0):
        meaning = Thermostat().get_action_meanings()[policy(np.array([distance, 5.0]))]
        print(f"{distance:+.0f} degrees from the target: {meaning}")
