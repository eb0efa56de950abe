"""Brax (Freeman et al. 2021) and MuJoCo's MJX: robots simulated by JAX, all environments in one compiled step.

Ids are `brax/ant`; `environment.kwargs.backend` is the simulator: generalized, spring, positional, or mjx.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_choice
from cadenza.envs.families import mujoco
from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.native import MakeNative
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.envs.vector import Vector
from cadenza.errors import ConfigError, EnvironmentFault
from cadenza.types import SINGLE_GROUP, EnvSpec, Frame, GroupSpec

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


def make(config: EnvironmentConfig, render: bool = False) -> Brax:
    if render:
        mujoco.prepare(render)
    return Brax(BraxWorlds(config, 1))


def native(config: EnvironmentConfig) -> MakeNative:
    return MakeNative(lambda count, seeds: BraxVector(BraxWorlds(config, count), seeds), worthwhile_from=1)


class BraxWorlds:
    """N environments as one tree of JAX arrays [N, …]; one call steps all of them, or resets some."""

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
        self.spec = EnvSpec(config.id, groups, max_episode_steps=self.limit)

    def begin(self, seeds: Mapping[int, int]) -> None:
        """Reset the environments of `seeds`, each to its seed; the others stay as they are."""
        all_seeds, fresh = np.zeros(self.num, np.int32), np.zeros(self.num, bool)
        all_seeds[list(seeds)], fresh[list(seeds)] = list(seeds.values()), True
        self.state = self._begin(self.state, all_seeds, fresh)

    def advance(self, action: Array) -> tuple[Array, Array]:
        """Step all environments; return rewards [N] and which episodes terminated [N]."""
        self.state = self._step(self.state, np.clip(action, -1, 1) if self._clip else action)
        return np.asarray(self.state.reward), np.asarray(self.state.done) != 0

    @property
    def obs(self) -> Array:
        """The observations [N, …], on a CPU without a copy."""
        return np.asarray(self.state.obs)

    def snapshot(self) -> dict[str, Array]:
        return {str(place): np.array(leaf) for place, leaf in enumerate(self._jax.tree.leaves(self.state))}

    def restore(self, saved: Mapping[str, Array]) -> None:
        tree = self._jax.tree.structure(self.state)
        self.state = tree.unflatten([np.asarray(saved[str(place)]) for place in range(len(saved))])


class Brax:
    """One Brax environment."""

    def __init__(self, worlds: BraxWorlds) -> None:
        self.worlds, self.spec = worlds, worlds.spec
        self._length = 0
        self._renderer: Any = None

    def reset(self, seed: int) -> Frame:
        self.worlds.begin({0: seed})
        self._length = 0
        return self._frame(np.zeros(1, np.float32), False)

    def step(self, action: dict[str, Array]) -> Frame:
        reward, done = self.worlds.advance(np.asarray(action[SINGLE_GROUP]))
        self._length += 1
        return self._frame(reward.astype(np.float32), bool(done[0]))

    def render(self) -> Array | None:
        """Draw a picture with MuJoCo, whatever the simulator; return None where the environment has no MuJoCo model."""
        model = getattr(getattr(self.worlds.env, "sys", None), "mj_model", None)
        if model is None:
            return None
        if mujoco.choose_renderer() is None:
            raise EnvironmentFault(f"pictures need OpenGL, and there is neither a screen nor {mujoco.NEEDED}")
        import mujoco as simulator

        if self._renderer is None:
            self._renderer, self._data = simulator.Renderer(model, DISPLAY_SIZE, DISPLAY_SIZE), simulator.MjData(model)
        physics = self.worlds.state.pipeline_state
        self._data.qpos[:], self._data.qvel[:] = physics.q[0], physics.qd[0]
        simulator.mj_forward(model, self._data)
        self._renderer.update_scene(self._data, camera=0 if model.ncam else -1)
        picture: Array = self._renderer.render()
        return picture

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()

    def _frame(self, reward: Array, terminated: bool) -> Frame:
        return Frame(
            obs={SINGLE_GROUP: self.worlds.obs.copy()},
            reward={SINGLE_GROUP: reward},
            terminated=terminated,
            truncated=self._length >= self.worlds.limit,
        )


class BraxVector(Vector):
    """N Brax environments stepped together; running episodes are restored from a snapshot of JAX's arrays."""

    def __init__(self, worlds: BraxWorlds, seeds: EpisodeSeeds) -> None:
        layout = Layout(replace(worlds.spec, restore="snapshot"), {})
        buffers = [allocate_buffer(layout, worlds.num) for _ in range(2)]
        self.worlds = worlds
        worlds.begin({index: seeds(index, 0) for index in range(worlds.num)})
        buffers[0].step.obs[SINGLE_GROUP][:, 0] = worlds.obs
        super().__init__(layout, worlds.num, seeds, buffers)

    def close(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "worlds": self.worlds.snapshot()}

    def _restore(self, state: dict[str, Any] | None) -> None:
        if state is None:
            self.worlds.begin({index: self._ledger.seed(index) for index in range(self.num_envs)})
        else:
            self.worlds.restore(state["worlds"])
        self._buffers[0].step.obs[SINGLE_GROUP][:, 0] = self.worlds.obs

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        buffer, worlds = self._buffers[turn], self.worlds
        step = buffer.step
        obs = step.obs[SINGLE_GROUP]
        step.reward[SINGLE_GROUP][:, 0], step.terminated[:] = worlds.advance(action[SINGLE_GROUP][:, 0])
        obs[:, 0] = worlds.obs
        np.greater_equal(self._ledger.lengths, worlds.limit - 1, out=step.truncated)
        np.logical_or(step.terminated, step.truncated, out=step.is_first)
        ended: list[int] = np.flatnonzero(step.is_first).tolist()
        if ended:
            buffer.final_obs[SINGLE_GROUP][ended] = obs[ended]
            worlds.begin({index: self._ledger.seed(index, ahead=1) for index in ended})
            obs[ended, 0] = worlds.obs[ended]
        return ended


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
