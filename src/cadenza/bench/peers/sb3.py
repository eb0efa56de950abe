"""stable-baselines3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

if TYPE_CHECKING:
    from cadenza.bench.process import Task, Watch

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


def ppo(task: Task, watch: Watch) -> dict[str, Any]:
    torch.set_num_threads(task["threads"])
    settings = task["ppo"]
    env = make_vec_env(task["env"], n_envs=task["num_envs"], seed=task["seed"])
    watch.follow(env, "step_wait", lambda result: (result[1], result[2]))

    def scheduled(value: float) -> Any:
        return (lambda left: value * left) if settings["anneal"] else value

    model = PPO(
        "MlpPolicy",
        env,
        n_steps=settings["n_steps"],
        batch_size=settings["batch_size"],
        n_epochs=settings["n_epochs"],
        learning_rate=scheduled(settings["learning_rate"]),
        clip_range=scheduled(settings["clip_range"]),
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        ent_coef=settings["entropy_coef"],
        vf_coef=settings["value_coef"],
        max_grad_norm=settings["max_grad_norm"],
        policy_kwargs={
            "net_arch": {"pi": settings["hidden_sizes"], "vf": settings["hidden_sizes"]},
            "activation_fn": ACTIVATIONS[settings["activation"]],
            "optimizer_kwargs": {"eps": settings["adam_eps"]},
        },
        seed=task["seed"],
        device="cpu",
    )
    model.learn(task["timesteps"])
    watch.end()
    adam = model.policy.optimizer
    return watch.figures(
        env_steps=model.num_timesteps,
        updates=int(next(iter(adam.state.values()))["step"]),
        parameters=sum(parameter.numel() for parameter in model.policy.parameters()),
    )
