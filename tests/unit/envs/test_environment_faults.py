"""Environments that raise, return invalid values, hang or die: one line names environment, seed, step and action."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, EnvironmentFault
from harness.faulty_environment import FAULTY
from harness.worker_processes import worker_processes

SEEDS = EpisodeSeeds(0, TRAIN)
BAD_ENV, BAD_EPISODE = 2, 1
SEED = SEEDS(BAD_ENV, BAD_EPISODE)


def make(way: Any, timeout: float = 60.0, **faults: Any) -> Any:
    config = EnvironmentConfig(id=FAULTY, max_episode_steps=8, vectorize=way, workers=2, kwargs=faults)
    return make_vector(replace(config, timeout_seconds=timeout), SEEDS, num_envs=4)


def walk(env: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        env.step({"agent": rng.integers(0, 3, (4, 1))})


def run_into(way: str, timeout: float = 60.0, **faults: Any) -> EnvironmentFault:
    """Run a faulty vector; return the fault after all of its processes have ended."""
    env = make(way, timeout, **faults)
    with pytest.raises(EnvironmentFault) as caught:
        walk(env)
    env.close()
    assert worker_processes() == []
    return caught.value


def _actions(step: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 3, (4, 1)) for _ in range(step)][-1]


STEP_FAULTS = {
    "raise_at": "raised ValueError: asked to fail",
    "nan_at": "returned NaN or infinity (observation agent)",
    "reward_nan_at": "returned NaN or infinity (reward of agent)",
    "shape_at": "of shape (3,) and dtype float32 where (2,) and float32 are declared",
    "dtype_at": "raised TypeError: Cannot cast",
}


@pytest.mark.parametrize("way", ["in_process", "workers"])
@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_a_fault_is_one_line_with_environment_seed_step_and_action(way: str, fault: str) -> None:
    problem = run_into(way, **{fault: 11, "in_seed": SEED})
    message = str(problem)
    assert "\n" not in message
    assert message.startswith(f"environment {BAD_ENV} ({FAULTY}) ")
    assert STEP_FAULTS[fault] in message
    assert message.endswith(
        f"at step 3 of episode {BAD_EPISODE} (seed {SEED}, action agent [{_actions(11)[BAD_ENV, 0]}])"
    )


def test_a_fault_carries_the_original_error() -> None:
    assert isinstance(run_into("in_process", raise_at=2).__cause__, ValueError)
    notes = "".join(run_into("workers", raise_at=2).__notes__)
    assert "asked to fail" in notes
    assert "faulty_environment.py" in notes


@pytest.mark.parametrize("way", ["in_process", "workers"])
def test_nan_in_a_final_observation_is_refused_although_the_reset_follows(way: str) -> None:
    assert re.search(r"environment 0 .* at step 8 of episode 0 ", str(run_into(way, nan_at=8)))


@pytest.mark.parametrize("way", ["in_process", "workers"])
@pytest.mark.parametrize(
    ("kind", "reason"), [("discrete", r"from 5 to 7 \(observation agent\.a\)"), ("multi", r"from \[1 4\] to \[2 6\] ")]
)
@pytest.mark.parametrize(("at", "when"), [(0, "the start of"), (3, "step 3 of"), (4, "step 4 of")])  # the last is 4
def test_a_code_outside_its_space_is_refused(way: Any, kind: str, reason: str, at: int, when: str) -> None:
    kwargs = {"kind": kind, "at": at}
    config = EnvironmentConfig(id="harness.odd_spaces:Astray", vectorize=way, workers=1, kwargs=kwargs)
    with pytest.raises(EnvironmentFault, match=rf"returned a number that is not {reason}.*, at {when} episode 0 "):
        play(config, [[[3, 2]]])
    assert worker_processes() == []


@pytest.mark.parametrize(
    ("nothing", "problem"), [(False, ", but none at its first reset"), (True, " that allows no action")]
)
def test_a_mask_that_starts_late_or_allows_no_action_is_refused(nothing: bool, problem: str) -> None:
    config = EnvironmentConfig(id="harness.odd_spaces:MaskedLate", kwargs={"nothing": nothing})
    with pytest.raises(EnvironmentFault, match=rf" returned an action mask{problem}.*, at step 2 of episode 0 "):
        play(config, [[0]])


@pytest.mark.parametrize("kind", ["box", "dict"])
def test_an_environment_with_empty_observations_is_refused(kind: str) -> None:
    config = EnvironmentConfig(id="harness.odd_spaces:Blind", kwargs={"kind": kind})
    with pytest.raises(ConfigError, match=r"^harness\.odd_spaces:Blind: observations of group agent are empty"):
        make_vector(config, SEEDS, num_envs=1)


def play(config: EnvironmentConfig, action: list[Any]) -> None:
    env = make_vector(config, SEEDS, num_envs=1)
    try:
        for _ in range(4):
            env.step({"agent": np.array(action)})
    finally:
        env.close()


@pytest.mark.parametrize("way", ["in_process", "workers"])
def test_an_environment_that_hangs_raises_after_the_timeout(way: str) -> None:
    problem = run_into(way, timeout=1.0, hang_at=10, in_seed=SEED)
    assert re.match(
        rf"environment {BAD_ENV} .* took longer than 1 s, at step 2 of episode 1 \(seed {SEED}, ", str(problem)
    )


@pytest.mark.parametrize("restored", [False, True])
def test_a_vector_that_waits_longer_than_the_timeout_before_its_first_step_is_not_hung(restored: bool) -> None:
    env = make("in_process", timeout=0.6)
    if restored:
        env.load_state_dict(env.state_dict())
    time.sleep(1.2)
    walk(env)
    env.close()


def test_an_environment_that_ends_its_process_is_named() -> None:
    problem = run_into("workers", exit_at=10, in_seed=SEED)
    expected = (
        rf"environment {BAD_ENV} .* ended its worker process with exit code 3, at step 2 of episode 1 \(seed {SEED}, "
    )
    assert re.match(expected, str(problem))


def test_a_worker_that_dies_at_a_reset_names_the_episode_it_was_to_begin() -> None:
    problem = run_into("workers", die_at_reset=2)
    assert re.search(rf"environment 0 .*exit code 3, at the start of episode 1 \(seed {SEEDS(0, 1)}\)", str(problem))


def test_faults_before_the_first_step_leave_no_process() -> None:
    with pytest.raises(
        EnvironmentFault, match=rf"environment 0 .*exit code 3, at the start of episode 0 \(seed {SEEDS(0, 0)}\)"
    ):
        make("workers", die_at_reset=1)
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.rise_at"):
        make("workers", rise_at=1)
    assert worker_processes() == []


def test_a_worker_killed_from_outside_is_a_fault_that_names_the_signal() -> None:
    env = make("workers")
    worker_processes()[-1].kill()
    with pytest.raises(EnvironmentFault, match=r"ended its worker process by signal 9 \(SIGKILL\)"):
        walk(env)
    assert worker_processes() == []


def test_workers_ignore_sigint_and_sigterm() -> None:
    env = make("workers")
    for child in worker_processes():
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
    for _ in range(5):
        env.step({"agent": np.zeros((4, 1), np.int64)})
    env.close()
    assert worker_processes() == []


PARENT = """
import sys, psutil, numpy as np
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.vector import make_vector
sys.path.append(sys.argv[2])  # the folder of the harness
kwargs = {"hang_at": int(sys.argv[1])}
config = EnvironmentConfig(id="harness.faulty_environment:Faulty", vectorize="workers", workers=2, kwargs=kwargs)
env = make_vector(config, EpisodeSeeds(0, 0), num_envs=4)
print(*[child.pid for child in psutil.Process().children()], flush=True)
env.step({"agent": np.zeros((4, 1), np.int64)})
sys.stdin.read()
"""


def shared_memory() -> set[str]:
    """Return the names of shared memory blocks, Python's and cadenza's."""
    folder = Path("/dev/shm")
    return {path.name for kind in ("psm_*", "pym-*", "*cadenza*") for path in folder.glob(kind)}


@pytest.mark.parametrize("hang_at", [1, 1000])
def test_workers_die_with_a_killed_parent_and_leave_no_shared_memory(hang_at: int) -> None:
    before = shared_memory()
    harness = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", PARENT, str(hang_at), harness]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    assert shared_memory() <= before


OWN = """
import sys
from cadenza.envs.toys.toy import Identity

def make():
    assert "torch" not in sys.modules
    return Identity()
"""


def test_workers_host_ones_own_environment_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_in_workers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    config = EnvironmentConfig(id="own_in_workers:make", vectorize="workers", workers=1, max_episode_steps=5)
    env = make_vector(config, SEEDS, num_envs=2)
    for _ in range(5):
        step = env.step({"agent": env.current.obs["agent"].copy()})
    env.close()
    assert step.truncated.all()
    assert [episode.total for episode in env.episodes()] == [5.0, 5.0]


def test_an_empty_mask_is_refused_only_for_active_agents() -> None:
    vector: Any = make_vector(EnvironmentConfig(id="skirmish/3m"), EpisodeSeeds(0, TRAIN), num_envs=2)
    (group,), step = vector.spec.groups, vector.current
    step.mask[group][1, 2] = False
    step.active[group][1, 2] = False
    vector._check_buffer(0, [], None)
    step.active[group][1, 2] = True
    with pytest.raises(EnvironmentFault, match=r"environment 1.* returned an action mask that allows no action"):
        vector._check_buffer(0, [], None)
    vector.close()
