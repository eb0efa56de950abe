"""The fresh process in which one contestant trains: run by path, in any interpreter, on the standard library alone.

    python process.py CONTESTANT_FILE ORDER

ORDER is JSON: a task, when the process was started, and which packages' versions to tell. One line of JSON comes back.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

WARM_UP = 2  # iterations with learning: what compiles, caches and first pages cost is paid in these
EPISODES = 100  # whose mean return says whether a task is solved

Task = Mapping[str, Any]


def gymnasium_step(result: Any) -> tuple[Any, Any]:
    """(rewards, ends) of what a Gymnasium vector returns."""
    return result[1], result[2] | result[3]


class Watch:
    """Notes when things happen; what they come to is worked out once training is over."""

    def __init__(self, task: Task, started: float) -> None:
        self.task = task
        self.started = started
        self.marks: list[tuple[float, int]] = []  # (when, env_steps): the first step, then the end of each iteration
        self.episodes: list[tuple[float, int, float]] = []  # (when, env_steps, return)
        self._env_steps = self._since_mark = 0
        self._end: dict[str, Any] = {}
        self._returns: Any = None

    # what contestants tell

    def follow(self, env: Any, method: str = "step", read: Callable[[Any], tuple[Any, Any]] = gymnasium_step) -> None:
        """See every step of a vector environment; `read` finds [N] rewards and ends of episodes in what it returns."""
        step, records = getattr(env, method), self.task["solved_at"] is not None

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.before_step()
            result = step(*args, **kwargs)
            if records:
                self.after_step(*read(result))
            return result

        setattr(env, method, watched)

    def before_step(self) -> None:
        """All environments are about to be stepped."""
        if self._since_mark >= self.task["iteration"] or not self.marks:
            self.mark(self._env_steps)
            self._since_mark = 0
        self._since_mark += self.task["num_envs"]
        self._env_steps += self.task["num_envs"]

    def after_step(self, rewards: Any, ended: Any) -> None:
        """What the step earned in each environment, and whose episode ended with it."""
        self._returns = rewards + (0.0 if self._returns is None else self._returns)
        if ended.any():
            now = time.time()
            for index in ended.nonzero()[0]:
                self.episodes.append((now, self._env_steps, float(self._returns[index])))
                self._returns[index] = 0.0

    def mark(self, env_steps: int) -> None:
        """So many steps, and the learning that goes with them, are done."""
        self.marks.append((time.time(), env_steps))

    def end(self) -> None:
        """Training is over, as far as this can be known: the last call counts."""
        used = os.times()
        cpu = used.user + used.system + used.children_user + used.children_system
        self._end = {"when": time.time(), "cpu_s": cpu, "peak_mb": peak_mb()}

    # what came of it

    def figures(self, *, env_steps: int, updates: int, parameters: int) -> dict[str, Any]:
        """Everything measured, of a contestant that did the work it was asked for."""
        for name, count, asked in (
            ("env_steps", env_steps, self.task["timesteps"]),
            ("gradient steps", updates, self.task["updates"]),
        ):
            if count != asked:
                raise RuntimeError(f"not the same work: {count} {name}, the task has {asked}")
        first, ended = self.marks[0][0], self._end.pop("when")
        random, iteration = self.task["warmup"], self.task["iteration"]
        learning = self._reached(random) or self.marks[0]
        warm = self._reached(random + WARM_UP * iteration)
        solved = self._solved()
        return {
            "start_s": first - self.started,
            "training_s": ended - first,
            "env_steps_per_s": (env_steps - learning[1]) / (ended - learning[0]),
            "steady_env_steps_per_s": None if warm is None else (env_steps - warm[1]) / (ended - warm[0]),
            "solved_s": None if solved is None else solved[0] - self.started,
            "solved_env_steps": None if solved is None else solved[1],
            "updates": updates,
            "parameters": parameters,
            **self._end,
        }

    def _reached(self, env_steps: int) -> tuple[float, int] | None:
        """When so many steps were done."""
        return next((mark for mark in self.marks if mark[1] >= env_steps), None)

    def _solved(self) -> tuple[float, int] | None:
        """When the mean of the last episodes first was good enough."""
        goal = self.task["solved_at"]
        if goal is None:
            return None
        for index in range(EPISODES, len(self.episodes) + 1):
            if sum(total for *_, total in self.episodes[index - EPISODES : index]) >= goal * EPISODES:
                return self.episodes[index - 1][:2]
        return None


def peak_mb() -> float | None:
    """The most memory this process has held. Not getrusage's, which begins with what its parent held."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))
    except OSError:
        try:
            import resource
        except ImportError:  # Windows
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def versions(packages: list[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def keep_to(cores: int) -> None:
    """No more of the machine than was agreed: some libraries start threads whatever they are told."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def main(path: str, order: dict[str, Any]) -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path = [place for place in sys.path if os.path.abspath(place) != here]  # whose names are not for others
    keep_to(order["task"]["threads"])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no part of the answer
    spec = importlib.util.spec_from_file_location("contestant", path)
    assert spec is not None
    assert spec.loader is not None
    contestant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(contestant)
    task = order["task"]
    figures = getattr(contestant, task["algorithm"])(task, Watch(task, order["started"]))
    figures["versions"] = versions(order["packages"])
    json.dump(figures, answer)
    answer.close()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
