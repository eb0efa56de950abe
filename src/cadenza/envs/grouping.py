"""Agents in groups and groups in teams, as `environment.groups` and `environment.teams` ask for them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.layout import Array, describe
from cadenza.errors import ConfigError, nearest
from cadenza.trees import map_tree
from cadenza.types import GroupSpec, Tree, kind_of

ALL = "all"  # the name of a single group of several types


class Agent(NamedTuple):
    name: str
    observation: Space[Any]
    action: Space[Any]
    team: str
    action_names: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return kind_of(self.name)


def by_kind(agents: Iterable[Agent]) -> dict[str, GroupSpec]:
    """Group agents by type, apart where spaces or teams differ: `auto` for an environment without groups of its own."""
    return _name_groups(_alike(agents, lambda agent: (agent.kind, agent.team)))


def arrange(groups: Mapping[str, GroupSpec], config: EnvironmentConfig) -> dict[str, GroupSpec]:
    """Return the groups that `config` asks for, each with its team; `auto` and `type` keep the environment's `groups`.

    Refuse groups of agents whose spaces differ, and lists that leave an agent out or name one twice.
    """
    agents = {
        name: Agent(name, group.observation, group.action, group.team, group.action_names)
        for group in groups.values()
        for name in group.agents
    }
    grouping = config.groups
    if grouping == "auto" or grouping == "type":
        arranged = dict(groups)
    elif grouping == "agent":
        arranged = {name: _group([agent]) for name, agent in agents.items()}
    elif grouping == "space":
        arranged = _name_groups(_alike(agents.values(), lambda agent: ()))
    elif grouping == "one":
        blocks = _alike(agents.values(), lambda agent: ())
        if len(blocks) > 1:
            reason = f"environment.groups=one: {_difference(blocks[0][0], blocks[1][0])}"
            raise ConfigError(f"{reason}; use auto, space or agent, or make them alike by environment.padding=spaces")
        arranged = _name_groups(blocks)
    else:
        arranged = _listed_groups(grouping, agents)
    return _in_teams(arranged, config.teams) if config.teams else arranged


def _alike(agents: Iterable[Agent], trait: Callable[[Agent], Any]) -> list[list[Agent]]:
    """Put agents of equal spaces and equal `trait` together, in the order of each block's first agent."""
    blocks: list[list[Agent]] = []
    for agent in agents:
        for block in blocks:
            if _same_spaces(block[0], agent) and trait(block[0]) == trait(agent):
                block.append(agent)
                break
        else:
            blocks.append([agent])
    return blocks


def _same_spaces(one: Agent, other: Agent) -> bool:
    return bool(one.observation == other.observation and one.action == other.action)


def _name_groups(blocks: list[list[Agent]]) -> dict[str, GroupSpec]:
    """Name each block by the type that only its agents have, else by its first agent."""
    kinds = [{agent.kind for agent in block} for block in blocks]
    if len(blocks) == 1:
        return {next(iter(kinds[0])) if len(kinds[0]) == 1 else ALL: _group(blocks[0])}
    counts = Counter(kind for block_kinds in kinds for kind in block_kinds)
    names = [
        next(iter(block_kinds)) if len(block_kinds) == 1 and counts[next(iter(block_kinds))] == 1 else block[0].name
        for block_kinds, block in zip(kinds, blocks, strict=True)
    ]
    if len(set(names)) < len(names):  # a type has the name of an agent in another block
        names = [block[0].name for block in blocks]
    return {name: _group(block) for name, block in zip(names, blocks, strict=True)}


def _group(agents: list[Agent]) -> GroupSpec:
    team = "+".join(dict.fromkeys(agent.team for agent in agents))
    first = agents[0]
    same_names = len({agent.action_names for agent in agents}) == 1
    members = tuple(agent.name for agent in agents)
    return GroupSpec(members, first.observation, first.action, team, first.action_names if same_names else ())


def _listed_groups(lists: Mapping[str, tuple[str, ...]], agents: Mapping[str, Agent]) -> dict[str, GroupSpec]:
    _check_partition("environment.groups", "agent", lists, agents)
    groups = {}
    for name, members in lists.items():
        block = [agents[member] for member in members]
        for agent in block:
            if not _same_spaces(block[0], agent):
                raise ConfigError(f"environment.groups.{name}: {_difference(block[0], agent)}; a group has one of each")
        groups[name] = _group(block)
    return groups


def _in_teams(groups: dict[str, GroupSpec], teams: Mapping[str, tuple[str, ...]]) -> dict[str, GroupSpec]:
    _check_partition("environment.teams", "group", teams, groups)
    team_of = {group: team for team, members in teams.items() for group in members}
    return {name: dataclasses.replace(group, team=team_of[name]) for name, group in groups.items()}


