"""Every registered algorithm, in toy environments of every kind that it accepts: training, exact resume, repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest

from cadenza.config.load import load
from cadenza.config.registry import ALGORITHMS
from cadenza.config.schema import RunConfig
from cadenza.engine.launch import check
from cadenza.engine.scheduler import Task
from cadenza.envs.toys import toy
from cadenza.errors import ConfigError
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import read
from cadenza.tools.verify import compare
from harness.lab import Lab

MEMORY = "algorithm.torso.memory"
# every registered algorithm, and the variants of it that keep further state
SUBJECTS = {
    **{name: [name] for name in sorted(ALGORITHMS)},
    "ppo, gru": ["ppo", f"{MEMORY}.type=gru", f"{MEMORY}.size=8"],
    "ppo, lstm in sequences": [
        "ppo",
        f"{MEMORY}.type=lstm",
        f"{MEMORY}.size=8",
        f"{MEMORY}.sequence_length=8",
        f"{MEMORY}.burn_in=4",
        "algorithm.torso.shared=false",
    ],
    "ppo, transformer": ["ppo", f"{MEMORY}.type=transformer", f"{MEMORY}.size=8", f"{MEMORY}.context=6"],
    "ppo, normalised": ["ppo", "algorithm.normalize_obs=true", "algorithm.normalize_reward=true"],
    "reinforce, lstm with a baseline": [
        "reinforce",
        f"{MEMORY}.type=lstm",
        f"{MEMORY}.size=8",
        "algorithm.policy_targets=advantages",
        "algorithm.normalize_obs=true",
    ],
    "dqn, quantiles by priority from disk": [
        "dqn",
        "algorithm.distribution=quantile",
        "algorithm.priority_alpha=0.6",
        "algorithm.buffer_on_disk=true",
        "algorithm.n_step=3",
        "algorithm.tau=0.1",
    ],
    "qlearning, double sarsa": ["qlearning", "algorithm.target=sarsa", "algorithm.double=true"],
    "world models, planning in a plain one": [
        "world_models",
        "algorithm.controller=plan",
        "algorithm.dynamics=mlp",
        "algorithm.train_ratio=0.1",
        "algorithm.horizon=3",
        *(f"algorithm.planning.{key}" for key in ("candidates=6", "elites=2", "iterations=2")),
        "algorithm.trials=16",  # nothing evolves: as they are
        "algorithm.evolution.population=64",
    ],
    "diffusion_policy": ["diffusion_policy", "algorithm.unet.widths=[8,16]"],
    "diffusion policy, transformer": [
        "diffusion_policy",
        "algorithm.denoiser=transformer",
        "algorithm.sampler=ddpm",
        *(f"algorithm.transformer.{key}" for key in ("size=8", "layers=1", "heads=2")),
    ],
}
STEPS = 400
SHORT = [
    f"training.max_timesteps={STEPS}",
    "environment.num_envs=2",
    "evaluation.episodes=2",
    "evaluation.every_steps=200",
]
FEW_FEATURES = [
    "algorithm.torso.cnn.features=16",
    "runtime.threads=1",  # two that wait for each other on busy cores take ten times as long
]
PPO = ["algorithm.n_steps=32", "algorithm.n_epochs=2", "algorithm.batch_size=0.5", *FEW_FEATURES]
# a replay so small that it overflows, and visits that a ratio does not divide
REPLAY = [
    "algorithm.buffer_size=200",
    "algorithm.warmup_steps=50",
    "algorithm.train_every=10",
    "algorithm.update_ratio=0.27",
    "algorithm.batch_size=16",
    *FEW_FEATURES,
]
NARROW = ["algorithm.actor.hidden_sizes=[16]", "algorithm.critic.hidden_sizes=[16]"]
# four environments, because a latent state costs as much for one as for four
DREAMS = [
    "environment.num_envs=4",
    "algorithm.buffer_size=200",
    "algorithm.warmup_steps=64",
    "algorithm.pretrain_updates=1",
    "algorithm.train_every=16",
    "algorithm.batch_size=3",
    "algorithm.batch_length=6",
    "algorithm.train_ratio=0.31",
    "algorithm.horizon=3",
    *(f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8", "depth=2")),
    "runtime.threads=1",
]
DREAMERS = {name: DREAMS for name in ("dreamer_v1", "dreamer_v2", "dreamer_v3")}
# it learns from demonstrations; random ones will do, and its own, so that chunks are cut by ends and by resumptions
DEMONSTRATED = [
    "environment.num_envs=4",
    "training.phases=[{name: random, hooks: [{name: collect, steps: 100}], actions: random, duration_cycles: 1}, "
    "{name: clone, hooks: [{name: collect, steps: 20}, {name: update, ratio: 0.11}]}]",
    "algorithm.buffer_size=300",
    "algorithm.batch_size=8",
    "algorithm.horizon=4",
    "algorithm.executed=3",
    "algorithm.noise_steps=8",
    "algorithm.sampling_steps=2",
    "algorithm.torso.hidden_sizes=[16]",
    *FEW_FEATURES,
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
    "runtime.threads=1",
]
SEARCH = ["algorithm.planning.candidates=6", "algorithm.planning.elites=2", "algorithm.planning.iterations=2"]
# plans that get longer in the middle of a run, and stretches longer than what is left of an episode
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
    "runtime.threads=1",
]
SMALL = {
    **DREAMERS,
    "tdmpc2": LATENTS,
    "tdmpc": [*LATENTS, "algorithm.model.critics=2"],
    "planet": [*DREAMS, *SEARCH],
    "world_models": WORLD_MODELS,
    **{name: PPO for name in ("ppo", "ippo", "mappo", "happo")},
    "a2c": FEW_FEATURES,
    "reinforce": ["algorithm.episodes_per_update=3", *FEW_FEATURES],
    "diffusion_policy": DEMONSTRATED,
    "qlearning": ["algorithm.n_steps=16", "algorithm.epsilon=lin_0.5"],
    "sac": [*REPLAY, "algorithm.policy_every=2", *NARROW],
    "droq": [*REPLAY, "algorithm.policy_every=3", *NARROW],
    "dqn": [*REPLAY, "algorithm.target_every=7"],
    "rainbow": [*REPLAY, "algorithm.target_every=7"],
}
# a dot is a large image, for those who see and push; a fork is of the same kind as toy/identity_box, a glimpse as
# toy/image
ENVIRONMENTS = [name for name in toy.ids("toy") if name not in ("toy/dot", "toy/fork", "toy/glimpse")]
# The first algorithm of each workflow goes through every toy; what shares its code, through some of every kind, or
# through those that ask for what it has of its own: a state for each sequence, group, picture or mask.
FIRST = set({entry.workflow: name for name, entry in reversed(ALGORITHMS.items())}.values())
EVERY_KIND = ("toy/identity", "toy/identity_box", "toy/image", "toy/pair")
OWN = {
    "dreamer_v3": ("toy/chain", "toy/masked", "toy/dict", "toy/image", "toy/identity_box"),
    "dreamer_v2": ("toy/image", "toy/identity_box"),
    "dreamer_v1": ("toy/masked", "toy/identity_box"),
    "planet": ("toy/identity_box",),
    "tdmpc2": ("toy/identity_box", "toy/dot"),
    "tdmpc": ("toy/identity_box",),
    "ippo": ("toy/dict", "toy/pair", "toy/trio"),
    "mappo": ("toy/image", "toy/pair", "toy/trio"),
    "happo": ("toy/dials", "toy/pair", "toy/trio"),
    "ppo, gru": ("toy/masked", "toy/identity_box", "toy/pair"),
    "ppo, lstm in sequences": ("toy/recall", "toy/image", "toy/trio"),
    "ppo, transformer": ("toy/recall", "toy/dict", "toy/pair"),
    "ppo, normalised": ("toy/dict", "toy/image", "toy/pair"),
    "reinforce, lstm with a baseline": ("toy/recall", "toy/dict", "toy/pair"),
    "dqn, quantiles by priority from disk": ("toy/masked", "toy/dict", "toy/image"),
    "rainbow": ("toy/masked", "toy/dict", "toy/image"),
    "qlearning, double sarsa": ("toy/identity",),
    "world_models": ("toy/masked", "toy/image", "toy/identity_box"),
    "world models, planning in a plain one": ("toy/identity_box",),
    "diffusion_policy": ("toy/masked", "toy/image", "toy/pair"),
    "diffusion policy, transformer": ("toy/dict",),
}


def environments(subject: str) -> Sequence[str]:
    return OWN.get(subject, ENVIRONMENTS if subject in FIRST else EVERY_KIND)


def first_toy(subject: str) -> str:
    """Return the shared environment for algorithms that support it, else the first supported one."""
    algorithm, *_ = SUBJECTS[subject]
    for environment in ("toy/identity", *environments(subject)):
        with suppress(ConfigError):
            check(load(f"{environment}:{algorithm}", overrides_for(subject)))
            return environment
    raise AssertionError(f"{subject} acts in none of its toys")


def halved(task: Task | None) -> Task | None:
    return task and replace(task, amount=max(1, task.amount // 2))


def overrides_for(subject: str) -> list[str]:
    algorithm, *overrides = SUBJECTS[subject]
    return [*SHORT, *SMALL.get(algorithm, []), *overrides]


def config_for(subject: str, environment: str) -> RunConfig:
    algorithm, *_ = SUBJECTS[subject]
    config = load(f"{environment}:{algorithm}", overrides_for(subject))
    try:
        check(config)
    except ConfigError as refusal:
        pytest.skip(f"not for {algorithm}: {refusal}")
    return config


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], RunFolder]:
    """Return the undisturbed run of a subject in an environment; it is made by the first call."""
    root = tmp_path_factory.mktemp("undisturbed")

    @cache
    def run_of(subject: str, environment: str) -> RunFolder:
        lab = Lab(root)
        run = lab.start(config_for(subject, environment), f"{subject} {environment.replace('/', ' ')}")
        run.run()
        lab.close()
        return run.folder

    return run_of


@pytest.mark.parametrize(
    ("subject", "environment"),
    [(subject, environment) for subject in SUBJECTS for environment in environments(subject)],
)
def test_resumes_bit_for_bit_from_any_boundary(
    lab: Lab, undisturbed: Callable[[str, str], RunFolder], subject: str, environment: str
) -> None:
    whole, config = undisturbed(subject, environment), config_for(subject, environment)
    first = lab.start(config, "parts")
    first.run(until=lambda clock: clock.env_steps >= 150)
    second = lab.resume(first)
    # leave in the middle of a cycle, as a signal would
    whole_task = second.scheduler.next
    second.scheduler.next = lambda: halved(whole_task())  # type: ignore[method-assign]
    second._do_next()
    second.save()
    third = lab.resume(first)
    third.run()
    assert read(whole.metrics)[-1]["env_steps"] == third.clock.env_steps >= STEPS
    assert compare(whole, third.folder) is None


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_same_seed_gives_the_same_run_and_another_does_not(
    lab: Lab, undisturbed: Callable[[str, str], RunFolder], subject: str
) -> None:
    environment = first_toy(subject)
    run, config = undisturbed(subject, environment), config_for(subject, environment)
    again = lab.start(config, "again")
    again.run()
    assert compare(run, again.folder) is None
    other = lab.start(replace(config, seed=config.seed + 1), "other")
    other.run()
    difference = compare(run, other.folder)
    assert difference is not None
    assert difference["row"] == 0


@pytest.mark.parametrize("subject", SUBJECTS)
def test_evaluations_do_not_change_training(
    lab: Lab, undisturbed: Callable[[str, str], RunFolder], subject: str
) -> None:
    discrete = subject.startswith(("qlearning", "dqn", "rainbow"))  # actions alone, and toy/pair has others too
    alone = subject.startswith(("dreamer", "planet", "world", "tdmpc"))
    environment = "toy/identity" if discrete else "toy/identity_box" if alone else "toy/pair"
    often, config = undisturbed(subject, environment), config_for(subject, environment)
    silent = replace(config, evaluation=replace(config.evaluation, every_steps=None, at_end=False))
    never = lab.start(silent, "never")
    never.run()
    a, b = (read(folder.metrics)[-1] for folder in (often, never.folder))
    assert a["digest/weights"] == b["digest/weights"]
    assert a["digest/experience"] == b["digest/experience"]
