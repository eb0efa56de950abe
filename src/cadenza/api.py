"""The Python interface: what the commands do, as functions, and the methods of a run and of a policy."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cadenza.base.formatting import number
from cadenza.errors import ConfigError, UnknownKeyError, brief
from cadenza.lab.data_frames import Rows, metric_rows, run_rows
from cadenza.records.folder import RunFolder, find, runs_root

if TYPE_CHECKING:
    import gymnasium
    from pandas import DataFrame

    from cadenza.config.schema import RunConfig
    from cadenza.engine.build import Assembly
    from cadenza.engine.events import Listener
    from cadenza.engine.launch import Result
    from cadenza.lab.compare import Comparison
    from cadenza.lab.policy import Policy
    from cadenza.lab.sweeps.sweep_file import SweepFile

ARGUMENTS = ("env", "algorithm", "max_timesteps", "runs_dir", "quiet", "on_event", "trust")  # of `train`


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: RunFolder

    def __repr__(self) -> str:
        status = self.result
        value = status.get("eval/return_mean")
        measured = "" if value is None else f", return {number(value)}"
        return f"<Run {self.id}: {self.folder.state()}, {status.get('env_steps') or 0:,} env_steps{measured}>"

    def _repr_html_(self) -> str:
        from cadenza.lab.report import card

        return card(self.folder)

    @classmethod
    @brief
    def find(cls, ref: str | Path, runs_dir: Path | str | None = None) -> Run:
        """Return the run with this id, unique prefix or path, or `@last` or `@best[:SPEC]`."""
        return cls(find(_root(runs_dir), str(ref)))

    @property
    def id(self) -> str:
        """The run's id, the name of its folder."""
        return self.folder.id

    @property
    def result(self) -> dict[str, Any]:
        """The current status: `status`, `env_steps`, `eval/return_mean` and others."""
        return self.folder.read_status()

    @property
    def metrics(self) -> Rows:
        """The rows of metrics.jsonl: a list of dicts, of which `to_pandas()` makes a data frame."""
        from cadenza.records.metrics import read

        return Rows(read(self.folder.metrics))

    @brief
    def resume(
        self,
        max_timesteps: int | None = None,
        max_updates: int | None = None,
        *,
        on_event: Listener | Iterable[Listener] = (),
        quiet: bool = False,
        trust: bool = False,
        accept_changes: bool = False,
    ) -> Run:
        """Continue exactly from the last checkpoint, to the end or to a longer budget.

        Changes made to its files by hand are refused; with `accept_changes` each becomes a warning.
        """
        from cadenza.lab.session import resume

        listeners = _listeners(on_event)
        budget = (max_timesteps, max_updates)
        return _outcome(resume(self.folder, *budget, None, quiet, trust, listeners, accept_changes))

    @brief
    def evaluate(
        self,
        episodes: int = 20,
        seed: int = 0,
        checkpoint: str | int = "last",
        trust: bool = False,
        *,
        timeout_seconds: float | None = None,
        explore: bool = False,
    ) -> dict[str, Any]:
        """Measure the policy; return `return_mean`, `returns` and others, as `cadenza evaluate --json` prints them."""
        from cadenza.lab.playback import evaluate_run

        return evaluate_run(
            self.folder, episodes, seed, str(checkpoint), trust, timeout_seconds=timeout_seconds, explore=explore
        )

    @brief
    def load(self, checkpoint: str | int = "last", trust: bool = False) -> Policy:
        """Load the policy of a checkpoint: `policy(obs)`, and of a team `policy({group: obs})`, return actions."""
        from cadenza.lab.playback import load_policy
        from cadenza.lab.policy import Policy

        player, name = load_policy(self.folder, str(checkpoint), trust)
        return Policy(player, f"{self.id} at {name}")


class Runs(list[Run]):
    """Several runs, as `cadenza.runs` returns them."""

    @property
    def metrics(self) -> Rows:
        """The rows of all runs one after another; each begins with `run`, `environment`, `algorithm` and `seed`."""
        return metric_rows([run.folder for run in self])

    def to_pandas(self) -> DataFrame:
        """Return a data frame with a row for each run: facts, latest metrics, and the settings that differ."""
        return run_rows([run.folder for run in self]).to_pandas()


