"""Brax (Freeman et al. 2021) and MuJoCo's MJX: robots simulated by JAX, all environments in one compiled step.

Ids are `brax/ant`; `environment.kwargs.backend` is the simulator: generalized, spring, positional, or mjx.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_choice
from cadenza.envs.families import mujoco
from cadenza.envs.layout import Array, Layout
from cadenza.envs.native import MakeNative
from cadenza.envs.simulation import EVERYONE, Rows, SimulatedEnvironment, SimulatedVector
from cadenza.errors import ConfigError, EnvironmentFault
from cadenza.types import SINGLE_GROUP, EnvSpec, GroupSpec, Step

PREFIX = "brax/"
NAMES = (
    "ant halfcheetah hopper humanoid humanoidstandup inverted_double_pendulum inverted_pendulum pusher reacher "
    "swimmer walker2d"
)
BACKENDS = ("generalized", "spring", "positional", "mjx")
STEPS = 1000  # the default time limit, as in Brax's own training; the environments have none
DISPLAY_SIZE = 480  # height and width of a rendered picture


def ids(family: str) -> list[str]:
    return [PREFIX + name for name in NAMES.split()]


def composed(id: str) -> bool:
    """Return whether a user registered the environment with `brax.envs.register_environment`."""
    return id.startswith(PREFIX) and id.removeprefix(PREFIX) in _registered()


def make(config: EnvironmentConfig, render: bool = False) -> SimulatedEnvironment:
    if render:
        mujoco.prepare(render)
    return SimulatedEnvironment(BraxWorlds(config, 1))


def native(config: EnvironmentConfig) -> MakeNative:
    return MakeNative(lambda count, seeds: SimulatedVector(BraxWorlds(config, count), seeds), worthwhile_from=1)


class BraxWorlds:
    """N environments as one tree of JAX arrays [N, …]; one call steps all of them, or resets some."""

    metadata: Mapping[str, Any] = {}

    def __init__(self, config: EnvironmentConfig, num: int) -> None:
        registered = _registered()
        with _quiet():
            import jax

            self.env = _make(registered[config.id.removeprefix(PREFIX)], config)
        self.num, self._jax = num, jax
        self.limit = config.max_episode_steps or STEPS
        self._clip = config.clip_actions
        start = jax.vmap(lambda seed: self.env.reset(jax.random.PRNGKey(seed)))
        shapes = jax.eval_shape(start, np.zeros(num, np.int32))
        if not hasattr(shapes.obs, "shape") or shapes.obs.ndim != 2:
            raise ConfigError(f"environment.kwargs: {config.id} shows {shapes.obs}; only vectors are supported")
        self.state: Any = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

        def exact(state: Any) -> Any:
            """Convert to the dtypes of the first state, so that nothing is compiled twice."""
            return jax.tree.map(lambda leaf, shape: jax.lax.convert_element_type(leaf, shape.dtype), state, shapes)

        def begin(state: Any, seeds: Any, fresh: Any) -> Any:
            def choose(new: Any, old: Any) -> Any:
                return jax.numpy.where(fresh.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            return jax.tree.map(choose, exact(start(seeds)), state)

        self._begin = jax.jit(begin)
        self._step = jax.jit(lambda state, action: exact(jax.vmap(self.env.step)(state, action)))
        action = spaces.Box(-1, 1, (self.env.action_size,), np.float32)
        observation = spaces.Box(-np.inf, np.inf, shapes.obs.shape[1:], np.float32)
        groups = {SINGLE_GROUP: GroupSpec((SINGLE_GROUP,), observation, action)}
        self.layout = Layout(EnvSpec(config.id, groups, max_episode_steps=self.limit), {})
        self.time = np.zeros(num, np.int64)
        self._renderer: Any = None

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        all_seeds, fresh = np.zeros(self.num, np.int32), np.zeros(self.num, bool)
        all_seeds[list(rows)], fresh[list(rows)] = seeds, True
        self.state = self._begin(self.state, all_seeds, fresh)
        self.time[fresh] = 0

    def advance(self, action: Mapping[str, Array], step: Step) -> None:
        actions = action[SINGLE_GROUP][:, 0]
        self.state = self._step(self.state, np.clip(actions, -1, 1) if self._clip else actions)
        step.reward[SINGLE_GROUP][:, 0] = np.asarray(self.state.reward)
        step.terminated[:] = np.asarray(self.state.done) != 0
        self.time += 1
        np.greater_equal(self.time, self.limit, out=step.truncated)

    def show(self, step: Step, rows: Rows = EVERYONE) -> None:
        step.obs[SINGLE_GROUP][rows, 0] = np.asarray(self.state.obs)[rows]  # on a CPU JAX's own memory, no copy

    def save(self, current: Step) -> dict[str, Any]:
        return {"worlds": {str(place): np.array(leaf) for place, leaf in enumerate(self._jax.tree.leaves(self.state))}}

    def load(self, state: Mapping[str, Any], step: Step) -> None:
        tree, saved = self._jax.tree.structure(self.state), state["worlds"]
        self.state = tree.unflatten([np.asarray(saved[str(place)]) for place in range(len(saved))])
        self.show(step)

    def render(self) -> Array | None:
        """Draw a picture with MuJoCo, whatever the simulator; return None where the environment has no MuJoCo model."""
        model = getattr(getattr(self.env, "sys", None), "mj_model", None)
        if model is None:
            return None
        if mujoco.choose_renderer() is None:
            raise EnvironmentFault(f"pictures need OpenGL, and there is neither a screen nor {mujoco.NEEDED}")
        import mujoco as simulator

        if self._renderer is None:
            self._renderer, self._data = simulator.Renderer(model, DISPLAY_SIZE, DISPLAY_SIZE), simulator.MjData(model)
        physics = self.state.pipeline_state
        self._data.qpos[:], self._data.qvel[:] = physics.q[0], physics.qd[0]
        simulator.mj_forward(model, self._data)
        self._renderer.update_scene(self._data, camera=0 if model.ncam else -1)
        picture: Array = self._renderer.render()
        return picture

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()


def _registered() -> dict[str, Any]:
    """Return Brax's registered environments by name."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of a GPU's memory
    with _quiet():
        from brax import envs

    registered: dict[str, Any] = envs._envs
    return registered


def _make(creator: Any, config: EnvironmentConfig) -> Any:
    if config.kwargs.get("backend") is not None:
        require_choice("backend", config.kwargs["backend"], BACKENDS)
    check_arguments(creator, config.kwargs, config.id)
    try:
        return creator(**config.kwargs)
    except (AssertionError, TypeError, ValueError) as problem:
        raise ConfigError(f"environment.kwargs: {config.id} refuses {dict(config.kwargs)} ({problem})") from problem


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what Brax prints about optional packages and its warnings about older backends."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
