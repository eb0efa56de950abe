"""A run's experience as a dataset: what its replay holds, or episodes that its policy plays for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from cadenza.data.datasets import merged, refuse_existing, write_dataset
from cadenza.data.replay import Past, ReplayStore
from cadenza.data.walks import LAST
from cadenza.envs.seeds import RECORD, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.orchestration.checkpoint import Checkpoints
from cadenza.orchestration.playback import PLAYING, Player, load_policy
from cadenza.orchestration.seeding import EVALUATION, Streams
from cadenza.records.folder import RunFolder
from cadenza.types import EnvSpec, Mode

ROWS = 256  # of each environment that wait before they are put aside


@dataclass(frozen=True)
class Episodes:
    """Which episodes to play instead of taking the replay."""

    count: int
    seed: int = 0
    explore: bool = False


def export_dataset(
    folder: RunFolder, out: Path, episodes: Episodes | None, checkpoint: str = "last", trust: bool = False
) -> dict[str, Any]:
    """What `cadenza export --format dataset --json` prints."""
    refuse_existing(out)
    player, name = load_policy(folder, checkpoint, trust)
    source = {"run": folder.id, "checkpoint": name, "algorithm": player.config.algorithm.name}
    if episodes is None:
        past = remembered(folder, player, name)
        source["what"] = "replay"
    else:
        past = played(player, episodes)
        source |= {"what": "episodes", "seed": episodes.seed, "explore": episodes.explore}
    facts = write_dataset(out, past, player.config, player.spec, source)
    counts = {key: value for key, value in facts.items() if key.startswith("return_")}
    counts = {key: facts[key] for key in ("transitions", "episodes", "unfinished")} | counts
    return {"dataset": str(out.absolute()), **source, **counts, "digest": facts["digest"]}


def remembered(folder: RunFolder, player: Player, checkpoint: str) -> Past:
    """All that the run's replay held at a checkpoint."""
    for name, store in player.workflow.stores().items():
        if isinstance(store, ReplayStore):
            store.attach(folder.replay / name)
            part = f"store.{name}"
            store.load_state_dict(Checkpoints.of(folder).load(checkpoint, part)[part])
            return store.past()
    algorithm = player.config.algorithm.name
    raise ConfigError(f"{algorithm} keeps no replay: --episodes N plays episodes of its policy and writes those")


def played(player: Player, wanted: Episodes) -> Past:
    """Whole episodes of the policy, shared out over environments as in an evaluation."""
    config, workflow = player.config, player.workflow
    num_envs = min(config.evaluation.num_envs, wanted.count)
    env = make_vector(config.environment, EpisodeSeeds(wanted.seed, RECORD), num_envs=num_envs)
    try:
        mode = Mode(wanted.explore, PLAYING, Streams(wanted.seed, branch=(EVALUATION,)))
        share, rest = divmod(wanted.count, num_envs)
        taking = Taking([share + (index < rest) for index in range(num_envs)], env.spec.frame_stack)
        step, carry = env.current, workflow.initial_carry(num_envs)
        while not taking.enough:
            acted = workflow.act(step, carry, mode)
            carry = acted.carry
            after = env.step(acted.action)
            if config.environment.clip_actions:  # what was really done
                acted = acted._replace(action=within_bounds(acted.action, env.spec))
            taking.store.add(step, acted, after)
            taking.note(after.terminated | after.truncated)
            step = after
        return Past(taking.pieces(), np.zeros(0, np.int64), taking.stack)
    finally:
        env.close()


@dataclass
class Taking:
    """The first episodes of each environment, however long they are: a small replay, emptied now and then."""

    missing: list[int]  # by environment, episodes that are still to end
    stack: int
    store: ReplayStore = field(init=False)
    parts: list[list[dict[str, np.ndarray]]] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.missing)
        self.store = ReplayStore((ROWS + self.stack + 2) * count, count, stack=self.stack)
        self.parts = [[] for _ in self.missing]
        self._left = list(self.missing)
        self._taken = self.store.lengths

    @property
    def enough(self) -> bool:
        return max(self._left) <= 0

    def note(self, ended: np.ndarray) -> None:
        """A step is in the store."""
        for index in np.flatnonzero(ended):
            self._left[index] -= 1
        if (self.store.lengths - self._taken).max() >= ROWS or self.enough:
            self._put_aside()

    def _put_aside(self) -> None:
        env, rows = self.store.since(self._taken)
        self._taken = self.store.lengths
        for index, parts in enumerate(self.parts):
            mine = env == index
            if self.missing[index] > 0 and mine.any():
                ends = np.flatnonzero(rows["flags"][mine] & LAST)[: self.missing[index]]
                self.missing[index] -= len(ends)
                stop = ends[-1] + 1 if self.missing[index] == 0 else None
                parts.append({path: array[mine][:stop] for path, array in rows.items()})

    def pieces(self) -> Iterator[dict[str, np.ndarray]]:
        """An environment's rows after those of the one before."""
        for parts in self.parts:
            yield from merged(parts.pop(0) for _ in range(len(parts)))


def within_bounds(action: dict[str, np.ndarray], spec: EnvSpec) -> dict[str, np.ndarray]:
    spaces = {name: group.action for name, group in spec.groups.items()}
    return {
        name: np.clip(taken, space.low, space.high) if isinstance(space := spaces[name], Box) else taken
        for name, taken in action.items()
    }
