"""Tabular Q-learning (Watkins 1989), SARSA, expected SARSA and double Q-learning, and bandits as their simplest case.

Each group has a table of its own, shared by its agents. Settings: `qlearning_config.py`.
Letters in shapes: T steps, N environments, A agents of the group, S states, n actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from cadenza.config.schedules import TimedSettings
from cadenza.config.schema import Hook, Phase
from cadenza.data.rollout import Rollout, RolloutStore
from cadenza.types import (
    Acted,
    Context,
    Credit,
    Explained,
    GroupSpec,
    Mode,
    Opinion,
    PhaseInfo,
    Step,
    Store,
    Tree,
    Updated,
)
from cadenza.workflows.qlearning_config import QLearningConfig, states_in

Array = np.ndarray[Any, Any]
Transition = tuple[int, int, float, int]  # state, action, reward, next state


class ValueTable:
    """The values of one group [K, S, n] (K = 2 for double Q-learning), and the number of updates of each entry.

    Single entries are read and written through memoryviews, several times faster than through arrays.
    """

    def __init__(self, group: GroupSpec, config: QLearningConfig, slots: int) -> None:
        assert isinstance(group.action, spaces.Discrete)
        self.index = indexer(group.observation)
        self.states, self.actions = states_in(group.observation, ""), int(group.action.n)
        self.first_action = int(group.action.start)
        shape = (1 + config.double, self.states, self.actions)
        self.values = np.full(shape, config.initial_value, np.float64)
        self.counts = np.zeros(shape, np.int64)
        self.allowed = np.ones(shape[1:], bool)  # the latest mask of each state
        self.baseline = np.zeros(self.states, np.float64)  # mean reward in each state, for preferences
        self.pending: list[Transition | None] = [None] * slots  # SARSA: waiting for the next action, [N * A]
        self.restore(self.state())

    # values

    def mean_values(self, states: Array) -> Array:
        """Return the values […, n] of states […], averaged over the tables."""
        values = self.values[0][states] if len(self.values) == 1 else self.values[:, states].mean(0)
        return np.asarray(values)

    def value(self, k: int, state: int, epsilon: float) -> float:
        """Return a state's value for the epsilon-greedy policy of table k, by the other table if there are two."""
        row = self.row(k, state)
        best = max(row)
        if len(self.values) == 1:
            judge, value = row, best
        else:
            judge = self.row(1 - k, state)
            value = judge[row.index(best)]
        return value if epsilon == 0 else (1 - epsilon) * value + epsilon * (sum(judge) / len(judge))

    def row(self, k: int, state: int) -> list[float]:
        """Return the values of the actions that are allowed in a state."""
        start = (k * self.states + state) * self.actions
        row: list[float] = self._values[start : start + self.actions].tolist()
        if not self.masked:
            return row
        return [q for q, allowed in zip(row, self.allowed[state].tolist(), strict=True) if allowed] or row

    def entry(self, k: int, state: int, action: int) -> float:
        entry: float = self._values[(k * self.states + state) * self.actions + action]
        return entry

    def count(self, k: int, state: int, action: int) -> int:
        """Count an update of an entry; return how many it has had."""
        at = (k * self.states + state) * self.actions + action
        self._counts[at] += 1
        if not self._is_visited[state]:
            self._is_visited[state] = True
            self.visited += 1
        updates: int = self._counts[at]
        return updates

    def add(self, k: int, state: int, action: int, change: float) -> None:
        self._values[(k * self.states + state) * self.actions + action] += change

    def remember_masks(self, states: Array, mask: Array) -> None:
        """Store which actions are allowed in which states; in unvisited ones all values are equal, masked or not."""
        self.allowed[states] = mask
        self.masked = True

    # state

    def state(self) -> dict[str, Any]:
        return {
            "networks": {"values": torch.from_numpy(self.values), "allowed": torch.from_numpy(self.allowed)},
            "optimizers": {
                "counts": torch.from_numpy(self.counts),
                "baseline": torch.from_numpy(self.baseline),
                "pending": list(self.pending),
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        arrays = {name: x for kind in state.values() for name, x in kind.items() if name != "pending"}
        for name, saved in arrays.items():
            shape = getattr(self, name).shape
            if shape != tuple(saved.shape):
                raise RuntimeError(f"{name}: the saved shape {list(saved.shape)} is not this run's {list(shape)}")
            setattr(self, name, np.array(saved.numpy()))
        self.pending = list(state["optimizers"]["pending"])
        is_visited = np.asarray(self.counts.any((0, 2)))
        self.visited = int(is_visited.sum())
        self._values: Any = self.values.reshape(-1).data
        self._counts: Any = self.counts.reshape(-1).data
        self._is_visited: Any = is_visited.data
        self.masked = not self.allowed.all()


class QLearning:
    """The workflow of tabular methods."""

    hooks = ("update", "update_value")

    def __init__(self, config: QLearningConfig, context: Context) -> None:
        self.config, self.timed = config, TimedSettings(config)
        self.context = context
        self.tables = {
            name: ValueTable(group, config, context.num_envs * len(group.agents))
            for name, group in context.env.groups.items()
        }

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Explore, or take the action of the highest value (the first of equals)."""
        action = {}
        for name, table in self.tables.items():
            states, mask = table.index(step.obs[name]), step.mask.get(name)
            if mode.explore:
                choice = self._explore(table, states, mask, mode.phase, mode.streams.numpy(f"act.{name}"))
            else:
                choice = masked(table.mean_values(states), mask).argmax(-1)
            action[name] = choice + table.first_action
        return Acted(action, {name: {} for name in action}, carry)

    def _explore(
        self, table: ValueTable, states: Array, mask: Array | None, phase: PhaseInfo, random: np.random.Generator
    ) -> Array:
        """Return indices of actions [N, A]; equally good ones are equally likely."""
        config, scores = self.timed.at(phase), table.mean_values(states)
        if config.exploration == "gradient":  # the largest of preferences with Gumbel noise is a draw of their softmax
            noisy: Array = scores / config.temperature + random.gumbel(size=scores.shape)
            return np.asarray(masked(noisy, mask).argmax(-1))
        if config.exploration == "ucb":
            scores = scores + config.ucb_c * bonus(table.counts[:, states].sum(0))
        scores, lots = masked(scores, mask), masked(np.asarray(random.random(scores.shape)), mask)
        choice = np.where(scores == scores.max(-1, keepdims=True), lots, -1.0).argmax(-1)
        if config.exploration == "epsilon_greedy":
            at_random = random.random(choice.shape) < config.epsilon
            choice = np.where(at_random, lots.argmax(-1), choice)
        return np.asarray(choice)

    # learning

    def update(self, store: RolloutStore, phase: PhaseInfo) -> Updated:
        """Learn from the transitions one by one, in the order of steps, then of environments."""
        rollout = store.take()
        metrics: dict[str, Any] = {}
        updates = 0
        for name, table in self.tables.items():
            lesson = Lesson(self.timed.at(phase), table, self.context.streams.numpy(f"double.{name}"))
            lesson.learn(name, rollout)
            updates += lesson.updates
            prefix = "train/" if len(self.tables) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in lesson.metrics().items()}
        return Updated(updates, metrics)

    def update_value(self, store: RolloutStore, phase: PhaseInfo) -> Updated:
        """Do the same as `update`: the values are all that it learns."""
        return self.update(store, phase)

    # what the lab shows

    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the Q values (or preferences) of the table."""
        opinions = {}
        for name, table in self.tables.items():
            values = np.asarray(table.mean_values(table.index(steps.obs[name])), np.float64)
            opinions[name] = Opinion(q=values, value=masked(values, steps.mask.get(name)).max(-1))
        return Explained(opinions, carry, dict.fromkeys(self.tables, Credit(self.timed.at(mode.phase).gamma)))

    # phases and state

    def stores(self) -> dict[str, Store]:
        return {"rollout": self.context.store("rollout", RolloutStore, self.config.n_steps)}

    def phases(self) -> tuple[Phase, ...]:
        steps = self.config.n_steps * self.context.num_envs
        return (Phase("train", (Hook("collect", steps=steps), Hook("update")), buffer="rollout"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        for name, table in self.tables.items():
            table.restore({**table.state(), "networks": state["networks"][name]})

    def state_dict(self) -> dict[str, Any]:
        states = {name: table.state() for name, table in self.tables.items()}
        kinds = {kind: {name: state[kind] for name, state in states.items()} for kind in ("networks", "optimizers")}
        return {**kinds, "normalisers": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, table in self.tables.items():
            table.restore({kind: state[kind][name] for kind in ("networks", "optimizers")})


class Lesson:
    """One update of one group: its step sizes, and the metrics that it accumulates."""

    def __init__(self, config: QLearningConfig, table: ValueTable, coins: np.random.Generator) -> None:
        self.config, self.table, self.coins = config, table, coins
        self.epsilon = config.epsilon if config.exploration == "epsilon_greedy" else 0.0
        self.target_epsilon = 0.0 if config.target == "q" else self.epsilon
        self.rate = None if config.learning_rate == "sample_average" else config.learning_rate
        self.updates = 0
        self.errors = self.values = 0.0

    def learn(self, name: str, rollout: Rollout) -> None:
        """Learn from every transition of the group `name`."""
        table, data = self.table, rollout.groups[name]
        states = table.index(data["obs"])  # [T, N, A]
        next_states = np.concatenate([states[1:], table.index(rollout.after_obs[name])[None]])
        if len(rollout.final_index[0]):
            next_states[rollout.final_index] = table.index(rollout.final_obs[name])
        if "mask" in data:
            table.remember_masks(states[data["active"]], data["mask"][data["active"]])
        # an episode ends for all agents, a death for one of them
        terminated = rollout.terminated[..., None] | data["died"]
        truncated = np.broadcast_to(rollout.truncated[..., None], states.shape)
        is_first = np.broadcast_to(rollout.is_first[..., None], states.shape)
        actions = data["action"] - table.first_action
        columns = (states, actions, data["reward"], next_states, terminated, truncated, is_first, data["active"])
        rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
        if self.config.exploration == "gradient":
            for state, action, reward, *_, active in rows:
                if active:
                    self.update_preferences(state, action, reward)
        elif self.config.target == "sarsa":
            slots = len(table.pending)
            for at, (state, action, reward, next_state, *flags) in enumerate(rows):
                self.sarsa(at % slots, (state, action, reward, next_state), *flags)
        else:
            for state, action, reward, next_state, ended, _, _, active in rows:
                if active:
                    self.bootstrap((state, action, reward, next_state), ended)

    def bootstrap(self, transition: Transition, terminated: bool) -> None:
        """Move an entry towards the reward plus the discounted value of the next state, which is 0 after the end."""
        state, action, reward, next_state = transition
        k = self.choose_table()
        next_value = 0.0 if terminated else self.table.value(k, next_state, self.target_epsilon)
        self.move(k, state, action, reward + self.config.gamma * next_value)

    def sarsa(
        self, slot: int, new: Transition, terminated: bool, truncated: bool, is_first: bool, active: bool
    ) -> None:
        """Bootstrap the transition that waits in `slot` from the action of `new`, which then waits in its place.

        Without a next action (a time limit, environments that start again), use the policy's mean value instead.
        """
        waiting = self.table.pending[slot]
        if waiting is not None and is_first:
            self.bootstrap(waiting, False)
            waiting = None
        if waiting is not None and active:
            state, action, reward, _ = waiting
            k = self.choose_table()
            next_value = self.table.entry(k if len(self.table.values) == 1 else 1 - k, new[0], new[1])
            self.move(k, state, action, reward + self.config.gamma * next_value)
        if active:
            waiting = new
        if waiting is not None and (terminated or truncated):
            self.bootstrap(waiting, terminated)
            waiting = None
        self.table.pending[slot] = waiting

    def choose_table(self) -> int:
        """Return which table learns; of two, each with probability 1/2."""
        return int(self.coins.random() < 0.5) if len(self.table.values) == 2 else 0

    def move(self, k: int, state: int, action: int, target: float) -> None:
        """Move an entry of table k towards `target`."""
        table = self.table
        value, updates = table.entry(k, state, action), table.count(k, state, action)
        error = target - value
        change = (1 / updates if self.rate is None else self.rate) * error
        table.add(k, state, action, change)
        self.updates += 1
        self.errors += abs(error)
        self.values += value + change

    def update_preferences(self, state: int, action: int, reward: float) -> None:
        """Make one step along the gradient of the expected reward, with the mean of earlier rewards as baseline."""
        assert self.rate is not None
        table, temperature = self.table, self.config.temperature
        preferences = [table.entry(0, state, other) / temperature for other in range(table.actions)]
        allowed = [other for other in range(table.actions) if table.allowed[state, other]]
        largest = max(preferences[other] for other in allowed)
        weights = {other: math.exp(preferences[other] - largest) for other in allowed}
        total = sum(weights.values())
        before = int(table.counts[0, state].sum())
        error = reward - float(table.baseline[state]) if before else 0.0
        for other, weight in weights.items():
            step = ((other == action) - weight / total) / temperature
            table.add(0, state, other, self.rate * error * step)
        table.count(0, state, action)
        table.baseline[state] += (reward - table.baseline[state]) / (before + 1)
        self.updates += 1
        self.errors += abs(error)
        self.values += table.entry(0, state, action)

    def metrics(self) -> dict[str, float]:
        metrics = {"visited": self.table.visited / self.table.states}
        if self.config.exploration == "epsilon_greedy":
            metrics["epsilon"] = self.epsilon
        if self.updates:
            metrics |= {"td_error": self.errors / self.updates, "q_mean": self.values / self.updates}
        return metrics


def masked(scores: Array, mask: Array | None) -> Array:
    """Return scores […, n] with minus infinity where an action is not allowed."""
    return scores if mask is None else np.where(mask, scores, -np.inf)


def bonus(counts: Array) -> Array:
    """Return sqrt(ln N(s) / N(s, a)) for counts […, n]; infinity for actions that were never tried."""
    total = counts.sum(-1, keepdims=True)
    tried = counts > 0
    return np.where(tried, np.sqrt(np.log(np.maximum(total, 1)) / np.where(tried, counts, 1)), np.inf)


def indexer(space: spaces.Space[Any]) -> Callable[[Tree], Array]:
    """Return the function from observations […, *shape] to state numbers […]; each part of one is a digit."""
    if isinstance(space, spaces.Dict):
        parts = [(key, states_in(part, ""), indexer(part)) for key, part in space.spaces.items()]

        def index_parts(obs: Tree) -> Array:
            number = np.zeros((), np.int64)
            for key, count, index in parts:
                number = number * count + index(obs[key])
            return number

        return index_parts
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda obs: obs - start if start else obs
    shape = space.shape
    assert shape is not None
    radix = np.full(shape, 2) if isinstance(space, spaces.MultiBinary) else space.nvec  # type: ignore[attr-defined]
    first = space.start if isinstance(space, spaces.MultiDiscrete) else np.zeros(shape, np.int64)
    weights = np.append(np.cumprod(radix.ravel()[:0:-1].astype(np.int64))[::-1], 1).reshape(shape)
    axes = tuple(range(-len(shape), 0))
    return lambda obs: np.asarray(((obs - first) * weights).sum(axes, dtype=np.int64))
