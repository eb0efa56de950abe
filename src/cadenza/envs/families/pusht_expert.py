"""A scripted expert for PushT: it simulates pushes from all sides and carries out the one that gains most per time."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Any

import numpy as np

from cadenza.envs.display import prepare_pygame
from cadenza.errors import ConfigError, MissingExtraError, install

# The block's outline in its own coordinates, and the line segments along which an agent of radius 15 can touch it.
OUTLINE = np.array([(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)], float)
SIDES = (  # from, to, outward
    ((-58, 0), (58, 0), (0, -1)),
    ((60, 2), (60, 28), (1, 0)),
    ((58, 30), (32, 30), (0, 1)),
    ((15, 47), (15, 118), (1, 0)),
    ((13, 120), (-13, 120), (0, 1)),
    ((-15, 118), (-15, 47), (-1, 0)),
    ((-32, 30), (-58, 30), (0, 1)),
    ((-60, 28), (-60, 2), (-1, 0)),
)
GOAL = np.array([256, 256, np.pi / 4])
SPACING = 9.0  # distance between candidate starts, in pixels like all lengths here
SLANTS = (-0.5, 0.0, 0.5)  # candidate directions, in radians from straight in
RADIUS, GAP = 15.0, 6.0  # the agent's radius; its distance from the block before a push
TIGHT, WIDE = 17.0, 22.0  # the least distance from the block on a path; the distance of the path's corners
LOW, HIGH = 12.0, 500.0  # the bounds of the agent's position
REACH, STRIDE = 140.0, 2.0  # the longest push; the length of one simulated step
AHEAD = 40.0  # how far ahead on the path the agent's target lies
STILL = 1.0  # a push is over when the agent is nearer than this to its end
PAUSE = 60.0  # a push costs the time of a path of this length, besides its own


class Expert:
    """A policy that walks round the block to the best place, pushes, and plans again."""

    def __init__(self) -> None:
        prepare_pygame()
        try:
            from gym_pusht.envs.pusht import PushTEnv
        except ModuleNotFoundError as problem:
            raise MissingExtraError(f"the expert pusht needs an extra: {install('pusht')}") from problem

        from cadenza.envs.families.pusht import restore_old_names

        restore_old_names()
        self._table = PushTEnv()
        self._table._setup()
        self._path = np.zeros((0, 2))
        self._progress = 0.0  # the length of the path behind the agent

    def __call__(self, obs: Any, random: np.random.Generator) -> np.ndarray:
        agent, pose = self._parse(obs)
        if len(self._path) == 0 or np.hypot(*(self._path[-1] - agent)) < STILL:
            self._path, self._progress = self._plan(agent, pose), 0.0
        lengths = np.concatenate([[0.0], np.hypot(*np.diff(self._path, axis=0).T).cumsum()])
        self._progress = nearest_on(self._path, lengths, agent, self._progress)
        target = min(self._progress + AHEAD, lengths[-1])
        return np.array([np.interp(target, lengths, self._path[:, axis]) for axis in (0, 1)])

    def _parse(self, obs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the agent's position [2] and the block's pose [3], position and angle; refuse other observations."""
        if not isinstance(obs, dict) and np.shape(obs) == (5,):
            numbers = np.asarray(obs, np.float64)
            return numbers[:2], numbers[2:]
        if not isinstance(obs, dict) or "environment_state" not in obs:
            raise ConfigError("environment.kwargs.obs_type: this expert needs state or environment_state_agent_pos")
        corners = np.asarray(obs["environment_state"], np.float64).reshape(8, 2)
        model = np.array([corner for shape in self._table._block_shapes for corner in shape.get_vertices()])
        (x, y), (u, v) = (model - model.mean(0)).T, (corners - corners.mean(0)).T
        angle = np.arctan2((x * v - y * u).sum(), (x * u + y * v).sum())
        place = corners.mean(0) - rotation(angle) @ model.mean(0)
        return np.asarray(obs["agent_pos"], np.float64), np.array([*place, angle])

    def _plan(self, agent: np.ndarray, pose: np.ndarray) -> np.ndarray:
        """Return the path [points, 2] to and along the push that gains most per time."""
        current = float(goal_distance(pose[None])[0])
        paths = Paths(pose)
        best_gain, best_path = -np.inf, np.array([agent, agent])
        pushes = [(start, *self._push(start, direction, pose)) for start, direction in starts(pose)]
        for start, end, distance in sorted(pushes, key=lambda push: push[2]):
            if (current - distance) / PAUSE <= best_gain:  # no later push can gain more, even without a path to it
                break
            path = paths.between(agent, start)
            if path is None:
                continue
            length = np.hypot(*np.diff(path, axis=0).T).sum() + np.hypot(*(end - start))
            gain = (current - distance) / (length + PAUSE)
            if gain > best_gain:
                best_gain, best_path = gain, np.concatenate([path, end[None]])
        return best_path

    def _push(self, start: np.ndarray, direction: np.ndarray, pose: np.ndarray) -> tuple[np.ndarray, float]:
        """Simulate a push; return its best end [2] and the block's distance from the goal there."""
        table, block, agent = self._table.space, self._table.block, self._table.agent
        block.velocity, block.angular_velocity = (0.0, 0.0), 0.0
        block.angle = float(pose[2])
        block.position = (float(pose[0]), float(pose[1]))
        agent.position = (float(start[0]), float(start[1]))
        agent.velocity = (float(direction[0] * STRIDE / 0.01), float(direction[1] * STRIDE / 0.01))
        table.reindex_shapes_for_body(block)
        table.reindex_shapes_for_body(agent)
        room = np.where(direction > 0, HIGH - start, start - LOW) / np.maximum(np.abs(direction), 1e-9)
        poses = []
        for _ in range(int(min(REACH, *room) / STRIDE)):
            table.step(0.01)
            poses.append((*block.position, block.angle))
        if not poses:  # blocked by a wall
            return start, np.inf
        distances = goal_distance(np.array(poses))
        index = int(distances.argmin())
        return start + direction * STRIDE * (index + 1), float(distances[index])


