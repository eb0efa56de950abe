"""Tabular learning against plain implementations that share no code with it, and everything around the table."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from cadenza.base.streams import Streams
from cadenza.config.load import load
from cadenza.data.rollout import Rollout
from cadenza.engine.build import assemble
from cadenza.engine.collector import Collector
from cadenza.engine.launch import check
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.errors import ConfigError
from cadenza.records.metrics import read
from cadenza.tools.verify import compare
from cadenza.trees import map_tree
from cadenza.types import Context, EnvSpec, GroupSpec, Mode, PhaseInfo, Step
from cadenza.workflows.qlearning import Lesson, QLearning, indexer
from cadenza.workflows.qlearning_config import QLearningConfig, states_in
from harness.lab import Lab

PHASE = PhaseInfo("train", "online", 0, 1000)


class Holding:
    """A store that hands out one rollout."""

    def __init__(self, rollout: Rollout) -> None:
        self.take = lambda: rollout


class Trained:
    """A workflow in its environments, with a record of all it learned from."""

    def __init__(self, spec: str, *overrides: str) -> None:
        config = load(spec, list(overrides))
        self.assembly = assemble(config, check(config), {})
        self.workflow = cast("Any", self.assembly.workflow)
        self.table = self.workflow.tables["agent"]
        self.config = config
        self.rollouts: list[Rollout] = []

    def run(self, updates: int) -> Trained:
        assembly = self.assembly
        assert assembly.env is not None
        collector = Collector(assembly.env, self.workflow)
        task = PhaseScheduler(assembly.phases).next()
        assert task is not None
        store: Any = assembly.stores["rollout"]
        for _ in range(updates):
            collector.collect(task, store, Mode(True, PHASE, assembly.streams), lambda: False)
            rollout = store.take()
            self.rollouts.append(copy.deepcopy(rollout))
            self.workflow.update(Holding(rollout), PHASE)
        return self

    def rows(self) -> Iterator[tuple[int, int, int, float, int, bool, bool, int]]:
        """(environment, state, action, reward, what truly followed, terminated, truncated, number of the update)."""
        for number, rollout in enumerate(self.rollouts):
            data = rollout.groups["agent"]
            finals = {(t, n): k for k, (t, n) in enumerate(zip(*rollout.final_index, strict=True))}
            steps, envs = rollout.terminated.shape
            for t, n in itertools.product(range(steps), range(envs)):
                if (t, n) in finals:
                    after = rollout.final_obs["agent"][finals[t, n], 0]
                else:
                    after = data["obs"][t + 1, n, 0] if t + 1 < steps else rollout.after_obs["agent"][n, 0]
                ends = bool(rollout.terminated[t, n]), bool(rollout.truncated[t, n])
                reward, obs, action = data["reward"][t, n, 0], data["obs"][t, n, 0], data["action"][t, n, 0]
                yield n, int(obs), int(action), float(reward), int(after), *ends, number


@pytest.fixture
def trained() -> Iterator[Any]:
    made: list[Trained] = []

    def make(spec: str, *overrides: str) -> Trained:
        made.append(Trained(spec, *overrides))
        return made[-1]

    yield make
    for one in made:
        one.assembly.close()


def plain_tables(run: Trained, allowed: Any, actions: int) -> list[dict[tuple[int, int], float]]:
    """The textbook's update, one transition after the other, from the record alone."""
    config, coins = run.config.algorithm, Streams(run.config.seed).numpy("double.agent")
    tables: list[dict[tuple[int, int], float]] = [defaultdict(lambda: config.initial_value) for _ in range(2)]
    times: Counter[tuple[int, int, int]] = Counter()
    last: dict[int, tuple[int, int, float]] = {}

    def learn(state: int, action: int, reward: float, after: int | None, next_action: int | None) -> None:
        k = int(coins.random() < 0.5) if config.double else 0
        own, judge = tables[k], tables[1 - k if config.double else k]
        worth = 0.0
        if after is not None and next_action is not None:
            worth = judge[after, next_action]
        elif after is not None:
            options = [a for a in range(actions) if allowed(after, a)]
            worth = judge[after, max(options, key=lambda a: own[after, a])]
            if config.target != "q":
                mean = sum([judge[after, a] for a in options]) / len(options)
                worth = (1 - config.epsilon) * worth + config.epsilon * mean if config.epsilon else worth
        times[k, state, action] += 1
        rate = 1 / times[k, state, action] if config.learning_rate == "sample_average" else config.learning_rate
        own[state, action] += rate * (reward + config.gamma * worth - own[state, action])

    for n, state, action, reward, after, terminated, truncated, _ in run.rows():
        if config.target == "sarsa" and n in last:
            learn(*last.pop(n), state, action)
        if terminated or truncated or config.target != "sarsa":
            learn(state, action, reward, None if terminated else after, None)
        else:
            last[n] = (state, action, reward)
    return tables


