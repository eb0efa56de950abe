"""`cadenza.train` with environments that are Python objects."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import cadenza
from cadenza.config import registry
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.catalog import make
from cadenza.envs.families.from_python import reference_to
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.toys import toy
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, NotFoundError
from cadenza.tools.verify import compare
from harness import command

SMALL: dict[str, Any] = {
    "algorithm.n_steps": 16,
    "algorithm.n_epochs": 1,
    "algorithm.batch_size": 1,
    "environment.max_episode_steps": 16,
    "evaluation.episodes": 2,
    "evaluation.every_steps": 0,
    "training.max_timesteps": 256,
}


pytestmark = pytest.mark.usefixtures("forgotten")


def environment_of(run: cadenza.Run) -> str:
    id: str = run.folder.read_config().environment.id
    return id


def test_an_importable_factory_is_named_by_its_import_path(tmp_path: Path) -> None:
    run = cadenza.train(toy.Identity, "ppo", runs_dir=tmp_path, **SMALL)
    assert environment_of(run) == "cadenza.envs.toys.toy:Identity"
    command.resume(tmp_path, run.id, "--max-timesteps", 512).succeeded()
    assert run.result["env_steps"] == 512


def test_a_lambda_works_in_python_and_the_command_line_names_the_way_to_resume(tmp_path: Path) -> None:
    def three() -> toy.Identity:
        return toy.Identity(3)

    run = cadenza.train(three, "ppo", runs_dir=tmp_path, **SMALL)
    id = environment_of(run)
    assert id.startswith("python/three#")
    assert run.resume(512).result["env_steps"] == 512
    assert run.evaluate(episodes=3)["episodes"] == 3
    assert run.load()(2) in (0, 1, 2)
    registry.ENVIRONMENTS.pop(id)  # another process
    for name in ("resume", "evaluate"):
        refused = command.cadenza(name, run.id, "--runs-dir", tmp_path)
        refused.refused(2, f"'{id}' was passed from Python", f"cadenza.register_environment('{id}')")
    with pytest.raises(NotFoundError, match="was passed from Python"):
        run.resume(768)
    cadenza.register_environment(id)(three)
    assert run.resume(768).result["env_steps"] == 768


def test_unnamed_factories_have_different_names(tmp_path: Path) -> None:
    small, large = (
        cadenza.train(factory, "ppo", runs_dir=tmp_path, **SMALL)
        for factory in (lambda: toy.Identity(2), partial(toy.Identity, n=5))
    )
    assert environment_of(small) != environment_of(large)
    actions: list[Any] = [run.load().spec.groups["agent"].action for run in (small, large)]
    assert [space.n for space in actions] == [2, 5]


def test_a_registered_environment_is_found_by_its_id_in_workers_too(tmp_path: Path) -> None:
    cadenza.register_environment("mine/identity")(toy.Identity)
    way: dict[str, Any] = {"environment.vectorize": "workers", "environment.workers": 1}
    run = cadenza.train("mine/identity:ppo", runs_dir=tmp_path, **SMALL, **way)
    made = make_vector(run.folder.read_config().environment, EpisodeSeeds(0, TRAIN))
    made.close()
    assert made.spec.id == "mine/identity"
    same = cadenza.train(toy.Identity, "ppo", runs_dir=tmp_path, **SMALL)
    assert environment_of(run) == environment_of(same) == "mine/identity"
    assert run.metrics[-1]["digest/weights"] == same.metrics[-1]["digest/weights"]
    cadenza.register_environment("mine/nameless")(lambda: toy.Identity(2))
    with pytest.raises(ConfigError, match=r"vectorize=workers: environment 'mine/nameless' cannot be imported"):
        cadenza.train("mine/nameless:ppo", runs_dir=tmp_path, **SMALL, **way)


def test_a_registered_gymnasium_environment_is_named_by_its_id(tmp_path: Path) -> None:
    few: dict[str, Any] = {key: value for key, value in SMALL.items() if key != "environment.max_episode_steps"}
    lake = gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=20, render_mode="rgb_array")
    run = cadenza.train(lake, "ppo", runs_dir=tmp_path, **few)
    assert "FrozenLake-v1 is made again as Gymnasium registered it" in run.folder.log.read_text()
    config = run.folder.read_config().environment
    assert (config.id, config.kwargs["is_slippery"], config.max_episode_steps) == ("FrozenLake-v1", False, 20)
    assert "render_mode" not in config.kwargs
    aware = gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1"))
    run = cadenza.train(aware, "ppo", runs_dir=tmp_path, **SMALL)
    assert environment_of(run).startswith("python/CartPole-v1#")
    assert run.load().spec.groups["agent"].observation.shape == (5,)
    env: Any = run.load().make_env(render=True)
    env.reset(seed=0)
    assert env.render().shape == (400, 600, 3)
    env.close()


def test_copies_of_a_human_rendered_environment_open_no_window(tmp_path: Path) -> None:
    wrapped = gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1", render_mode="human"))
    id = reference_to(wrapped).id
    assert registry.ENVIRONMENTS[id]().render_mode is None


class Opaque(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper without a spec, which Gymnasium cannot make again."""


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (toy.Identity(), "<Identity instance> is one environment, and more of them are needed: give a function"),
        (Opaque(gymnasium.make("CartPole-v1")), "wrapper that Gymnasium cannot make again: give a function"),
        (gymnasium.make_vec("CartPole-v1", 2), "is several environments at once"),
        (3, "3 is no environment"),
        (lambda: 3, "must return a gymnasium.Env, not int"),
    ],
)
def test_an_object_that_is_no_environment_is_refused_in_one_line(env: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        cadenza.train(env, "ppo", runs_dir=tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 9)])
def test_a_factory_that_returns_the_same_object_twice_is_refused(wrap: Any, tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1").unwrapped
    with pytest.raises(ConfigError, match="returned the same environment twice: it must make a new one at every call"):
        cadenza.train(lambda: wrap(env), "ppo", runs_dir=tmp_path)


class Reluctant(toy.Identity):
    def close(self) -> None:
        raise RuntimeError("not yet")


def test_an_error_in_close_does_not_fail_a_finished_run(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="raised RuntimeError when it was closed: not yet"):
        run = cadenza.train(Reluctant, "ppo", runs_dir=tmp_path, **SMALL)
    assert run.result["status"] == "finished"


def anything(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **kwargs)


def not_everything(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return toy.Identity(**kwargs)


def test_a_factory_with_keyword_arguments_gets_the_render_mode() -> None:
    env = make(EnvironmentConfig(id=reference_to(anything).id), render=True)
    env.reset(0)
    picture = env.render()
    assert picture is not None
    assert picture.shape == (400, 600, 3)
    make(EnvironmentConfig(id=reference_to(not_everything).id), render=True).reset(0)  # without, then


def test_a_missing_algorithm_is_an_error() -> None:
    with pytest.raises(ConfigError, match="needs an algorithm"):
        cadenza.train(toy.Identity)


def test_training_works_outside_the_main_thread(tmp_path: Path) -> None:
    runs: list[cadenza.Run] = []
    train = partial(cadenza.train, lambda: toy.Identity(2), "ppo", runs_dir=tmp_path, **SMALL)
    thread = threading.Thread(target=lambda: runs.append(train()))
    thread.start()
    thread.join()
    assert runs[0].result["status"] == "finished"
    assert compare(runs[0].folder, train().folder) is None


CELL = """
import cadenza, os, signal
from cadenza.envs.toys.toy import Identity

def make():
    return Identity(2)

class Interrupt:
    def __call__(self, event):
        if isinstance(event, cadenza.events.Row):
            os.kill(os.getpid(), signal.SIGINT)

small = {"algorithm.n_steps": 16, "evaluation.episodes": 2, "logging.every_steps": 128}
small |= {"training.max_timesteps": 512, "environment.max_episode_steps": 16}
try:
    cadenza.train(make, "ppo", on_event=Interrupt(), **small)
except KeyboardInterrupt as stopped:
    print(stopped)
run = cadenza.runs()[0]
print(run.result["status"], run.result["message"], run.folder.read_config().environment.id)
print(run.resume().result["status"], run.result["env_steps"])
"""


@pytest.mark.parametrize("how", ["python -c", "exec, as notebooks do"])
def test_an_interrupt_saves_the_run_and_is_raised_again(how: str, tmp_path: Path) -> None:
    code = CELL if how == "python -c" else f"exec(compile({CELL!r}, '<cell 1>', 'exec'), globals())"
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    lines = process.stdout.splitlines()
    assert len(lines) == 3, process.stderr
    assert "was saved" in lines[0]
    assert lines[1:] == ["interrupted SIGINT python/make", "finished 512"]


def test_sigterm_ends_the_program_after_the_run_is_saved(tmp_path: Path) -> None:
    code = CELL.replace("SIGINT", "SIGTERM")
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == -15
    assert process.stdout == ""
    assert cadenza.Run.find("@last", tmp_path / "runs").result["status"] == "interrupted"
