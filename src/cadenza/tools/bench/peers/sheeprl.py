"""sheeprl, through its command line, with logging, checkpoints and the final test switched off."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sheeprl.cli import run

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Recorder, TaskData

ACTIVATIONS = {"tanh": "torch.nn.Tanh", "relu": "torch.nn.ReLU"}


def ppo(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train PPO."""
    from sheeprl.algos.ppo import ppo as algorithm

    settings, sizes = task["ppo"], task["ppo"]["hidden_sizes"]
    if len(set(sizes)) > 1:
        raise RuntimeError("sheeprl has hidden layers of one size")
    counts: dict[str, Any] = {"iterations": 0, "updates": 0}
    original = algorithm.train

    def counting(fabric: Any, agent: Any, *args: Any) -> Any:
        updates = original(fabric, agent, *args)
        counts["agent"] = agent
        counts["iterations"] += 1
        counts["updates"] += updates
        return updates

    algorithm.train = counting
    arguments = {
        "exp": "ppo",
        "algo.rollout_steps": settings["n_steps"],
        "algo.per_rank_batch_size": settings["batch_size"],
        "algo.update_epochs": settings["n_epochs"],
        "algo.optimizer.lr": settings["learning_rate"],
        "algo.optimizer.eps": settings["adam_eps"],
        "algo.anneal_lr": settings["anneal"],
        "algo.anneal_clip_coef": settings["anneal"],
        "algo.clip_coef": settings["clip_range"],
        "algo.gamma": settings["gamma"],
        "algo.gae_lambda": settings["gae_lambda"],
        "algo.ent_coef": settings["entropy_coef"],
        "algo.vf_coef": settings["value_coef"],
        "algo.max_grad_norm": settings["max_grad_norm"],
        "algo.normalize_advantages": True,
        "algo.dense_units": sizes[0],
        "algo.mlp_layers": len(sizes),
        "algo.dense_act": ACTIVATIONS[settings["activation"]],
        "algo.encoder.mlp_layers": 0,  # policy and value share nothing
    }
    train(algorithm, arguments, task, recorder)
    return recorder.figures(
        env_steps=counts["iterations"] * task["iteration"],
        updates=counts["updates"],
        parameters=sum(parameter.numel() for parameter in counts["agent"].parameters()),
    )


def dreamer_v3(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train DreamerV3."""
    from sheeprl.algos.dreamer_v3 import dreamer_v3 as algorithm

    settings, counts, original = task["dreamer_v3"], {"updates": 0, "parameters": 0}, algorithm.train

    def counting(fabric: Any, world_model: Any, actor: Any, critic: Any, *args: Any) -> Any:
        result = original(fabric, world_model, actor, critic, *args)
        counts["updates"] += 1
        learned = {id(p): p for net in (world_model, actor, critic) for p in net.parameters() if p.requires_grad}
        counts["parameters"] = sum(parameter.numel() for parameter in learned.values())
        return result

    algorithm.train = counting
    networks = ("world_model", "actor", "critic")
    arguments = {
        "exp": "dreamer_v3",
        "env": "gym",
        "algo": "dreamer_v3_XS",
        # it learns at the end of the last step of the warm-up
        "algo.learning_starts": settings["warmup_steps"] + task["num_envs"],
        "algo.replay_ratio": settings["gradient_steps"] / settings["train_every"],
        "algo.per_rank_batch_size": settings["batch_size"],
        "algo.per_rank_sequence_length": settings["batch_length"],
        "algo.horizon": settings["horizon"],
        "algo.gamma": settings["gamma"],
        "algo.dense_units": settings["units"],
        "algo.mlp_layers": settings["layers"],
        "algo.world_model.recurrent_model.recurrent_state_size": settings["deter"],
        "algo.world_model.transition_model.hidden_size": settings["units"],
        "algo.world_model.representation_model.hidden_size": settings["units"],
        "algo.world_model.stochastic_size": settings["stoch"],
        "algo.world_model.discrete_size": settings["classes"],
        "algo.world_model.learnable_initial_recurrent_state": False,
        **{f"algo.{network}.optimizer.lr": settings["learning_rate"] for network in networks},
        "algo.mlp_keys.encoder": "[state]",
        "algo.cnn_keys.encoder": "[]",
        "algo.cnn_keys.decoder": "[]",
        "buffer.size": settings["buffer_size"],
        "buffer.checkpoint": False,
    }
    train(algorithm, arguments, task, recorder)
    return recorder.figures(env_steps=task["timesteps"], updates=counts["updates"], parameters=counts["parameters"])


def train(algorithm: Any, arguments: dict[str, Any], task: TaskData, recorder: Recorder) -> None:
    """Run an algorithm's module with these arguments and those of the task, and record its environment."""
    make_vector = algorithm.get_vector_env_cls

    def recorded(sync: bool) -> Any:
        def make(thunks: Any) -> Any:
            env = make_vector(sync)(thunks)
            recorder.follow(env)
            return env

        return make

    algorithm.get_vector_env_cls = recorded
    common = {
        "env.id": task["env"],
        "env.num_envs": task["num_envs"],
        "env.sync_env": True,
        "env.capture_video": False,
        "seed": task["seed"],
        "num_threads": task["threads"],
        "algo.total_steps": task["timesteps"],
        "algo.run_test": False,
        "buffer.memmap": False,
        "metric.log_level": 0,
        "checkpoint.every": 0,
        "checkpoint.save_last": False,
        "fabric.accelerator": "cpu",
    }
    sys.argv = ["sheeprl", *(f"{key}={value}" for key, value in (arguments | common).items())]
    run()
    recorder.end()
