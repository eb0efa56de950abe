"""Train one contestant in a fresh process: run by path, in any interpreter, on the standard library alone.

    python process.py CONTESTANT_FILE ORDER

ORDER is JSON: a task, the time when the process was started, and packages whose versions to report. The result is one
line of JSON on stdout.
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

WARM_UP = 2  # iterations with learning that are not steady: they compile, fill caches and touch memory first
EPISODES = 100  # a task is solved when the mean return of so many reaches its goal

TaskData = Mapping[str, Any]


def gymnasium_step(result: Any) -> tuple[Any, Any]:
    """Return the rewards [N] and ends of episodes [N] in the result of a Gymnasium vector's step."""
    return result[1], result[2] | result[3]


class Recorder:
    """Records times, steps and episodes of a training; computes its figures once it is over."""

    def __init__(self, task: TaskData, started: float) -> None:
        self.task = task
        self.started = started
        self.marks: list[tuple[float, int]] = []  # (when, env_steps): the first step, then the end of each iteration
        self.episodes: list[tuple[float, int, float]] = []  # (when, env_steps, return)
        self._env_steps = self._since_mark = 0
        self._end: dict[str, Any] = {}
        self._returns: Any = None

    # called by contestants

    def follow(self, env: Any, method: str = "step", read: Callable[[Any], tuple[Any, Any]] = gymnasium_step) -> None:
        """Wrap the step method of a vector environment; `read` returns rewards [N] and ends [N] from its result."""
        step, records = getattr(env, method), self.task["solved_at"] is not None

        def recorded_step(*args: Any, **kwargs: Any) -> Any:
            self.before_step()
            result = step(*args, **kwargs)
            if records:
                self.after_step(*read(result))
            return result

        setattr(env, method, recorded_step)

    def before_step(self) -> None:
        """Record that all environments are about to be stepped."""
        if self._since_mark >= self.task["iteration"] or not self.marks:
            self.mark(self._env_steps)
            self._since_mark = 0
        self._since_mark += self.task["num_envs"]
        self._env_steps += self.task["num_envs"]

    def after_step(self, rewards: Any, ended: Any) -> None:
        """Record the rewards [N] of a step, and the episodes that ended with it."""
        self._returns = rewards + (0.0 if self._returns is None else self._returns)
        if ended.any():
            now = time.time()
            for index in ended.nonzero()[0]:
                self.episodes.append((now, self._env_steps, float(self._returns[index])))
                self._returns[index] = 0.0

    def mark(self, env_steps: int) -> None:
        """Record that so many steps, and the learning that goes with them, are done."""
        self.marks.append((time.time(), env_steps))

    def end(self) -> None:
        """Record the end of training; the last call counts."""
        used = os.times()
        cpu = used.user + used.system + used.children_user + used.children_system
        self._end = {"when": time.time(), "cpu_s": cpu, "peak_mb": peak_mb()}

    # the result

    def figures(self, *, env_steps: int, updates: int, parameters: int) -> dict[str, Any]:
        """Return all measurements; raise an error if the contestant did not do the requested work."""
        for name, count, expected in (
            ("env_steps", env_steps, self.task["timesteps"]),
            ("gradient steps", updates, self.task["updates"]),
        ):
            if count != expected:
                raise RuntimeError(f"not the same work: {count} {name}, the task has {expected}")
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
        """Return the first mark after so many steps."""
        return next((mark for mark in self.marks if mark[1] >= env_steps), None)

    def _solved(self) -> tuple[float, int] | None:
        """Return when the mean return of the last episodes first reached the goal."""
        goal = self.task["solved_at"]
        if goal is None:
            return None
        for index in range(EPISODES, len(self.episodes) + 1):
            if sum(total for *_, total in self.episodes[index - EPISODES : index]) >= goal * EPISODES:
                return self.episodes[index - 1][:2]
        return None


def peak_mb() -> float | None:
    """Return the peak memory of this process; getrusage would begin with the memory of its parent."""
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
    """Return the versions of Python and of the installed packages among these."""
    installed = {"python": platform.python_version()}
    for package in packages:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def keep_to(cores: int) -> None:
    """Bind the process to so many cores: some libraries start more threads than they are told to."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def main(path: str, order: dict[str, Any]) -> None:
    """Load the contestant's file, train, and print the figures."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path = [place for place in sys.path if os.path.abspath(place) != here]  # its modules must not shadow others
    keep_to(order["task"]["threads"])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answer
    spec = importlib.util.spec_from_file_location("contestant", path)
    assert spec is not None
    assert spec.loader is not None
    contestant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(contestant)
    task = order["task"]
    figures = getattr(contestant, task["algorithm"])(task, Recorder(task, order["started"]))
    figures["versions"] = versions(order["packages"])
    json.dump(figures, answer)
    answer.close()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
