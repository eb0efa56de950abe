"""BenchMARL: its experiment, with loggers, evaluations and files left out."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

warnings.filterwarnings("ignore")  # it and torchrl have many to give

with suppress(ImportError):  # torchrl looks for MPE where PettingZoo had it before it became a package of its own
    import mpe2
    from mpe2 import simple_spread_v3

    sys.modules |= {"pettingzoo.mpe": mpe2, "pettingzoo.mpe.simple_spread_v3": simple_spread_v3}

from benchmarl.algorithms import MappoConfig  # noqa: E402
from benchmarl.environments import PettingZooTask, VmasTask  # noqa: E402
from benchmarl.experiment import Callback, Experiment, ExperimentConfig  # noqa: E402
from benchmarl.models.mlp import MlpConfig  # noqa: E402

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Task, Watch

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
# id -> the task, what it must be told beside its own defaults
TASKS = {
    "mpe/simple_spread_v3": (PettingZooTask.SIMPLE_SPREAD, {"max_cycles": 25, "local_ratio": 0.5}),
    "vmas/simple_spread": (VmasTask.SIMPLE_SPREAD, {"max_steps": 100}),
}


class Counting(Callback):
    """Marks the end of each iteration; counts what was learned from."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch, self.env_steps, self.updates = watch, 0, 0

    def on_batch_collected(self, batch: Any) -> None:
        self.env_steps += batch.numel()

    def on_train_step(self, batch: Any, group: str) -> None:
        self.updates += 1

    def on_train_end(self, training_td: Any, group: str) -> None:
        self.watch.mark(self.env_steps)
        self.watch.end()


def mappo(task: Task, watch: Watch) -> dict[str, Any]:
    torch.set_num_threads(task["threads"])
    settings, counting = task["mappo"], Counting(watch)
    experiment = Experiment(
        task=team(task),
        algorithm_config=algorithm(settings),
        model_config=network(settings),
        critic_model_config=network(settings),
        seed=task["seed"],
        config=config(task, settings),
    )
    experiment.callbacks = [counting]  # only now: it would write them to a file
    watch.mark(0)
    experiment.run()
    learned = {id(p): p.numel() for loss in experiment.losses.values() for p in loss.parameters() if p.requires_grad}
    return watch.figures(env_steps=counting.env_steps, updates=counting.updates, parameters=sum(learned.values()))


def team(task: Task) -> Any:
    found, settings = TASKS[task["env"]]
    made = found.get_from_yaml()
    made.config |= settings
    return made


def algorithm(settings: Any) -> Any:
    chosen = MappoConfig.get_from_yaml()
    chosen.clip_epsilon, chosen.entropy_coef = settings["clip_range"], settings["entropy_coef"]
    chosen.critic_coef, chosen.lmbda = settings["value_coef"], settings["gae_lambda"]
    chosen.loss_critic_type, chosen.share_param_critic = "l2", True
    return chosen


def network(settings: Any) -> Any:
    chosen = MlpConfig.get_from_yaml()
    chosen.num_cells = list(settings["hidden_sizes"])
    chosen.activation_class = ACTIVATIONS[settings["activation"]]
    return chosen


def config(task: Task, settings: Any) -> Any:
    chosen = ExperimentConfig.get_from_yaml()
    chosen.sampling_device = chosen.train_device = chosen.buffer_device = "cpu"
    chosen.loggers, chosen.evaluation, chosen.render, chosen.create_json = [], False, False, False
    chosen.share_policy_params, chosen.prefer_continuous_actions = True, task["env"].startswith("vmas/")
    chosen.max_n_frames = task["timesteps"]
    chosen.on_policy_n_envs_per_worker = task["num_envs"]
    chosen.on_policy_collected_frames_per_batch = task["iteration"]
    chosen.on_policy_n_minibatch_iters = settings["n_epochs"]
    chosen.on_policy_minibatch_size = settings["batch_size"]
    chosen.gamma, chosen.lr, chosen.adam_eps = settings["gamma"], settings["learning_rate"], settings["adam_eps"]
    chosen.clip_grad_norm, chosen.clip_grad_val = True, settings["max_grad_norm"]
    chosen.save_folder, chosen.checkpoint_at_end, chosen.checkpoint_interval = ".", False, 0
    return chosen
