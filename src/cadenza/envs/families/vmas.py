"""VMAS (Bettini et al. 2022): environments of many agents as batched tensors in this process.

Ids are `vmas/SCENARIO`. An episode's seed decides how it begins. What a scenario draws later (football's scripted
players, noise) it draws for all environments together: a resumed run repeats it, a single recorded episode does not.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import refuse_reserved
from cadenza.envs.grouping import Agent, arrange, by_kind
from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.native import MakeNative
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.envs.vector import Vector
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec, Frame, GroupSpec

SCENARIOS = (
    "balance ball_passage ball_trajectory buzz_wire discovery dispersion dropout flocking football give_way "
    "joint_passage joint_passage_size multi_give_way navigation passage reverse_transport road_traffic sampling "
    "transport wheel wind_flocking simple simple_adversary simple_crypto simple_push simple_reference "
    "simple_speaker_listener simple_spread simple_tag simple_world_comm"
)
STEPS = 100  # the default time limit: most scenarios never end by themselves
OPPONENTS = ("adversary", "lead_adversary", "leadadversary", "eve", "agent_red")
RESERVED = ("scenario", "num_envs", "device", "seed", "max_steps", "clamp_actions", "dict_spaces", "wrapper")


def ids(family: str) -> list[str]:
    return [f"vmas/{name}" for name in SCENARIOS.split()]


def make(config: EnvironmentConfig, render: bool = False) -> VMAS:
    return VMAS(VMASWorlds(config, 1))


def native(config: EnvironmentConfig) -> MakeNative:
    return MakeNative(lambda count, seeds: VMASVector(VMASWorlds(config, count), seeds), worthwhile_from=1)


class VMASWorlds:
    """N environments of a scenario; each is reset to its own seed, and all are stepped together."""

    def __init__(self, config: EnvironmentConfig, num: int) -> None:
        import torch

        refuse_reserved(config.kwargs, RESERVED, "is set by the other settings of environment")
        self.num, self._torch = num, torch
        with self._rng_state(torch.Generator().manual_seed(0).get_state()):
            self.env = _make(config, num)
        self.limit = config.max_episode_steps or STEPS
        agents = [
            Agent(agent.name, _space(observation), _space(action), _team(agent.name))
            for agent, observation, action in zip(
                self.env.agents, self.env.observation_space, self.env.action_space, strict=True
            )
        ]
        groups: dict[str, GroupSpec] = arrange(by_kind(agents), config)
        self.spec = EnvSpec(config.id, groups, max_episode_steps=self.limit)
        place = {agent: (name, row) for name, group in groups.items() for row, agent in enumerate(group.agents)}
        self._agents = [(agent, *place[agent.name]) for agent in self.env.agents]  # in VMAS's order
        self.draws: Any = torch.Generator().manual_seed(0).get_state()  # the RNG state of running scenarios

    @contextlib.contextmanager
    def _rng_state(self, state: Any) -> Iterator[None]:
        """Run with torch's global RNG set to `state`, then restore it (VMAS draws from nothing else)."""
        outside = self._torch.get_rng_state()
        self._torch.set_rng_state(state)
        try:
            yield
            self.draws = self._torch.get_rng_state()
        finally:
            self._torch.set_rng_state(outside)

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the environments `rows`, each to its seed; the RNG state of the others is left as it is."""
        scenario, draws = self.env.scenario, self.draws
        everyone = len(rows) == self.num
        if everyone:
            scenario.world.reset(None)  # to zeros, all together: one by one it takes longer than all else here
        for row, seed in zip(rows, seeds, strict=True):
            with self._rng_state(self._torch.Generator().manual_seed(seed % 2**63).get_state()):
                (scenario.reset_world_at if everyone else scenario.env_reset_world_at)(row)
            if everyone and row == rows[0]:
                draws = self.draws  # from here on all draw what the first would draw alone
        self.draws = draws

    def advance(self, action: Mapping[str, Array]) -> None:
        """Step all environments."""
        env, scenario = self.env, self.env.scenario
        with self._rng_state(self.draws):
            for agent, group, row in self._agents:
                tensor = self._torch.from_numpy(np.ascontiguousarray(action[group][:, row]))
                env._set_action(tensor if tensor.ndim > 1 else tensor[:, None], agent)
            for agent in env.world.agents:  # scripted ones act here
                scenario.env_process_action(agent)
            scenario.pre_step()
            env.world.step()
            scenario.post_step()

    def judge(self, reward: dict[str, Array], terminated: Array) -> None:
        """Write the step's rewards and ends; each reward is copied before a scenario may reuse its tensor."""
        with self._rng_state(self.draws):
            for agent, group, row in self._agents:
                reward[group][:, row] = self.env.scenario.reward(agent).numpy().reshape(-1)
            terminated[...] = self.env.scenario.done().numpy()

    def show(self, obs: dict[str, Array], rows: list[int] | slice = slice(None)) -> None:
        """Write the observations of the environments `rows`."""
        with self._rng_state(self.draws):
            for agent, group, row in self._agents:
                obs[group][rows, row] = self.env.scenario.observation(agent).numpy()[rows]