@brief
def train(
    env: str | Path | Callable[..., Any] | gymnasium.Env[Any, Any],
    algorithm: str | type | None = None,
    *,
    max_timesteps: int | None = None,
    runs_dir: Path | str | None = None,
    quiet: bool = False,
    on_event: Listener | Iterable[Listener] = (),
    trust: bool = False,
    **overrides: Any,
) -> Run:
    """Train to the end and return the run: `train("CartPole-v1:ppo")`, or `train(make_my_env, "ppo")`.

    Arguments:
        env: a spec (`"CartPole-v1:ppo"`) or a YAML file; with `algorithm`, an environment: an id, an import path, a
            function or class that returns a gymnasium.Env, or an Env of which Gymnasium can make copies
        algorithm: a name, an import path, or a workflow class
        max_timesteps: stop after so many env_steps, in place of `training.max_timesteps`
        runs_dir: the folder of runs; by default the variable CADENZA_RUNS, else `runs`
        quiet: show warnings alone, instead of a live table (in a terminal or a notebook) or a line every few seconds
        on_event: a function, or several, that are called with each event (`cadenza.events`)
        trust: accept a file from elsewhere that names code
        overrides: settings by dotted key, `seed=1, **{"algorithm.gamma": 0.98}`; docs/configuration.md lists them, and
            `cadenza config explain algorithm.gamma CartPole-v1:ppo` describes one

    An interrupt (Ctrl-C) saves the run before it is raised; `cadenza.Run.find("@last").resume()` continues it.
    """
    from cadenza.lab.session import train as launch

    listeners = _listeners(on_event)
    if max_timesteps is not None:
        overrides["training.max_timesteps"] = max_timesteps
    config, arguments, notes = _config(env, algorithm, trust, overrides)
    command = ["cadenza.train", *arguments]
    return _outcome(launch(config, _root(runs_dir), command, quiet, listeners, notes))


@brief
def build(
    env: str | Path | Callable[..., Any] | gymnasium.Env[Any, Any],
    algorithm: str | type | None = None,
    *,
    trust: bool = False,
    **overrides: Any,
) -> Assembly:
    """Build the parts of a run, which has no folder and does not begin, from the arguments of `train`.

    They are `config`, `spec` (of the environment), `env`, `collector`, `workflow`, `stores`, `phases`, `evaluator`,
    `streams` and `decisions`. Close them when done: `with contextlib.closing(cadenza.build(…)) as parts`.
    """
    from cadenza.engine.build import assemble
    from cadenza.engine.launch import checked_environment

    config, _, _ = _config(env, algorithm, trust, overrides)
    with checked_environment(config) as first:
        return assemble(config, first.spec, {}, first=first)


@brief
def evaluate(
    run: str | Path | Run,
    episodes: int = 20,
    seed: int = 0,
    checkpoint: str | int = "last",
    runs_dir: Path | str | None = None,
    trust: bool = False,
    *,
    timeout_seconds: float | None = None,
    explore: bool = False,
) -> dict[str, Any]:
    """Measure the policy of a run; return `return_mean`, `returns` and others, as `cadenza evaluate --json` prints.

    `return_mean` is None if no episode was finished within `timeout_seconds`; `explore` draws actions as in training.
    """
    measured = _run(run, runs_dir)
    return measured.evaluate(episodes, seed, checkpoint, trust, timeout_seconds=timeout_seconds, explore=explore)


@brief
def verify(
    run: str | Path | Run, steps: int | None = None, runs_dir: Path | str | None = None, trust: bool = False
) -> dict[str, Any]:
    """Repeat a run, up to `steps` env_steps, and compare bit for bit.

    Return `identical`, `first_difference` and `made_with`, as `cadenza verify --json` prints them.
    """
    from tempfile import TemporaryDirectory

    from cadenza.tools.verify import repeat

    with TemporaryDirectory(prefix="cadenza-verify-") as scratch:
        difference, versions = repeat(_run(run, runs_dir).folder, Path(scratch), steps, trust)
    return {"identical": difference is None, "first_difference": difference, "made_with": versions}


