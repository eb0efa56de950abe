"""PettingZoo environments: turns and credit, masks, deaths, ends, ids."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from cadenza.cli.main import run
from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families import pettingzoo_families
from cadenza.envs.families.pettingzoo import adapted
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, EnvironmentFault, MissingExtraError
from harness.teams import Informed, Mortal, Relay

warnings.filterwarnings("ignore", module="pettingzoo")


def published(id: str) -> Any:
    """Return the module of an environment."""
    prefix, _, name = id.partition("/")
    package = {first: package for first, package, _ in pettingzoo_families.FAMILIES.values()}[prefix]
    return pettingzoo_families._without_warnings(lambda: __import__(f"{package}.{name}", fromlist=["env"]))


def allowed(env: Any, frame: Any, random: np.random.Generator) -> Any:
    """Draw a random allowed action for every agent; return them and that of the agent on turn."""
    action, mover = {}, None
    for name, group in env.spec.groups.items():
        scores = random.random((len(group.agents), int(group.action.n)))
        action[name] = np.where(frame.mask[name], scores, -1).argmax(-1)
        for row in np.flatnonzero(frame.active[name]):
            mover = (group.agents[row], int(action[name][row]))
    return action, mover


def of_agents(env: Any, arrays: Any) -> Any:
    return {
        agent: arrays[name][row] for name, group in env.spec.groups.items() for row, agent in enumerate(group.agents)
    }


# turns


def by_last(aec: Any, seed: int, moves: Any) -> Any:
    """Run PettingZoo's own loop; return what each agent gets at its turns, including the last one without an action."""
    aec.reset(seed=seed)
    turns: dict[str, list[Any]] = {agent: [] for agent in aec.possible_agents}
    moves = iter(moves)
    for agent in aec.agent_iter():
        _, reward, terminated, truncated, _ = aec.last()
        turns[agent].append(reward)
        if terminated or truncated:
            aec.step(None)
        else:
            mover, action = next(moves)
            assert mover == agent
            aec.step(action)
    assert next(moves, None) is None
    return turns


TURNS = ["classic/tictactoe_v3", "classic/connect_four_v3", "classic/leduc_holdem_v4", "classic/texas_holdem_v4"]


@pytest.mark.parametrize("name", [*TURNS, "relay", "relay, late"])
def test_an_agent_is_paid_once_for_all_rewards_since_its_last_turn(name: str) -> None:
    def make() -> Any:
        return (
            Relay(late=name.endswith("late"))
            if name.startswith("relay")
            else pettingzoo_families._without_warnings(published(name).env)
        )

    env, random, deaths = adapted(make(), EnvironmentConfig(id="own")), np.random.default_rng(0), 0
    for seed in range(20):
        frame = env.reset(seed)
        at_turns: dict[Any, Any] = {}
        moves, total = [], dict.fromkeys(make().possible_agents, 0.0)
        while not (frame.terminated or frame.truncated):
            action, mover = allowed(env, frame, random)
            at_turns.setdefault(mover[0], []).append(float(of_agents(env, frame.reward)[mover[0]]))
            moves.append(mover)
            frame = env.step(action)
            deaths += 0 if frame.died is None else sum(int(died.sum()) for died in frame.died.values())
            for agent, reward in of_agents(env, frame.reward).items():
                total[agent] += float(reward)
        expected = by_last(make(), seed, moves)
        for agent, rewards in expected.items():
            acted = at_turns.get(agent, [])
            assert acted == rewards[: len(acted)]
            assert total[agent] == sum(rewards)
    assert deaths > 0 or name in TURNS


def test_only_the_agent_on_turn_is_active_and_only_its_mask_binds() -> None:
    env = catalog.make(EnvironmentConfig(id="classic/tictactoe"))
    frame = env.reset(0)
    assert {name: group.team for name, group in env.spec.groups.items()} == {
        "player_1": "player_1",
        "player_2": "player_2",
    }
    assert env.spec.groups["player_1"].observation.shape == (3, 3, 2)
    for turn, square in enumerate([4, 0, 8]):
        mover, other = ("player_1", "player_2")[:: 1 if turn % 2 == 0 else -1]
        assert frame.active[mover].tolist() == [True]
        assert frame.active[other].tolist() == [False]
        assert frame.mask[mover].sum() == 9 - turn
        assert frame.mask[other].all()
        frame = env.step({"player_1": np.array([square]), "player_2": np.array([square])})
    assert frame.obs["player_1"][0, :, :, 0].sum() == 2


