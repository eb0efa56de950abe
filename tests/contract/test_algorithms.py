"""Every registered algorithm in every toy environment it accepts: trains, resumes bit for bit, repeats itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cadenza.config.load import load
from cadenza.config.registry import ALGORITHMS
from cadenza.config.schema import RunConfig
from cadenza.envs import toy
from cadenza.errors import ConfigError
from cadenza.orchestration.launch import check
from cadenza.orchestration.scheduler import Task
from cadenza.orchestration.verify import compare
from cadenza.records.metrics import read
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
}
SHORT = ["training.max_timesteps=600", "environment.num_envs=2", "evaluation.episodes=2", "evaluation.every_steps=300"]
# a replay so small that it overflows, and visits that a ratio does not divide
REPLAY = [
    "algorithm.buffer_size=200",
    "algorithm.warmup_steps=50",
    "algorithm.train_every=10",
    "algorithm.update_ratio=0.27",
    "algorithm.batch_size=16",
    "algorithm.torso.cnn.features=16",
    "runtime.threads=1",  # two that wait for each other on busy cores take ten times as long
]
NARROW = ["algorithm.actor.hidden_sizes=[16]", "algorithm.critic.hidden_sizes=[16]"]
SMALL = {
    "ppo": ["algorithm.n_steps=32", "algorithm.n_epochs=2", "algorithm.batch_size=0.5"],
    "reinforce": ["algorithm.episodes_per_update=3"],
    "qlearning": ["algorithm.n_steps=16", "algorithm.epsilon=lin_0.5"],
    "sac": [*REPLAY, "algorithm.policy_every=2", *NARROW],
    "droq": [*REPLAY, "algorithm.policy_every=3", *NARROW],
    "dqn": [*REPLAY, "algorithm.target_every=7"],
    "rainbow": [*REPLAY, "algorithm.target_every=7"],
}
ENVIRONMENTS = [name for name in toy.ids("toy") if name != "toy/faulty"]


def halved(task: Task | None) -> Task | None:
    return task and replace(task, amount=max(1, task.amount // 2))


def config_for(subject: str, environment: str) -> RunConfig:
    algorithm, *overrides = SUBJECTS[subject]
    config = load(f"{environment}:{algorithm}", [*SHORT, *SMALL.get(algorithm, []), *overrides])
    try:
        check(config)
    except ConfigError as refusal:
        pytest.skip(f"not for {algorithm}: {refusal}")
    return config


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_resumes_bit_for_bit_from_any_boundary(lab: Lab, subject: str, environment: str) -> None:
    config = config_for(subject, environment)
    whole = lab.start(config, "whole")
    whole.run()
    first = lab.start(config, "parts")
    first.run(until=lambda clock: clock.env_steps >= 200)
    second = lab.resume(first)
    # leave in the middle of a cycle, as a signal would
    whole_task = second.scheduler.next
    second.scheduler.next = lambda: halved(whole_task())  # type: ignore[method-assign]
    second._do_next()
    second.save()
    third = lab.resume(first)
    third.run()
    assert whole.clock.env_steps == third.clock.env_steps >= 600
    assert compare(whole.folder, third.folder) is None


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_same_seed_gives_the_same_run_and_another_does_not(lab: Lab, subject: str) -> None:
    config = config_for(subject, "toy/identity")
    runs = [lab.start(replace(config, seed=seed), name) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    for run in runs:
        run.run()
    a, b, c = (run.folder for run in runs)
    assert compare(a, b) is None
    difference = compare(a, c)
    assert difference is not None
    assert difference["row"] == 0


@pytest.mark.parametrize("subject", SUBJECTS)
def test_evaluating_does_not_disturb_training(lab: Lab, subject: str) -> None:
    discrete = subject.startswith(("qlearning", "dqn", "rainbow"))  # actions alone, and toy/pair has others too
    config = config_for(subject, "toy/identity" if discrete else "toy/pair")
    silent = replace(config, evaluation=replace(config.evaluation, every_steps=None, at_end=False))
    often, never = lab.start(config, "often"), lab.start(silent, "never")
    often.run()
    never.run()
    a, b = (read(run.folder.metrics)[-1] for run in (often, never))
    assert a["digest/weights"] == b["digest/weights"]
    assert a["digest/experience"] == b["digest/experience"]
