"""A new physics world for every episode of the Box2D environments that keep theirs.

A used world stores contacts and the order of its bodies, so later episodes would depend on earlier ones.
"""

from __future__ import annotations

from typing import Any

import gymnasium

PERSISTENT = ("BipedalWalker", "CarRacing")  # LunarLander makes a new world itself


def with_fresh_worlds(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap an environment that keeps its world; return any other as it is."""
    keeps_world = any(
        kind.__name__ in PERSISTENT and kind.__module__.startswith("gymnasium.envs.box2d.")
        for kind in type(env.unwrapped).__mro__
    )
    return FreshWorld(env) if keeps_world else env


class FreshWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that gives every episode a world of its own."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        from Box2D import b2World

        inner: Any = self.env.unwrapped
        inner._destroy()  # first, so that the old world is dropped without bodies
        inner.world = b2World(gravity=inner.world.gravity)
        return self.env.reset(seed=seed, options=options)
