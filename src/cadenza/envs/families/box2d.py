"""Box2D environments that keep their physics world from episode to episode, made to start each with a new one.

A used world remembers contacts and the order of its bodies, so a later episode would depend on the earlier ones.
"""

from __future__ import annotations

from typing import Any

import gymnasium

PERSISTENT = ("BipedalWalker", "CarRacing")  # LunarLander makes a new world itself


def with_fresh_worlds(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment itself, unless it is one of those that keep their world."""
    kinds = type(env.unwrapped).__mro__
    kept = any(kind.__name__ in PERSISTENT and kind.__module__.startswith("gymnasium.envs.box2d.") for kind in kinds)
    return FreshWorld(env) if kept else env


class FreshWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every episode in a world of its own."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        from Box2D import b2World

        inner: Any = self.env.unwrapped
        inner._destroy()  # an empty world is then given up without touching its bodies
        inner.world = b2World(gravity=inner.world.gravity)
        return self.env.reset(seed=seed, options=options)
