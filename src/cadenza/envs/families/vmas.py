"""VMAS (Bettini et al. 2022): environments of many agents as batched tensors in this process.

Ids are `vmas/SCENARIO`. An episode's seed decides how it begins. What a scenario draws later (football's scripted
players, noise) it draws for all environments together: a resumed run repeats it, a single recorded episode does not.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import refuse_reserved
from cadenza.envs.grouping import Agent, arrange, by_kind
from cadenza.envs.layout import Array, Layout
from cadenza.envs.native import MakeNative
from cadenza.envs.simulation import EVERYONE, Rows, SimulatedEnvironment, SimulatedVector
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec, GroupSpec, Step

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


def make(config: EnvironmentConfig, render: bool = False) -> SimulatedEnvironment:
    return SimulatedEnvironment(VMASWorlds(config, 1))


def native(config: EnvironmentConfig) -> MakeNative:
    return MakeNative(lambda count, seeds: SimulatedVector(VMASWorlds(config, count), seeds), worthwhile_from=1)


class VMASWorlds:
    """N environments of a scenario; each is reset to its own seed, and all are stepped together."""

    metadata: Mapping[str, Any] = {}

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
        self.layout = Layout(EnvSpec(config.id, groups, max_episode_steps=self.limit), {})
        self.time = np.zeros(num, np.int64)
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
        self.time[list(rows)] = 0

    def advance(self, action: Mapping[str, Array], step: Step) -> None:
        """Step all environments; each reward is copied before a scenario may reuse its tensor."""
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
        with self._rng_state(self.draws):
            for agent, group, row in self._agents:
                step.reward[group][:, row] = scenario.reward(agent).numpy().reshape(-1)
            step.terminated[...] = scenario.done().numpy()
        self.time += 1
        np.greater_equal(self.time, self.limit, out=step.truncated)

    def show(self, step: Step, rows: Rows = EVERYONE) -> None:
        with self._rng_state(self.draws):
            for agent, group, row in self._agents:
                step.obs[group][rows, row] = self.env.scenario.observation(agent).numpy()[rows]

    def save(self, current: Step) -> dict[str, Any]:
        from cadenza.envs.families.vmas_state import snapshot

        observations = {name: array.copy() for name, array in current.obs.items()}  # observing again might draw again
        return {"worlds": {"draws": self.draws, **snapshot(self.env.scenario)}, "shown": observations}

    def load(self, state: Mapping[str, Any], step: Step) -> None:
        from cadenza.envs.families.vmas_state import restore

        restore(self.env.scenario, state["worlds"])
        self.draws = state["worlds"]["draws"]
        for name, array in step.obs.items():
            array[...] = state["shown"][name]

    def render(self) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.ascontiguousarray(self.env.render(mode="rgb_array"))

    def close(self) -> None:
        pass


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
