"""MaMuJoCo (Peng et al. 2021) as Gymnasium-Robotics publishes it: several agents move a robot's joints.

Ids are `mamujoco/SCENARIO-PARTITION`, e.g. `mamujoco/Ant-4x2`: four agents with two joints each. The robot's reward is
divided equally among them, so that the team's return is the robot's.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, refuse_reserved
from cadenza.envs.families import mujoco
from cadenza.envs.families.pettingzoo import Parallel, Turns, adapted
from cadenza.envs.layout import Array

PARTITIONS = {
    "Ant": ("2x4", "2x4d", "4x2"),
    "HalfCheetah": ("2x3", "6x1"),
    "Hopper": ("3x1",),
    "Humanoid": ("9|8",),
    "HumanoidStandup": ("9|8",),
    "Pusher": ("3p",),
    "Reacher": ("2x1",),
    "Swimmer": ("2x1",),
    "Walker2d": ("2x3",),
    "ManySegmentAnt": ("2x3",),
    "ManySegmentSwimmer": ("10x2",),
}
GROWN = {"ManySegmentAnt": "Ant", "ManySegmentSwimmer": "Swimmer"}  # the partition says the number of segments
# Agents of these see entries of the robot's observation unchanged; others see velocities or forces that it clips.
SELECTED = ("Ant", "HalfCheetah", "Humanoid", "HumanoidStandup", "Swimmer", "ManySegmentSwimmer")
RESERVED = ("scenario", "agent_conf", "gym_env", "render_mode")


def ids(family: str) -> list[str]:
    return [f"mamujoco/{scenario}-{name}" for scenario, names in PARTITIONS.items() for name in names]


def composed(id: str) -> bool:
    """Return whether the id is a many-segment robot, AGENTSxSEGMENTS of any size."""
    return re.fullmatch(rf"mamujoco/({'|'.join(GROWN)})-[1-9]\d*x[1-9]\d*", id) is not None


def make(config: EnvironmentConfig, render: bool = False) -> Parallel | Turns:
    mujoco.prepare(render)
    with contextlib.redirect_stderr(io.StringIO()):  # the import prints news about other environments
        from gymnasium_robotics.envs.multiagent_mujoco.mujoco_multi import MultiAgentMujocoEnv

    scenario, _, partition = config.id.partition("/")[2].partition("-")
    takes = inspect.signature(MultiAgentMujocoEnv).parameters
    refuse_reserved(config.kwargs, RESERVED, f"is set by the id {config.id}")
    team_kwargs = {key: value for key, value in config.kwargs.items() if key in takes}
    robot_kwargs = {key: value for key, value in config.kwargs.items() if key not in takes}
    robot, limit = _robot(scenario, partition, robot_kwargs, render, config.id)
    team: Any = MultiAgentMujocoEnv(scenario, partition, gym_env=robot, **team_kwargs)
    # Two joints of the Pusher share a name, and their order in an observation would change from process to process.
    team.k_dicts = [
        {distance: sorted(joints, key=lambda joint: (joint.label, joint.qpos_ids)) for distance, joints in near.items()}
        for near in team.k_dicts
    ]
    if scenario in SELECTED and not config.kwargs and team.observation_factorization is not None:
        team = Selecting(team)
    else:
        team.state_space = robot.observation_space
    return adapted(team, config, time_limit=limit, shared=True)


def _robot(scenario: str, partition: str, kwargs: dict[str, Any], render: bool, id: str) -> tuple[Any, int | None]:
    """Make the bare environment of a single agent with all joints; return it and its time limit."""
    spec = gymnasium.spec(f"{GROWN.get(scenario, scenario)}-v5")
    check_arguments(load_env_creator(str(spec.entry_point)), kwargs, id)
    kwargs = {**kwargs, "render_mode": "rgb_array" if render else None}
    with tempfile.TemporaryDirectory() as folder:
        if scenario in GROWN:
            from gymnasium_robotics.envs.multiagent_mujoco import many_segment_ant, many_segment_swimmer

            agents, segments = map(int, partition.split("x"))
            model = Path(folder) / "robot.xml"
            grow = many_segment_ant if scenario == "ManySegmentAnt" else many_segment_swimmer
            grow.gen_asset(n_segs=agents * segments, asset_path=str(model))
            kwargs["xml_file"] = str(model)
        env = gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **kwargs)
    return env.unwrapped, spec.max_episode_steps


class Selecting:
    """A faster MultiAgentMujocoEnv: it selects observations from the robot's and writes actions into the robot's."""

    def __init__(self, team: Any) -> None:
        self.robot = team.single_agent_env
        self.possible_agents: list[str] = list(team.possible_agents)
        self.agents: list[str] = []
        self.observation_space, self.action_space = team.observation_space, team.action_space
        self.state_space = self.robot.observation_space
        self.render, self.close = self.robot.render, self.robot.close
        self._sees = {agent: np.asarray(entries) for agent, entries in team.observation_factorization.items()}
        self._moves = {
            agent: np.array([joint.act_ids for joint in joints])
            for agent, joints in zip(self.possible_agents, team.agent_action_partitions, strict=True)
        }
        self._action = np.zeros(self.robot.action_space.shape)
        self._state: Array = np.zeros(0)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        self._state, _ = self.robot.reset(seed=seed, options=options)
        self.agents = self.possible_agents
        return self._select(), {}

    def step(
        self, actions: dict[str, Array]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        for agent, places in self._moves.items():
            self._action[places] = actions[agent]
        self._state, reward, terminated, truncated, _ = self.robot.step(self._action)
        if terminated or truncated:
            self.agents = []
        everyone = self.possible_agents
        flags = dict.fromkeys(everyone, terminated), dict.fromkeys(everyone, truncated)
        return self._select(), dict.fromkeys(everyone, reward), *flags, {}

    def state(self) -> Array:
        return self._state

    def _select(self) -> dict[str, Array]:
        return {agent: self._state[entries] for agent, entries in self._sees.items()}
