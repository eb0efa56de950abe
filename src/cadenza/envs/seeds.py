"""A seed for every episode, derived from the run's seed, so that each episode can be repeated on its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from numpy.random import SeedSequence

TRAIN, EVAL, PLAY, RECORD = 0, 1, 2, 3  # streams: episodes of one kind never share seeds with another


@dataclass(frozen=True)
class EpisodeSeeds:
    """`seeds(env, episode)`, the same on every machine; `env` counts from `first_env`."""

    run_seed: int
    stream: int
    first_env: int = 0

    def __call__(self, env_index_local: int, episode: int) -> int:
        return _derive(self.run_seed, self.stream, self.first_env + env_index_local, episode)


@lru_cache(maxsize=1024)  # needed at a reset and again when the episode is recorded
def _derive(run_seed: int, stream: int, env: int, episode: int) -> int:
    """Return a seed of 31 bits, which every environment accepts."""
    return int(SeedSequence(entropy=run_seed, spawn_key=(stream, env, episode)).generate_state(1)[0] >> 1)