@brief
def compare(
    *runs: str | Path | Run,
    metrics: Sequence[str] = (),
    score: Literal["final", "best"] | int = "final",
    by: Sequence[str] = (),
    runs_dir: Path | str | None = None,
) -> Comparison:
    """Compare runs: names, wildcards, specs (`"CartPole-v1:ppo"`) or `Run` objects.

    They are grouped by their settings, or by those in `by` alone. `score` says which value of a run counts: its last,
    its best, or the one at a number of env_steps. The result's `plain()` is what `cadenza compare --json` prints; its
    `series`, `estimate` and `improvement` are the parts.
    """
    from cadenza.lab.compare import compare as compared
    from cadenza.lab.series import select_runs

    root = _root(runs_dir)
    folders = [
        folder for run in runs for folder in ([run.folder] if isinstance(run, Run) else select_runs(root, [str(run)]))
    ]
    unique = {folder.path.resolve(): folder for folder in folders}
    return compared(unique.values(), metrics, str(score), by)


@brief
def load(
    run: str | Path | Run, checkpoint: str | int = "last", runs_dir: Path | str | None = None, trust: bool = False
) -> Policy:
    """Load the policy of a run: `policy(obs)` returns the action, of a team `policy({group: obs})` those by group.

    A checkpoint is `last`, `best` or a number of env_steps.
    """
    return _run(run, runs_dir).load(checkpoint, trust)


@brief
def runs(
    runs_dir: Path | str | None = None, *, sort: str | None = None, limit: int | None = None, **filters: Any
) -> Runs:
    """Return the runs with these columns, config keys or metrics, newest first: `runs(environment="CartPole-v1")`.

    A value may also be a comparison, a list, or a function: `runs(tag="paper", status=["finished", "crashed"],
    **{"return": ">400", "algorithm.gamma": lambda gamma: gamma < 0.99}, sort="return")`. The list has `metrics`, the
    rows of all these runs, and `to_pandas()`.
    """
    from cadenza.records.index import rows

    root = _root(runs_dir)
    return Runs(Run(RunFolder(root / row["run"])) for row in rows(root, filters, sort, limit))


