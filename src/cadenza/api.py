"""cadenza from Python: `train`, `load`, `runs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.errors import ConfigError
from cadenza.records.folder import RunFolder, find, runs_root
from cadenza.types import SINGLE_GROUP, Frame

if TYPE_CHECKING:
    from cadenza.orchestration.playback import Player


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: RunFolder

    @property
    def id(self) -> str:
        return self.folder.id

    @property
    def result(self) -> dict[str, Any]:
        """Status, env_steps, eval/return_mean and the like, as they stand now."""
        return self.folder.read_status()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        from cadenza.records.metrics import read

        return read(self.folder.metrics)


def train(spec: str, runs_dir: Path | None = None, quiet: bool = True, **overrides: Any) -> Run:
    """Train to the end. Overrides have dotted keys: `train("CartPole-v1:ppo", **{"algorithm.gamma": 0.98})`."""
    from cadenza.config.load import load as load_config
    from cadenza.config.load import override
    from cadenza.orchestration.launch import train as launch

    settings = [override(key, value) for key, value in overrides.items()]
    result = launch(load_config(spec, settings), runs_root(runs_dir), ["cadenza.train", spec, *settings], quiet)
    if result.signal == "SIGINT":
        raise KeyboardInterrupt(f"run {result.folder.id} was saved: cadenza resume goes on with it")
    return Run(result.folder)


def load(run: str, checkpoint: str = "last", runs_dir: Path | None = None, trust: bool = False) -> Policy:
    """The policy of a run, to be called with observations."""
    from cadenza.orchestration.playback import load_policy

    player, _ = load_policy(find(runs_root(runs_dir), run), checkpoint, trust)
    return Policy(player)


def runs(runs_dir: Path | None = None, **filters: Any) -> list[Run]:
    """Runs whose columns, config keys or metrics have these values: `runs(environment="CartPole-v1")`."""
    from cadenza.records.index import rows

    root = runs_root(runs_dir)
    wanted = [f"{key}={value}" for key, value in filters.items()]
    return [Run(RunFolder(root / row["run"])) for row in rows(root, wanted)]


class Policy:
    """`policy(obs) -> action` for an environment with a single agent; carries its own normaliser and memory."""

    def __init__(self, player: Player) -> None:
        if list(player.spec.groups) != [SINGLE_GROUP]:
            raise ConfigError(f"{player.spec.id} has several groups of agents: use cadenza evaluate")
        self._player = player
        self.spec = player.spec
        self.reset = player.reset  # call it when an episode begins

    def __call__(self, obs: Any, mask: Any = None, explore: bool = False) -> Any:
        """The action for one observation as the environment gave it; the most likely one unless asked to explore."""
        import numpy as np

        from cadenza.envs.gym import observer

        expected, given = self.spec.groups[SINGLE_GROUP].observation.shape, np.shape(obs)
        if expected is not None and given != expected:
            raise ValueError(f"an observation of {self.spec.id} has the shape {expected}, not {given}")
        tree = observer(self.spec.groups[SINGLE_GROUP].observation)(obs)
        allowed = None if mask is None else {SINGLE_GROUP: np.asarray(mask, bool)[None]}
        frame = Frame({SINGLE_GROUP: tree}, {SINGLE_GROUP: np.zeros(1, np.float32)}, mask=allowed)
        action = self._player.act(frame, explore)[SINGLE_GROUP][0]
        return action.item() if action.ndim == 0 else action
