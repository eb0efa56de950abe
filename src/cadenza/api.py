"""cadenza from Python: `train`, `load`, `runs`, and what can be done with a run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.errors import ConfigError
from cadenza.records.folder import RunFolder, find, runs_root
from cadenza.trees import map_tree
from cadenza.types import SINGLE_GROUP, Frame

if TYPE_CHECKING:
    import gymnasium

    from cadenza.engine.events import Listener
    from cadenza.engine.launch import Result
    from cadenza.engine.playback import Player


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: RunFolder

    @classmethod
    def find(cls, ref: str | Path, runs_dir: Path | str | None = None) -> Run:
        """The run that an id, a unique prefix, a path, `@last` or `@best` names."""
        return cls(find(_root(runs_dir), str(ref)))

    @property
    def id(self) -> str:
        return self.folder.id

    @property
    def result(self) -> dict[str, Any]:
        """Status, env_steps, eval/return_mean and the like, as they stand now."""
        return self.folder.read_status()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        from cadenza.records.metrics import read

        return read(self.folder.metrics)

    def resume(
        self,
        max_timesteps: int | None = None,
        max_updates: int | None = None,
        *,
        on_event: Listener | Iterable[Listener] = (),
        quiet: bool = True,
        trust: bool = False,
        accept_changes: bool = False,
    ) -> Run:
        """Go on exactly where the last checkpoint left it, to the end or to a longer budget.

        What was changed in its files by hand is refused, unless `accept_changes`; each change is then a warning.
        """
        from cadenza.lab.session import resume

        listeners = _listeners(on_event)
        budget = (max_timesteps, max_updates)
        return _outcome(resume(self.folder, *budget, None, quiet, trust, listeners, accept_changes))

    def evaluate(
        self, episodes: int = 20, seed: int = 0, checkpoint: str | int = "last", trust: bool = False
    ) -> dict[str, Any]:
        """Measure its policy: `return_mean`, `returns` and the like."""
        from cadenza.engine.playback import evaluate_run

        return evaluate_run(self.folder, episodes, seed, str(checkpoint), trust)

    def load(self, checkpoint: str | int = "last", trust: bool = False) -> Policy:
        """Its policy, to be called with observations."""
        from cadenza.engine.playback import load_policy

        player, _ = load_policy(self.folder, str(checkpoint), trust)
        return Policy(player)


def train(
    env: str | Path | Callable[..., Any] | gymnasium.Env[Any, Any],
    algorithm: str | type | None = None,
    *,
    runs_dir: Path | str | None = None,
    quiet: bool = True,
    on_event: Listener | Iterable[Listener] = (),
    trust: bool = False,
    **overrides: Any,
) -> Run:
    """Train to the end: `train("CartPole-v1:ppo")`, or an environment and an algorithm: `train(make_my_env, "ppo")`.

    The environment is an id, an import path, a function or class that makes a gymnasium.Env, or such an Env if
    Gymnasium can make more of it. Overrides have dotted keys: `train("CartPole-v1:ppo", **{"algorithm.gamma": 0.98})`.
    A stranger's stored config that names code is taken with `trust` alone.
    """
    from cadenza.config.load import load as load_config
    from cadenza.config.load import override
    from cadenza.lab.session import train as launch
    from cadenza.records.trust import require_trust_of_file

    listeners = _listeners(on_event)
    spec, implied, notes = _spec(str(env) if isinstance(env, Path) else env, algorithm)
    if not trust:
        require_trust_of_file(spec)
    settings = [override(key, value) for key, value in (implied | overrides).items()]
    command = ["cadenza.train", spec, *settings]
    return _outcome(launch(load_config(spec, settings), _root(runs_dir), command, quiet, listeners, notes))


def load(
    run: str | Path | Run, checkpoint: str | int = "last", runs_dir: Path | str | None = None, trust: bool = False
) -> Policy:
    """The policy of a run, to be called with observations. A checkpoint is `last`, `best` or a number of env_steps."""
    found = run if isinstance(run, Run) else Run.find(run, runs_dir)
    return found.load(checkpoint, trust)


def runs(
    runs_dir: Path | str | None = None, *, sort: str | None = None, limit: int | None = None, **filters: Any
) -> list[Run]:
    """Runs whose columns, config keys or metrics have these values, newest first: `runs(environment="CartPole-v1")`.

    A value may be a comparison, several, or a function: `runs(tag="paper", status=["finished", "crashed"],
    **{"return": ">400", "algorithm.gamma": lambda gamma: gamma < 0.99}, sort="return")`.
    """
    from cadenza.records.index import rows

    root = _root(runs_dir)
    return [Run(RunFolder(root / row["run"])) for row in rows(root, filters, sort, limit)]


class Policy:
    """`policy(obs) -> action` for an environment with a single agent; carries its own normaliser and memory."""

    def __init__(self, player: Player) -> None:
        if list(player.spec.groups) != [SINGLE_GROUP]:
            raise ConfigError(f"{player.spec.id} has several groups of agents: use cadenza evaluate")
        from cadenza.envs.families.gym import action_for

        self._player = player
        self.spec = player.spec
        self.reset = player.reset  # call it when an episode begins
        self._action = action_for(self.spec.groups[SINGLE_GROUP].action, player.config.environment.clip_actions)

    def __call__(self, obs: Any, mask: Any = None, explore: bool = False) -> Any:
        """The action for one observation as the environment gave it; the most likely one unless asked to explore."""
        import numpy as np

        from cadenza.envs.families.gym import as_seen

        tree = map_tree(lambda x: x[None], as_seen(self.spec.groups[SINGLE_GROUP].observation, obs))
        allowed = None if mask is None else {SINGLE_GROUP: np.asarray(mask, bool)[None]}
        frame = Frame({SINGLE_GROUP: tree}, {SINGLE_GROUP: np.zeros(1, np.float32)}, mask=allowed)
        return self._action(self._player.act(frame, explore)[SINGLE_GROUP][0])

    def make_env(self, render: bool = False) -> gymnasium.Env[Any, Any]:
        """The environment the policy was trained in, with its wrappers and its time limit, for a loop of one's own."""
        from gymnasium.wrappers import TimeLimit

        from cadenza.envs.catalog import make
        from cadenza.envs.families.gym import Gym

        made = make(self._player.config.environment, render)
        if not isinstance(made, Gym):
            raise ConfigError(f"{self.spec.id} is no Gymnasium environment: use cadenza evaluate or cadenza play")
        limit = made.spec.max_episode_steps
        return made.env if limit is None else TimeLimit(made.env, limit)