@brief
def sweep(
    file: str | Path,
    *,
    trials: int | None = None,
    max_timesteps: int | None = None,
    jobs: int | None = None,
    runs_dir: Path | str | None = None,
    quiet: bool = False,
    trust: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """Run or continue the sweep in a file; return what `cadenza sweep --json` prints: `best`, `trials` and others."""
    from cadenza.lab.sweeps.sweep_file import read

    settings = read(Path(file), trust, trials=trials, max_timesteps=max_timesteps, parallel_jobs=jobs)
    return _conduct(settings, overrides, runs_dir, quiet, trust, ["cadenza", "sweep", str(file)])


@brief
def tune(
    spec: str | Path,
    space: str | Path | None = None,
    *,
    trials: int | None = None,
    seeds: Sequence[int] = (),
    max_timesteps: int | None = None,
    objective: str | None = None,
    jobs: int | None = None,
    runs_dir: Path | str | None = None,
    quiet: bool = False,
    trust: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """Search for good settings with Optuna; return what `cadenza tune --json` prints: `best`, `trials` and others.

    Called again, it continues where it was. Without a `space` it searches the algorithm's shipped one.
    """
    from cadenza.lab.sweeps.sweep_file import read_space

    file = read_space(
        None if space is None else Path(space),
        str(spec),
        None,
        trust,
        trials=trials,
        seeds=list(seeds) or None,
        max_timesteps=max_timesteps,
        objective=objective,
        parallel_jobs=jobs,
    )
    return _conduct(file, overrides, runs_dir, quiet, trust, ["cadenza", "tune", str(spec)])


def _root(runs_dir: Path | str | None) -> Path:
    return runs_root(Path(runs_dir) if runs_dir is not None else None)


def _conduct(
    file: SweepFile,
    overrides: Mapping[str, Any],
    runs_dir: Path | str | None,
    quiet: bool,
    trust: bool,
    command: list[str],
) -> dict[str, Any]:
    """Run or continue a sweep on this machine; an interrupt is raised once its runs are saved."""
    from cadenza.config.load import override
    from cadenza.lab.sweeps.conduct import conduct, require_extras
    from cadenza.lab.sweeps.sweep_plan import plan
    from cadenza.lab.sweeps.sweep_report import result

    require_extras(file, "local")
    settings = [override(key, value) for key, value in overrides.items()]
    sweep, stopped = conduct(plan(file, settings, None, trust), _root(runs_dir), [*command, *settings], quiet=quiet)
    if stopped:
        raise KeyboardInterrupt(f"sweep {sweep.plan.id} was stopped by {stopped}; call it again to continue")
    return result(sweep)


def _run(run: str | Path | Run, runs_dir: Path | str | None) -> Run:
    return run if isinstance(run, Run) else Run.find(run, runs_dir)


def _config(
    env: Any, algorithm: str | type | None, trust: bool, overrides: Mapping[str, Any]
) -> tuple[RunConfig, list[str], tuple[str, ...]]:
    """Return the config of these arguments, the spec and settings that make it, and notes about the environment."""
    from cadenza.config.load import load, override
    from cadenza.records.trust import require_trust_of_file

    spec, implied, notes = _spec(str(env) if isinstance(env, Path) else env, algorithm)
    require_trust_of_file(spec, trust)
    settings = [override(key, value) for key, value in (implied | dict(overrides)).items()]
    try:
        return load(spec, settings), [spec, *settings], notes
    except UnknownKeyError as unknown:
        argument = get_close_matches(unknown.key, ARGUMENTS, n=1, cutoff=0.75)
        if not argument or "." in unknown.key:
            raise
        raise ConfigError(f"unknown argument '{unknown.key}'; did you mean '{argument[0]}'?") from None


def _listeners(on_event: Any) -> list[Listener]:
    listeners = list(on_event) if isinstance(on_event, Iterable) and not callable(on_event) else [on_event]
    for listener in listeners:
        if not callable(listener):
            raise ConfigError(f"on_event={listener!r}: must be a function of one event, or several of them")
    return listeners


def _outcome(result: Result) -> Run:
    """Return the run; if a signal interrupted it, let the signal take effect now that the run is saved."""
    if result.signal == "SIGINT":
        folder = result.folder
        raise KeyboardInterrupt(f"run {folder.id} was saved: cadenza.Run.find({folder.handle!r}).resume()")
    if result.signal in ("SIGTERM", "SIGHUP", "SIGUSR1"):
        signal.raise_signal(getattr(signal, result.signal))
    return Run(result.folder)


def _spec(env: Any, algorithm: str | type | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the spec for an environment and an algorithm, the settings that it implies, and notes about it."""
    if isinstance(env, str) and algorithm is None:
        return env, {}, ()
    if algorithm is None:
        raise ConfigError("cadenza.train needs an algorithm with the environment: train(make_env, 'ppo')")
    variant = algorithm if isinstance(algorithm, str) else _name_of_algorithm(algorithm)
    if isinstance(env, str):
        return f"{env}:{variant}", {}, ()
    from cadenza.envs.families.from_python import reference_to

    id, settings, notes = reference_to(env)
    return f"{id}:{variant}", settings, notes


def _name_of_algorithm(workflow: Any) -> str:
    """Return the registered name of a workflow class, or its import path."""
    from cadenza.config import registry

    for entry in registry.ALGORITHMS.values():
        if entry.workflow is workflow:
            return entry.name
    path = registry.import_path(workflow)
    if path is None:
        name = getattr(workflow, "__name__", workflow)
        raise ConfigError(f"algorithm={name!r}: give a name, or a workflow class registered with @register_algorithm")
    return path
