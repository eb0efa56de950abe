"""torchrl: its environments, collector, GAE and PPO loss, in a loop such as its users write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import DoubleToFloat, EnvBase, GymEnv, SerialEnv, TransformedEnv
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Recorder, TaskData

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


def ppo(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train PPO."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    settings, rollout = task["ppo"], task["iteration"]
    env = vector(task)
    recorder.follow(env, "step_and_maybe_reset", read)
    actor, critic = networks(settings, env)
    advantage = GAE(
        gamma=settings["gamma"], lmbda=settings["gae_lambda"], value_network=critic, average_gae=False, vectorized=True
    )
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=settings["clip_range"],
        entropy_coeff=settings["entropy_coef"],
        critic_coeff=settings["value_coef"],
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    parameters = list(loss.parameters())
    adam = torch.optim.Adam(parameters, lr=settings["learning_rate"], eps=settings["adam_eps"])
    collector = Collector(env, actor, frames_per_batch=rollout, total_frames=task["timesteps"])
    env_steps = updates = 0
    for batch in collector:
        if settings["anneal"]:
            left = 1 - env_steps / task["timesteps"]
            adam.param_groups[0]["lr"] = settings["learning_rate"] * left
            loss.clip_epsilon.fill_(settings["clip_range"] * left)
        env_steps += batch.numel()
        with torch.no_grad():
            flat = advantage(batch).reshape(-1)
        for _ in range(settings["n_epochs"]):
            for rows in torch.split(torch.randperm(rollout), settings["batch_size"]):
                terms = loss(flat[rows])
                adam.zero_grad()
                (terms["loss_objective"] + terms["loss_critic"] + terms.get("loss_entropy", 0.0)).backward()
                torch.nn.utils.clip_grad_norm_(parameters, settings["max_grad_norm"])
                adam.step()
                updates += 1
        collector.update_policy_weights_()
    recorder.end()
    return recorder.figures(
        env_steps=env_steps, updates=updates, parameters=sum(parameter.numel() for parameter in parameters)
    )


def vector(task: TaskData) -> EnvBase:
    """Return the vector environment."""
    env = SerialEnv(task["num_envs"], lambda: make(task)) if task["num_envs"] > 1 else make(task)
    env.set_seed(task["seed"])
    return env


def make(task: TaskData) -> EnvBase:
    """Return one environment, with float32 observations."""
    env = GymEnv(task["env"], device="cpu", categorical_action_encoding=True)
    doubles = env.observation_spec["observation"].dtype == torch.float64
    return TransformedEnv(env, DoubleToFloat()) if doubles else env


def read(result: Any) -> tuple[Any, Any]:
    """Return the rewards [N] and ends of episodes [N] in the result of a step."""
    after = result[0]["next"]
    return after["reward"].numpy().reshape(-1).copy(), after["done"].numpy().reshape(-1)


def networks(settings: Any, env: EnvBase) -> tuple[ProbabilisticActor, ValueOperator]:
    """Return policy and value function for the spaces."""
    inputs, space = env.observation_spec["observation"].shape[-1], env.action_spec_unbatched
    discrete = not space.dtype.is_floating_point
    layers = {"num_cells": settings["hidden_sizes"], "activation_class": ACTIVATIONS[settings["activation"]]}
    outputs = int(space.space.n) if discrete else space.shape[-1]
    body = MLP(in_features=inputs, out_features=outputs, **layers)
    keys = ["logits"] if discrete else ["loc", "scale"]
    net = body if discrete else torch.nn.Sequential(body, AddStateIndependentNormalScale(outputs, scale_mapping="exp"))
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=env.full_action_spec_unbatched,
        distribution_class=Categorical if discrete else IndependentNormal,
        return_log_prob=True,
    )
    critic = MLP(in_features=inputs, out_features=1, **layers)
    return actor, ValueOperator(critic, in_keys=["observation"])
