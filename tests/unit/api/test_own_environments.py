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
from cadenza.envs.seeds import TRAIN, EpisodeSeeds
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
    found: str = run.folder.read_config().environment.id
    return found


def test_a_factory_that_can_be_imported_is_known_by_its_path(tmp_path: Path) -> None:
    run = cadenza.train(toy.Identity, "ppo", runs_dir=tmp_path, **SMALL)
    assert environment_of(run) == "cadenza.envs.toys.toy:Identity"
    command.resume(tmp_path, run.id, "--max-timesteps", 512).succeeded()
    assert run.result["env_steps"] == 512


def test_any_other_factory_works_in_python_and_the_command_line_says_how_to_go_on(tmp_path: Path) -> None:
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


def test_nameless_factories_are_not_mistaken_for_one_another(tmp_path: Path) -> None:
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


def test_an_environment_of_gymnasiums_registry_goes_by_its_id(tmp_path: Path) -> None:
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


def test_a_window_is_not_opened_for_every_environment_that_is_made_of_one(tmp_path: Path) -> None:
    shown = gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1", render_mode="human"))
    id = reference_to(shown).id
    assert registry.ENVIRONMENTS[id]().render_mode is None


class Opaque(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does not tell Gymnasium how it was made."""


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
def test_what_cannot_be_an_environment_is_refused_in_one_line(env: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        cadenza.train(env, "ppo", runs_dir=tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 9)])
def test_a_factory_that_returns_one_object_again_and_again_is_refused(wrap: Any, tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1").unwrapped
    with pytest.raises(ConfigError, match="returned the same environment twice: it must make a new one at every call"):
        cadenza.train(lambda: wrap(env), "ppo", runs_dir=tmp_path)


class Reluctant(toy.Identity):
    def close(self) -> None:
        raise RuntimeError("not yet")


def test_an_environment_that_fails_to_close_does_not_undo_a_finished_run(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="raised RuntimeError when it was closed: not yet"):
        run = cadenza.train(Reluctant, "ppo", runs_dir=tmp_path, **SMALL)
    assert run.result["status"] == "finished"


def anything(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **kwargs)


def not_everything(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return toy.Identity(**kwargs)


def test_a_factory_that_takes_anything_is_asked_for_pictures() -> None:
    env = make(EnvironmentConfig(id=reference_to(anything).id), render=True)
    env.reset(0)
    picture = env.render()
    assert picture is not None
    assert picture.shape == (400, 600, 3)
    make(EnvironmentConfig(id=reference_to(not_everything).id), render=True).reset(0)  # without, then


def test_the_algorithm_may_not_be_forgotten() -> None:
    with pytest.raises(ConfigError, match="needs an algorithm"):
        cadenza.train(toy.Identity)


def test_it_works_outside_the_main_thread(tmp_path: Path) -> None:
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
def test_an_interrupt_saves_the_run_and_comes_back_as_one(how: str, tmp_path: Path) -> None:
    code = CELL if how == "python -c" else f"exec(compile({CELL!r}, '<cell 1>', 'exec'), globals())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert "was saved" in lines[0]
    assert lines[1:] == ["interrupted SIGINT python/make", "finished 512"]


def test_a_signal_that_ends_programs_ends_them_once_the_run_is_saved(tmp_path: Path) -> None:
    code = CELL.replace("SIGINT", "SIGTERM")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -15
    assert done.stdout == ""
    assert cadenza.Run.find("@last", tmp_path / "runs").result["status"] == "interrupted"