def test_a_time_limit_pays_the_rewards_of_waiting_agents() -> None:
    env = adapted(Relay(risk=0), EnvironmentConfig(id="own", max_episode_steps=5))
    frame = env.reset(0)
    earned, paid = (dict.fromkeys(Relay.possible_agents, 0.0) for _ in range(2))
    while not frame.truncated:
        frame = env.step({name: np.full(len(group.agents), 2) for name, group in env.spec.groups.items()})
        for agent, reward in of_agents(env, frame.reward).items():
            earned[agent] += env.env.rewards[agent]
            paid[agent] += reward
    assert env.env.count == 5
    assert not frame.terminated
    assert paid == earned
    assert min(earned.values()) > 0


def test_observations_are_taken_out_from_beside_the_mask_with_images_channels_first() -> None:
    env = adapted(Relay(), EnvironmentConfig(id="own"))
    frame = env.reset(0)
    space: Any = env.spec.groups["b"].observation
    assert {key: part.shape for key, part in space.spaces.items()} == {"numbers": (2,), "picture": (3, 5, 4)}
    assert frame.obs["b"]["picture"].shape == (2, 3, 5, 4)
    assert frame.obs["b"]["numbers"].tolist() == [[0, 1], [0, 2]]
    assert frame.obs["a"]["numbers"].dtype == np.float32


def test_a_users_attribute_action_names_is_ignored() -> None:
    env = Relay()
    env.action_names = ["wait", "pass"]
    made = adapted(env, EnvironmentConfig(id="own"))
    assert {group.action_names for group in made.spec.groups.values()} == {()}


# deaths and ends

STAY = {"x": np.zeros(2, np.int64), "y": np.zeros(1, np.int64)}


def frames_of(env: Any, count: int) -> Any:
    return [env.reset(0), *(env.step(STAY) for _ in range(count))]


def test_a_death_is_marked_once_then_the_agent_sees_zeros_and_earns_nothing() -> None:
    env = adapted(Mortal({"x_1": (2, "terminated")}), EnvironmentConfig(id="own"))
    frames = frames_of(env, 4)
    assert [None if f.died is None else f.died["x"].tolist() for f in frames] == [None, None, [False, True], None, None]
    assert [None if f.active is None else f.active["x"].tolist() for f in frames[1:]] == [None, *[[True, False]] * 3]
    assert [f.reward["x"].tolist() for f in frames[1:]] == [[10, 11], [20, 21], [30, 0], [40, 0]]
    assert frames[2].obs["x"].tolist() == [[3, 3], [0, 0]]
    assert frames[2].obs["y"].tolist() == [[3, 3, 3]]
    assert not any(f.terminated or f.truncated for f in frames)
    assert [sorted(actions) for actions in env.env.action_log] == [["x_0", "x_1", "y_0"]] * 2 + [["x_0", "y_0"]] * 2
    assert env.reset(1).active is None


def test_a_dead_agent_sees_the_lowest_code_where_codes_start_above_0() -> None:
    class Counting(Mortal):
        def observation_space(self, agent: str) -> Any:
            return Discrete(9, start=3)

        def _observations(self, agents: Any) -> Any:
            return {agent: 3 + self.now for agent in agents}

    frames = frames_of(adapted(Counting({"x_1": (2, "terminated")}), EnvironmentConfig(id="own")), 3)
    assert [frame.obs["x"].tolist() for frame in frames] == [[3, 3], [4, 4], [5, 3], [6, 3]]


@pytest.mark.parametrize(
    ("ways", "terminated", "truncated", "died"),
    [
        (("terminated", "terminated"), True, False, None),
        (("gone", "terminated"), True, False, None),
        (("truncated", "truncated"), False, True, None),
        (("terminated", "truncated"), False, True, {"x": [True, False], "y": [False]}),
    ],
)
def test_an_episode_terminates_or_truncates_as_its_last_agents_do(
    ways: Any, terminated: bool, truncated: bool, died: Any
) -> None:
    ends = {"x_1": (1, "terminated"), "x_0": (3, ways[0]), "y_0": (3, ways[1])}
    last = frames_of(adapted(Mortal(ends), EnvironmentConfig(id="own")), 3)[-1]
    assert (last.terminated, last.truncated) == (terminated, truncated)
    assert (last.died and {name: flags.tolist() for name, flags in last.died.items()}) == died
    if "gone" not in ways:
        assert last.obs["x"].tolist() == [[4, 4], [0, 0]]  # what was truly seen last
        assert last.obs["y"].tolist() == [[4, 4, 4]]
        assert last.reward["x"].tolist() == [30, 0]


