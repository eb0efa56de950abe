"""A run's experience as a dataset: what its replay holds, or episodes that its policy plays for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box

from cadenza.base.streams import EVALUATION, Streams
from cadenza.config.schema import RunConfig
from cadenza.data.batches import Past
from cadenza.data.datasets import joined, merged, refuse_existing, write_dataset
from cadenza.data.replay import ReplayStore
from cadenza.data.ring_steps import LAST
from cadenza.engine.checkpoint import Checkpoints
from cadenza.engine.playback import PLAYING, Player, load_policy
from cadenza.envs.seeds import RECORD, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.records.folder import RunFolder
from cadenza.types import Acted, EnvSpec, Mode, PhaseInfo, Step, Tree

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
        past = played(player.workflow, player.config, episodes, player.phase)
        source |= {"what": "episodes", "seed": episodes.seed, "explore": episodes.explore}
    facts = write_dataset(out, past, player.config, player.spec, source)
    return summary(out, facts)


def summary(out: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """What is told of a dataset that was written."""
    counts = {key: value for key, value in facts.items() if key.startswith("return_")}
    counts = {key: facts[key] for key in ("transitions", "episodes", "unfinished")} | counts
    return {"dataset": str(out.absolute()), **facts["source"], **counts, "digest": facts["digest"]}


def remembered(folder: RunFolder, player: Player, checkpoint: str) -> Past:
    """All that the run's replay held at a checkpoint."""
    for name, store in player.workflow.stores().items():
        if isinstance(store, ReplayStore):
            store.attach(folder.replay / name)
            part = f"store.{name}"
            store.load_state_dict(Checkpoints.of(folder).load(checkpoint, part)[part])
            past = store.past()
            clips = player.config.environment.clip_actions
            return past._replace(pieces=as_done(past.pieces, player.spec)) if clips else past
    algorithm = player.config.algorithm.name
    raise ConfigError(f"{algorithm} keeps no replay: --episodes N plays episodes of its policy and writes those")


def as_done(pieces: Iterable[dict[str, np.ndarray]], spec: EnvSpec) -> Iterator[dict[str, np.ndarray]]:
    """Rows with actions as they were really done: a policy whose draws lie beyond the bounds keeps them so."""
    paths = {f"groups.{name}.action": name for name in spec.groups}
    for rows in pieces:
        clipped = within_bounds({name: rows[path] for path, name in paths.items()}, spec)
        yield rows | {path: clipped[name] for path, name in paths.items()}


class Acting(Protocol):
    """The part of a workflow that plays."""

    def initial_carry(self, num_envs: int) -> Tree: ...

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted: ...


def played(policy: Acting, config: RunConfig, wanted: Episodes, phase: PhaseInfo = PLAYING) -> Past:
    """Whole episodes of the policy: what ended meanwhile, environment by environment; played as they are taken."""
    stack = config.environment.frame_stack or 1
    return Past(merged(whole_episodes(policy, config, wanted, phase)), np.zeros(0, np.int64), stack)


def whole_episodes(
    policy: Acting, config: RunConfig, wanted: Episodes, phase: PhaseInfo = PLAYING
) -> Iterator[dict[str, np.ndarray]]:
    """Shared out over environments as in an evaluation. Only those that are under way are in memory."""
    num_envs = min(config.evaluation.num_envs, wanted.count)
    env = make_vector(config.environment, EpisodeSeeds(wanted.seed, RECORD), num_envs=num_envs)
    try:
        mode = Mode(wanted.explore, phase, Streams(wanted.seed, branch=(EVALUATION,)))
        share, rest = divmod(wanted.count, num_envs)
        taking = Taking([share + (index < rest) for index in range(num_envs)], env.spec.frame_stack)
        step, carry = env.current, policy.initial_carry(num_envs)
        while not taking.enough:
            acted = policy.act(step, carry, mode)
            carry = acted.carry
            after = env.step(acted.action)
            if config.environment.clip_actions:  # what was really done
                acted = acted._replace(action=within_bounds(acted.action, env.spec))
            taking.store.add(step, acted, after)
            yield from taking.note(after.terminated | after.truncated)
            step = after
    finally:
        env.close()


@dataclass
class Taking:
    """The first episodes of each environment, however long they are: a small replay, emptied now and then."""

    missing: list[int]  # by environment, episodes that are still to be taken
    stack: int
    store: ReplayStore = field(init=False)
    parts: list[list[dict[str, np.ndarray]]] = field(init=False)  # by environment, of the episode under way

    def __post_init__(self) -> None:
        count = len(self.missing)
        self.store = ReplayStore((ROWS + self.stack + 2) * count, count, stack=self.stack)
        self.parts = [[] for _ in self.missing]
        self._left = list(self.missing)
        self._taken = self.store.lengths

    @property
    def enough(self) -> bool:
        return max(self._left) <= 0

    def note(self, ended: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        """A step is in the store; episodes that are whole by now, if it is time to look."""
        for index in np.flatnonzero(ended):
            self._left[index] -= 1
        if (self.store.lengths - self._taken).max() >= ROWS or self.enough:
            yield from self._whole()

    def _whole(self) -> Iterator[dict[str, np.ndarray]]:
        env, rows = self.store.since(self._taken)
        self._taken = self.store.lengths
        for index, parts in enumerate(self.parts):
            mine = {path: array[env == index] for path, array in rows.items()}
            begin = 0
            for end in np.flatnonzero(mine["flags"] & LAST)[: self.missing[index]] + 1:
                parts.append({path: array[begin:end] for path, array in mine.items()})
                yield joined(parts)
                parts.clear()
                self.missing[index] -= 1
                begin = end
            if self.missing[index] > 0 and begin < len(mine["flags"]):
                parts.append({path: array[begin:] for path, array in mine.items()})


def within_bounds(action: dict[str, np.ndarray], spec: EnvSpec) -> dict[str, np.ndarray]:
    spaces = {name: group.action for name, group in spec.groups.items()}
    return {
        name: np.clip(taken, space.low, space.high) if isinstance(space := spaces[name], Box) else taken
        for name, taken in action.items()
    }