LAKE = (
    "FrozenLake-v1:qlearning",
    "environment.max_episode_steps=7",
    "algorithm.learning_rate=0.3",
    "algorithm.initial_value=0.5",
)
TAXI = ("Taxi-v4:qlearning", "environment.max_episode_steps=30")
VARIANTS = [
    LAKE,
    (*LAKE, "algorithm.n_steps=9", "algorithm.double=true"),
    (*LAKE, "algorithm.target=sarsa"),
    (*LAKE, "algorithm.target=sarsa", "algorithm.n_steps=9", "algorithm.double=true"),
    (*LAKE, "algorithm.target=expected_sarsa"),
    (*LAKE, "algorithm.learning_rate=sample_average", "algorithm.target=expected_sarsa", "algorithm.double=true"),
    (*LAKE, "algorithm.target=sarsa", "algorithm.exploration=ucb", "algorithm.epsilon=0"),
    TAXI,
    (*TAXI, "algorithm.n_steps=5", "algorithm.double=true"),
    (*TAXI, "algorithm.target=expected_sarsa", "algorithm.learning_rate=sample_average"),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: " ".join(variant))
def test_tables_equal_a_plain_implementation_exactly(trained: Any, variant: tuple[str, ...]) -> None:
    run = trained(*variant, "environment.num_envs=5").run(100)
    rows = list(run.rows())
    assert any(terminated for *_, terminated, _, _ in rows) or "Taxi" in variant[0]
    assert any(truncated and not terminated for *_, terminated, truncated, _ in rows)
    taxi: Any = gymnasium.make("Taxi-v4").unwrapped

    def allowed(state: int, action: int) -> bool:
        return "Taxi" not in variant[0] or bool(taxi.action_mask(state)[action])

    values = run.table.values
    plain = plain_tables(run, allowed, values.shape[-1])
    for k, state, action in np.ndindex(values.shape):
        assert values[k, state, action] == plain[k][state, action]
    assert (values != run.config.algorithm.initial_value).sum() > 10


def test_equal_transitions_in_one_batch_are_learned_from_one_after_the_other(trained: Any) -> None:
    """Sixteen environments of one state pull few arms: a sample average must be the mean of all rewards."""
    run = trained("Bandit/ten_armed:qlearning", "environment.num_envs=16", "environment.kwargs.arms=3").run(40)
    rewards = defaultdict(list)
    for _, _, action, reward, *_ in run.rows():
        rewards[action].append(reward)
    assert run.table.counts[0, 0].tolist() == [len(rewards[arm]) for arm in range(3)]
    np.testing.assert_allclose(run.table.values[0, 0], [np.mean(rewards[arm]) for arm in range(3)], rtol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_preferences_climb_the_gradient_of_the_expected_reward(trained: Any, temperature: float) -> None:
    settings = ["algorithm.learning_rate=0.2", f"algorithm.temperature={temperature}", "environment.num_envs=4"]
    run = trained("Bandit/contextual:qlearning", "algorithm.exploration=gradient", *settings).run(100)
    rewards: dict[int, list[float]] = defaultdict(list)
    preferences = np.zeros((4, 10))
    for _, state, arm, reward, *_ in run.rows():
        softmax = np.exp(preferences[state] / temperature) / np.exp(preferences[state] / temperature).sum()
        advantage = reward - np.mean(rewards[state] or [reward])
        preferences[state] += 0.2 * advantage * (np.eye(10)[arm] - softmax) / temperature
        rewards[state].append(reward)
    np.testing.assert_allclose(run.table.values[0], preferences, atol=1e-12)


# numbering observations

SPACES = [
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 4, 2], start=[1, 0, -1]),
    spaces.MultiDiscrete(np.array([[2, 3], [1, 4]])),
    spaces.MultiBinary(5),
    spaces.MultiBinary((2, 2)),
    spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Dict({"c": spaces.MultiBinary(2), "d": spaces.Discrete(4)})}),
]