def test_an_agent_outside_possible_agents_is_refused() -> None:
    vector = make_vector(EnvironmentConfig(id="harness.teams:crowded"), EpisodeSeeds(0, TRAIN), num_envs=1)
    step = {"x": np.zeros((1, 2), np.int64), "y": np.zeros((1, 1), np.int64)}
    vector.step(step)
    with pytest.raises(EnvironmentFault, match=r"agent z_9 appeared, which possible_agents does not name, at step 2"):
        vector.step(step)
    vector.close()


def test_a_failure_to_close_is_a_warning() -> None:
    env = Informed({})
    env.close = lambda: 1 / 0
    with pytest.warns(UserWarning, match="environment own raised ZeroDivisionError when it was closed"):
        adapted(env, EnvironmentConfig(id="own")).close()


def test_masks_in_infos_are_used() -> None:
    env = adapted(Informed({"x_1": (1, "terminated")}), EnvironmentConfig(id="own"))
    first, second, _ = frames_of(env, 2)
    assert first.mask["x"].tolist() == [[True, False, False, False]] * 2
    assert second.mask["x"].tolist() == [[True, True, False, False], [True] * 4]


def test_a_users_pettingzoo_environment_runs_in_a_vector_by_its_import_path() -> None:
    vector = make_vector(EnvironmentConfig(id="harness.teams:dying_pair"), EpisodeSeeds(0, TRAIN), num_envs=2)
    action = {"x": np.zeros((2, 2), np.int64), "y": np.zeros((2, 1), np.int64)}
    steps = [vector.step(action) for _ in range(6)]
    assert steps[-1].truncated.all()
    assert steps[-1].final_obs["y"][0].tolist() == [[7, 7, 7]]
    assert steps[-1].obs["y"][0].tolist() == [[1, 1, 1]]
    assert steps[-1].active["x"].all()
    assert vector.episodes()[0].returns["x"].tolist() == [210, 63]
    vector.close()


# families


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("id", pettingzoo_families.ids("mpe"))
def test_mpe_episodes_equal_the_published_ones_bit_for_bit(id: str, continuous: bool) -> None:
    kwargs = {"continuous_actions": continuous}
    ours: Any = catalog.make(EnvironmentConfig(id=id, kwargs=kwargs))
    theirs = published(id).parallel_env(**kwargs)
    for seed in range(2):
        frame = ours.reset(seed)
        obs, _ = theirs.reset(seed=seed)
        random = np.random.default_rng(seed)
        over = False
        while not over:
            for agent, row in of_agents(ours, frame.obs).items():
                assert row.tobytes() == obs[agent].tobytes()
            assert frame.state.tobytes() == theirs.state().tobytes()
            action = {}
            for name, group in ours.spec.groups.items():
                shape = (len(group.agents), *group.action.shape)
                action[name] = (
                    random.random(shape, np.float32) if continuous else random.integers(group.action.n, size=shape)
                )
            frame = ours.step(action)
            by_agent = of_agents(ours, action)
            obs, rewards, ended, cut, _ = theirs.step({a: c if continuous else int(c) for a, c in by_agent.items()})
            assert of_agents(ours, frame.reward) == {agent: np.float32(reward) for agent, reward in rewards.items()}
            over = not theirs.agents
            assert (frame.terminated, frame.truncated) == (all(ended.values()), all(cut.values()))


