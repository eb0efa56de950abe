"""stable-baselines3 in torch, and sbx, which has the same interface in JAX."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Recorder, TaskData

LIBRARIES = {"sb3": "stable_baselines3", "sbx": "sbx"}
# Attributes of a model that hold what was learned: optimizers of torch, training states of JAX.
LEARNED = {
    "sb3": {
        "ppo": ("policy.optimizer",),
        "dqn": ("policy.optimizer",),
        "sac": ("actor.optimizer", "critic.optimizer", "ent_coef_optimizer"),
    },
    "sbx": {
        "ppo": ("policy.actor_state", "policy.vf_state"),
        "dqn": ("policy.qf_state",),
        "sac": ("policy.actor_state", "policy.qf_state", "ent_coef_state"),
    },
}


def ppo(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train PPO."""
    settings = task["ppo"]

    def scheduled(value: float) -> Any:
        return (lambda left: value * left) if settings["anneal"] else value

    model = import_module(LIBRARIES[task["contestant"]]).PPO(
        "CnnPolicy" if is_atari(task) else "MlpPolicy",
        environment(task, recorder),
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
            "activation_fn": activation(task, settings["activation"]),
            "optimizer_kwargs": {"eps": settings["adam_eps"]},
        },
        seed=task["seed"],
        device="cpu",
    )
    return learn(model, task, recorder)


def dqn(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train DQN."""
    settings, sizes = task["dqn"], task["dqn"]["hidden_sizes"]
    more: dict[str, Any] = {"max_grad_norm": settings["max_grad_norm"]}
    policy: dict[str, Any] = {}
    if task["contestant"] == "sbx":
        if len(sizes) != 2 or sizes[0] != sizes[1]:
            raise RuntimeError("sbx has two hidden layers of one size")
        more, policy = {}, {"optimizer_class": clipped_adam(settings["max_grad_norm"])}
    more |= {"exploration_fraction": settings["epsilon_share"], "exploration_final_eps": settings["epsilon_end"]}
    return train_with_replay(
        "DQN", task, recorder, policy, tau=1.0, target_update_interval=settings["target_every"], **more
    )


def sac(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train SAC."""
    return train_with_replay("SAC", task, recorder, {}, tau=task["sac"]["tau"])


def train_with_replay(
    name: str, task: TaskData, recorder: Recorder, policy: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Train an algorithm with a replay; `policy` and `more` are settings of its own."""
    settings = task[task["algorithm"]]
    model = getattr(import_module(LIBRARIES[task["contestant"]]), name)(
        "MlpPolicy",
        environment(task, recorder),
        learning_starts=settings["warmup_steps"],
        train_freq=settings["train_every"] // task["num_envs"],
        gradient_steps=settings["gradient_steps"],
        batch_size=settings["batch_size"],
        buffer_size=settings["buffer_size"],
        learning_rate=settings["learning_rate"],
        gamma=settings["gamma"],
        policy_kwargs={
            "net_arch": settings["hidden_sizes"],
            "activation_fn": activation(task, settings["activation"]),
            **policy,
        },
        seed=task["seed"],
        device="cpu",
        **more,
    )
    return learn(model, task, recorder)


def clipped_adam(max_grad_norm: float) -> Any:
    """Return an optimizer class that clips gradients, which sbx's DQN does not."""
    import optax

    def adam(learning_rate: float) -> Any:
        return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate))

    return adam


def activation(task: TaskData, name: str) -> Any:
    """Return the library's activation."""
    if task["contestant"] == "sb3":
        return {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[name]
    from flax import linen

    return {"tanh": linen.tanh, "relu": linen.relu}[name]


def environment(task: TaskData, recorder: Recorder) -> Any:
    """Return the vector environment, whose steps are recorded."""
    torch.set_num_threads(task["threads"])  # sbx has its rollouts and replay in torch, too
    env: Any
    if is_atari(task):
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        plain = {"frameskip": 1, "repeat_action_probability": 0.0}
        env = VecFrameStack(make_atari_env(task["env"], task["num_envs"], task["seed"], env_kwargs=plain), 4)
    else:
        env = make_vec_env(task["env"], n_envs=task["num_envs"], seed=task["seed"])
    recorder.follow(env, "step_wait", lambda result: (result[1], result[2]))
    return env


def is_atari(task: TaskData) -> bool:
    """Return whether to learn from frames of Atari; sbx has no such policy."""
    return task["contestant"] == "sb3" and str(task["env"]).startswith("ALE/")


def learn(model: Any, task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train, then count the gradient steps and parameters of the optimizers or training states."""
    model.learn(task["timesteps"])
    recorder.end()
    parts = [attrgetter(path)(model) for path in LEARNED[task["contestant"]][task["algorithm"]]]
    if task["contestant"] == "sb3":
        updates = [int(state["step"]) for adam in parts for state in adam.state.values()]
        sizes = [tensor.numel() for adam in parts for group in adam.param_groups for tensor in group["params"]]
    else:
        import jax

        updates = [int(state.step) for state in parts]
        sizes = [leaf.size for state in parts for leaf in jax.tree_util.tree_leaves(state.params)]
    return recorder.figures(env_steps=model.num_timesteps, updates=min(updates), parameters=sum(sizes))