class VMAS:
    """One VMAS environment."""

    def __init__(self, worlds: VMASWorlds) -> None:
        self.worlds, self.spec = worlds, worlds.spec
        self._step = allocate_buffer(Layout(self.spec, {}), 1).step
        self._length = 0

    def reset(self, seed: int) -> Frame:
        self.worlds.begin([0], [seed])
        self._length = 0
        for reward in self._step.reward.values():
            reward.fill(0)
        self._step.terminated.fill(False)
        return self._frame()

    def step(self, action: dict[str, Array]) -> Frame:
        self.worlds.advance({name: np.asarray(array)[None] for name, array in action.items()})
        self.worlds.judge(self._step.reward, self._step.terminated)
        self._length += 1
        return self._frame()

    def render(self) -> Array | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = self.worlds.env.render(mode="rgb_array")
        return np.ascontiguousarray(picture)

    def close(self) -> None:
        pass

    def _frame(self) -> Frame:
        step = self._step
        self.worlds.show(step.obs)
        return Frame(
            obs={name: array[0].copy() for name, array in step.obs.items()},
            reward={name: array[0].copy() for name, array in step.reward.items()},
            terminated=bool(step.terminated[0]),
            truncated=self._length >= self.worlds.limit,
        )


class VMASVector(Vector):
    """N VMAS environments stepped together; running episodes are restored from a snapshot of the tensors."""

    def __init__(self, worlds: VMASWorlds, seeds: EpisodeSeeds) -> None:
        layout = Layout(replace(worlds.spec, restore="snapshot"), {})
        buffers = [allocate_buffer(layout, worlds.num) for _ in range(2)]
        self.worlds = worlds
        worlds.begin(range(worlds.num), [seeds(index, 0) for index in range(worlds.num)])
        worlds.show(buffers[0].step.obs)
        super().__init__(layout, worlds.num, seeds, buffers)

    def close(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        from cadenza.envs.families.vmas_state import snapshot

        state = {"draws": self.worlds.draws, **snapshot(self.worlds.env.scenario)}
        shown = {name: array.copy() for name, array in self.current.obs.items()}  # observing again might draw again
        return {**super().state_dict(), "worlds": state, "shown": shown}

    def _restore(self, state: dict[str, Any] | None) -> None:
        obs = self._buffers[0].step.obs
        if state is None:
            everyone = range(self.num_envs)
            self.worlds.begin(everyone, [self._ledger.seed(index) for index in everyone])
            self.worlds.show(obs)
            return
        from cadenza.envs.families.vmas_state import restore

        restore(self.worlds.env.scenario, state["worlds"])
        self.worlds.draws = state["worlds"]["draws"]
        for name, array in obs.items():
            array[...] = state["shown"][name]

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        buffer, worlds = self._buffers[turn], self.worlds
        step = buffer.step
        worlds.advance(action)
        worlds.judge(step.reward, step.terminated)
        worlds.show(step.obs)
        np.greater_equal(self._ledger.lengths, worlds.limit - 1, out=step.truncated)
        np.logical_or(step.terminated, step.truncated, out=step.is_first)
        ended: list[int] = np.flatnonzero(step.is_first).tolist()
        if ended:
            for name, final in buffer.final_obs.items():
                final[ended] = step.obs[name][ended]
            worlds.begin(ended, [self._ledger.seed(row, ahead=1) for row in ended])
            worlds.show(step.obs, ended)
        return ended


def _make(config: EnvironmentConfig, num: int) -> Any:
    """Make a simulator; refuse arguments that its scenario would ignore."""
    with contextlib.redirect_stderr(io.StringIO()):  # Gym, which VMAS imports, prints that it is unmaintained
        from vmas import make_env

    options = {"continuous_actions": True, **config.kwargs, "clamp_actions": config.clip_actions}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = make_env(config.id.partition("/")[2], num_envs=num, device="cpu", **options)
    for warning in caught:
        if "kwargs" in str(warning.message):
            raise ConfigError(f"environment.kwargs: {config.id}: {warning.message}")
    return env


def _space(space: Any) -> spaces.Space[Any]:
    """Convert one of Gym's spaces to Gymnasium's."""
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    raise ConfigError(f"{kind} spaces of VMAS are not supported (Box, Discrete and MultiDiscrete are)")


def _team(agent: str) -> str:
    return "opponents" if agent.startswith(OPPONENTS) else "team"
