"""Environments that are simulated many at a time: one adapter for a single one and one for N of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.vector import Vector
from cadenza.trees import leaves
from cadenza.types import Frame, Step

Rows = Array | slice
EVERYONE = slice(None)


class Simulation(Protocol):
    """N environments held as arrays: each is reset to its own seed, and all are stepped together."""

    num: int
    layout: Layout
    time: Array  # [N] steps since each environment's reset
    metadata: Mapping[str, Any]  # as Gymnasium's: perhaps `render_fps`

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the environments `rows`, each to its seed."""

    def advance(self, action: Mapping[str, Array], step: Step) -> None:
        """Step all environments; write rewards, deaths and episode ends, but no observations."""

    def show(self, step: Step, rows: Rows = EVERYONE) -> None:
        """Write observations, masks, activity and central state of the environments `rows`."""

    def save(self, current: Step) -> dict[str, Any]:
        """Return the entries of the vector's state that restore the environments as `current` shows them."""

    def load(self, state: Mapping[str, Any], step: Step) -> None:
        """Restore the environments from such entries and show them in `step`."""

    def render(self) -> Array | None: ...

    def close(self) -> None: ...


class SimulatedEnvironment:
    """A single environment, computed as a simulation of one."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.spec = simulation, simulation.layout.spec
        self.metadata = simulation.metadata
        self._buffer = allocate_buffer(simulation.layout, 1)

    def reset(self, seed: int) -> Frame:
        self.simulation.begin([0], [seed])
        self._buffer.clear()
        return self._frame()

    def step(self, action: dict[str, Array]) -> Frame:
        self.simulation.advance({name: np.asarray(array)[None] for name, array in action.items()}, self._buffer.step)
        return self._frame()

    def render(self) -> Array | None:
        return self.simulation.render()

    def close(self) -> None:
        self.simulation.close()

    def _frame(self) -> Frame:
        step = self._buffer.step
        self.simulation.show(step)
        return Frame(
            obs=_only(step.obs),
            reward=_only(step.reward),
            terminated=bool(step.terminated[0]),
            truncated=bool(step.truncated[0]),
            active=_only(step.active),
            died=_only(step.died),
            mask=_only(step.mask) or None,
            state=None if step.state is None else step.state[0].copy(),
            won=None if step.won is None else bool(step.won[0]),
        )


def _only(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Copy the rows of the only environment, so that its next step does not change them."""
    return {name: array[0].copy() for name, array in arrays.items()}


class SimulatedVector(Vector):
    """N environments stepped together; running episodes are restored from what the simulation saves."""

    def __init__(self, simulation: Simulation, seeds: EpisodeSeeds) -> None:
        layout = replace(simulation.layout, spec=replace(simulation.layout.spec, restore="snapshot"))
        buffers = [allocate_buffer(layout, simulation.num) for _ in range(2)]
        self.simulation = simulation
        everyone = range(simulation.num)
        simulation.begin(everyone, [seeds(index, 0) for index in everyone])
        simulation.show(buffers[0].step)
        super().__init__(layout, simulation.num, seeds, buffers)

    def close(self) -> None:
        self.simulation.close()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self.simulation.save(self.current)}

    def _restore(self, state: dict[str, Any] | None) -> None:
        step = self._buffers[0].step
        if state is None:
            everyone = range(self.num_envs)
            self.simulation.begin(everyone, [self._ledger.seed(index) for index in everyone])
            self.simulation.show(step)
        else:
            self.simulation.load(state, step)
        self.simulation.time[:] = self._ledger.lengths

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        buffer, simulation = self._buffers[turn], self.simulation
        step = buffer.step
        simulation.advance(action, step)
        simulation.show(step)
        np.logical_or(step.terminated, step.truncated, out=step.is_first)
        ended = np.flatnonzero(step.is_first)
        if not len(ended):
            return []
        for (_, final), (_, obs) in zip(leaves(buffer.final_obs), leaves(step.obs), strict=True):
            final[ended] = obs[ended]
        if buffer.final_state is not None and step.state is not None:
            buffer.final_state[ended] = step.state[ended]
        rows: list[int] = ended.tolist()
        simulation.begin(rows, [self._ledger.seed(row, ahead=1) for row in rows])
        simulation.show(step, ended)
        return rows