@pytest.mark.parametrize(
    "id", ["HalfCheetah-2x3", "HalfCheetah-6x1", "Ant-4x2", "Ant-2x4d", "Humanoid-9|8", "Swimmer-2x1"]
)
def test_mamujoco_episodes_equal_the_published_ones_bit_for_bit(id: str) -> None:
    from gymnasium_robotics import mamujoco_v1

    ours: Any = catalog.make(EnvironmentConfig(id=f"mamujoco/{id}"))
    theirs = mamujoco_v1.parallel_env(*id.split("-"))
    random = np.random.default_rng(0)
    for seed in range(2):
        frame = ours.reset(seed)
        obs, _ = theirs.reset(seed=seed)
        for _ in range(150):
            for agent, row in of_agents(ours, frame.obs).items():
                assert row.tobytes() == obs[agent].tobytes()
            assert frame.state.tobytes() == theirs.state().tobytes()
            if frame.terminated:
                break
            action = {
                name: random.uniform(group.action.low, group.action.high, (len(group.agents), *group.action.shape))
                .astype(np.float32)
                for name, group in ours.spec.groups.items()
            }  # fmt: skip
            frame = ours.step(action)
            obs, rewards, *_ = theirs.step(of_agents(ours, action))
            share = 1 / len(rewards)  # of the robot's, which is published as everybody's
            assert of_agents(ours, frame.reward) == {agent: np.float32(each * share) for agent, each in rewards.items()}
    assert ours.spec.max_episode_steps == 1000
    for env in (ours, theirs):
        env.close()


def test_joints_that_share_a_name_keep_their_order() -> None:
    made = [catalog.make(EnvironmentConfig(id="mamujoco/Pusher-3p")) for _ in range(6)]
    assert len({env.reset(0).obs["agent_0"].tobytes() for env in made}) == 1


def test_team_ids_resolve_to_the_newest_version_and_many_segment_robots_to_any_size() -> None:
    assert environments.resolve("mpe/simple_spread") == "mpe/simple_spread_v3"
    assert environments.resolve("classic/tictactoe") == "classic/tictactoe_v3"
    snake = catalog.make(EnvironmentConfig(id="mamujoco/ManySegmentSwimmer-3x2"))
    assert sum(len(group.agents) for group in snake.spec.groups.values()) == 3


def test_arguments_and_max_cycles_reach_the_constructor() -> None:
    five = catalog.make(EnvironmentConfig(id="mpe/simple_spread", kwargs={"N": 5}, max_episode_steps=40))
    assert len(five.spec.groups["agent"].agents) == 5
    assert five.spec.max_episode_steps == 40
    far = catalog.make(EnvironmentConfig(id="mamujoco/HalfCheetah-2x3", kwargs={"agent_obsk": 2}))
    assert far.spec.groups["agent"].observation.shape > (12,)
    heavy: Any = catalog.make(EnvironmentConfig(id="mamujoco/HalfCheetah-2x3", kwargs={"ctrl_cost_weight": 5.0}))
    assert heavy.env.single_agent_env._ctrl_cost_weight == 5.0


@pytest.mark.parametrize(
    ("id", "kwargs", "message"),
    [
        ("sisl/pursuit", {"n_evader": 3}, r"environment\.kwargs\.n_evader: .*did you mean 'n_evaders'"),
        (
            "mamujoco/Ant-4x2",
            {"agent_conf": "2x4"},
            r"environment\.kwargs\.agent_conf: is set by the id mamujoco/Ant-4x2",
        ),
        ("mamujoco/Ant-4x2", {"healthy": 1}, r"environment\.kwargs: mamujoco/Ant-4x2 refuses {'healthy': 1}"),
    ],
)
def test_arguments_that_do_not_exist_are_refused(id: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        catalog.make(EnvironmentConfig(id=id, kwargs=kwargs))


@pytest.mark.parametrize(
    ("id", "teams"),
    [
        ("mpe/simple_tag", {"adversary": "adversaries", "agent": "good"}),
        ("mpe/simple_crypto", {"eve": "adversaries", "bob": "good", "alice": "good"}),
        ("mpe/simple_world_comm", {"leadadversary": "adversaries", "adversary": "adversaries", "agent": "good"}),
        ("mpe/simple_speaker_listener", {"speaker": "team", "listener": "team"}),
    ],
)
def test_adversarial_environments_have_two_teams(id: str, teams: Any) -> None:
    groups = catalog.make(EnvironmentConfig(id=id)).spec.groups
    assert {name: group.team for name, group in groups.items()} == teams


def test_a_known_id_without_its_packages_names_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("mpe2", "rlcard", "gymnasium_robotics", "pymunk"):
        monkeypatch.setitem(sys.modules, package, None)
    for id in ("mpe/simple_spread", "classic/tictactoe", "mamujoco/Ant-4x2", "butterfly/pistonball"):
        with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[marl\]'"):
            environments.resolve(id)
    assert run(["train", "mpe/simple_spread:ppo"]) == 69
    assert capsys.readouterr().err == "error: mpe environments need an extra: pip install 'cadenza[marl]'\n"
