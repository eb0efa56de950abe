"""Write the experience of a run as a dataset: the content of its replay, or episodes that its policy plays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
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
from cadenza.envs.ledger import RECORD, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.lab.playback import PLAYING, Player, load_policy
from cadenza.records.checkpoint import Checkpoints, fitting
from cadenza.records.folder import RunFolder
from cadenza.types import Acted, EnvSpec, Mode, PhaseInfo, Step, Tree

ROWS = 256  # rows of each environment that the small replay holds before it is emptied


@dataclass(frozen=True)
class EpisodeSelection:
    """The episodes to play instead of taking the replay."""

    count: int
    seed: int = 0
    explore: bool = False


def export_dataset(
    folder: RunFolder, out: Path, episodes: EpisodeSelection | None, checkpoint: str = "last", trust: bool = False
) -> dict[str, Any]:
    """Write the dataset to a new folder `out`; return what `cadenza export --format dataset --json` prints."""
    refuse_existing(out)
    player, name = load_policy(folder, checkpoint, trust)
    source = {"run": folder.id, "checkpoint": name, "algorithm": player.config.algorithm.name}
    if episodes is None:
        past = replayed(folder, player, name)
        source["what"] = "replay"
    else:
        past = played(player.workflow, player.config, episodes, player.phase)
        source |= {"what": "episodes", "seed": episodes.seed, "explore": episodes.explore}
    facts = write_dataset(out, past, player.config, player.spec, source)
    return summary(out, facts)


def summary(out: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that commands print of a dataset."""
    counts = {key: value for key, value in facts.items() if key.startswith("return_")}
    counts = {key: facts[key] for key in ("transitions", "episodes", "unfinished")} | counts
    return {"dataset": str(out.absolute()), **facts["source"], **counts, "digest": facts["digest"]}


def replayed(folder: RunFolder, player: Player, checkpoint: str) -> Past:
    """Return the whole content of the run's replay at a checkpoint."""
    for name, store in player.workflow.stores().items():
        if isinstance(store, ReplayStore):
            store.attach(folder.replay / name)
            part = f"store.{name}"
            state = Checkpoints.from_run(folder).load(checkpoint, part)[part]
            with fitting(part):
                store.load_state_dict(state)
            past = store.past()
            clips = player.config.environment.clip_actions
            return past._replace(pieces=clipped(past.pieces, player.spec)) if clips else past
    algorithm = player.config.algorithm.name
    raise ConfigError(f"{algorithm} has no replay: --episodes N writes episodes that its policy plays")


def clipped(pieces: Iterable[dict[str, np.ndarray]], spec: EnvSpec) -> Iterator[dict[str, np.ndarray]]:
    """Clip stored actions to their bounds, as the environment did when it took them."""
    paths = {f"groups.{name}.action": name for name in spec.groups}
    for rows in pieces:
        actions = within_bounds({name: rows[path] for path, name in paths.items()}, spec)
        yield rows | {path: actions[name] for path, name in paths.items()}


class ActingPolicy(Protocol):
    """The methods of a workflow that playing needs."""

    def initial_carry(self, num_envs: int) -> Tree: ...

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted: ...


def played(policy: ActingPolicy, config: RunConfig, selection: EpisodeSelection, phase: PhaseInfo = PLAYING) -> Past:
    """Return whole episodes of the policy, which are played while they are read."""
    stack = config.environment.frame_stack or 1
    return Past(merged(whole_episodes(policy, config, selection, phase)), np.zeros(0, np.int64), stack)


def whole_episodes(
    policy: ActingPolicy, config: RunConfig, selection: EpisodeSelection, phase: PhaseInfo = PLAYING
) -> Iterator[dict[str, np.ndarray]]:
    """Yield whole episodes, spread over environments as in an evaluation; only unfinished ones stay in memory."""
    num_envs = min(config.evaluation.num_envs, selection.count)
    with closing(make_vector(config.environment, EpisodeSeeds(selection.seed, RECORD), num_envs=num_envs)) as env:
        mode = Mode(selection.explore, phase, Streams(selection.seed, branch=(EVALUATION,)))
        share, rest = divmod(selection.count, num_envs)
        recorder = EpisodeRecorder([share + (index < rest) for index in range(num_envs)], env.spec.frame_stack)
        step, carry = env.current, policy.initial_carry(num_envs)
        while not recorder.enough:
            acted = policy.act(step, carry, mode)
            carry = acted.carry
            after = env.step(acted.action)
            if config.environment.clip_actions:  # store what the environment does
                acted = acted._replace(action=within_bounds(acted.action, env.spec))
            recorder.store.add(step, acted, after)
            yield from recorder.note(after.terminated | after.truncated)
            step = after


@dataclass
class EpisodeRecorder:
    """Collects the first episodes of each environment in a small replay, which is emptied regularly."""

    missing: list[int]  # by environment, episodes that are still to be recorded
    stack: int
    store: ReplayStore = field(init=False)
    parts: list[list[dict[str, np.ndarray]]] = field(init=False)  # by environment, the parts of its unfinished episode

    def __post_init__(self) -> None:
        count = len(self.missing)
        self.store = ReplayStore((ROWS + self.stack + 2) * count, count, stack=self.stack)
        self.parts = [[] for _ in self.missing]
        self._left = list(self.missing)
        self._lengths = self.store.lengths

    @property
    def enough(self) -> bool:
        """Whether every environment has played its episodes."""
        return max(self._left) <= 0

    def note(self, ended: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        """Count the episodes that ended [N] with the step in the store; yield whole ones when the replay is emptied."""
        for index in np.flatnonzero(ended):
            self._left[index] -= 1
        if (self.store.lengths - self._lengths).max() >= ROWS or self.enough:
            yield from self._whole()

    def _whole(self) -> Iterator[dict[str, np.ndarray]]:
        env, rows = self.store.since(self._lengths)
        self._lengths = self.store.lengths
        for index, parts in enumerate(self.parts):
            part = {path: array[env == index] for path, array in rows.items()}
            begin = 0
            for end in np.flatnonzero(part["flags"] & LAST)[: self.missing[index]] + 1:
                parts.append({path: array[begin:end] for path, array in part.items()})
                yield joined(parts)
                parts.clear()
                self.missing[index] -= 1
                begin = end
            if self.missing[index] > 0 and begin < len(part["flags"]):
                parts.append({path: array[begin:] for path, array in part.items()})


def within_bounds(actions: dict[str, np.ndarray], spec: EnvSpec) -> dict[str, np.ndarray]:
    """Clip the actions of each group to the bounds of its Box; other spaces have none."""
    spaces = {name: group.action for name, group in spec.groups.items()}
    return {
        name: np.clip(action, space.low, space.high) if isinstance(space := spaces[name], Box) else action
        for name, action in actions.items()
    }
