"""sbx, Stable-Baselines3's algorithms in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import optax
import torch
from flax import linen
from sbx import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Task, Watch

ACTIVATIONS = {"tanh": linen.tanh, "relu": linen.relu}


def ppo(task: Task, watch: Watch) -> dict[str, Any]:
    settings = task["ppo"]

    def scheduled(value: float) -> Any:
        return (lambda left: value * left) if settings["anneal"] else value

    model = PPO(
        "MlpPolicy",
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
    return learn(model, task, watch, lambda: [model.policy.actor_state, model.policy.vf_state])


def dqn(task: Task, watch: Watch) -> dict[str, Any]:
    settings, sizes = task["dqn"], task["dqn"]["hidden_sizes"]
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise RuntimeError("its network has two hidden layers of one size")

    def adam(learning_rate: float) -> optax.GradientTransformation:
        """It does not clip gradients itself."""
        return optax.chain(optax.clip_by_global_norm(settings["max_grad_norm"]), optax.adam(learning_rate))

    model = DQN(
        "MlpPolicy",
        environment(task, watch),
        **replay(task, settings, optimizer_class=adam),
        tau=1.0,
        target_update_interval=settings["target_every"],
        exploration_fraction=settings["epsilon_share"],
        exploration_final_eps=settings["epsilon_end"],
    )
    return learn(model, task, watch, lambda: [model.policy.qf_state])


def sac(task: Task, watch: Watch) -> dict[str, Any]:
    settings = task["sac"]
    model = SAC("MlpPolicy", environment(task, watch), **replay(task, settings), tau=settings["tau"])
    return learn(model, task, watch, lambda: [model.policy.actor_state, model.policy.qf_state, model.ent_coef_state])


def environment(task: Task, watch: Watch) -> Any:
    torch.set_num_threads(task["threads"])  # rollouts and replay are torch's
    env = make_vec_env(task["env"], n_envs=task["num_envs"], seed=task["seed"])
    watch.follow(env, "step_wait", lambda result: (result[1], result[2]))
    return env


def replay(task: Task, settings: Any, **policy: Any) -> dict[str, Any]:
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
            **policy,
        },
        "seed": task["seed"],
        "device": "cpu",
    }


def learn(model: Any, task: Task, watch: Watch, states: Callable[[], list[Any]]) -> dict[str, Any]:
    """`states` as they are in the end: each gradient step makes new ones."""
    model.learn(task["timesteps"])
    watch.end()
    return watch.figures(
        env_steps=model.num_timesteps,
        updates=min(int(state.step) for state in states()),
        parameters=sum(leaf.size for state in states() for leaf in jax.tree_util.tree_leaves(state.params)),
    )
