"""Who belongs together: agents in groups, groups in teams, as `environment.groups` and `environment.teams` say it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.layout import Array
from cadenza.errors import ConfigError, nearest
from cadenza.trees import map_tree
from cadenza.types import Environment, Episode, Frame, GroupSpec, Step, Tree, VectorEnv

ALL = "all"  # the group of everybody, where they are of several kinds


class Agent(NamedTuple):
    name: str
    observation: Space[Any]
    action: Space[Any]
    team: str
    action_names: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The type name: without a trailing number."""
        return re.sub(r"[_-]?\d+$", "", self.name) or self.name


def by_kind(agents: Iterable[Agent]) -> dict[str, GroupSpec]:
    """What `auto` means where an environment names no groups itself: by type, apart where spaces or teams differ."""
    return _named(_alike(agents, lambda agent: (agent.kind, agent.team)))


def regrouped(env: Environment, config: EnvironmentConfig) -> Environment:
    """The environment with its agents grouped as the config wants it; itself where they are."""
    groups = arrange(env.spec.groups, config)
    return env if _equal(groups, env.spec.groups) else Regrouped(env, groups)


def regrouped_vector(env: VectorEnv, config: EnvironmentConfig) -> VectorEnv:
    """The same for environments that exist only many at a time."""
    groups = arrange(env.spec.groups, config)
    return env if _equal(groups, env.spec.groups) else RegroupedVector(env, groups)


def _equal(one: Mapping[str, GroupSpec], other: Mapping[str, GroupSpec]) -> bool:
    return list(one.items()) == list(other.items())  # their order counts, too


def arrange(own: Mapping[str, GroupSpec], config: EnvironmentConfig) -> dict[str, GroupSpec]:
    """The groups that the config asks for, each with its team; `type` keeps the environment's own."""
    agents = {
        name: Agent(name, group.observation, group.action, group.team, group.action_names)
        for group in own.values()
        for name in group.agents
    }
    wanted = config.groups
    if wanted == "auto" or wanted == "type":
        groups = dict(own)
    elif wanted == "agent":
        groups = {name: _group([agent]) for name, agent in agents.items()}
    elif wanted == "space":
        groups = _named(_alike(agents.values(), lambda agent: ()))
    elif wanted == "one":
        blocks = _alike(agents.values(), lambda agent: ())
        if len(blocks) > 1:
            told = f"environment.groups=one: {_difference(blocks[0][0], blocks[1][0])}"
            raise ConfigError(f"{told}; use auto, space or agent, or make them alike by environment.padding=spaces")
        groups = _named(blocks)
    else:
        groups = _as_listed(wanted, agents)
    return _in_teams(groups, config.teams) if config.teams else groups


def _alike(agents: Iterable[Agent], further: Callable[[Agent], Any]) -> list[list[Agent]]:
    """Agents of equal spaces, and further traits, together; in the order of their first."""
    blocks: list[list[Agent]] = []
    for agent in agents:
        for block in blocks:
            if _same_spaces(block[0], agent) and further(block[0]) == further(agent):
                block.append(agent)
                break
        else:
            blocks.append([agent])
    return blocks


def _same_spaces(one: Agent, other: Agent) -> bool:
    return bool(one.observation == other.observation and one.action == other.action)


def _named(blocks: list[list[Agent]]) -> dict[str, GroupSpec]:
    """Each by the type that only its agents have, else by its first agent."""
    kinds = [{agent.kind for agent in block} for block in blocks]
    if len(blocks) == 1:
        return {next(iter(kinds[0])) if len(kinds[0]) == 1 else ALL: _group(blocks[0])}
    shared = Counter(kind for some in kinds for kind in some)
    names = [
        next(iter(some)) if len(some) == 1 and shared[next(iter(some))] == 1 else block[0].name
        for some, block in zip(kinds, blocks, strict=True)
    ]
    if len(set(names)) < len(names):  # a type called like an agent of another
        names = [block[0].name for block in blocks]
    return {name: _group(block) for name, block in zip(names, blocks, strict=True)}


