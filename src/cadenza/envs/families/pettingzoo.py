"""PettingZoo environments, simultaneous (Parallel) and turn-based (AEC), as `Environment`s of groups of agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families.gym import action_for, as_dict_space, close
from cadenza.envs.families.mpe import Simultaneous
from cadenza.envs.grouping import Agent, arrange, by_kind
from cadenza.envs.images import channels_first, has_images, is_image, on_images
from cadenza.envs.layout import Array, blank, shape_of
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec, Frame, GroupSpec, Tree

MASK, REST = "action_mask", "observation"
NEVER = 2**63


def adapted(
    env: Any,
    config: EnvironmentConfig,
    *,
    team: Callable[[str], str] = lambda agent: "team",
    max_episode_steps: int | None = None,
    time_limit: int | None = None,
    state: bool = True,
    shared: bool = False,
    prepare: Callable[[Any], object] = lambda env: None,
) -> Parallel | Turns:
    """Adapt a Parallel or AEC environment; refuse one without `possible_agents`.

    `time_limit` is applied here, `max_episode_steps` by the environment itself. `prepare` is called before each reset,
    to clear what the environment would keep from one episode to the next. `shared`: the environment gives every agent
    the team's reward; here each gets an equal part, so that the sum is the team's.
    """
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise ConfigError(f"{config.id}: has no possible_agents, from which its groups are made")
    in_turns, bare, raw = hasattr(env, "agent_iter"), env, None
    if config.wrappers and not in_turns:
        from cadenza.envs.wrapping import team_wrappers, wrap_team

        if team_wrappers(config):
            raw = RawRewards(bare)
            env = wrap_team(raw, config)
    roster = Roster(env, team, config, 1 / len(agents) if shared else 1.0)
    time_limit = config.max_episode_steps or time_limit
    spec = EnvSpec(
        id=config.id,
        groups=roster.groups,
        turns=in_turns,
        state=_state_space(env) if state else None,
        max_episode_steps=min((limit for limit in (max_episode_steps, time_limit) if limit), default=None),
    )
    kind = Turns if in_turns else Parallel
    return kind(env, spec, roster, time_limit or NEVER, lambda: prepare(bare), raw)


def is_pettingzoo(env: Any) -> bool:
    """Return whether an object is a PettingZoo environment, without importing PettingZoo."""
    return hasattr(env, "possible_agents") and hasattr(env, "observation_space") and hasattr(env, "action_space")


def _state_space(env: Any) -> spaces.Space[Any] | None:
    """Return the space of `state()`, or None where it is a picture, which would take longer to draw than all else."""
    space = getattr(env, "state_space", None)
    return space if isinstance(space, spaces.Box) and not is_image(space) else None


class Roster:
    """The agents of an environment in their groups; it turns dicts by agent into arrays by group, and back."""

    def __init__(
        self, env: Any, team: Callable[[str], str], config: EnvironmentConfig, reward_share: float = 1.0
    ) -> None:
        agents = []
        self._share = reward_share
        self._extract: dict[str, Callable[[Any], Any]] = {}  # agent -> what takes the mask out of an observation
        self._mask_widths: dict[str, int] = {}  # agent -> width, of masks inside observations
        self._to_env: dict[str, Callable[[Array], Any]] = {}  # agent -> what converts an action
        for name in env.possible_agents:
            space, extract, width = _without_mask(env.observation_space(name))
            action = env.action_space(name)
            names = env.action_names(action) if isinstance(env, Simultaneous) else ()
            agents.append(Agent(name, space, action, team(name), names))
            self._to_env[name] = action_for(action, config.clip_actions)
            if extract is not None:
                self._extract[name] = extract
            if width is not None:
                self._mask_widths[name] = width
        self.groups: dict[str, GroupSpec] = arrange(by_kind(agents), config)
        self.place = {
            agent: (name, row) for name, group in self.groups.items() for row, agent in enumerate(group.agents)
        }
        self._stack = {name: _stacker(group.observation) for name, group in self.groups.items()}
        self._blank = {name: blank(group.observation) for name, group in self.groups.items()}
        self._masked: dict[str, int] = {}  # group -> width

    def checked(self, agents: Collection[str]) -> set[str]:
        """Return the agents as a set; refuse any that `possible_agents` does not name."""
        names = set(agents)
        if not names <= self.place.keys():
            strangers = ", ".join(sorted(map(str, names - self.place.keys())))
            raise ValueError(f"agent {strangers} appeared, which possible_agents does not name")
        return names

    def action(self, agent: str, actions: dict[str, Array]) -> Any:
        """Return one agent's action in the environment's form."""
        group, row = self.place[agent]
        return self._to_env[agent](actions[group][row])

    def actions(self, actions: dict[str, Array], acting: Collection[str]) -> dict[str, Any]:
        """Return the actions of the acting agents in the environment's form, by agent."""
        return {
            agent: self._to_env[agent](actions[name][row])
            for name, group in self.groups.items()
            for row, agent in enumerate(group.agents)
            if agent in acting
        }

    def observations(self, obs: Mapping[str, Any]) -> dict[str, Tree]:
        """Stack observations by agent into arrays [A, …] by group; agents without one get zeros."""
        extract = self._extract
        bare = {agent: extract[agent](value) for agent, value in obs.items()} if extract else obs
        return {
            name: self._stack[name]([bare[agent] if agent in bare else self._blank[name] for agent in group.agents])
            for name, group in self.groups.items()
        }

    def rewards(self, reward: Mapping[str, float]) -> dict[str, Array]:
        get, share = reward.get, self._share
        return {
            name: np.array([get(agent, 0.0) * share for agent in group.agents], np.float32)
            for name, group in self.groups.items()
        }

    def flags(self, agents: Collection[str]) -> dict[str, Array]:
        return {
            name: np.array([agent in agents for agent in group.agents], bool) for name, group in self.groups.items()
        }

    def find_masks(self, infos: Mapping[str, Any]) -> None:
        """Decide at the first reset which groups have masks, by observation spaces and infos; they then always have."""
        if self._masked:
            return
        self._masked = {self.place[agent][0]: width for agent, width in self._mask_widths.items()}
        if any(MASK in info for info in infos.values()):
            for name, group in self.groups.items():
                if isinstance(group.action, spaces.Discrete):
                    self._masked[name] = int(group.action.n)

    def masks(
        self, obs: Mapping[str, Any], infos: Mapping[str, Any], acting: Collection[str]
    ) -> dict[str, Array] | None:
        """Return the masks [A, n] by group; agents that do not act may do anything. Refuse empty masks."""
        if not self._masked:
            return None
        masks = {name: np.ones((len(self.groups[name].agents), width), bool) for name, width in self._masked.items()}
        for agent in acting:
            mask = obs[agent][MASK] if agent in self._mask_widths else infos.get(agent, {}).get(MASK)
            if mask is not None:
                name, row = self.place[agent]
                masks[name][row] = mask
                if not masks[name][row].any():
                    raise ValueError(f"the action mask of {agent} allows nothing")
        return masks