def starts(pose: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return candidate pushes: start [2] around the block, within bounds, and direction [2]."""
    pushes = []
    for low, high, outward in SIDES:
        count = max(2, round(float(np.hypot(*np.subtract(high, low))) / SPACING))
        for place in np.linspace(low, high, count):
            start = rotation(pose[2]) @ (place + np.multiply(outward, RADIUS + GAP)) + pose[:2]
            if ((start > LOW) & (start < HIGH)).all():
                pushes += [(start, -rotation(pose[2] + slant) @ np.array(outward)) for slant in SLANTS]
    return pushes


def goal_distance(poses: np.ndarray) -> np.ndarray:
    """Return the mean distance [B] of the block's corners from their goal, for poses [B, 3]."""
    cosine, sine = np.cos(poses[:, 2:]), np.sin(poses[:, 2:])
    x, y = OUTLINE.T
    corners = np.stack([cosine * x - sine * y + poses[:, :1], sine * x + cosine * y + poses[:, 1:2]], -1)
    target = OUTLINE @ rotation(GOAL[2]).T + GOAL[:2]
    distance: np.ndarray = np.sqrt(np.square(corners - target).sum(-1)).mean(-1)
    return distance


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


class Paths:
    """Shortest paths round a block that lies still."""

    def __init__(self, pose: np.ndarray) -> None:
        from shapely import Polygon, prepare

        block = Polygon(OUTLINE @ rotation(pose[2]).T + pose[:2])
        self._wide = block.buffer(WIDE, join_style="mitre")
        self._tight = block.buffer(TIGHT, join_style="mitre")
        prepare(self._tight)
        corners = np.array(self._wide.exterior.coords[:-1])
        self._corners = corners[((corners > LOW) & (corners < HIGH)).all(-1)]

    def between(self, start: np.ndarray, end: np.ndarray) -> np.ndarray | None:
        """Return the shortest path [points, 2] from `start` to `end`, or None where walls block every one."""
        from shapely import LineString, Point
        from shapely.ops import nearest_points

        exit_path = []
        if self._tight.contains(Point(start)):
            exit_path = [start]
            start = np.array(nearest_points(self._wide.exterior, Point(start))[0].coords[0])
        nodes, last = [start, *self._corners, end], len(self._corners) + 1
        queue, before = [(0.0, 0, -1)], dict[int, int]()  # length of a path, its last node, the node before that
        while queue and last not in before:
            length, node, previous = heapq.heappop(queue)
            if node in before:
                continue
            before[node] = previous
            for other in range(1, len(nodes)):
                if other not in before and not self._tight.intersects(LineString([nodes[node], nodes[other]])):
                    heapq.heappush(queue, (length + float(np.hypot(*(nodes[other] - nodes[node]))), other, node))
        if last not in before:
            return None
        path, node = [], last
        while node >= 0:
            path.append(nodes[node])
            node = before[node]
        return np.array([*exit_path, *path[::-1]])


def nearest_on(path: np.ndarray, lengths: np.ndarray, place: np.ndarray, progress: float) -> float:
    """Return how far along the path `place` is, searched from `progress` on and up to `AHEAD` beyond it."""
    best, nearest = np.inf, progress
    for (low, high), start, long in zip(pairwise(path), lengths, np.diff(lengths), strict=False):
        if start > progress + AHEAD or start + long < progress:
            continue
        share = float(np.clip((place - low) @ (high - low) / max(long**2, 1e-9), 0, 1))
        position = max(progress, start + share * long)
        distance = float(np.hypot(*(low + (high - low) * (position - start) / max(long, 1e-9) - place)))
        if distance < best - 1e-6:
            best, nearest = distance, position
    return nearest
