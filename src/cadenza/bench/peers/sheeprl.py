"""sheeprl, through its command line, with logging, checkpoints and the final test switched off."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sheeprl.algos.ppo import ppo as algorithm
from sheeprl.cli import run

if TYPE_CHECKING:
    from cadenza.bench.process import Task, Watch

ACTIVATIONS = {"tanh": "torch.nn.Tanh", "relu": "torch.nn.ReLU"}


def ppo(task: Task, watch: Watch) -> dict[str, Any]:
    settings, sizes = task["ppo"], task["ppo"]["hidden_sizes"]
    if len(set(sizes)) > 1:
        raise RuntimeError("its layers are all of one size")
    counted = count_updates()
    make_vector = algorithm.get_vector_env_cls

    def watched(sync: bool) -> Any:
        def make(thunks: Any) -> Any:
            env = make_vector(sync)(thunks)
            watch.follow(env)
            return env

        return make

    algorithm.get_vector_env_cls = watched
    sys.argv = [
        "sheeprl",
        "exp=ppo",
        f"env.id={task['env']}",
        f"env.num_envs={task['num_envs']}",
        "env.sync_env=True",
        "env.capture_video=False",
        f"seed={task['seed']}",
        f"num_threads={task['threads']}",
        f"algo.total_steps={task['timesteps']}",
        f"algo.rollout_steps={settings['n_steps']}",
        f"algo.per_rank_batch_size={settings['batch_size']}",
        f"algo.update_epochs={settings['n_epochs']}",
        f"algo.optimizer.lr={settings['learning_rate']}",
        f"algo.optimizer.eps={settings['adam_eps']}",
        f"algo.anneal_lr={settings['anneal']}",
        f"algo.anneal_clip_coef={settings['anneal']}",
        f"algo.clip_coef={settings['clip_range']}",
        f"algo.gamma={settings['gamma']}",
        f"algo.gae_lambda={settings['gae_lambda']}",
        f"algo.ent_coef={settings['entropy_coef']}",
        f"algo.vf_coef={settings['value_coef']}",
        f"algo.max_grad_norm={settings['max_grad_norm']}",
        "algo.normalize_advantages=True",
        f"algo.dense_units={sizes[0]}",
        f"algo.mlp_layers={len(sizes)}",
        f"algo.dense_act={ACTIVATIONS[settings['activation']]}",
        "algo.encoder.mlp_layers=0",  # policy and value share nothing
        "algo.run_test=False",
        "buffer.memmap=False",
        "metric.log_level=0",
        "checkpoint.every=0",
        "checkpoint.save_last=False",
        "fabric.accelerator=cpu",
    ]
    run()
    watch.end()
    return watch.figures(
        env_steps=counted["iterations"] * task["iteration"],
        updates=counted["updates"],
        parameters=sum(parameter.numel() for parameter in counted["agent"].parameters()),
    )


def count_updates() -> dict[str, Any]:
    """What its training function was called with, and how many gradient steps it says it did."""
    counted: dict[str, Any] = {"iterations": 0, "updates": 0}
    train = algorithm.train

    def counting(fabric: Any, agent: Any, *args: Any) -> Any:
        done = train(fabric, agent, *args)
        counted["agent"] = agent
        counted["iterations"] += 1
        counted["updates"] += done
        return done

    algorithm.train = counting
    return counted
