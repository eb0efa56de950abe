from __future__ import annotations

import copy

from cadenza.envs.ledger import EVAL, PLAY, TRAIN, EpisodeSeeds


def test_seeds_never_change_between_versions() -> None:
    """Resumed runs and replayed episodes of older versions depend on exactly these numbers."""
    arguments = [(0, TRAIN, 0, 0, 0), (0, TRAIN, 0, 0, 1), (0, TRAIN, 0, 1, 0), (0, EVAL, 0, 0, 0), (7, PLAY, 3, 4, 5)]
    seeds = [EpisodeSeeds(run, stream, first)(env, episode) for run, stream, first, env, episode in arguments]
    assert seeds == [1839233791, 872880836, 623452746, 238126281, 1743984802]


def test_environments_count_from_the_first_one() -> None:
    assert EpisodeSeeds(1, TRAIN, first_env=2)(3, 4) == EpisodeSeeds(1, TRAIN)(5, 4)


def test_seeds_are_plain_31_bit_integers_and_differ() -> None:
    seeds = copy.deepcopy(EpisodeSeeds(3, TRAIN))
    drawn = {seeds(env, episode) for env in range(20) for episode in range(20)}
    assert len(drawn) == 400
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in drawn)
