"""Train with an algorithm of your own: the cross-entropy method, which improves a linear policy without gradients.

Only acting, updating and the state are written here. Environments, evaluation, checkpoints and resume are cadenza's.

python examples/own_algorithm.py [ENV_STEPS]
"""

import sys
from dataclasses import dataclass

import torch

import cadenza
from cadenza.config.schema import Hook, Phase
from cadenza.config.setting import setting
from cadenza.data.rollout import RolloutStore
from cadenza.types import Acted, Updated


@dataclass(frozen=True)
class CEMConfig:
    name: str = setting("cem", "name of the variant")
    n_steps: int = setting(200, "steps of each generation", "vec_steps", least=1)
    elite: float = setting(0.25, "fraction of the candidates that the next generation is drawn around", above=0, most=1)
    noise: float = setting(0.1, "standard deviation added to each generation", least=0)

    def check(self, env, num_envs):
        """Raise a ConfigError for what the algorithm cannot do."""


@cadenza.register_algorithm("cem", config=CEMConfig)
class CEM:
    """Each environment follows a candidate; the best candidates are the mean of the next generation."""

    hooks = ("update",)

    def __init__(self, config, context):
        self.config, self.context = config, context
        group = context.env.groups["agent"]
        self.mean = torch.zeros(group.observation.shape[0], int(group.action.n))
        self.std = torch.ones_like(self.mean)
        self.candidates = self._draw()

    def _draw(self):
        shape = (self.context.num_envs, *self.mean.shape)
        noise = torch.randn(shape, generator=self.context.streams.torch("candidates"))
        return self.mean + self.std * noise

    def initial_carry(self, num_envs):
        return {}  # no memory

    def act(self, step, carry, mode):
        obs = torch.from_numpy(step.obs["agent"])  # [N, A, D], with A = 1
        followed = torch.arange(len(obs)) % len(self.candidates)
        weights = self.candidates[followed] if mode.explore else self.mean.expand(len(obs), -1, -1)
        return Acted({"agent": (obs @ weights).argmax(-1).numpy()}, {"agent": {}}, carry)

    def update(self, store, phase):
        rollout = store.take()
        reward = torch.from_numpy(rollout.groups["agent"]["reward"]).sum((0, 2))  # of [T, N, A]: [N]
        episodes = 1 + torch.from_numpy(rollout.terminated).sum(0)
        score = reward / episodes  # of each candidate
        best = score.argsort(descending=True, stable=True)[: max(1, round(self.config.elite * len(score)))]
        self.mean = self.candidates[best].mean(0)
        self.std = self.candidates[best].std(0, correction=0) + self.config.noise
        self.candidates = self._draw()
        return Updated(1, {"train/std": self.std.mean(), "train/score": score.mean()})

    def stores(self):
        return {"rollout": self.context.store("rollout", RolloutStore, self.config.n_steps)}

    def phases(self):
        steps = self.config.n_steps * self.context.num_envs
        return (Phase("train", (Hook("collect", steps=steps), Hook("update")), buffer="rollout"),)

    def state_dict(self):
        return {"mean": self.mean, "std": self.std, "candidates": self.candidates}

    def load_state_dict(self, state):
        self.mean, self.std, self.candidates = state["mean"], state["std"], state["candidates"]

    def load_weights(self, state):
        self.mean = state["mean"]  # for training.init_from


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = cadenza.train("CartPole-v1", CEM, **{"environment.num_envs": 16, "training.max_timesteps": steps})
    print(f"mean return {run.result['eval/return_mean']:.1f}")
    print("bit for bit the same when repeated:", cadenza.verify(run)["identical"])
