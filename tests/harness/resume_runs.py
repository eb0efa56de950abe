"""Small runs of many kinds, one for each part of the state that a resume must restore."""

from __future__ import annotations

IN_PROCESS = "environment.vectorize=in_process"
MEMORY = "algorithm.torso.memory"
QUICK = [IN_PROCESS, "algorithm.n_steps=32", "algorithm.n_epochs=1"]
RUNS = {
    "discrete, native": ["CartPole-v1:ppo"],
    "discrete, workers": ["CartPole-v1:ppo", "environment.vectorize=workers", "environment.workers=2"],
    "continuous, in process, normalised": [
        "Pendulum-v1:ppo",
        IN_PROCESS,
        "algorithm.normalize_obs=rolling",
        "algorithm.n_steps=64",
        "algorithm.n_epochs=4",
    ],
    "team with a dying agent": ["toy/pair:ppo", IN_PROCESS, "algorithm.n_steps=32", "algorithm.n_epochs=2"],
    "tables, masked, a transition waiting": [
        "Taxi-v4:qlearning",
        "algorithm.target=sarsa",
        "algorithm.double=true",
        "algorithm.epsilon=lin_0.5",
    ],
    "recurrent, sequences with burn-in, a memory for policy and value each": [
        "CartPole-v1:ppo",
        "environment.wrappers=[HideVelocity]",
        f"{MEMORY}={{type: lstm, size: 16, sequence_length: 8, burn_in: 4}}",
        "algorithm.torso.shared=false",
        "algorithm.batch_size=128",
        *QUICK,
    ],
    "masked, transformer": ["toy/masked:ppo", f"{MEMORY}={{type: transformer, size: 16, context: 8}}", *QUICK],
    "image": ["toy/image:ppo", "algorithm.torso.cnn.features=32", *QUICK],
    "dict, observations and rewards normalised": [
        "toy/dict:ppo",
        "algorithm.normalize_obs=rolling",
        "algorithm.normalize_reward=true",
        *QUICK,
    ],
    "episodes under way": [
        "CartPole-v1:reinforce",
        "algorithm.policy_targets=advantages",
        "algorithm.normalize_obs=rolling",
    ],
}
