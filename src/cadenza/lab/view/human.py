"""A person plays: in a single agent's place or one of a team's, with what was done kept as a dataset if asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.config.schema import RunConfig
from cadenza.data.batches import Past
from cadenza.data.datasets import merged, refuse_existing, write_dataset
from cadenza.data.replay import ReplayStore
from cadenza.engine.playback import Player, batch_of_one
from cadenza.envs.display import has_display
from cadenza.envs.random_actions import random_actions
from cadenza.envs.seeds import PLAY, EpisodeSeeds
from cadenza.errors import ConfigError, nearest
from cadenza.lab.view.keyboard import Keymap, Keys, keymap
from cadenza.lab.view.play import Played, fps_of, make_visible, show
from cadenza.lab.view.terminal import Terminal
from cadenza.lab.view.window import Closed, Window
from cadenza.trees import map_tree
from cadenza.types import Acted, EnvSpec, Frame, Step

BY_TURNS_FPS = 5.0  # an environment that shows so few pictures a second waits for a key

Others = Callable[[Frame], dict[str, np.ndarray]]  # what everybody would do, were it not for the person


@dataclass(frozen=True)
class Game:
    """What was played, and the dataset it was written to."""

    episodes: list[Played]
    agent: str
    dataset: Path | None
    facts: dict[str, Any] = field(default_factory=dict)


def play_human(
    config: RunConfig,
    player: Player | None,
    episodes: int,
    seed: int,
    agent: str | None = None,
    record: Path | None = None,
    terminal: bool = False,
    fps: float | None = None,
) -> Game:
    """Episodes of the config's environment; a team's other agents follow `player`, or chance where there is none."""
    if record is not None:
        refuse_existing(record)
    in_window = has_display() and not terminal
    if not in_window and not sys.stdin.isatty():
        raise ConfigError("--human needs a person: a screen, or a terminal to read keys from")
    seeds, played, demonstrations = EpisodeSeeds(seed, PLAY), list[Played](), Demonstrations()
    with closing(make_visible(config.environment)) as env:
        group, index = placed(env.spec, agent)
        keys = keymap(env, env.spec.groups[group])
        pace = fps or fps_of(env)
        title = f"keys: {keys.legend}; escape ends"
        with (Window if in_window else Terminal)(pace, title, played=True) as screen:
            others = followers(env.spec, player, seed)
            person = Person(screen, keys, group, index, fps_of(env) <= BY_TURNS_FPS and fps is None, others)
            try:
                for number in range(episodes):
                    if player is not None:
                        player.reset()
                    demonstrations.begin()
                    played.append(show(env, number, seeds(0, number), person, screen, watch=demonstrations.add))
                    demonstrations.end(env.spec.frame_stack)
            except Closed:
                pass  # what is finished is kept
        spec = env.spec
    name = spec.groups[group].agents[index]
    if record is None or not demonstrations.pieces:
        return Game(played, name, None)
    source = {"what": "demonstrations", "by": "a person", "agent": name, "seed": seed}
    past = Past(merged(demonstrations.pieces), np.zeros(0, np.int64), spec.frame_stack)
    return Game(played, name, record, write_dataset(record, past, config, spec, source))


def placed(spec: EnvSpec, agent: str | None) -> tuple[str, int]:
    """Group and place of the agent with this name, or of the first of all."""
    places = {name: (group, i) for group, told in spec.groups.items() for i, name in enumerate(told.agents)}
    if agent is None:
        return next(iter(places.values()))
    if agent not in places:
        raise ConfigError(f"--agent {agent}: unknown{nearest(agent, places)} (there are: {', '.join(places)})")
    return places[agent]


def followers(spec: EnvSpec, player: Player | None, seed: int) -> Others:
    random = np.random.default_rng(seed)

    def act(frame: Frame) -> dict[str, np.ndarray]:
        if player is not None:
            return player.act(frame)
        chosen = random_actions(spec.groups, batch_of_one(frame, False), random)
        return {group: action[0] for group, action in chosen.items()}

    return act


@dataclass
class Person:
    """Chooses for one agent; the others do what they would."""

    keys: Keys
    keymap: Keymap
    group: str
    index: int
    by_turns: bool
    others: Others
    last: Any = None  # what was done before, for environments in which something is done all the time

    def __call__(self, _: int, frame: Frame) -> dict[str, np.ndarray]:
        actions = self.others(frame)
        if frame.active is not None and not frame.active[self.group][self.index]:
            return actions
        mine = actions[self.group].copy()
        mine[self.index] = self.last = self._chosen(frame)
        return actions | {self.group: mine}

    def _chosen(self, frame: Frame) -> Any:
        chosen = self.keymap.choose(self.keys.pressed(self.by_turns))
        while chosen is None and self.by_turns:  # a key that means nothing
            chosen = self.keymap.choose(self.keys.pressed(True))
        for otherwise in (self.keymap.rest, self.last, self.keymap.choose(frozenset("0"))):
            chosen = otherwise if chosen is None else chosen
        mask = None if frame.mask is None else frame.mask.get(self.group)
        if mask is None or mask[self.index][chosen - self.keymap.start]:
            return chosen
        return int(mask[self.index].argmax()) + self.keymap.start  # the first that is allowed now


@dataclass
class Demonstrations:
    """Whole episodes as rows of a dataset; one that was left is forgotten."""

    pieces: list[dict[str, np.ndarray]] = field(default_factory=list)
    _moves: list[tuple[Step, Acted, Step]] = field(default_factory=list)

    def begin(self) -> None:
        self._moves = []

    def add(self, before: Frame, action: dict[str, np.ndarray], after: Frame) -> None:
        step = self._moves[-1][2] if self._moves else kept(before, is_first=True)
        done = Acted({name: one[None].copy() for name, one in action.items()}, {name: {} for name in action}, {})
        self._moves.append((step, done, kept(after, is_first=after.terminated or after.truncated)))

    def end(self, stack: int) -> None:
        if not self._moves:
            return
        last = self._moves[-1][2]
        last.truncated |= ~last.terminated  # also where it was the player who did not go on
        last.is_first[:] = True
        store = ReplayStore(len(self._moves) + stack + 2, 1, stack=stack)
        for step, acted, after in self._moves:
            store.add(step, acted, after)
        self.pieces.append(store.since(np.zeros(1, np.int64))[1])


def kept(frame: Frame, is_first: bool) -> Step:
    """A step of its own memory: environments may write the next frame into the same arrays."""
    step = batch_of_one(frame, is_first)
    step.obs = step.final_obs = map_tree(np.copy, step.obs)
    return step