def elements(space: spaces.Space[Any]) -> Iterator[Any]:
    if isinstance(space, spaces.Dict):
        for combination in itertools.product(*(list(elements(part)) for part in space.spaces.values())):
            yield dict(zip(space.spaces, combination, strict=True))
    elif isinstance(space, spaces.Discrete):
        yield from (np.int64(space.start + k) for k in range(space.n))
    else:
        assert isinstance(space, spaces.MultiBinary | spaces.MultiDiscrete)
        radix = np.full(space.shape, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
        start = getattr(space, "start", np.zeros(space.shape, int))
        for digits in itertools.product(*(range(n) for n in radix.ravel())):
            yield (np.reshape(digits, space.shape) + start).astype(space.dtype)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_observation_has_a_number_of_its_own(space: spaces.Space[Any]) -> None:
    every = list(elements(space))
    assert all(space.contains(one) for one in every)
    batch = map_tree(lambda *parts: np.stack(parts)[:, None], *every)  # [N, A = 1, …]
    numbers = indexer(space)(batch)
    assert numbers.shape == (len(every), 1)
    assert sorted(numbers[:, 0].tolist()) == list(range(states_in(space, "")))


def test_parts_of_an_observation_and_actions_that_do_not_begin_at_zero_are_learned(lab: Lab) -> None:
    settings = ["environment.max_episode_steps=16", "training.max_timesteps=1000", "algorithm.gamma=0"]
    run = lab.start(load("harness.odd_spaces:RewardedAction:qlearning", settings))
    run.run()
    assert run.workflow.tables["agent"].values.shape == (1, 4, 4)  # type: ignore[attr-defined]
    assert read(run.folder.metrics)[-1]["eval/return_min"] == 16


# what is refused


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> EnvSpec:
    return EnvSpec("it", {"agent": GroupSpec(("agent",), observation, action)})


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (spaces.Box(0, 1, (3,)), spaces.Discrete(2), "takes Discrete, MultiDiscrete and MultiBinary observations"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1)}), spaces.Discrete(2), "it (group agent) has Box"),
        (spaces.Discrete(2), spaces.MultiDiscrete([2, 2]), "takes Discrete actions; it (group agent) has MultiDisc"),
        (spaces.MultiBinary(40), spaces.Discrete(2), "has 2.2e+12 of them"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_put_in_a_table_is_refused(observation: Any, action: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        QLearningConfig().check(spec_of(observation, action), 1)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["gamma=1.5"], "algorithm.gamma=1.5: must be in [0, 1]"),
        (["n_steps=0"], "algorithm.n_steps=0"),
        (["epsilon=2"], "algorithm.epsilon=2: must be in [0, 1]"),
        (["epsilon=lin_1.5"], "algorithm.epsilon.start_value=1.5: must be in [0, 1]"),
        (["learning_rate=0"], "algorithm.learning_rate=0: must be above 0"),
        (["learning_rate=1.1"], "cannot be above 1"),
        (["learning_rate=sample_avg"], "algorithm.learning_rate"),
        (["ucb_c=-1"], "algorithm.ucb_c=-1"),
        (["temperature=0"], "algorithm.temperature=0"),
        (["target=expected_sarsa", "exploration=ucb"], "not ucb"),
        (["exploration=gradient"], "set algorithm.gamma=0"),
        (["exploration=gradient", "gamma=0", "target=sarsa"], "algorithm.target=sarsa"),
        (["exploration=gradient", "gamma=0", "double=true"], "algorithm.double"),
        (["exploration=gradient", "gamma=0", "learning_rate=sample_average"], "algorithm.learning_rate"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load("toy/identity:qlearning", [f"algorithm.{setting}" for setting in settings])
    assert words in str(refusal.value)


# acting


def workflow_of(states: int, actions: int, **settings: Any) -> QLearning:
    spec = spec_of(spaces.Discrete(states), spaces.Discrete(actions))
    return QLearning(QLearningConfig(**settings), Context(spec, 1, "cpu", Streams(0)))


def act(workflow: QLearning, state: int, many: int, explore: bool = True, mask: list[bool] | None = None) -> np.ndarray:
    obs, agents = np.full((many, 1), state), np.ones((many, 1), bool)
    step = Step(
        obs={"agent": obs},
        final_obs={"agent": obs},
        reward={"agent": np.zeros((many, 1), np.float32)},
        terminated=np.zeros(many, bool),
        truncated=np.zeros(many, bool),
        is_first=np.zeros(many, bool),
        active={"agent": agents},
        died={"agent": ~agents},
        mask={} if mask is None else {"agent": np.tile(mask, (many, 1, 1))},
    )
    action: np.ndarray = workflow.act(step, {}, Mode(explore, PHASE, Streams(3))).action["agent"][:, 0]
    return action


def shares(actions: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(actions, minlength=count) / len(actions)


def test_epsilon_greedy_shares_out_what_it_says_and_breaks_ties_evenly() -> None:
    workflow = workflow_of(2, 4, epsilon=0.2)
    workflow.tables["agent"].values[0, 1] = [1, 3, 3, 2]
    np.testing.assert_allclose(shares(act(workflow, 0, 40_000), 4), 0.25, atol=0.01)
    np.testing.assert_allclose(shares(act(workflow, 1, 40_000), 4), [0.05, 0.45, 0.45, 0.05], atol=0.01)
    assert act(workflow, 1, 5, explore=False).tolist() == [1] * 5


def test_masked_actions_are_never_taken() -> None:
    mask = [True, False, False, True]
    for settings in ({"epsilon": 0.5}, {"exploration": "ucb"}, {"exploration": "gradient", "gamma": 0.0}):
        workflow = workflow_of(1, 4, **settings)
        workflow.tables["agent"].values[0, 0] = [0, 9, 8, 1]
        assert set(act(workflow, 0, 500, mask=mask).tolist()) == {0, 3}
        assert set(act(workflow, 0, 5, explore=False, mask=mask).tolist()) == {3}


def test_ucb_tries_everything_and_then_what_may_be_best() -> None:
    workflow = workflow_of(1, 3, exploration="ucb", ucb_c=2.0)
    table = workflow.tables["agent"]
    table.values[0, 0], table.counts[0, 0] = [5.0, 0.0, 0.0], [10, 0, 10]
    assert set(act(workflow, 0, 50).tolist()) == {1}
    table.counts[0, 0] = [50, 40, 10]
    bounds = [q + 2 * math.sqrt(math.log(100) / n) for q, n in ((1.0, 50), (0.5, 40), (0.4, 10))]
    table.values[0, 0] = [1.0, 0.5, 0.4]
    assert max(bounds) == bounds[2]
    assert set(act(workflow, 0, 50).tolist()) == {2}


def test_preferences_are_drawn_by_their_softmax() -> None:
    workflow = workflow_of(1, 3, exploration="gradient", gamma=0.0, temperature=2.0)
    workflow.tables["agent"].values[0, 0] = [0.0, 1.0, 2.0]
    expected = np.exp([0, 0.5, 1.0]) / np.exp([0, 0.5, 1.0]).sum()
    np.testing.assert_allclose(shares(act(workflow, 0, 40_000), 3), expected, atol=0.01)


# SARSA's waiting transitions


def lesson_with(**settings: Any) -> Lesson:
    workflow = workflow_of(4, 2, target="sarsa", learning_rate=1.0, gamma=0.5, epsilon=0.0, **settings)
    table = workflow.tables["agent"]
    table.values[0] = [[1, 2], [10, 20], [100, 200], [0, 0]]
    return Lesson(workflow.config, table, Streams(0).numpy("coins"))


def test_environments_that_start_afresh_end_what_waits_as_a_time_limit_does() -> None:
    lesson = lesson_with()
    lesson.sarsa(0, (0, 0, 1.0, 1), False, False, is_first=True, active=True)
    lesson.sarsa(0, (2, 0, 1.0, 3), False, False, is_first=True, active=True)
    assert lesson.table.values[0, 0].tolist() == [1 + 0.5 * 20, 2]  # the best of state 1, not the action in state 2
    assert lesson.table.pending == [(2, 0, 1.0, 3)]


def test_an_agent_that_is_not_on_turn_waits_and_one_that_dies_ends() -> None:
    lesson = lesson_with()
    lesson.sarsa(0, (0, 0, 1.0, 1), False, False, is_first=True, active=True)
    lesson.sarsa(0, (1, 1, 9.0, 2), False, False, is_first=False, active=False)
    assert lesson.updates == 0
    lesson.sarsa(0, (2, 0, 3.0, 3), True, False, is_first=False, active=True)
    assert lesson.table.values[0, 0, 0] == 1 + 0.5 * 100  # it acts again in state 2
    assert lesson.table.values[0, 2, 0] == 3  # and nothing follows
    assert lesson.table.pending == [None]
    lesson.sarsa(0, (0, 1, 4.0, 1), False, False, is_first=True, active=True)
    lesson.sarsa(0, (1, 0, 0.0, 2), True, False, is_first=False, active=False)
    assert lesson.table.values[0, 0, 1] == 4
    assert lesson.table.pending == [None]


# state

RUNS = {
    "sarsa, double, masked, dwindling exploration": ["Taxi-v4:qlearning", "target=sarsa", "double=true", "n_steps=16"],
    "parts, sample averages": ["Blackjack-v1:qlearning", "learning_rate=sample_average", "target=expected_sarsa"],
    "ucb": ["FrozenLake-v1:qlearning", "exploration=ucb", "n_steps=16"],
    "gradient": ["Bandit/contextual:qlearning", "exploration=gradient", "learning_rate=0.1", "n_steps=16"],
    "wandering": ["Bandit/nonstationary:qlearning", "n_steps=16"],
}
SHORT = ["training.max_timesteps=1200", "environment.num_envs=4", "environment.max_episode_steps=30"]
RARE = ["evaluation.every_steps=600", "evaluation.episodes=2", "logging.every_steps=100"]


@pytest.mark.parametrize("run", RUNS)
def test_every_kind_of_table_resumes_bit_for_bit_in_the_middle_of_a_collection(lab: Lab, run: str) -> None:
    spec, *settings = RUNS[run]
    dwindling = "algorithm.epsilon={schedule: linear, start_value: 1.0, end_value: 0.1}"
    overrides = [*SHORT, *RARE, dwindling, *(f"algorithm.{setting}" for setting in settings)]
    config = load(spec, overrides)
    whole, first = lab.start(config, "whole"), lab.start(config, "parts")
    whole.run()
    first.run(until=lambda clock: clock.env_steps >= 400)
    second = lab.resume(first)
    task = second.scheduler.next()
    assert task is not None
    second.scheduler.next = lambda: replace(task, amount=max(1, task.amount // 2))  # type: ignore[method-assign]
    second._do_next()
    second.save()
    third = lab.resume(first)
    third.run()
    assert compare(whole.folder, third.folder) is None


def test_measuring_does_not_disturb_learning(lab: Lab) -> None:
    config = load("FrozenLake-v1:qlearning", [*SHORT, *RARE, "algorithm.double=true"])
    silent = replace(config, evaluation=replace(config.evaluation, every_steps=None, at_end=False))
    ends = []
    for name, one in (("often", config), ("never", silent)):
        run = lab.start(one, name)
        run.run()
        ends.append(read(run.folder.metrics)[-1])
    assert ends[0]["digest/weights"] == ends[1]["digest/weights"]
    assert ends[0]["digest/experience"] == ends[1]["digest/experience"]


def test_another_run_lends_its_values_and_nothing_else(lab: Lab) -> None:
    run = lab.start(load("FrozenLake-v1:qlearning", [*SHORT, *RARE]))
    run.run()
    state = run.workflow.state_dict()
    fresh = workflow_of(16, 4)
    fresh.load_weights(state)
    table = fresh.tables["agent"]
    np.testing.assert_array_equal(table.values, state["networks"]["agent"]["values"])
    assert not table.counts.any()
    with pytest.raises(RuntimeError, match=r"values: the saved shape \[1, 16, 4\] is not this run's \[1, 1, 4\]"):
        workflow_of(1, 4).load_weights(state)


def test_an_update_reports_what_it_did(lab: Lab) -> None:
    settings = ["algorithm.epsilon=lin_0.5", "environment.num_envs=4", "training.max_timesteps=4000"]
    run = lab.start(load("FrozenLake-v1:qlearning", [*settings, "evaluation.episodes=2"]))
    run.run()
    rows = [row for row in read(run.folder.metrics) if "train/td_error" in row]
    assert [row["updates"] for row in rows] == [row["env_steps"] for row in rows]
    assert rows[0]["train/epsilon"] > rows[-1]["train/epsilon"] > 0
    assert rows[-1]["train/visited"] == 11 / 16  # the holes and the goal are never acted in
    assert all(row["train/td_error"] >= 0 and row["train/q_mean"] >= 0 for row in rows)
