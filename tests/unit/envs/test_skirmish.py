"""Skirmish's rules in small hand-made situations, and the contract of its vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.layout import allocate_buffer
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.skirmish.environment import battles
from cadenza.envs.skirmish.maps import BY_LETTER, MAPS, parse
from cadenza.envs.skirmish.rules import SIZE
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, NotFoundError
from harness.skirmish_scripts import charge, focus_fire, guards_ahead, line

SEEDS = EpisodeSeeds(3, TRAIN)
M, X, H, S = (BY_LETTER[letter] for letter in "mxhs")


class Field:
    """A battle with units at given positions; actions by name."""

    def __init__(self, map: str, places: list[tuple[float, float]], limit: int = 60, **kwargs: Any) -> None:
        self.fights = battles(EnvironmentConfig(id=f"skirmish/{map}", max_episode_steps=limit, kwargs=kwargs), 1)
        self.names = self.fights.unit_names()
        self.step = allocate_buffer(self.fights.layout, 1).step
        self.fights.begin([0], [0])
        self.fights.x[0], self.fights.y[0] = np.array(places).T
        self.look()

    def look(self) -> None:
        self.fights.show(self.step)

    def unit(self, name: str) -> int:
        return self.names.index(name)

    def place(self, name: str) -> tuple[float, float]:
        return float(self.fights.x[0, self.unit(name)]), float(self.fights.y[0, self.unit(name)])

    def health(self, name: str) -> int:
        return int(self.fights.health[0, self.unit(name)])

    def hurt(self, name: str, left: int) -> None:
        self.fights.health[0, self.unit(name)] = left
        self.look()

    def _group(self, name: str) -> tuple[str, int]:
        unit = self.unit(name)
        return next(
            (group, squad.units.tolist().index(unit))
            for group, squad in self.fights.squads.items()
            if unit in squad.units
        )

    def allowed(self, name: str) -> set[str]:
        group, row = self._group(name)
        return {
            what
            for what, yes in zip(self.fights.actions(self.unit(name)), self.step.mask[group][0, row], strict=True)
            if yes
        }

    def observation(self, name: str) -> dict[str, float]:
        group, row = self._group(name)
        values = self.step.obs[group][0, row].tolist()
        return dict(zip(self.fights.features(self.unit(name)), values, strict=True))

    def act(self, **orders: str) -> None:
        action = {group: np.zeros((1, len(squad.units)), np.int64) for group, squad in self.fights.squads.items()}
        for name, what in orders.items():
            group, row = self._group(name)
            action[group][0, row] = list(self.fights.actions(self.unit(name))).index(what)
        self.fights.advance(action, self.step)
        self.look()


# maps


def test_maps_name_both_armies_or_one_for_both() -> None:
    armies = parse("skirmish/2m1x1h")
    assert armies.allies == armies.enemies == (M, M, X, H)
    armies = parse("skirmish/1s_vs_2x1m")
    assert (armies.allies, armies.enemies) == ((S,), (X, X, M))
    assert environments.resolve("skirmish/4m_vs_2x1h") == "skirmish/4m_vs_2x1h"
    assert all(environments.resolve(f"skirmish/{name}") for name in MAPS)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("3q", r"'q' is no type \(types: m marine, x bruiser, h healer, s scout, g guard\)"),
        ("m3", "a map is COUNT TYPE"),
        ("3m_vs_", "a map is COUNT TYPE"),
        ("3m_vs_3m_vs_3m", "a map is COUNT TYPE"),
        ("33m", "a side has 1 to 32 units"),
        ("20m20x", "a side has 1 to 32 units"),
        ("0m", "a side has 1 to 32 units"),
        ("3m_vs_2h", "a side needs someone who can attack"),
        ("5m_v_6m", "did you mean '5m_vs_6m'"),
    ],
)
def test_an_invalid_map_is_an_error_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(NotFoundError, match=says):
        environments.resolve(f"skirmish/{name}")


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"opponent": "weak"}, "kwargs.opponent=weak: must be one of nearest, weakest; did you mean 'weakest'"),
        ({"strength": 0}, "kwargs.strength=0: must be a number above 0"),
        ({"padded": "yes"}, "kwargs.padded=yes: must be true or false"),
        ({"oponent": "nearest"}, "did you mean 'opponent'"),
    ],
)
def test_invalid_skirmish_settings_are_config_errors(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        catalog.make(EnvironmentConfig(id="skirmish/3m", kwargs=kwargs))


def test_types_differ_in_what_they_see_and_do_and_nothing_is_padded() -> None:
    groups = catalog.make(EnvironmentConfig(id="skirmish/3m1x1h1s")).spec.groups
    assert {name: len(group.agents) for name, group in groups.items()} == {
        "marine": 3,
        "bruiser": 1,
        "healer": 1,
        "scout": 1,
    }
    assert len({group.observation.shape for group in groups.values()}) == 4
    # hold, 4 moves, 6 targets; a bruiser braces; a healer has its 5 comrades; a scout 8 moves
    actions: list[Any] = [group.action for group in groups.values()]
    assert [int(space.n) for space in actions] == [11, 12, 10, 15]


def test_padded_puts_all_units_into_one_group_of_equal_columns() -> None:
    env = catalog.make(EnvironmentConfig(id="skirmish/2m1x1h", kwargs={"padded": True}))
    frame = env.reset(0)
    assert list(env.spec.groups) == ["unit"]
    assert frame.mask["unit"].shape == (4, 1 + 8 + 1 + 4 + 3)
    assert not frame.mask["unit"][0, 9]  # a marine does not brace
    assert frame.mask["unit"][2, 9]


def test_types_false_hides_the_units_types() -> None:
    field = Field("1m1x_vs_1m1x", [(5, 12), (5, 13), (9, 12), (20, 13)], types=False)
    observation = field.observation("marine_0")
    assert {name for name in observation if "is_" in name} == {
        "bruiser_0.is_seen",
        "enemy_marine_0.is_seen",
        "enemy_bruiser_0.is_seen",
    }
    assert (observation["enemy_marine_0.is_seen"], observation["enemy_bruiser_0.is_seen"]) == (1, 0)


# attacks


def test_a_hit_takes_the_damage_less_the_armour_and_the_enemys_is_weakened() -> None:
    field = Field("1m_vs_1x", [(10, 12), (11.5, 12)])
    field.act(marine_0="attack enemy_bruiser_0")
    assert field.health("enemy_bruiser_0") == X.health - (M.damage - X.armour)
    assert field.health("marine_0") == M.health - int(X.damage * 0.8)
    field = Field("1m_vs_1x", [(10, 12), (11.5, 12)], strength=1)
    field.act()
    assert field.health("marine_0") == M.health - X.damage


def test_every_hit_takes_at_least_a_point() -> None:
    field = Field("1x_vs_1m", [(10, 12), (15, 12)], strength=0.1)
    field.act(bruiser_0="hold")
    assert field.health("bruiser_0") == X.health - 1


def test_attacks_are_allowed_exactly_up_to_the_reach() -> None:
    assert "attack enemy_marine_0" in Field("1m", [(6, 12), (12, 12)]).allowed("marine_0")
    assert "attack enemy_marine_0" not in Field("1m", [(6, 12), (12.01, 12)]).allowed("marine_0")


def test_after_an_attack_a_unit_reloads_and_may_not_attack_meanwhile() -> None:
    field = Field("1m", [(6, 12), (12, 12)])
    field.act(marine_0="attack enemy_marine_0")
    assert "attack enemy_marine_0" not in field.allowed("marine_0")
    assert field.observation("marine_0")["self.cooldown"] == 0.5
    assert field.health("marine_0") == M.health - 7
    before = field.health("enemy_marine_0")
    field.act(marine_0="attack enemy_marine_0")  # what is not allowed is left undone
    assert field.health("enemy_marine_0") == before
    assert field.health("marine_0") == M.health - 7  # the enemy reloads, too
    assert "attack enemy_marine_0" in field.allowed("marine_0")


def test_both_sides_act_at_once_so_that_both_can_fall() -> None:
    field = Field("1m", [(10, 12), (12, 12)])
    field.hurt("marine_0", 1)
    field.hurt("enemy_marine_0", 1)
    field.act(marine_0="attack enemy_marine_0")
    assert field.health("marine_0") == field.health("enemy_marine_0") == 0
    assert field.step.terminated[0]
    assert not field.step.won[0]


def test_bracing_halves_what_is_taken() -> None:
    field = Field("1x_vs_2m", [(10, 12), (15, 12), (15, 13)])
    field.act(bruiser_0="brace")
    assert field.health("bruiser_0") == X.health - 2 * (7 - X.armour) // 2
    assert "brace" not in Field("1m", [(10, 12), (15, 12)]).allowed("marine_0")


# healing


def test_healers_heal_the_hurt_in_reach_and_have_no_more_than_their_energy() -> None:
    field = Field("2m1h_vs_1m", [(6, 12), (6, 6), (8, 12), (20, 12)])
    assert not {what for what in field.allowed("healer_0") if what.startswith("heal")}
    field.hurt("marine_0", 30)
    field.hurt("marine_1", 30)  # too far away
    assert {what for what in field.allowed("healer_0") if what.startswith("heal")} == {"heal marine_0"}
    field.act(healer_0="heal marine_0")
    assert field.health("marine_0") == 30 + H.heals
    assert field.observation("healer_0")["self.energy"] == pytest.approx(1 - 1 / H.energy)
    field.act(healer_0="heal marine_0")
    field.act(healer_0="heal marine_0")
    assert field.health("marine_0") == M.health  # never above full
    field.fights.energy[0, field.unit("healer_0")] = 0
    field.hurt("marine_0", 10)
    assert "heal marine_0" not in field.allowed("healer_0")


def test_the_enemys_healer_goes_to_the_worst_hurt_and_heals_it() -> None:
    field = Field("1m_vs_2m1h", [(1, 1), (20, 20), (20, 10), (20, 2)])
    field.hurt("enemy_marine_0", 20)
    field.act()
    assert field.health("enemy_marine_0") == 20
    assert field.place("enemy_healer_0") == (20, 3)
    field.fights.y[0, field.unit("enemy_healer_0")] = 17
    field.look()
    field.act()
    assert field.health("enemy_marine_0") == 20 + H.heals


# moving


def test_units_move_their_speed_in_four_directions_and_scouts_in_eight() -> None:
    field = Field("1m1s_vs_1m", [(5, 5), (5, 10), (20, 20)])
    field.act(marine_0="east", scout_0="northwest")
    assert field.place("marine_0") == (6, 5)
    assert field.place("scout_0") == pytest.approx((5 - S.speed * 0.5**0.5, 10 + S.speed * 0.5**0.5))
    assert {"north", "south", "east", "west"} <= field.allowed("marine_0")
    assert "northwest" not in field.allowed("marine_0")


def test_moves_out_of_the_field_are_masked() -> None:
    field = Field("1m", [(0.5, SIZE), (12, 12)])
    assert field.allowed("marine_0") == {"hold", "south", "east"}
    field.act(marine_0="west")
    assert field.place("marine_0") == (0.5, SIZE)


# the opponent


def test_the_opponent_comes_to_the_nearest_and_fires_at_it_once_in_reach() -> None:
    field = Field("2m_vs_1m", [(4, 12), (10, 12), (16.9, 12)])
    field.act()
    assert field.place("enemy_marine_0") == pytest.approx((15.9, 12))
    assert field.health("marine_1") == M.health
    field.act()
    assert field.place("enemy_marine_0") == pytest.approx((15.9, 12))
    assert (field.health("marine_0"), field.health("marine_1")) == (M.health, M.health - 7)


@pytest.mark.parametrize(("opponent", "target"), [("nearest", "marine_0"), ("weakest", "marine_1")])
def test_the_opponent_fires_at_the_nearest_or_the_weakest(opponent: str, target: str) -> None:
    field = Field("2m_vs_1m", [(11, 12), (10, 12), (15, 12)], opponent=opponent)
    field.hurt("marine_1", 30)
    before = field.health(target)
    field.act()
    assert field.health(target) == before - 7


# what is seen


def test_units_beyond_sight_are_zeros() -> None:
    field = Field("2m", [(5, 12), (5, 14), (14, 12), (14.5, 12)])
    observation = field.observation("marine_0")
    assert observation["marine_1.dy"] == pytest.approx(2 / 9)
    assert [observation[f"enemy_marine_0.{what}"] for what in ("dx", "dy", "distance", "health", "is_marine")] == [
        1,
        0,
        1,
        1,
        1,
    ]
    assert not any(value for name, value in observation.items() if name.startswith("enemy_marine_1"))
    field.act(marine_0="east")
    assert field.observation("marine_0")["enemy_marine_1.is_marine"] == 1


def test_observations_have_the_columns_of_the_type() -> None:
    field = Field("1m1x1h1s", [(5, 10), (5, 11), (5, 12), (5, 13), (10, 10), (10, 11), (10, 12), (10, 13)])
    observations = {name: field.observation(f"{name}_0") for name in ("marine", "bruiser", "healer", "scout")}
    assert {name for name in observations if "self.threat" in observations[name]} == {"bruiser"}
    assert {name for name in observations if "self.energy" in observations[name]} == {"healer"}
    assert {name for name in observations if "enemy_marine_0.cooldown" in observations[name]} == {"scout"}
    assert {name for name in observations if "enemy_marine_0.health" not in observations[name]} == {"healer"}
    assert observations["bruiser"]["self.threat"] == 0.25  # only the marine reaches that far


def test_dead_units_are_inactive_and_observe_zeros() -> None:
    field = Field("2m_vs_1m", [(10, 12), (10, 14), (14, 12)])
    field.hurt("marine_0", 5)
    field.act()
    assert field.step.died["marine"].tolist() == [[True, False]]
    assert field.step.active["marine"].tolist() == [[False, True]]
    assert field.allowed("marine_0") == {"hold"}
    assert not any(field.observation("marine_0").values())
    assert not any(value for name, value in field.observation("marine_1").items() if name.startswith("marine_0"))
    place = field.place("marine_0")
    field.act(marine_0="north")
    assert field.place("marine_0") == place
    assert field.step.died["marine"].tolist() == [[False, False]]


def test_the_central_state_shows_all_units_regardless_of_sight() -> None:
    field = Field("1m", [(0, 0), (24, 12)])
    field.act(marine_0="north")
    health, x, y, cooldown, energy = field.step.state[0, :-1].reshape(5, 2)
    assert (health.tolist(), cooldown.tolist(), energy.tolist()) == ([1, 1], [0, 0], [0, 0])
    assert x[0] == -1
    assert y[0] == pytest.approx(-1 + 2 / SIZE)
    assert x[1] == pytest.approx(1 - 2 / SIZE * 24 / np.hypot(24, 12), abs=1e-6)
    assert field.step.state[0, -1] == pytest.approx(1 / 60)


# rewards and ends


def test_a_perfect_episode_is_worth_twenty_to_the_team() -> None:
    field = Field("2m_vs_1m", [(10, 12), (10, 13), (15, 12)], strength=0.1)
    total, steps = 0.0, 0
    while not field.step.terminated[0]:
        field.act(marine_0="attack enemy_marine_0", marine_1="attack enemy_marine_0")
        total += field.step.reward["marine"].sum()
        steps += 1
    assert field.step.won[0]
    assert steps == 5  # 18 every other step
    assert total == pytest.approx(20)


def test_rewards_count_health_kills_and_wins() -> None:
    field = Field("1m_vs_2m", [(10, 12), (15, 12), (15, 13)])
    point = 20 / (2 * (M.health + 10) + 200)
    field.act(marine_0="attack enemy_marine_0")
    assert field.step.reward["marine"][0, 0] == pytest.approx(9 * point)
    field.act()
    assert field.step.reward["marine"][0, 0] == 0
    field.hurt("enemy_marine_0", 4)
    field.act(marine_0="attack enemy_marine_0")
    assert field.step.reward["marine"][0, 0] == pytest.approx((4 + 10) * point)


def test_healing_the_enemy_costs_what_hurting_it_earned() -> None:
    field = Field("1m_vs_1m1h", [(1, 1), (20, 20), (20, 19)])
    field.hurt("enemy_marine_0", 20)
    field.act()
    assert field.step.reward["marine"][0, 0] < 0


def test_an_episode_is_truncated_at_its_limit_and_lost_when_all_are_dead() -> None:
    field = Field("1m", [(1, 1), (23, 23)], limit=2)
    field.act()
    assert not field.step.truncated[0]
    field.act()
    assert field.step.truncated[0]
    assert not field.step.terminated[0]
    field = Field("1m", [(10, 12), (15, 12)])
    field.hurt("marine_0", 1)
    field.act()
    assert field.step.terminated[0]
    assert not field.step.won[0]
    assert not field.step.died["marine"][0, 0]  # the episode ends: it does not go on without anybody


# many battles


def frame_bytes(step: Any) -> dict[str, bytes]:
    flat = {
        name: getattr(step, name) for name in ("terminated", "truncated", "is_first", "won", "state", "final_state")
    }
    for field in ("obs", "final_obs", "reward", "active", "died", "mask"):
        flat |= {f"{field}.{group}": array for group, array in getattr(step, field).items()}
    return {name: array.tobytes() for name, array in flat.items()}


@pytest.mark.parametrize("map", ["3m", "3m1x1h1s", "2x9m_vs_8m2h"])
@pytest.mark.parametrize("opponent", ["nearest", "weakest"])
def test_batched_battles_equal_single_battles_bit_for_bit(map: str, opponent: str) -> None:
    ways: tuple[Any, ...] = ("native", "in_process")
    native: Any
    native, scalar = (
        make_vector(
            EnvironmentConfig(id=f"skirmish/{map}", vectorize=way, kwargs={"opponent": opponent}), SEEDS, num_envs=5
        )
        for way in ways
    )
    assert native.spec.restore == "snapshot"
    rng = np.random.default_rng(0)
    for at in range(90):
        action = focus_fire(native.simulation) if at % 3 else random_actions(native.spec.groups, native.current, rng)
        assert frame_bytes(native.step(action)) == frame_bytes(scalar.step(action))
    ours, theirs = native.episodes(), scalar.episodes()
    assert len(ours) >= 5
    assert [(e.seed, e.length, e.total, e.won) for e in ours] == [(e.seed, e.length, e.total, e.won) for e in theirs]
    assert {e.won for e in ours} <= {True, False}
    scalar.close()


def test_a_snapshot_restores_battles_in_mid_episode() -> None:
    config = EnvironmentConfig(id="skirmish/2m1x1h", vectorize="native")
    old, new = make_vector(config, SEEDS, num_envs=4), make_vector(config, SEEDS, num_envs=4)
    rng = np.random.default_rng(1)
    for _ in range(33):
        old.step(random_actions(old.spec.groups, old.current, rng))
    old.episodes()
    new.load_state_dict(old.state_dict())
    for _ in range(80):
        action = random_actions(old.spec.groups, old.current, rng)
        assert frame_bytes(new.step(action)) == frame_bytes(old.step(action))
    assert [(e.length, e.total, e.won) for e in new.episodes()] == [(e.length, e.total, e.won) for e in old.episodes()]


def test_battles_start_equal_for_equal_seeds_and_differ_otherwise() -> None:
    env = catalog.make(EnvironmentConfig(id="skirmish/3m"))
    first, second, again = (env.reset(seed).state for seed in (1, 2, 1))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)


def test_masks_allow_exactly_what_changes_something() -> None:
    """In random situations allowed actions have an effect, and others equal holding."""
    env: Any = make_vector(EnvironmentConfig(id="skirmish/2m1x1h1s_vs_2m1x", vectorize="native"), SEEDS, num_envs=64)
    rng = np.random.default_rng(2)
    for _ in range(25):
        env.step(random_actions(env.spec.groups, env.current, rng))
    fights = env.simulation
    before = fights.snapshot()
    hold = {group: np.zeros((64, len(squad.units)), np.int64) for group, squad in fights.squads.items()}
    scratch = allocate_buffer(fights.layout, 64).step

    def outcome(action: Any) -> np.ndarray:
        fights.restore(before)
        fights.show(scratch)
        fights.advance(action, scratch)
        after = fights.snapshot()
        return np.concatenate([after[name] for name in ("x", "y", "health", "cooldown", "energy")], axis=1)

    baseline = outcome(hold)
    fights.restore(before)
    fights.show(scratch)
    masks = {group: mask.copy() for group, mask in scratch.mask.items()}
    for group, squad in fights.squads.items():
        for row, unit in enumerate(squad.units):
            for number, name in enumerate(fights.actions(int(unit))):
                action = {name: array.copy() for name, array in hold.items()}
                action[group][:, row] = number
                differs = (outcome(action) != baseline).any(axis=1)
                allowed = masks[group][:, row, number]
                assert not (differs & ~allowed).any(), name
                if name not in ("hold", "brace"):  # bracing changes nothing when nobody hits
                    assert differs[allowed].all(), name


# whether it can be won


def played(map: str, script: Any, battles: int = 40) -> float:
    """Return the share of first battles that are won."""
    env: Any = make_vector(EnvironmentConfig(id=f"skirmish/{map}", vectorize="native"), SEEDS, num_envs=battles)
    rng, episodes = np.random.default_rng(0), []
    for _ in range(60):
        env.step(script(env.simulation) if script else random_actions(env.spec.groups, env.current, rng))
        episodes += [episode for episode in env.episodes() if episode.number == 0]
    assert len(episodes) == battles
    return float(np.mean([episode.won for episode in episodes]))


@pytest.mark.parametrize(
    ("map", "least"), [("3m", 1.0), ("8m", 1.0), ("5m_vs_6m", 0.4), ("2m1x1h", 0.9), ("3m1x1h1s", 0.9)]
)
def test_the_opponent_beats_random_play_and_loses_to_focused_fire(map: str, least: float) -> None:
    assert played(map, None) == 0
    assert played(map, focus_fire) >= least


def test_on_one_map_types_must_do_different_things() -> None:
    assert played("4m1x_vs_8m", focus_fire) >= 0.8  # the bruiser ahead, marines behind
    assert played("4m1x_vs_8m", charge) <= 0.1  # all as the bruiser
    assert played("4m1x_vs_8m", line) <= 0.1  # all as marines


def test_on_one_map_types_that_see_and_do_the_same_must_do_opposite_things() -> None:
    groups = catalog.make(EnvironmentConfig(id="skirmish/4m1g_vs_8m")).spec.groups
    marine, guard = groups["marine"], groups["guard"]
    assert (marine.observation, marine.action) == (guard.observation, guard.action)
    assert played("4m1g_vs_8m", guards_ahead) >= 0.9
    for everybody in (focus_fire, charge, line):
        assert played("4m1g_vs_8m", everybody) <= 0.3


def test_skirmish_renders_a_picture() -> None:
    env = catalog.make(EnvironmentConfig(id="skirmish/3m1x1h1s1g"), render=True)
    env.reset(0)
    one = env.render()
    assert one.dtype == np.uint8
    assert one.shape == (416, 416, 3)
    for _ in range(4):
        env.step({group: np.zeros(len(spec.agents), np.int64) for group, spec in env.spec.groups.items()})
    assert (env.render() != one).any()