def _group(agents: list[Agent]) -> GroupSpec:
    team = "+".join(dict.fromkeys(agent.team for agent in agents))
    first, names = agents[0], {agent.action_names for agent in agents}
    called = first.action_names if len(names) == 1 else ()
    return GroupSpec(tuple(agent.name for agent in agents), first.observation, first.action, team, called)


def _as_listed(wanted: Mapping[str, tuple[str, ...]], agents: Mapping[str, Agent]) -> dict[str, GroupSpec]:
    groups = {}
    for name, members in _once("environment.groups", "agent", wanted, agents).items():
        block = [agents[member] for member in members]
        for agent in block:
            if not _same_spaces(block[0], agent):
                raise ConfigError(f"environment.groups.{name}: {_difference(block[0], agent)}; a group has one of each")
        groups[name] = _group(block)
    return groups


def _in_teams(groups: dict[str, GroupSpec], wanted: Mapping[str, tuple[str, ...]]) -> dict[str, GroupSpec]:
    teams = _once("environment.teams", "group", wanted, groups)
    team_of = {group: team for team, members in teams.items() for group in members}
    return {name: dataclasses.replace(group, team=team_of[name]) for name, group in groups.items()}


def _once(
    key: str, what: str, wanted: Mapping[str, tuple[str, ...]], known: Mapping[str, Any]
) -> Mapping[str, tuple[str, ...]]:
    """The mapping, once it is sure that it names everything there is, and everything once."""
    found: dict[str, str] = {}
    for name, members in wanted.items():
        if not members:
            raise ConfigError(f"{key}.{name}: is empty; name at least one {what} ({what}s: {', '.join(known)})")
        for member in members:
            if member not in known:
                raise ConfigError(
                    f"{key}.{name}: unknown {what} '{member}'{nearest(member, known)} ({what}s: {', '.join(known)})"
                )
            if member in found:
                raise ConfigError(f"{key}.{name}: {what} '{member}' is in {found[member]} already")
            found[member] = name
    missing = [member for member in known if member not in found]
    if missing:
        raise ConfigError(f"{key}: {', '.join(missing)} missing; every {what} must be named once")
    return wanted


def _difference(one: Agent, other: Agent) -> str:
    from cadenza.envs.catalog import describe

    if one.observation != other.observation:
        return (
            f"{one.name} sees {describe(one.observation)} and {other.name} {describe(other.observation)}"
            if describe(one.observation) != describe(other.observation)
            else f"{one.name} and {other.name} see numbers of different bounds"
        )
    return f"{one.name} acts in {describe(one.action)} and {other.name} in {describe(other.action)}"


# moving arrays between two groupings

Rows = slice | list[int]


class Piece(NamedTuple):
    """Agents of one group that stand in another: which of them, and where there."""

    group: str
    rows: Rows
    places: Rows


