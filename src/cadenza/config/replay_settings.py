"""Settings that algorithms with a replay share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from cadenza.config.algorithm_settings import SMALL_BATCH, SMALL_RATIO, AlgorithmSettings
from cadenza.config.setting import setting
from cadenza.errors import ConfigError


@dataclass(frozen=True)
class ReplaySettings(AlgorithmSettings):
    """The replay of an algorithm."""

    buffer_size: int = setting(1_000_000, "size of the replay: transitions and ends of episodes", "rows", least=1)
    buffer_on_disk: bool = setting(False, "map the replay from a file instead of holding it in memory")

    def check_room(self, num_envs: int, rows: int, reason: str) -> None:
        """Refuse a replay with fewer than `rows` rows for each environment; `reason` names the setting behind it."""
        least = num_envs * rows
        if self.buffer_size < least:
            where = f"algorithm.buffer_size={self.buffer_size}"
            raise ConfigError(f"{where}: must be at least {least} for environment.num_envs={num_envs} and {reason}")


@dataclass(frozen=True)
class OffPolicySettings(ReplaySettings):
    """A replay, and the pace of collecting and learning."""

    warmup_steps: int = setting(1000, "random actions before the first update", "env_steps", least=0)
    train_every: int = setting(1, "steps collected between updates", "env_steps", least=1)
    update_ratio: float = setting(1.0, "gradient steps per env_step collected after the warm-up", above=0)
    batch_size: int = setting(256, "transitions in a gradient step", least=1)

    def updates_per_env_step(self, num_envs: int) -> float:
        """Return the number of gradient steps per env_step."""
        return self.update_ratio

    def shrunk(self) -> Self:
        """Return settings with few and small gradient steps."""
        ratio, batch = min(self.update_ratio, SMALL_RATIO), min(self.batch_size, SMALL_BATCH)
        return replace(self, update_ratio=ratio, batch_size=batch)
