"""A trained policy, loaded from a checkpoint to be evaluated, shown or used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from cadenza.base.garbage import collect_as_usual
from cadenza.base.json_text import plain
from cadenza.base.streams import EVALUATION, Streams
from cadenza.config.convert import build, to_dict
from cadenza.config.schema import RunConfig
from cadenza.engine.build import build_workflow
from cadenza.engine.evaluator import Evaluator
from cadenza.engine.launch import check
from cadenza.engine.runtime import decide_runtime, use_threads
from cadenza.errors import CheckpointError
from cadenza.records.checkpoint import Checkpoints, position
from cadenza.records.folder import RunFolder
from cadenza.trees import map_tree
from cadenza.types import EnvSpec, Frame, Mode, PhaseInfo, Step, Workflow

PLAYING = PhaseInfo("play", "eval_only", now=1, horizon=1)  # at the end of all schedules


class Player:
    """A policy in one environment, with its carry from step to step."""

    def __init__(self, workflow: Workflow, config: RunConfig, spec: EnvSpec, phase: PhaseInfo) -> None:
        self.workflow = workflow
        self.config = config
        self.spec = spec
        self.phase = phase
        self._streams = Streams(config.seed, branch=(EVALUATION,))
        self.reset()

    def reset(self) -> None:
        """Forget the episode so far."""
        self._carry = self.workflow.initial_carry(1)
        self._is_first = True

    def act(self, frame: Frame, explore: bool = False) -> dict[str, np.ndarray]:
        """Return the actions [A, …] by group for an environment's frame."""
        mode = Mode(explore, self.phase, self._streams)
        acted = self.workflow.act(as_step([frame], self._is_first), self._carry, mode)
        self._carry, self._is_first = acted.carry, False
        return {group: action[0] for group, action in acted.action.items()}


def stack(*arrays: np.ndarray) -> np.ndarray:
    """Stack leaves of trees along a new first axis."""
    return np.stack(arrays)


def as_step(frames: list[Frame], is_first: bool) -> Step:
    """Stack copies of N consecutive frames as the step of N environments; `is_first`: the first starts an episode."""

    def column(name: str, default: Callable[[np.ndarray], np.ndarray]) -> Any:
        """Stack a field, with defaults in frames that lack it; return None if all lack it."""
        parts = [getattr(frame, name) for frame in frames]
        example = next((part for part in parts if part is not None), None)
        if example is None:
            return None
        return map_tree(stack, *(map_tree(default, example) if part is None else part for part in parts))

    reward, obs = (map_tree(stack, *(getattr(frame, name) for frame in frames)) for name in ("reward", "obs"))
    return Step(
        obs=obs,
        final_obs=obs,
        reward=reward,
        terminated=np.array([frame.terminated for frame in frames]),
        truncated=np.array([frame.truncated for frame in frames]),
        is_first=np.array([is_first and n == 0 for n in range(len(frames))]),
        active=column("active", np.ones_like) or map_tree(lambda x: np.ones(x.shape, bool), reward),
        died=column("died", np.zeros_like) or map_tree(lambda x: np.zeros(x.shape, bool), reward),
        mask=column("mask", np.ones_like) or {},
        state=column("state", np.zeros_like),
    )


def load_policy(folder: RunFolder, checkpoint: str = "last", trust: bool = False) -> tuple[Player, str]:
    """Return the run's policy with the weights of a checkpoint, and that checkpoint's name."""
    config = folder.read_config(trust)
    checkpoints = Checkpoints.from_run(folder)
    name = checkpoints.resolve(checkpoint)
    try:
        state = checkpoints.load(name, "workflow")
    except CheckpointError as problem:
        others = [other for other in checkpoints.names() if other != name]
        raise CheckpointError(f"{problem}; there is also {', '.join(others)}" if others else str(problem)) from problem
    spec = check(config)
    decisions = {**folder.read_decisions(), "device": "cpu"}
    decide_runtime(config, spec, decisions)
    use_threads(decisions["runtime.threads"])
    workflow = build_workflow(config, spec, Streams(config.seed), decisions)
    try:
        workflow.load_state_dict(state["workflow"])
    except (KeyError, RuntimeError) as problem:
        raise CheckpointError(f"{name} does not fit the run's config: {str(problem).splitlines()[0]}") from problem
    collect_as_usual()  # here as in a run, steps of an environment follow
    return Player(workflow, config, spec, progress_at(name, decisions)), name


def progress_at(checkpoint: str, decisions: dict[str, Any]) -> PhaseInfo:
    """Return the progress of the run at a checkpoint, on which the policy's schedules depend."""
    env_steps, updates = position(checkpoint)
    now = updates if decisions["training.unit"] == "updates" else env_steps
    return PhaseInfo("play", "eval_only", now, decisions["training.horizon"])


def evaluate_run(
    folder: RunFolder,
    episodes: int,
    seed: int,
    checkpoint: str,
    trust: bool = False,
    *,
    timeout_seconds: float | None = None,
    explore: bool = False,
    report: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Evaluate a run's policy and return what `cadenza evaluate --json` prints; `report` receives its progress.

    Actions are drawn with `explore`, or where the run's own evaluations draw them. `return_mean` is None if no episode
    was finished in time.
    """
    player, name = load_policy(folder, checkpoint, trust)
    stored = to_dict(player.config)
    stored["evaluation"] |= {"episodes": episodes, "timeout_seconds": timeout_seconds}
    stored["evaluation"]["explore"] |= explore
    config = build(RunConfig, plain(stored | {"seed": seed}))
    with closing(Evaluator(config, player.workflow, {}, player.spec)) as evaluator:
        evaluator.report = report
        evaluation = evaluator(0, player.phase)
    metrics = {key.removeprefix("eval/"): value for key, value in evaluation.metrics().items()}
    metrics = metrics or {"return_mean": None, "episodes": 0}
    facts = {"run": folder.id, "checkpoint": name, **metrics, "returns": evaluation.returns}
    return {**facts, "problems": evaluation.problems()}
