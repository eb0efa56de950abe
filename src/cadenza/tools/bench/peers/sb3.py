"""stable-baselines3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Task, Watch

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


def ppo(task: Task, watch: Watch) -> dict[str, Any]:
    settings = task["ppo"]

    def scheduled(value: float) -> Any:
        return (lambda left: value * left) if settings["anneal"] else value

    model = PPO(
        "CnnPolicy" if is_atari(task) else "MlpPolicy",
        environment(task, watch),
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
    return learn(model, task, watch, [model.policy.optimizer])


def dqn(task: Task, watch: Watch) -> dict[str, Any]:
    settings = task["dqn"]
    model = DQN(
        "MlpPolicy",
        environment(task, watch),
        **replay(task, settings),
        tau=1.0,
        target_update_interval=settings["target_every"],
        exploration_fraction=settings["epsilon_share"],
        exploration_final_eps=settings["epsilon_end"],
        max_grad_norm=settings["max_grad_norm"],
    )
    return learn(model, task, watch, [model.policy.optimizer])


def sac(task: Task, watch: Watch) -> dict[str, Any]:
    settings = task["sac"]
    model = SAC("MlpPolicy", environment(task, watch), **replay(task, settings), tau=settings["tau"])
    return learn(model, task, watch, [model.actor.optimizer, model.critic.optimizer, model.ent_coef_optimizer])


def environment(task: Task, watch: Watch) -> Any:
    torch.set_num_threads(task["threads"])
    env: Any
    if is_atari(task):
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        plain = {"frameskip": 1, "repeat_action_probability": 0.0}
        env = VecFrameStack(make_atari_env(task["env"], task["num_envs"], task["seed"], env_kwargs=plain), 4)
    else:
        env = make_vec_env(task["env"], n_envs=task["num_envs"], seed=task["seed"])
    watch.follow(env, "step_wait", lambda result: (result[1], result[2]))
    return env


def is_atari(task: Task) -> bool:
    return str(task["env"]).startswith("ALE/")


def replay(task: Task, settings: Any) -> dict[str, Any]:
    return {
        "learning_starts": settings["warmup_steps"],
        "train_freq": settings["train_every"] // task["num_envs"],
        "gradient_steps": settings["gradient_steps"],
        "batch_size": settings["batch_size"],
        "buffer_size": settings["buffer_size"],
        "learning_rate": settings["learning_rate"],
        "gamma": settings["gamma"],
        "policy_kwargs": {
            "net_arch": settings["hidden_sizes"],
            "activation_fn": ACTIVATIONS[settings["activation"]],
        },
        "seed": task["seed"],
        "device": "cpu",
    }


def learn(model: Any, task: Task, watch: Watch, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    model.learn(task["timesteps"])
    watch.end()
    learned = [parameter for adam in optimizers for group in adam.param_groups for parameter in group["params"]]
    return watch.figures(
        env_steps=model.num_timesteps,
        updates=min(int(state["step"]) for adam in optimizers for state in adam.state.values()),
        parameters=sum(parameter.numel() for parameter in learned),
    )
