"""skrl, with its TensorBoard writer and its checkpoints switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import torch
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Recorder, TaskData

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


def ppo(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train PPO."""
    torch.set_num_threads(task["threads"])
    set_seed(task["seed"])
    settings = task["ppo"]
    vector = gymnasium.make_vec(task["env"], num_envs=task["num_envs"], vectorization_mode="sync")
    recorder.follow(vector)
    env = wrap_env(vector, wrapper="gymnasium", verbose=False)
    vec_steps = task["timesteps"] // task["num_envs"]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    models = {"policy": policy(settings, **spaces), "value": Value(settings, **spaces)}
    schedule = {}
    if settings["anneal"]:  # skrl steps it after every epoch
        epochs = vec_steps // settings["n_steps"] * settings["n_epochs"]
        schedule = {
            "learning_rate_scheduler": torch.optim.lr_scheduler.LambdaLR,
            "learning_rate_scheduler_kwargs": {"lr_lambda": lambda epoch: 1 - epoch / epochs},
        }
    agent = PPO(
        models=models,
        memory=RandomMemory(memory_size=settings["n_steps"], num_envs=task["num_envs"], device="cpu"),
        cfg={
            "rollouts": settings["n_steps"],
            "learning_epochs": settings["n_epochs"],
            "mini_batches": task["iteration"] // settings["batch_size"],
            "learning_rate": settings["learning_rate"],
            "discount_factor": settings["gamma"],
            "gae_lambda": settings["gae_lambda"],
            "ratio_clip": settings["clip_range"],
            "value_clip": 0.0,
            "entropy_loss_scale": settings["entropy_coef"],
            "value_loss_scale": settings["value_coef"],
            "grad_norm_clip": settings["max_grad_norm"],
            "time_limit_bootstrap": True,
            **schedule,
        },
        **spaces,
    )
    agent.cfg.experiment.write_interval = agent.cfg.experiment.checkpoint_interval = 0
    for group in agent.optimizer.param_groups:
        group["eps"] = settings["adam_eps"]
    if settings["anneal"]:
        anneal_clip(agent, settings["clip_range"])
    trainer = SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": vec_steps, "headless": True, "disable_progressbar": True}
    )
    trainer.train()
    recorder.end()
    return recorder.figures(
        env_steps=vec_steps * task["num_envs"],
        updates=int(next(iter(agent.optimizer.state.values()))["step"]),
        parameters=sum(parameter.numel() for model in models.values() for parameter in model.parameters()),
    )


def anneal_clip(agent: PPO, clip_range: float) -> None:
    """Decay the clip range linearly, which skrl has no schedule for; its update reads the value each time."""
    update = agent.update

    def annealed(*, timestep: int, timesteps: int) -> None:
        agent.cfg.ratio_clip = clip_range * (1 - timestep / timesteps)
        update(timestep=timestep, timesteps=timesteps)

    agent.update = annealed


def mlp(settings: Any, inputs: int, outputs: int) -> torch.nn.Sequential:
    """Return a network with the task's hidden layers."""
    layers: list[torch.nn.Module] = []
    for units in settings["hidden_sizes"]:
        layers += [torch.nn.Linear(inputs, units), ACTIVATIONS[settings["activation"]]()]
        inputs = units
    return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, outputs))


def policy(settings: Any, **spaces: Any) -> Model:
    """Return the policy for the action space."""
    discrete = isinstance(spaces["action_space"], gymnasium.spaces.Discrete)
    return CategoricalPolicy(settings, **spaces) if discrete else GaussianPolicy(settings, **spaces)


class CategoricalPolicy(CategoricalMixin, Model):
    def __init__(self, settings: Any, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = mlp(settings, self.num_observations, self.num_actions)

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.net(inputs["observations"]), {}


class GaussianPolicy(GaussianMixin, Model):
    def __init__(self, settings: Any, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.net = mlp(settings, self.num_observations, self.num_actions)
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, settings: Any, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = mlp(settings, self.num_observations, 1)

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.net(inputs["observations"]), {}
