"""Play by a person, as the only agent or one of a team, with the episodes written as a dataset on request."""

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
from cadenza.envs.display import has_display
from cadenza.envs.ledger import PLAY, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.errors import ConfigError, nearest
from cadenza.lab.playback import Player, as_step
from cadenza.lab.view.keyboard import Keymap, Keys, keymap
from cadenza.lab.view.play import PlayedEpisode, fps_of, make_visible, play_episode
from cadenza.lab.view.terminal import Terminal
from cadenza.lab.view.window import ClosedByUserError, Window
from cadenza.types import Acted, EnvSpec, Frame, Step

TURN_BASED_FPS = 5.0  # an environment with at most this many pictures a second waits for a key

TeamPolicy = Callable[[Frame], dict[str, np.ndarray]]  # actions of all agents, of which the person replaces one


@dataclass(frozen=True)
class Game:
    """The episodes that a person has played, and the dataset they were written to."""

    episodes: list[PlayedEpisode]
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
    """Let a person play episodes; the other agents of a team follow `player`, or act at random without one."""
    if record is not None:
        refuse_existing(record)
    in_window = has_display() and not terminal
    if not in_window and not sys.stdin.isatty():
        raise ConfigError("--human needs a person: a screen, or a terminal to read keys from")
    seeds, played, demonstrations = EpisodeSeeds(seed, PLAY), list[PlayedEpisode](), Demonstrations()
    with closing(make_visible(config.environment)) as env:
        group, index = find_agent(env.spec, agent)
        keys = keymap(env, env.spec.groups[group])
        title = f"keys: {keys.legend}; escape ends"
        with (Window if in_window else Terminal)(fps or fps_of(env), title, interactive=True) as screen:
            turn_based = fps_of(env) <= TURN_BASED_FPS and fps is None
            person = Person(screen, keys, group, index, turn_based, team_policy(env.spec, player, seed))
            try:
                for number in range(episodes):
                    if player is not None:
                        player.reset()
                    demonstrations.begin()
                    episode = play_episode(env, number, seeds(0, number), person, screen, on_step=demonstrations.add)
                    played.append(episode)
                    demonstrations.end(env.spec.frame_stack)
            except ClosedByUserError:
                pass  # the finished episodes count
        spec = env.spec
    name = spec.groups[group].agents[index]
    if record is None or not demonstrations.pieces:
        return Game(played, name, None)
    source = {"what": "demonstrations", "by": "a person", "agent": name, "seed": seed}
    past = Past(merged(demonstrations.pieces), np.zeros(0, np.int64), spec.frame_stack)
    return Game(played, name, record, write_dataset(record, past, config, spec, source))


def find_agent(spec: EnvSpec, agent: str | None) -> tuple[str, int]:
    """Return the group of the agent with this name, and its index there; by default the first agent's."""
    places = {name: (key, index) for key, group in spec.groups.items() for index, name in enumerate(group.agents)}
    if agent is None:
        return next(iter(places.values()))
    if agent not in places:
        raise ConfigError(f"--agent {agent}: unknown{nearest(agent, places)} (there are: {', '.join(places)})")
    return places[agent]


def team_policy(spec: EnvSpec, player: Player | None, seed: int) -> TeamPolicy:
    """Return the policy of all agents: `player`, or random actions."""
    random = np.random.default_rng(seed)

    def act(frame: Frame) -> dict[str, np.ndarray]:
        if player is not None:
            return player.act(frame)
        actions = random_actions(spec.groups, as_step([frame], False), random)
        return {group: action[0] for group, action in actions.items()}

    return act


@dataclass
class Person:
    """A policy that takes one agent's actions from the keyboard."""

    keys: Keys
    keymap: Keymap
    group: str
    index: int
    turn_based: bool
    team: TeamPolicy
    last_action: Any = None  # repeated in environments where no action means doing nothing

    def __call__(self, _: int, frame: Frame) -> dict[str, np.ndarray]:
        actions = self.team(frame)
        if frame.active is not None and not frame.active[self.group][self.index]:
            return actions
        group_actions = actions[self.group].copy()
        group_actions[self.index] = self.last_action = self._action(frame)
        return actions | {self.group: group_actions}

    def _action(self, frame: Frame) -> Any:
        """Return the action of the pressed keys, else the default; the first allowed one if it is masked."""
        action = self.keymap.choose(self.keys.pressed(self.turn_based))
        while action is None and self.turn_based:  # a key without a meaning
            action = self.keymap.choose(self.keys.pressed(True))
        for default in (self.keymap.rest, self.last_action, self.keymap.choose(frozenset("0"))):
            action = default if action is None else action
        mask = None if frame.mask is None else frame.mask.get(self.group)
        if mask is None or mask[self.index][action - self.keymap.start]:
            return action
        return int(mask[self.index].argmax()) + self.keymap.start


@dataclass
class Demonstrations:
    """The finished episodes as rows of a dataset; an episode that was left is dropped."""

    pieces: list[dict[str, np.ndarray]] = field(default_factory=list)
    _transitions: list[tuple[Step, Acted, Step]] = field(default_factory=list)

    def begin(self) -> None:
        """Start an episode."""
        self._transitions = []

    def add(self, before: Frame, action: dict[str, np.ndarray], after: Frame) -> None:
        """Add a transition of the episode."""
        step = self._transitions[-1][2] if self._transitions else as_step([before], is_first=True)
        actions = {name: one[None].copy() for name, one in action.items()}
        acted = Acted(actions, {name: {} for name in action}, {})
        self._transitions.append((step, acted, as_step([after], is_first=after.terminated or after.truncated)))

    def end(self, stack: int) -> None:
        """Add the episode to the dataset; `stack` is the environment's frame stack."""
        if not self._transitions:
            return
        last = self._transitions[-1][2]
        last.truncated |= ~last.terminated  # also an episode that was cut at the step limit
        last.is_first[:] = True
        store = ReplayStore(len(self._transitions) + stack + 2, 1, stack=stack)
        for step, acted, after in self._transitions:
            store.add(step, acted, after)
        self.pieces.append(store.since(np.zeros(1, np.int64))[1])
