"""BenchMARL: its experiment, with loggers, evaluations and files left out."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

warnings.filterwarnings("ignore")  # BenchMARL and torchrl raise many

with suppress(ImportError):  # torchrl looks for MPE where PettingZoo had it before it became a package of its own
    import mpe2
    from mpe2 import simple_spread_v3

    sys.modules |= {"pettingzoo.mpe": mpe2, "pettingzoo.mpe.simple_spread_v3": simple_spread_v3}

from benchmarl.algorithms import MappoConfig  # noqa: E402
from benchmarl.environments import PettingZooTask, VmasTask  # noqa: E402
from benchmarl.experiment import Callback, Experiment, ExperimentConfig  # noqa: E402
from benchmarl.models.mlp import MlpConfig  # noqa: E402

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Recorder, TaskData

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
# id -> the task, and settings that differ from its defaults
TASKS = {
    "mpe/simple_spread_v3": (PettingZooTask.SIMPLE_SPREAD, {"max_cycles": 25, "local_ratio": 0.5}),
    "vmas/simple_spread": (VmasTask.SIMPLE_SPREAD, {"max_steps": 100}),
}


class Counting(Callback):
    """A callback that marks the end of each iteration, and counts steps and updates."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder, self.env_steps, self.updates = recorder, 0, 0

    def on_batch_collected(self, batch: Any) -> None:
        self.env_steps += batch.numel()

    def on_train_step(self, batch: Any, group: str) -> None:
        self.updates += 1

    def on_train_end(self, training_td: Any, group: str) -> None:
        self.recorder.mark(self.env_steps)
        self.recorder.end()


def mappo(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train MAPPO."""
    torch.set_num_threads(task["threads"])
    settings, counting = task["mappo"], Counting(recorder)
    experiment = Experiment(
        task=team(task),
        algorithm_config=algorithm(settings),
        model_config=network(settings),
        critic_model_config=network(settings),
        seed=task["seed"],
        config=config(task, settings),
    )
    experiment.callbacks = [counting]  # set here, since the constructor would write them to a file
    recorder.mark(0)
    experiment.run()
    learned = {id(p): p.numel() for loss in experiment.losses.values() for p in loss.parameters() if p.requires_grad}
    return recorder.figures(env_steps=counting.env_steps, updates=counting.updates, parameters=sum(learned.values()))


def team(task: TaskData) -> Any:
    """Return BenchMARL's task."""
    source, settings = TASKS[task["env"]]
    result = source.get_from_yaml()
    result.config |= settings
    return result


def algorithm(settings: Any) -> Any:
    """Return the settings of MAPPO."""
    result = MappoConfig.get_from_yaml()
    result.clip_epsilon, result.entropy_coef = settings["clip_range"], settings["entropy_coef"]
    result.critic_coef, result.lmbda = settings["value_coef"], settings["gae_lambda"]
    result.loss_critic_type, result.share_param_critic = "l2", True
    return result


def network(settings: Any) -> Any:
    """Return the settings of a network."""
    result = MlpConfig.get_from_yaml()
    result.num_cells = list(settings["hidden_sizes"])
    result.activation_class = ACTIVATIONS[settings["activation"]]
    return result


def config(task: TaskData, settings: Any) -> Any:
    """Return the settings of the experiment."""
    result = ExperimentConfig.get_from_yaml()
    result.sampling_device = result.train_device = result.buffer_device = "cpu"
    result.loggers, result.evaluation, result.render, result.create_json = [], False, False, False
    result.share_policy_params, result.prefer_continuous_actions = True, task["env"].startswith("vmas/")
    result.max_n_frames = task["timesteps"]
    result.on_policy_n_envs_per_worker = task["num_envs"]
    result.on_policy_collected_frames_per_batch = task["iteration"]
    result.on_policy_n_minibatch_iters = settings["n_epochs"]
    result.on_policy_minibatch_size = settings["batch_size"]
    result.gamma, result.lr, result.adam_eps = settings["gamma"], settings["learning_rate"], settings["adam_eps"]
    result.clip_grad_norm, result.clip_grad_val = True, settings["max_grad_norm"]
    result.save_folder, result.checkpoint_at_end, result.checkpoint_interval = ".", False, 0
    return result