def _check_partition(key: str, kind: str, lists: Mapping[str, tuple[str, ...]], members: Mapping[str, Any]) -> None:
    """Refuse `lists` that do not name every one of `members` exactly once."""
    list_of: dict[str, str] = {}
    for name, listed in lists.items():
        if not listed:
            raise ConfigError(f"{key}.{name}: is empty; name at least one {kind} ({kind}s: {', '.join(members)})")
        for member in listed:
            if member not in members:
                raise ConfigError(
                    f"{key}.{name}: unknown {kind} '{member}'{nearest(member, members)} ({kind}s: {', '.join(members)})"
                )
            if member in list_of:
                raise ConfigError(f"{key}.{name}: {kind} '{member}' is in {list_of[member]} already")
            list_of[member] = name
    missing = [member for member in members if member not in list_of]
    if missing:
        raise ConfigError(f"{key}: {', '.join(missing)} missing; every {kind} must be named once")


def _difference(one: Agent, other: Agent) -> str:
    if one.observation != other.observation:
        first, second = describe(one.observation), describe(other.observation)
        if first == second:
            return f"{one.name} and {other.name} see numbers of different bounds"
        return f"{one.name} sees {first} and {other.name} {second}"
    return f"{one.name} acts in {describe(one.action)} and {other.name} in {describe(other.action)}"


# moving arrays between two groupings

Rows = slice | list[int]


class Piece(NamedTuple):
    """The agents that two groups share: the rows in `group`, and the rows they fill in the other."""

    group: str
    rows: Rows
    places: Rows


class Regrouping:
    """The translation from one grouping of the agents to another grouping of the same agents."""

    def __init__(self, old: Mapping[str, GroupSpec], new: Mapping[str, GroupSpec]) -> None:
        self.groups: Mapping[str, GroupSpec] = new
        self._to_new = {name: _pieces(group, old) for name, group in new.items()}
        self._to_old = {name: _pieces(group, new) for name, group in old.items()}

    def observations(self, obs: Mapping[str, Tree], axis: int) -> dict[str, Tree]:
        return {name: _gather(pieces, obs, axis) for name, pieces in self._to_new.items()}

    per_agent = observations

    def actions(self, actions: dict[str, Array], axis: int) -> dict[str, Array]:
        return {name: _gather(pieces, actions, axis) for name, pieces in self._to_old.items()}

    def masks(self, masks: Mapping[str, Array], reward: Mapping[str, Array], axis: int) -> dict[str, Array]:
        """Move masks with their agents; where a group without masks joins one that has some, it may do everything."""
        moved = {}
        for name, pieces in self._to_new.items():
            width = next((masks[piece.group].shape[-1] for piece in pieces if piece.group in masks), None)
            if width is not None:
                full = {
                    piece.group: masks.get(piece.group, np.ones((*reward[piece.group].shape, width), bool))
                    for piece in pieces
                }
                moved[name] = _gather(pieces, full, axis)
        return moved


def _gather(pieces: list[Piece], arrays: Mapping[str, Tree], axis: int) -> Tree:
    """Join the rows of the pieces along `axis`; a single run of rows is a view."""
    lead = (slice(None),) * axis
    if len(pieces) == 1 and isinstance(pieces[0].places, slice):
        rows = (*lead, pieces[0].rows)
        return map_tree(lambda array: array[rows], arrays[pieces[0].group])

    def join(*leaves: Array) -> Array:
        parts = [array[(*lead, piece.rows)] for piece, array in zip(pieces, leaves, strict=True)]
        count = sum(part.shape[axis] for part in parts)
        joined = np.empty((*parts[0].shape[:axis], count, *parts[0].shape[axis + 1 :]), parts[0].dtype)
        for piece, part in zip(pieces, parts, strict=True):
            joined[(*lead, piece.places)] = part
        return joined

    return map_tree(join, *(arrays[piece.group] for piece in pieces))


def _pieces(group: GroupSpec, sources: Mapping[str, GroupSpec]) -> list[Piece]:
    pieces = []
    for name, source in sources.items():
        places = [place for place, agent in enumerate(group.agents) if agent in source.agents]
        if places:
            rows = [source.agents.index(group.agents[place]) for place in places]
            pieces.append(Piece(name, _compact(rows), _compact(places)))
    return pieces


def _compact(rows: list[int]) -> Rows:
    """Return consecutive rows as a slice, which copies nothing."""
    return slice(rows[0], rows[-1] + 1) if rows == list(range(rows[0], rows[-1] + 1)) else rows