class Regrouping:
    """From one grouping of the same agents to another; agents are axis `axis` of every array."""

    def __init__(self, old: Mapping[str, GroupSpec], new: Mapping[str, GroupSpec], axis: int = 0) -> None:
        self._axis = axis
        self._forth = {name: _pieces(group, old) for name, group in new.items()}
        self._back = {name: _pieces(group, new) for name, group in old.items()}

    def forth(self, given: Mapping[str, Tree]) -> dict[str, Tree]:
        """Arrays of the old groups as those of the new."""
        return {name: self._put_together(pieces, given) for name, pieces in self._forth.items()}

    def back(self, given: Mapping[str, Tree]) -> dict[str, Tree]:
        """Arrays of the new groups as those of the old."""
        return {name: self._put_together(pieces, given) for name, pieces in self._back.items()}

    def masks(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """Groups may have none; where it joins one that has, everything is allowed."""
        found = {}
        for name, pieces in self._forth.items():
            some = next((given[piece.group] for piece in pieces if piece.group in given), None)
            if some is not None:
                agents, at = {piece.group: _highest(piece.rows) + 1 for piece in pieces}, self._axis
                full = {
                    group: given.get(group, np.ones((*some.shape[:at], count, *some.shape[at + 1 :]), bool))
                    for group, count in agents.items()
                }
                found[name] = self._put_together(pieces, full)
        return found

    def _put_together(self, pieces: list[Piece], given: Mapping[str, Tree]) -> Tree:
        lead = (slice(None),) * self._axis
        if len(pieces) == 1 and isinstance(pieces[0].places, slice):
            rows = (*lead, pieces[0].rows)
            return map_tree(lambda array: array[rows], given[pieces[0].group])

        def join(*arrays: Array) -> Array:
            parts = [array[(*lead, piece.rows)] for piece, array in zip(pieces, arrays, strict=True)]
            count = sum(part.shape[self._axis] for part in parts)
            shape = (*parts[0].shape[: self._axis], count, *parts[0].shape[self._axis + 1 :])
            joined = np.empty(shape, parts[0].dtype)
            for piece, part in zip(pieces, parts, strict=True):
                joined[(*lead, piece.places)] = part
            return joined

        return map_tree(join, *(given[piece.group] for piece in pieces))


def _pieces(group: GroupSpec, sources: Mapping[str, GroupSpec]) -> list[Piece]:
    found = []
    for name, source in sources.items():
        places = [place for place, agent in enumerate(group.agents) if agent in source.agents]
        if places:
            rows = [source.agents.index(group.agents[place]) for place in places]
            found.append(Piece(name, _compact(rows), _compact(places)))
    return found


def _compact(rows: list[int]) -> Rows:
    """A slice where it will do: it copies nothing."""
    return slice(rows[0], rows[-1] + 1) if rows == list(range(rows[0], rows[-1] + 1)) else rows


def _highest(rows: Rows) -> int:
    return rows.stop - 1 if isinstance(rows, slice) else max(rows)


class Regrouped:
    """An environment whose agents stand in other groups than its own."""

    def __init__(self, env: Environment, groups: Mapping[str, GroupSpec]) -> None:
        self.env = env
        self.spec = dataclasses.replace(env.spec, groups=groups)
        self._regrouping = Regrouping(env.spec.groups, groups)

    def reset(self, seed: int) -> Frame:
        return self._frame(self.env.reset(seed))

    def step(self, action: dict[str, Array]) -> Frame:
        return self._frame(self.env.step(self._regrouping.back(action)))

    def render(self) -> Array | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _frame(self, frame: Frame) -> Frame:
        forth = self._regrouping.forth
        return dataclasses.replace(
            frame,
            obs=forth(frame.obs),
            reward=forth(frame.reward),
            active=None if frame.active is None else forth(frame.active),
            died=None if frame.died is None else forth(frame.died),
            mask=None if frame.mask is None else self._regrouping.masks(frame.mask),
            raw_reward=None if frame.raw_reward is None else forth(frame.raw_reward),
        )


class RegroupedVector:
    """Many environments at once whose agents stand in other groups than their own. What is saved is in those."""

    def __init__(self, env: VectorEnv, groups: Mapping[str, GroupSpec]) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.spec = dataclasses.replace(env.spec, groups=groups)
        self._regrouping = Regrouping(env.spec.groups, groups, axis=1)
        self._of_episode = Regrouping(env.spec.groups, groups)  # returns [A]
        self.current = self._step(env.current)

    def reset(self, first_episode: int = 0) -> Step:
        self.current = self._step(self.env.reset(first_episode))
        return self.current

    def step(self, action: dict[str, Array]) -> Step:
        self.current = self._step(self.env.step(self._regrouping.back(action)))
        return self.current

    def episodes(self) -> list[Episode]:
        return [
            dataclasses.replace(
                episode,
                returns=self._of_episode.forth(episode.returns),
                actions=self._regrouping.forth(episode.actions),
            )
            for episode in self.env.episodes()
        ]

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state)
        self.current = self._step(self.env.current)

    def _step(self, step: Step) -> Step:
        forth = self._regrouping.forth
        obs = forth(step.obs)
        return dataclasses.replace(
            step,
            obs=obs,
            final_obs=obs if step.final_obs is step.obs else forth(step.final_obs),
            reward=forth(step.reward),
            active=forth(step.active),
            died=forth(step.died),
            mask=self._regrouping.masks(step.mask),
            raw_reward=forth(step.raw_reward) if step.raw_reward else {},
        )
