"""The short runs whose digests are stored in tests/resume/traces.json (see benchmarks/traces.py).

They are described by specs, settings and run folders alone, so that they stay as they are when modules move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

COMMON = (
    "device=cpu",
    "runtime.threads=1",
    "environment.num_envs=2",
    "training.max_timesteps=400",
    "evaluation.episodes=2",
    "evaluation.every_steps=200",
    "checkpoint.every_steps=150",
    "logging.every_steps=100",
)
NUMPY, TORCH = "runtime.kernels=numpy", "runtime.kernels=torch"


@dataclass(frozen=True)
class Preparation:
    """A run made before the traced one, whose settings name its folder `{run}` and its exported replay `{dataset}`."""

    spec: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class OldRun:
    """A run folder in tests/resume/fixtures, and how it was left: by SIGINT, by SIGKILL, or finished."""

    spec: str
    settings: tuple[str, ...]
    left: str  # `SIGINT@K` or `SIGKILL@K` as in a trace; empty: it finished
    budget: int | None = None  # of env_steps, where a finished run goes on to a longer one
    env_steps: int = 400  # where it ends in today's code


@dataclass(frozen=True)
class Trace:
    """A run to be traced, and how it is interrupted on the way.

    `interruptions` are `SIGINT@K` or `SIGKILL@K`, at the K-th row of metrics since the run started or was resumed.
    """

    spec: str
    settings: tuple[str, ...]
    interruptions: tuple[str, ...] = ()
    before: Preparation | None = None
    fixture: str = ""  # the folder of an old run that goes on, instead of a new run
    budget: int | None = None  # of env_steps, to which it goes on if not to its own
    sample: bool = False  # belongs to the sample of `make test`


MEMORY = "algorithm.torso.memory"
FEW_FEATURES = "algorithm.torso.cnn.features=16"
PPO = ["algorithm.n_steps=32", "algorithm.n_epochs=2", "algorithm.batch_size=0.5", FEW_FEATURES]
NARROW = ["algorithm.actor.hidden_sizes=[16]", "algorithm.critic.hidden_sizes=[16]"]
# a replay so small that it overflows, and visits that a ratio does not divide
REPLAY = [
    "algorithm.buffer_size=200",
    "algorithm.warmup_steps=50",
    "algorithm.train_every=10",
    "algorithm.update_ratio=0.27",
    "algorithm.batch_size=16",
    FEW_FEATURES,
]
DQN = [*REPLAY, "algorithm.target_every=7", "algorithm.hidden.hidden_sizes=[16]"]
SAC = [*REPLAY, "algorithm.policy_every=2", *NARROW]
DREAMS = [
    "environment.num_envs=4",
    "algorithm.buffer_size=200",
    "algorithm.warmup_steps=64",
    "algorithm.pretrain_updates=1",
    "algorithm.train_every=16",
    "algorithm.batch_size=3",
    "algorithm.batch_length=6",
    "algorithm.train_ratio=0.62",
    "algorithm.horizon=3",
    *(f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8", "depth=2")),
]
SEARCH = [f"algorithm.planning.{key}" for key in ("candidates=6", "elites=2", "iterations=2")]
LATENTS = [
    "environment.num_envs=4",
    "algorithm.buffer_size=200",
    "algorithm.warmup_steps=50",
    "algorithm.pretrain_updates=3",
    "algorithm.train_every=12",
    "algorithm.update_ratio=0.17",
    "algorithm.batch_size=8",
    "algorithm.horizon=4",
    "algorithm.target_every=3",
    "algorithm.planning.horizon={schedule: linear, start_value: 1, end_value: 3, end: 300}",
    *(f"algorithm.planning.{key}" for key in ("samples=12", "policy_samples=3", "elites=4", "iterations=2")),
    *(f"algorithm.model.{key}" for key in ("latent=16", "units=8", "encoder_units=8", "critics=3", "depth=2")),
]
WORLD_MODELS = [
    "environment.num_envs=4",
    "algorithm.buffer_size=200",
    "algorithm.rollout_steps=60",
    "algorithm.vision_updates=3",
    "algorithm.memory_updates=3",
    "algorithm.batch_length=6",
    "algorithm.trials=2",
    "algorithm.evolution.population=5",
    "algorithm.vision.latent=3",
    "algorithm.vision.depth=2",
    "algorithm.memory.hidden=8",
    *(f"algorithm.{part}.batch_size=4" for part in ("vision", "memory")),
]
DREAMING = [
    *WORLD_MODELS,
    "training.max_timesteps=null",
    "algorithm.generations=2",
    "algorithm.evolution.inside=dream",
    "algorithm.dream_steps=8",
]
PLANNING = [
    *WORLD_MODELS,
    *SEARCH,
    "algorithm.controller=plan",
    "algorithm.dynamics=mlp",
    "algorithm.train_ratio=0.1",
    "algorithm.horizon=3",
    "algorithm.trials=16",  # nothing evolves: the defaults
    "algorithm.evolution.population=64",
]
RANDOM = "{name: random, hooks: [{name: collect, steps: 100}], actions: random, duration_cycles: 1}"
DIFFUSION = [
    "environment.num_envs=4",
    f"training.phases=[{RANDOM}, "
    "{name: clone, hooks: [{name: collect, steps: 20}, {name: update, ratio: 0.11}]}]",
    "algorithm.buffer_size=300",
    "algorithm.batch_size=8",
    "algorithm.horizon=4",
    "algorithm.executed=3",
    "algorithm.noise_steps=8",
    "algorithm.sampling_steps=2",
    "algorithm.torso.hidden_sizes=[16]",
    "algorithm.unet.widths=[8,16]",
]
DENOISING = [
    *(setting for setting in DIFFUSION if "unet" not in setting),
    "algorithm.denoiser=transformer",
    "algorithm.sampler=ddpm",
    *(f"algorithm.transformer.{key}" for key in ("size=8", "layers=1", "heads=2")),
]
SKIRMISH = ["environment.max_episode_steps=40", "algorithm.n_steps=50", "algorithm.n_epochs=1", *NARROW]
QLEARNING = ["algorithm.n_steps=16", "algorithm.epsilon=lin_0.5"]
REINFORCE = ["algorithm.episodes_per_update=3", FEW_FEATURES]
EPISODIC = [*REINFORCE, "algorithm.policy_targets=advantages"]
GRU = [f"{MEMORY}.type=gru", f"{MEMORY}.size=8"]
LSTM = [f"{MEMORY}.type=lstm", f"{MEMORY}.size=8"]
SEQUENCES = [*LSTM, f"{MEMORY}.sequence_length=8", f"{MEMORY}.burn_in=4", "algorithm.torso.shared=false"]
TRANSFORMER = [f"{MEMORY}.type=transformer", f"{MEMORY}.size=8", f"{MEMORY}.context=6"]
PRIORITIES = ["algorithm.priority_alpha=0.6", "algorithm.n_step=3"]
ON_DISK = "algorithm.buffer_on_disk=true"
SCHEDULES = [
    "algorithm.learning_rate=lin_0.002",
    "algorithm.clip_range={schedule: linear, start_value: 0.3, end_value: 0.1, start: 0.2, end: 300}",
    "algorithm.entropy_coef={schedule: linear, start_value: 0.02, end_value: 0.0}",
]
NORMALISED = ["algorithm.normalize_obs=true", "algorithm.normalize_reward=true"]
# a curriculum: random actions, then training in two phases with other amounts, then nothing but evaluation
CURRICULUM = (
    f"training.phases=[{RANDOM}, "
    "{name: slow, hooks: [{name: collect, steps: 8}, {name: update, ratio: 0.125}], duration_steps: 100}, "
    "{name: fast, hooks: [{name: collect, steps: 4}, {name: update, times: 2}, {name: evaluate}], "
    "duration_updates: 30}, "
    "{name: offline, type: offline, buffer: replay, hooks: [{name: update, times: 5}], duration_updates: 20}, "
    "{name: last, hooks: [{name: collect, steps: 20}, {name: update, ratio: 0.1}]}]"
)
ON_POLICY = (
    "training.phases=[{name: first, hooks: [{name: collect, steps: 64}, {name: update}], duration_cycles: 3}, "
    "{name: look, type: eval_only, hooks: [{name: evaluate}], duration_cycles: 1}, "
    "{name: second, hooks: [{name: collect, steps: 64}, {name: update}, {name: evaluate}]}]"
)
OFFLINE = (
    "training.phases=[{name: offline, type: offline, buffer: replay, hooks: [{name: update, times: 10}], "
    "duration_updates: 60}, "
    "{name: online, buffer: replay, hooks: [{name: collect, steps: 4}, {name: update, ratio: 0.25}]}]"
)
FROM_DATASET = [
    "algorithm.buffer_size=300",
    "training.dataset={dataset}",
    OFFLINE,
    "training.max_timesteps=100",
    "logging.every_updates=20",
]

# Every registered algorithm: name -> (spec, settings) of runs with two seeds each.
ALGORITHMS: dict[str, list[tuple[str, list[str]]]] = {
    "ppo": [("CartPole-v1", [*PPO, NUMPY]), ("CartPole-v1", [*PPO, TORCH]), ("toy/identity_box", PPO)],
    "a2c": [("CartPole-v1", [NUMPY]), ("CartPole-v1", [TORCH])],
    "reinforce": [("toy/chain", [*REINFORCE, NUMPY]), ("toy/chain", [*EPISODIC, TORCH])],
    "qlearning": [("toy/identity", QLEARNING)],
    "dqn": [("CartPole-v1", [*DQN, NUMPY]), ("CartPole-v1", [*DQN, TORCH])],
    "rainbow": [("CartPole-v1", DQN)],
    "sac": [("Pendulum-v1", [*SAC, NUMPY]), ("Pendulum-v1", [*SAC, TORCH]), ("toy/identity", SAC)],
    "droq": [("Pendulum-v1", [*SAC, NUMPY]), ("Pendulum-v1", [*SAC, TORCH])],
    "ippo": [("toy/pair", PPO), ("skirmish/3m", SKIRMISH)],
    "mappo": [("toy/trio", PPO), ("skirmish/3m", SKIRMISH)],
    "happo": [("toy/trio", PPO), ("skirmish/2m1x1h", SKIRMISH)],
    "planet": [("toy/identity_box", [*DREAMS, *SEARCH])],
    "dreamer_v1": [("toy/identity_box", DREAMS)],
    "dreamer_v2": [("toy/image", DREAMS)],
    "dreamer_v3": [("toy/masked", DREAMS), ("toy/image", DREAMS)],
    "tdmpc": [("toy/identity_box", [*LATENTS, "algorithm.model.critics=2"])],
    "tdmpc2": [("toy/identity_box", LATENTS)],
    "world_models": [("toy/glimpse", WORLD_MODELS)],
    "diffusion_policy": [("toy/fork", DIFFUSION)],
}
# Variants: name -> (spec, settings), with one seed.
VARIANTS: dict[str, tuple[str, list[str]]] = {
    **{
        f"ppo, {toy}": (f"toy/{toy}:ppo", PPO)
        for toy in ("masked", "dict", "image", "dials", "switches", "pair", "trio")
    },
    **{f"ppo, {toy}, torch": (f"toy/{toy}:ppo", [*PPO, TORCH]) for toy in ("identity_box", "dials", "masked", "pair")},
    "ppo, gru": ("toy/recall:ppo", [*PPO, *GRU]),
    "ppo, lstm in sequences": ("toy/recall:ppo", [*PPO, *SEQUENCES]),
    "ppo, lstm on images": ("toy/image:ppo", [*PPO, *LSTM]),
    "ppo, transformer": ("toy/recall:ppo", [*PPO, *TRANSFORMER]),
    "ppo, gru in a team": ("toy/trio:ppo", [*PPO, *GRU]),
    "ppo, normalised": ("CartPole-v1:ppo", [*PPO, *NORMALISED, "algorithm.normalize_value=true"]),
    "ppo, normalised, torch": ("CartPole-v1:ppo", [*PPO, *NORMALISED, TORCH]),
    "ppo, rolling normaliser": ("toy/dict:ppo", [*PPO, "algorithm.normalize_obs=rolling"]),
    "ppo, static normaliser": ("MountainCar-v0:ppo", [*PPO, "algorithm.normalize_obs=static"]),
    "ppo, schedules": ("CartPole-v1:ppo", [*PPO, *SCHEDULES]),
    "ppo, limits": ("CartPole-v1:ppo", [*PPO, "algorithm.target_kl=0.01", "algorithm.value_clip_range=0.2"]),
    "ppo, frame stack": ("CartPole-v1:ppo", [*PPO, "environment.frame_stack=4"]),
    "ppo, frame stack of images": ("toy/image:ppo", [*PPO, "environment.frame_stack=3", "environment.resize=12"]),
    "ppo, squashed": ("Pendulum-v1:ppo", [*PPO, "algorithm.head.squash=true", "algorithm.head.std=state"]),
    "ppo, rescaled actions": ("Pendulum-v1:ppo", [*PPO, "environment.rescale_actions=true"]),
    "ppo, adamw": ("CartPole-v1:ppo", [*PPO, "algorithm.optimizer={name: adamw, weight_decay: 0.01}"]),
    "ppo, rmsprop": ("CartPole-v1:ppo", [*PPO, "algorithm.optimizer={name: rmsprop, momentum: 0.5}"]),
    "ppo, laprop": ("CartPole-v1:ppo", [*PPO, "algorithm.optimizer={name: laprop, agc: 0.3, warmup: 3}"]),
    "ppo, worker processes": (
        "CartPole-v1:ppo",
        [*PPO, "environment.num_envs=4", "environment.vectorize=workers", "environment.workers=2"],
    ),
    "ppo, Gymnasium's vector": (
        "CartPole-v1:ppo",
        [*PPO, "environment.vectorize=gymnasium", "environment.autoreset=next_step"],
    ),
    "ppo, phases": ("CartPole-v1:ppo", [*PPO, ON_POLICY]),
    "ppo, early stop": (
        "toy/identity:ppo",
        [*PPO, "training.early_stop={metric: collect/return_mean, at_least: 8}", "training.max_timesteps=2000"],
    ),
    "ppo, budget of updates": (
        "toy/identity:ppo",
        [*PPO, "training.max_timesteps=null", "training.max_updates=30"],
    ),
    "a2c, images": ("toy/image:a2c", [FEW_FEATURES]),
    "reinforce, whole returns": ("CartPole-v1:reinforce", [*REINFORCE, "algorithm.returns_type='mc:episode'"]),
    "reinforce, lstm with a baseline": ("toy/recall:reinforce", [*EPISODIC, *LSTM, "algorithm.normalize_obs=true"]),
    "reinforce, box": ("toy/identity_box:reinforce", [*REINFORCE, NUMPY]),
    "reinforce, pair": ("toy/pair:reinforce", EPISODIC),
    "dqn, double and dueling": ("CartPole-v1:dqn", [*DQN, "algorithm.double=true", "algorithm.dueling=true"]),
    "dqn, c51": ("CartPole-v1:dqn", [*DQN, "algorithm.distribution=c51", "algorithm.v_max=50.0"]),
    "dqn, quantiles by priority from disk": (
        "toy/masked:dqn",
        [*DQN, *PRIORITIES, ON_DISK, "algorithm.distribution=quantile", "algorithm.tau=0.1"],
    ),
    "dqn, priorities": ("CartPole-v1:dqn", [*DQN, *PRIORITIES, NUMPY]),
    "dqn, priorities, torch": ("CartPole-v1:dqn", [*DQN, *PRIORITIES, TORCH]),
    "dqn, noisy": ("CartPole-v1:dqn", [*DQN, "algorithm.noisy=true"]),
    "dqn, images": ("toy/image:dqn", [*DQN, "algorithm.loss=mse"]),
    "dqn, frame stack of images": ("toy/image:dqn", [*DQN, "environment.frame_stack=2"]),
    "dqn, dict": ("toy/dict:dqn", [*DQN, "algorithm.normalize_obs=true", "algorithm.learning_rate=lin_0.001"]),
    "dqn, phases": ("CartPole-v1:dqn", [*DQN, CURRICULUM]),
    "rainbow, images": ("toy/image:rainbow", DQN),
    "sac, fixed temperature": ("Pendulum-v1:sac", [*SAC, "algorithm.temperature=0.2", "algorithm.n_step=3"]),
    "sac, discrete, torch": ("toy/masked:sac", [*SAC, TORCH]),
    "sac, from disk": ("Pendulum-v1:sac", [*SAC, ON_DISK, "algorithm.normalize_obs=true"]),
    "sac, images": ("toy/image:sac", SAC),
    "sac, dict": ("toy/dict:sac", [*SAC, "algorithm.policy_trusts=mean", "algorithm.critics=3"]),
    "qlearning, double sarsa": (
        "toy/identity:qlearning",
        [*QLEARNING, "algorithm.target=sarsa", "algorithm.double=true"],
    ),
    "qlearning, expected sarsa": ("toy/identity:qlearning", [*QLEARNING, "algorithm.target=expected_sarsa"]),
    "qlearning, ucb": ("toy/identity:qlearning", ["algorithm.exploration=ucb", "algorithm.initial_value=2.0"]),
    "ippo, dict": ("toy/dict:ippo", PPO),
    "mappo, images": ("toy/image:mappo", PPO),
    "mappo, padded types": (
        "skirmish/2m1x1h:mappo",
        [*SKIRMISH, "environment.groups=one", "environment.padding=types"],
    ),
    "mappo, gru": ("skirmish/3m:mappo", [*SKIRMISH, *GRU, "algorithm.batch_size=0.5"]),
    "happo, fixed order": ("toy/trio:happo", [*PPO, "algorithm.order=fixed", "algorithm.rewards=team"]),
    "happo, groups of their own": (
        "toy/pair:happo",
        [*PPO, "algorithm.groups={runner_0: {learning_rate: 0.001}, shooter_0: {entropy_coef: 0.01}}"],
    ),
    "dreamer_v3, continuous": ("Pendulum-v1:dreamer_v3", DREAMS),
    "dreamer_v3, dict": ("toy/dict:dreamer_v3", DREAMS),
    "dreamer_v2, continuous": ("toy/identity_box:dreamer_v2", DREAMS),
    "dreamer_v1, masked": ("toy/masked:dreamer_v1", DREAMS),
    "tdmpc2, ends": ("Pendulum-v1:tdmpc2", [*LATENTS, "algorithm.model.ends=true"]),
    "world_models, dreaming": ("toy/glimpse:world_models", DREAMING),
    "world_models, planning": ("toy/identity_box:world_models", PLANNING),
    "diffusion_policy, transformer": ("toy/dict:diffusion_policy", DENOISING),
    "diffusion_policy, pair": ("toy/pair:diffusion_policy", DIFFUSION),
}
# Runs that go on: name of the run above that they must equal -> interruptions.
INTERRUPTED = {
    "ppo, CartPole-v1, numpy, seed 1": ("SIGINT@1", "SIGINT@2"),
    "ppo, CartPole-v1, torch, seed 1": ("SIGKILL@2",),
    "ppo, lstm in sequences": ("SIGINT@2",),
    "ppo, rolling normaliser": ("SIGINT@2",),
    "ppo, phases": ("SIGINT@2", "SIGINT@1"),
    "a2c, CartPole-v1, numpy, seed 1": ("SIGINT@2",),
    "reinforce, lstm with a baseline": ("SIGINT@2",),
    "qlearning, double sarsa": ("SIGINT@2",),
    "dqn, quantiles by priority from disk": ("SIGINT@1", "SIGKILL@2"),
    "dqn, phases": ("SIGINT@2", "SIGINT@1"),
    "sac, from disk": ("SIGINT@2", "SIGINT@1"),
    "rainbow, CartPole-v1, seed 1": ("SIGINT@2",),
    "happo, skirmish/2m1x1h, seed 1": ("SIGINT@2",),
    "mappo, gru": ("SIGINT@1",),
    "planet, toy/identity_box, seed 1": ("SIGINT@2",),
    "dreamer_v3, toy/image, seed 1": ("SIGINT@2",),
    "tdmpc2, toy/identity_box, seed 1": ("SIGINT@2",),
    "world_models, toy/glimpse, seed 1": ("SIGINT@2",),
    "diffusion_policy, toy/fork, seed 1": ("SIGINT@2",),
}
# Runs that need another one first.
PREPARED = {
    "dqn, from a dataset": (
        Preparation("toy/identity:dqn", (*COMMON, *DQN, "seed=1")),
        "toy/identity:dqn",
        [*DQN, *PRIORITIES, *FROM_DATASET],
    ),
    "sac, from a dataset": (
        Preparation("toy/identity_box:sac", (*COMMON, *SAC, "seed=1")),
        "toy/identity_box:sac",
        [*SAC, *FROM_DATASET],
    ),
    "ppo, from the weights of a run": (
        Preparation("CartPole-v1:ppo", (*COMMON, *PPO, "seed=1", "training.max_timesteps=128")),
        "CartPole-v1:ppo",
        [*PPO, "training.init_from={run}"],
    ),
}
LEAN = ("checkpoint.keep=1", "evaluation.every_steps=0", "seed=3")  # small folders
SMALLER = ("algorithm.model.latent=8", "algorithm.model.critics=2")
NARROWER = ("environment.num_envs=2", "algorithm.model.units=4", "algorithm.model.hidden=4")
# Folders of runs by earlier code: name in tests/resume/fixtures -> how it was made.
OLD_RUNS = {
    "ppo_interrupted": OldRun(
        "CartPole-v1:ppo",
        (*PPO, *NORMALISED, *NARROW, "logging.episodes=true", "checkpoint.keep=2", "seed=3"),
        "SIGINT@2",
        env_steps=448,
    ),
    "dqn_on_disk_killed": OldRun("CartPole-v1:dqn", (*DQN, *PRIORITIES, ON_DISK, *LEAN), "SIGKILL@3"),
    "sac_on_disk_interrupted": OldRun("Pendulum-v1:sac", (*SAC, ON_DISK, *LEAN), "SIGINT@3"),
    "happo_finished": OldRun(
        "toy/trio:happo",
        (*PPO, *NARROW, "checkpoint.keep=1", "checkpoint.every_steps=0", "seed=3", "training.max_timesteps=200"),
        "",
        budget=400,
        env_steps=448,
    ),
    "reinforce_lstm_interrupted": OldRun("toy/recall:reinforce", (*EPISODIC, *NARROW, *LSTM, *LEAN), "SIGINT@2"),
    "qlearning_interrupted": OldRun("toy/identity:qlearning", (*QLEARNING, *LEAN), "SIGINT@2", env_steps=416),
    "dreamer_v3_interrupted": OldRun("toy/masked:dreamer_v3", (*DREAMS, *NARROWER, *LEAN), "SIGINT@2"),
    "tdmpc2_interrupted": OldRun("toy/identity_box:tdmpc2", (*LATENTS, *SMALLER, *LEAN), "SIGINT@2"),
    "world_models_interrupted": OldRun(
        "toy/glimpse:world_models",
        (*WORLD_MODELS, "algorithm.memory.hidden=4", "algorithm.memory.mixtures=2", *LEAN),
        "SIGINT@2",
    ),
    "diffusion_policy_interrupted": OldRun("toy/dict:diffusion_policy", (*DENOISING, *LEAN), "SIGINT@2"),
}
# What `make test` checks: one of every kind of workflow, kernels, memory, interruption and replay.
SAMPLE = {
    "ppo, CartPole-v1, numpy, seed 1",
    "ppo, CartPole-v1, torch, seed 1",
    "ppo, CartPole-v1, numpy, seed 1, interrupted",
    "reinforce, lstm with a baseline",
    "qlearning, double sarsa",
    "dqn, phases, interrupted",
    "sac, from disk, interrupted",
    "sac, Pendulum-v1, torch, seed 1",
    "happo, skirmish/2m1x1h, seed 1, interrupted",
    "dreamer_v3, toy/image, seed 1",
    "tdmpc2, toy/identity_box, seed 1",
    "world_models, toy/glimpse, seed 1",
    "diffusion_policy, toy/fork, seed 1",
    "dqn, from a dataset",
}


def traces() -> dict[str, Trace]:
    """Return every run to be traced, by name."""
    runs = dict(_of_algorithms())
    runs |= {name: Trace(spec, merged([*settings, "seed=1"])) for name, (spec, settings) in VARIANTS.items()}
    for name, (before, spec, settings) in PREPARED.items():
        runs[name] = Trace(spec, merged([*settings, "seed=1"]), before=before)
    for name, interruptions in INTERRUPTED.items():
        runs[interrupted(name)] = replace(runs[name], interruptions=interruptions)
    for name, old in OLD_RUNS.items():
        runs[old_run(name)] = Trace(old.spec, (), fixture=name, budget=old.budget)
    unknown = SAMPLE - runs.keys()
    assert not unknown, f"no such runs: {unknown}"
    return {name: replace(run, sample=name in SAMPLE) for name, run in runs.items()}


def interrupted(name: str) -> str:
    return f"{name}, interrupted"


def old_run(fixture: str) -> str:
    return f"old run, {fixture}"


def _of_algorithms() -> Iterable[tuple[str, Trace]]:
    for algorithm, runs in ALGORITHMS.items():
        for environment, settings in runs:
            kernels = next((f", {kind}" for kind in ("numpy", "torch") if f"runtime.kernels={kind}" in settings), "")
            for seed in (1, 2):
                name = f"{algorithm}, {environment}{kernels}, seed {seed}"
                yield name, Trace(f"{environment}:{algorithm}", merged([*settings, f"seed={seed}"]))


def merged(settings: Sequence[str]) -> tuple[str, ...]:
    """Return the settings over the common ones; where both set a key, the former win."""
    pairs = dict(setting.split("=", 1) for setting in (*COMMON, *settings))
    return tuple(f"{key}={value}" for key, value in pairs.items())
