"""An expert for PushT: it tries pushes from all sides in a simulation of its own and does the most worthwhile one."""

from __future__ import annotations

import heapq
import os
from itertools import pairwise
from typing import Any

import numpy as np

from cadenza.errors import ConfigError, MissingExtraError, install

# The block's outline in its own coordinates, and the places where an agent of radius 15 can lean on it.
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
SPACING = 9.0  # between places that are tried, in pixels, as all lengths here
SLANTS = (-0.5, 0.0, 0.5)  # directions that are tried, in radians from straight in
RADIUS, GAP = 15.0, 6.0  # of the agent; left between it and the block before a push
TIGHT, WIDE = 17.0, 22.0  # distance from the block that the agent keeps on its way; where ways turn
LOW, HIGH = 12.0, 500.0  # where the agent may go
REACH, STRIDE = 140.0, 2.0  # the longest push; of one step of its simulation
AHEAD = 40.0  # how far in front of itself the agent is sent
STILL = 1.0  # nearer than this to where it ends, a push is over
PAUSE = 60.0  # a push costs as much time as a way of this length, beside its own


class Expert:
    """Makes for the side that it will push, goes round the block, pushes, and looks again."""

    def __init__(self) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            from gym_pusht.envs.pusht import PushTEnv
        except ModuleNotFoundError as problem:
            raise MissingExtraError(f"the expert pusht needs an extra: {install('pusht')}") from problem

        from cadenza.envs.families.pusht import as_before

        as_before()
        self._table = PushTEnv()
        self._table._setup()
        self._way = np.zeros((0, 2))
        self._done = 0.0  # of its length

    def __call__(self, obs: Any, random: np.random.Generator) -> np.ndarray:
        agent, pose = self._see(obs)
        if len(self._way) == 0 or np.hypot(*(self._way[-1] - agent)) < STILL:
            self._way, self._done = self._plan(agent, pose), 0.0
        lengths = np.concatenate([[0.0], np.hypot(*np.diff(self._way, axis=0).T).cumsum()])
        self._done = nearest_on(self._way, lengths, agent, self._done)
        at = min(self._done + AHEAD, lengths[-1])
        return np.array([np.interp(at, lengths, self._way[:, axis]) for axis in (0, 1)])

    def _see(self, obs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Where the agent is; the block's place and angle."""
        if not isinstance(obs, dict) and np.shape(obs) == (5,):
            numbers = np.asarray(obs, np.float64)
            return numbers[:2], numbers[2:]
        if not isinstance(obs, dict) or "environment_state" not in obs:
            raise ConfigError("environment.kwargs.obs_type: this expert sees state or environment_state_agent_pos")
        corners = np.asarray(obs["environment_state"], np.float64).reshape(8, 2)
        own = np.array([corner for shape in self._table._block_shapes for corner in shape.get_vertices()])
        (x, y), (u, v) = (own - own.mean(0)).T, (corners - corners.mean(0)).T
        angle = np.arctan2((x * v - y * u).sum(), (x * u + y * v).sum())
        place = corners.mean(0) - rotation(angle) @ own.mean(0)
        return np.asarray(obs["agent_pos"], np.float64), np.array([*place, angle])

    def _plan(self, agent: np.ndarray, pose: np.ndarray) -> np.ndarray:
        """The way to the most worthwhile push, and along it."""
        now = float(away(pose[None])[0])
        ways = Ways(pose)
        best, found = -np.inf, np.array([agent, agent])
        tried = [(start, *self._push(start, direction, pose)) for start, direction in starts(pose)]
        for start, end, left in sorted(tried, key=lambda one: one[2]):
            if (now - left) / PAUSE <= best:  # nor would any of the rest be, were they as near as can be
                break
            way = ways.between(agent, start)
            if way is None:
                continue
            length = np.hypot(*np.diff(way, axis=0).T).sum() + np.hypot(*(end - start))
            worth = (now - left) / (length + PAUSE)
            if worth > best:
                best, found = worth, np.concatenate([way, end[None]])
        return found

    def _push(self, start: np.ndarray, direction: np.ndarray, pose: np.ndarray) -> tuple[np.ndarray, float]:
        """Where a push in this direction had best end, and how far the block is then from where it belongs."""
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
        if not poses:  # a wall is in the way
            return start, np.inf
        left = away(np.array(poses))
        index = int(left.argmin())
        return start + direction * STRIDE * (index + 1), float(left[index])


def starts(pose: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Places around the block to push from that the agent may go to, and directions."""
    found = []
    for low, high, outward in SIDES:
        count = max(2, round(float(np.hypot(*np.subtract(high, low))) / SPACING))
        for place in np.linspace(low, high, count):
            start = rotation(pose[2]) @ (place + np.multiply(outward, RADIUS + GAP)) + pose[:2]
            if ((start > LOW) & (start < HIGH)).all():
                found += [(start, -rotation(pose[2] + slant) @ np.array(outward)) for slant in SLANTS]
    return found


def away(poses: np.ndarray) -> np.ndarray:
    """How far the corners are from where they belong, in the mean [B], of poses [B, 3]."""
    cosine, sine = np.cos(poses[:, 2:]), np.sin(poses[:, 2:])
    x, y = OUTLINE.T
    corners = np.stack([cosine * x - sine * y + poses[:, :1], sine * x + cosine * y + poses[:, 1:2]], -1)
    wanted = OUTLINE @ rotation(GOAL[2]).T + GOAL[:2]
    distance: np.ndarray = np.sqrt(np.square(corners - wanted).sum(-1)).mean(-1)
    return distance


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


class Ways:
    """Shortest ways round a block that lies still."""

    def __init__(self, pose: np.ndarray) -> None:
        from shapely import Polygon, prepare

        block = Polygon(OUTLINE @ rotation(pose[2]).T + pose[:2])
        self._wide = block.buffer(WIDE, join_style="mitre")
        self._tight = block.buffer(TIGHT, join_style="mitre")
        prepare(self._tight)
        corners = np.array(self._wide.exterior.coords[:-1])
        self._corners = corners[((corners > LOW) & (corners < HIGH)).all(-1)]

    def between(self, start: np.ndarray, end: np.ndarray) -> np.ndarray | None:
        """From where the agent is to where it can push; None: walls are in the way."""
        from shapely import LineString, Point
        from shapely.ops import nearest_points

        out = []
        if self._tight.contains(Point(start)):
            out = [start]
            start = np.array(nearest_points(self._wide.exterior, Point(start))[0].coords[0])
        nodes, last = [start, *self._corners, end], len(self._corners) + 1
        queue, before = [(0.0, 0, -1)], dict[int, int]()  # length of a way, the node it leads to, the one before that
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
        way, node = [], last
        while node >= 0:
            way.append(nodes[node])
            node = before[node]
        return np.array([*out, *way[::-1]])


def nearest_on(way: np.ndarray, lengths: np.ndarray, place: np.ndarray, done: float) -> float:
    """How far along a way a place is, at least as far as before and not much farther."""
    best, found = np.inf, done
    for (low, high), start, long in zip(pairwise(way), lengths, np.diff(lengths), strict=False):
        if start > done + AHEAD or start + long < done:
            continue
        share = float(np.clip((place - low) @ (high - low) / max(long**2, 1e-9), 0, 1))
        at = max(done, start + share * long)
        distance = float(np.hypot(*(low + (high - low) * (at - start) / max(long, 1e-9) - place)))
        if distance < best - 1e-6:
            best, found = distance, at
    return found
