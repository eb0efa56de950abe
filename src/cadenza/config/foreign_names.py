"""Names of settings in SB3, rl-zoo3, CleanRL, HARL and RLlib, and ours: the answer to an unknown key."""

from __future__ import annotations

from collections.abc import Collection

# Of several keys the first that a config has is the answer.
FOREIGN = {
    "learning_rate": (
        "lr", "alpha_lr", "actor_lr", "policy_lr", "pi_lr", "step_size", "anneal_lr", "lr_schedule",
        "use_linear_lr_decay",
    ),
    "critic_learning_rate learning_rate": ("critic_lr", "q_lr", "qf_lr", "vf_lr"),
    "temperature entropy_coef": ("ent_coef", "entropy_coeff", "ent_coeff", "entropy_loss_scale", "alpha", "autotune"),
    "target_entropy": ("target_ent",),
    "value_coef": ("vf_coef", "vf_loss_coeff", "value_loss_coef", "value_loss_coeff", "vf_loss_coef"),
    "clip_range": ("clip_coef", "clip_param", "clip_ratio", "clip_eps", "epsilon_clip"),
    "value_clip_range": ("clip_range_vf", "clip_vloss", "vf_clip_param", "use_clipped_value_loss"),
    "max_grad_norm": ("grad_clip", "clip_grad_norm", "use_max_grad_norm", "grad_norm_clip"),
    "gae_lambda": ("lambda", "lambda_", "lam", "gae_lam"),
    "gamma": ("discount", "discount_factor"),
    "n_epochs": ("update_epochs", "ppo_epoch", "ppo_epochs", "critic_epoch", "num_sgd_iter", "num_epochs", "k_epochs"),
    "n_steps": ("num_steps", "episode_length", "rollout_fragment_length", "rollout_length", "train_batch_size"),
    "batch_size": (
        "num_minibatches", "nminibatches", "minibatch_size", "sgd_minibatch_size", "actor_num_mini_batch",
        "critic_num_mini_batch", "num_mini_batch",
    ),
    "target_kl": ("kl_target", "desired_kl", "max_kl"),
    "normalize_advantage": ("norm_adv", "normalise_advantage"),
    "normalize_value": ("use_valuenorm", "use_popart", "value_norm"),
    "normalize_obs": ("norm_obs", "normalize", "use_feature_normalization"),
    "normalize_reward": ("norm_reward",),
    "buffer_size": ("replay_size", "replay_buffer_size", "buffer_capacity", "capacity", "memory_size"),
    "warmup_steps": ("learning_starts", "start_steps", "num_steps_sampled_before_learning_starts", "random_steps"),
    "train_every": ("train_freq", "train_frequency", "update_every", "train_interval"),
    "update_ratio": ("gradient_steps", "utd_ratio", "utd", "training_intensity", "update_per_train", "replay_ratio"),
    "tau": ("polyak", "target_tau", "soft_tau"),
    "target_every": ("target_update_interval", "target_network_frequency", "target_network_update_freq"),
    "policy_every": ("policy_frequency", "policy_delay", "policy_freq"),
    "epsilon": (
        "exploration_fraction", "exploration_initial_eps", "exploration_final_eps", "start_e", "end_e",
        "initial_epsilon", "final_epsilon", "epsilon_timesteps",
    ),
    "priority_alpha": ("prioritized_replay_alpha",),
    "priority_beta": ("prioritized_replay_beta", "beta0"),
    "actor.hidden_sizes hidden.hidden_sizes": ("net_arch", "policy_kwargs", "fcnet_hiddens"),
    "algorithm.name": ("algo", "policy_class"),
    "environment.id": ("env", "env_id", "env_name", "scenario"),
    "environment.num_envs": (
        "n_envs", "n_rollout_threads", "num_workers", "num_env_runners", "num_envs_per_worker",
        "num_envs_per_env_runner", "num_processes",
    ),
    "environment.wrappers": ("env_wrapper",),
    "environment.groups": ("share_param", "share_policy"),
    "training.max_timesteps": (
        "total_timesteps", "num_env_steps", "n_timesteps", "total_steps", "max_steps", "timesteps", "timesteps_total",
        "num_frames", "max_env_steps",
    ),
    "training.init_from": ("model_dir", "load_model", "trained_agent", "checkpoint_path"),
    "evaluation.every_steps": ("eval_freq", "eval_interval", "evaluation_interval"),
    "evaluation.episodes": ("n_eval_episodes", "eval_episodes", "evaluation_duration", "num_eval_episodes"),
    "evaluation.num_envs": ("n_eval_envs", "n_eval_rollout_threads"),
    "evaluation.video": ("capture_video", "save_video", "record_video"),
    "checkpoint.every_steps": ("save_freq", "checkpoint_freq", "save_interval", "checkpoint_frequency"),
    "logging.every_steps": ("log_interval", "log_freq"),
    "logging.tensorboard": ("tensorboard_log",),
    "logging.wandb": ("track", "use_wandb"),
    "logging.wandb_project": ("wandb_project_name",),
    "runtime.threads": ("torch_threads", "n_training_threads", "num_threads"),
    "device": ("cuda", "use_cuda", "num_gpus", "gpu"),
    "name": ("exp_name", "experiment_name", "run_name"),
}  # fmt: skip
OURS = {foreign: ours.split() for ours, names in FOREIGN.items() for foreign in names}


def translate(name: str, keys: Collection[str]) -> str | None:
    """Return the key of a config that means what other libraries call `name`, or None."""
    for ours in OURS.get(name.lower().replace("-", "_"), ()):
        for key in (ours, f"algorithm.{ours}"):
            if key in keys:
                return key
    return None
