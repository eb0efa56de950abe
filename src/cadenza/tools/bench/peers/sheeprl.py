"""sheeprl, through its command line, with logging, checkpoints and the final test switched off."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sheeprl.algos.ppo import ppo as algorithm
from sheeprl.cli import run

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Task, Watch

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


def dreamer_v3(task: Task, watch: Watch) -> dict[str, Any]:
    from sheeprl.algos.dreamer_v3 import dreamer_v3 as dreamer

    given, counted = task["dreamer_v3"], {"updates": 0, "parameters": 0}
    train, make_vector = dreamer.train, dreamer.get_vector_env_cls

    def watched(sync: bool) -> Any:
        def make(thunks: Any) -> Any:
            env = make_vector(sync)(thunks)
            watch.follow(env)
            return env

        return make

    def counting(fabric: Any, world_model: Any, actor: Any, critic: Any, *args: Any) -> Any:
        done = train(fabric, world_model, actor, critic, *args)
        counted["updates"] += 1
        learned = {id(p): p for net in (world_model, actor, critic) for p in net.parameters() if p.requires_grad}
        counted["parameters"] = sum(parameter.numel() for parameter in learned.values())
        return done

    dreamer.get_vector_env_cls, dreamer.train = watched, counting
    optimizers = [f"algo.{part}.optimizer.lr={given['learning_rate']}" for part in ("world_model", "actor", "critic")]
    sys.argv = [
        "sheeprl",
        "exp=dreamer_v3",
        "env=gym",
        "algo=dreamer_v3_XS",
        f"env.id={task['env']}",
        f"env.num_envs={task['num_envs']}",
        "env.sync_env=True",
        "env.capture_video=False",
        f"seed={task['seed']}",
        f"num_threads={task['threads']}",
        f"algo.total_steps={task['timesteps']}",
        f"algo.learning_starts={given['warmup_steps'] + task['num_envs']}",  # it learns at the end of the last of them
        f"algo.replay_ratio={given['gradient_steps'] / given['train_every']}",
        f"algo.per_rank_batch_size={given['batch_size']}",
        f"algo.per_rank_sequence_length={given['batch_length']}",
        f"algo.horizon={given['horizon']}",
        f"algo.gamma={given['gamma']}",
        f"algo.dense_units={given['units']}",
        f"algo.mlp_layers={given['layers']}",
        f"algo.world_model.recurrent_model.recurrent_state_size={given['deter']}",
        f"algo.world_model.transition_model.hidden_size={given['units']}",
        f"algo.world_model.representation_model.hidden_size={given['units']}",
        f"algo.world_model.stochastic_size={given['stoch']}",
        f"algo.world_model.discrete_size={given['classes']}",
        "algo.world_model.learnable_initial_recurrent_state=False",
        *optimizers,
        "algo.mlp_keys.encoder=[state]",
        "algo.cnn_keys.encoder=[]",
        "algo.cnn_keys.decoder=[]",
        "algo.run_test=False",
        f"buffer.size={given['buffer_size']}",
        "buffer.memmap=False",
        "buffer.checkpoint=False",
        "metric.log_level=0",
        "checkpoint.every=0",
        "checkpoint.save_last=False",
        "fabric.accelerator=cpu",
    ]
    run()
    watch.end()
    return watch.figures(env_steps=task["timesteps"], updates=counted["updates"], parameters=counted["parameters"])


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
