"""tianshou 2, with its procedural interface and no logger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic, dist_fn_categorical_from_logits
from torch.distributions import Distribution, Independent, Normal

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Recorder, TaskData

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


def ppo(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train PPO."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    np.random.seed(task["seed"])  # tianshou draws minibatches from it
    settings = task["ppo"]
    env = DummyVectorEnv([lambda: gymnasium.make(task["env"])] * task["num_envs"])
    env.seed(task["seed"])
    recorder.follow(env)
    optimizer = AdamOptimizerFactory(lr=settings["learning_rate"], eps=settings["adam_eps"])
    if settings["anneal"]:
        optimizer.with_lr_scheduler_factory(LRSchedulerFactoryLinear(1, task["timesteps"], task["iteration"]))
    policy, critic = networks(settings, env.observation_space[0], env.action_space[0])
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=optimizer,
        eps_clip=settings["clip_range"],
        vf_coef=settings["value_coef"],
        ent_coef=settings["entropy_coef"],
        max_grad_norm=settings["max_grad_norm"],
        gae_lambda=settings["gae_lambda"],
        gamma=settings["gamma"],
        max_batchsize=task["iteration"],  # values and log-probabilities of a rollout in one go
    )

    def anneal_clip(_epoch: int, env_steps: int) -> None:
        """Decay the clip range linearly, which tianshou has no schedule for."""
        algorithm.eps_clip = settings["clip_range"] * (1 - env_steps / task["timesteps"])

    outcome = algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(algorithm, env, VectorReplayBuffer(task["iteration"], task["num_envs"])),
            max_epochs=1,
            epoch_num_steps=task["timesteps"],
            collection_step_num_env_steps=task["iteration"],
            batch_size=settings["batch_size"],
            update_step_num_repetitions=settings["n_epochs"],
            training_fn=anneal_clip if settings["anneal"] else None,
            verbose=False,
            show_progress=False,
        )
    )
    recorder.end()
    adam = algorithm.optim._optim
    return recorder.figures(
        env_steps=outcome.train_step,
        updates=int(next(iter(adam.state.values()))["step"]),
        parameters=sum(parameter.numel() for part in (policy, critic) for parameter in part.parameters()),
    )


def networks(settings: Any, obs: Any, action: Any) -> tuple[ProbabilisticActorPolicy, torch.nn.Module]:
    """Return policy and critic for the spaces."""
    discrete = isinstance(action, gymnasium.spaces.Discrete)

    def body() -> Net:
        layers = {"hidden_sizes": settings["hidden_sizes"], "activation": ACTIVATIONS[settings["activation"]]}
        return Net(state_shape=obs.shape, **layers)

    if discrete:
        actor = DiscreteActor(preprocess_net=body(), action_shape=int(action.n), softmax_output=False)
        critic = DiscreteCritic(preprocess_net=body())
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=body(), action_shape=action.shape, unbounded=True)
        critic = ContinuousCritic(preprocess_net=body())
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=dist_fn_categorical_from_logits if discrete else normal,
        action_space=action,
        action_scaling=False,
        action_bound_method=None if discrete else "clip",
    )
    return policy, critic


def normal(mean_and_std: tuple[torch.Tensor, torch.Tensor]) -> Distribution:
    """Return a diagonal Gaussian."""
    return Independent(Normal(*mean_and_std), 1)