class RawRewards:
    """A ParallelEnv that adds up its own rewards, which the wrappers around it may change."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self._sums: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, actions: dict[str, Any]) -> Any:
        outcome = self.env.step(actions)
        for agent, reward in outcome[1].items():
            self._sums[agent] = self._sums.get(agent, 0.0) + float(reward)
        return outcome

    def take(self) -> dict[str, float]:
        """Return the sums of rewards since the last call, by agent."""
        sums, self._sums = self._sums, {}
        return sums


class Adapted:
    """The base of both adapters."""

    def __init__(
        self, env: Any, spec: EnvSpec, roster: Roster, limit: int, prepare: Callable[[], object], raw: RawRewards | None
    ) -> None:
        self.env, self.spec = env, spec
        self._roster, self._limit, self._prepare = roster, limit, prepare
        self._raw = raw
        self.metadata = getattr(env, "metadata", {})  # for displays, also under wrappers of agents
        self._living: set[str] = set()
        self._steps = 0

    def render(self) -> Array | None:
        picture = self.env.render()
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        close(self.env, self.spec.id)

    def _last_frame(self, frame: Frame, is_terminated: Mapping[str, bool], truncated: Mapping[str, bool]) -> Frame:
        """Mark the end of an episode, by which of the last agents terminated; the values of the others bootstrap."""
        frame.terminated = all(is_terminated.values())
        frame.truncated = any(truncated.get(agent, False) for agent in is_terminated)
        if any(is_terminated.values()) and not frame.terminated:
            frame.died = self._roster.flags([agent for agent, terminated in is_terminated.items() if terminated])
        return frame


class Parallel(Adapted):
    """An environment whose agents act simultaneously. A dead agent is inactive and sees zeros."""

    def reset(self, seed: int) -> Frame:
        self._prepare()
        obs, infos = self.env.reset(seed=seed)
        self._living = self._roster.checked(self.env.agents)
        self._steps = 0
        self._roster.find_masks(infos)
        return self._frame(obs, {}, infos, self._living)

    def step(self, action: dict[str, Array]) -> Frame:
        acted = self._living
        obs, reward, terminated, truncated, infos = self.env.step(self._roster.actions(action, acted))
        self._steps += 1
        living = self._roster.checked(self.env.agents)
        living -= {agent for agent in living if terminated.get(agent) or truncated.get(agent)}
        self._living = living
        if not living:
            is_terminated = {agent: bool(terminated.get(agent, True)) for agent in acted}
            return self._last_frame(self._frame(obs, reward, infos, acted, over=True), is_terminated, truncated)
        limit = self._steps >= self._limit
        frame = self._frame(obs, reward, infos, acted if limit else living, over=limit)
        frame.truncated = limit
        if not acted <= living:
            frame.died = self._roster.flags(acted - living)
        return frame

    def _frame(
        self,
        obs: Mapping[str, Any],
        reward: Mapping[str, float],
        infos: Mapping[str, Any],
        observers: set[str],
        over: bool = False,
    ) -> Frame:
        """Build a frame. `observers` are the living, or at the end those who lived until then; others see zeros."""
        roster, everyone = self._roster, len(self._roster.place)
        return Frame(
            roster.observations(
                obs if len(observers) == everyone else {agent: obs[agent] for agent in observers if agent in obs}
            ),
            roster.rewards(reward),
            active=None if len(self._living) == everyone else roster.flags(self._living),
            mask=roster.masks(obs, infos, () if over else self._living),
            raw_reward=None if self._raw is None else roster.rewards(self._raw.take()),
            state=None if self.spec.state is None else _state(self.env, self.spec.state),
        )


class Turns(Adapted):
    """An environment in which one agent acts at a time and the others wait.

    An agent's reward is the sum since its last turn, paid when its next turn comes, when it dies or the episode ends.
    """

    def reset(self, seed: int) -> Frame:
        self._prepare()
        self.env.reset(seed=seed)
        self._living = self._roster.checked(self.env.agents)
        self._turn: str = self.env.agent_selection
        self._paid: dict[str, float] = {}  # the last rewards of dead agents, until PettingZoo removes these
        self._steps = 0
        self._roster.find_masks(self.env.infos)
        return self._frame({})

    def step(self, action: dict[str, Array]) -> Frame:
        env, acted = self.env, self._living
        env.step(self._roster.action(self._turn, action))
        self._steps += 1
        # read once each: a published environment has several wrappers, and every access passes through all of them
        agents, terminated, truncated = env.agents, env.terminations, env.truncations
        collected = env._cumulative_rewards  # by PettingZoo, since each agent's last turn
        is_terminated = {
            agent: bool(terminated.get(agent, True))
            for agent in acted
            if agent not in agents or terminated[agent] or truncated[agent]
        }
        living = self._living = self._roster.checked(agents) - is_terminated.keys() - self._paid.keys()
        reward = {agent: float(collected.get(agent, 0.0)) for agent in is_terminated}
        if not living:
            return self._last_frame(self._frame(reward, over=True), is_terminated, truncated)
        self._paid |= reward
        while (turn := env.agent_selection) not in living:  # the dead take one more turn, without an action
            reward[turn] = reward.get(turn, 0.0) + float(collected[turn]) - self._paid.pop(turn)
            env.step(None)
        limit = self._steps >= self._limit
        reward |= {agent: float(collected[agent]) for agent in (living if limit else (turn,))}
        self._turn = turn
        frame = self._frame(reward, over=limit)
        frame.truncated = limit
        if is_terminated:
            frame.died = self._roster.flags(is_terminated)
        return frame

    def _frame(self, reward: Mapping[str, float], over: bool = False) -> Frame:
        roster, observe = self._roster, self.env.observe
        obs = {agent: observe(agent) for agent in (self.env.agents if over else self._living)}
        acting = () if over else (self._turn,)
        return Frame(
            roster.observations(obs),
            roster.rewards(reward),
            active=roster.flags(acting),
            mask=roster.masks(obs, self.env.infos, acting),
            state=None if self.spec.state is None else _state(self.env, self.spec.state),
        )


def _state(env: Any, space: spaces.Space[Any]) -> Array:
    state = np.asarray(env.state())
    if state.shape != space.shape:
        raise ValueError(f"state() has the shape {state.shape} where {space.shape} is declared")
    return state.astype(space.dtype, casting="same_kind", copy=False)


def _without_mask(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Callable[[Any], Any] | None, int | None]:
    """Return the space without the mask, the function that takes an observation's mask out, and the mask's width."""
    steps: list[Callable[[Any], Any]] = []
    width = None
    if isinstance(space, spaces.Dict) and MASK in space.spaces:
        width = int(np.prod(space.spaces[MASK].shape or ()))
        rest = {key: part for key, part in space.spaces.items() if key != MASK}
        if list(rest) == [REST]:
            space = rest[REST]
            steps.append(lambda obs: obs[REST])
        else:
            space = spaces.Dict(rest)
            steps.append(lambda obs: {key: obs[key] for key in rest})
    if has_images(space):
        space, first = on_images(space, channels_first)
        steps.append(first)

    def extract(obs: Any) -> Any:
        for step in steps:
            obs = step(obs)
        return obs

    return as_dict_space(space), extract if steps else None, width


def _stacker(space: spaces.Space[Any]) -> Callable[[list[Any]], Tree]:
    """Return the function from the observations of a group's agents to one tree of arrays [A, …]."""
    if isinstance(space, spaces.Dict):
        parts = [(key, _stacker(part)) for key, part in space.spaces.items()]

        def stack_parts(values: list[Any]) -> Tree:
            dicts = [{str(i): part for i, part in enumerate(v)} if isinstance(v, tuple) else v for v in values]
            return {key: stack([value[key] for value in dicts]) for key, stack in parts}

        return stack_parts
    dtype = shape_of(space)[1]

    def stack(values: list[Any]) -> Array:
        array = np.array(values)  # a copy: some environments reuse the arrays they return
        return array if array.dtype == dtype else array.astype(dtype, casting="same_kind")

    return stack