def _root(runs_dir: Path | str | None) -> Path:
    return runs_root(Path(runs_dir) if runs_dir is not None else None)


def _listeners(given: Any) -> list[Listener]:
    listeners = list(given) if isinstance(given, Iterable) and not callable(given) else [given]
    for listener in listeners:
        if not callable(listener):
            raise ConfigError(f"on_event={listener!r}: must be a function of one event, or several of them")
    return listeners


def _outcome(result: Result) -> Run:
    """The run, unless a signal ended it: then what the signal would have done, now that the run is saved."""
    if result.signal == "SIGINT":
        folder = result.folder
        raise KeyboardInterrupt(f"run {folder.id} was saved: cadenza.Run.find({folder.handle!r}).resume()")
    if result.signal in ("SIGTERM", "SIGHUP", "SIGUSR1"):
        signal.raise_signal(getattr(signal, result.signal))
    return Run(result.folder)


def _spec(env: Any, algorithm: str | type | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The spec of what `train` was given, the settings that come with it, and what to note about it."""
    if isinstance(env, str) and algorithm is None:
        return env, {}, ()
    if algorithm is None:
        raise ConfigError("cadenza.train needs an algorithm besides the environment: train(make_env, 'ppo')")
    variant = algorithm if isinstance(algorithm, str) else _name_of_algorithm(algorithm)
    if isinstance(env, str):
        return f"{env}:{variant}", {}, ()
    from cadenza.envs.families.from_python import name_of

    id, settings, notes = name_of(env)
    return f"{id}:{variant}", settings, notes


def _name_of_algorithm(workflow: Any) -> str:
    """The name of a workflow class: the one it is registered under, or its import path."""
    from cadenza.config import registry

    for entry in registry.ALGORITHMS.values():
        if entry.workflow is workflow:
            return entry.name
    path = registry.import_path(workflow)
    if path is None:
        name = getattr(workflow, "__name__", workflow)
        raise ConfigError(f"algorithm={name!r}: give a name, or a workflow class made known by @register_algorithm")
    return path
