from __future__ import annotations

import json
import re
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cadenza.base.json_text import dumps
from cadenza.config.convert import build, to_dict
from cadenza.config.schedules import Schedule
from cadenza.errors import ConfigError, NotFoundError
from cadenza.lab import plots, series
from cadenza.lab.compare import align, compare
from cadenza.lab.comparison_page import content
from cadenza.lab.comparison_tables import settings_table
from cadenza.lab.series import select_runs
from cadenza.lab.statistics import interval
from cadenza.records import metrics
from cadenza.records.folder import RunFolder
from harness.command import cadenza


@pytest.fixture
def root(tmp_path: Path, make_curve: Callable[..., RunFolder]) -> Path:
    """Make runs of two configs in CartPole, with three seeds each."""
    for seed in range(3):
        make_curve([10.0, 50.0 + seed, 100.0 + 10 * seed], seed=seed)
        make_curve([5.0, 20.0 + seed, 40.0 + 10 * seed], seed=seed, gamma=0.9, pace=2.0)
    return tmp_path / "runs"


def everyone(root: Path) -> list[RunFolder]:
    return select_runs(root, [], ["seed>=0"])


def test_seeds_of_one_config_are_put_together_and_named_by_what_differs(root: Path) -> None:
    found = compare(everyone(root))
    assert sorted((one.label, [member.seed for member in one.members]) for one in found.series) == [
        ("gamma=0.9", [0, 1, 2]),
        ("gamma=0.99", [0, 1, 2]),
    ]
    assert {key: sorted(values.items()) for key, values in found.differences().items()} == {
        "algorithm.gamma": [("gamma=0.9", 0.9), ("gamma=0.99", 0.99)]
    }
    assert found.notes == []


def test_scores_have_intervals_and_probabilities_of_improvement(root: Path) -> None:
    found = compare(everyone(root))
    high = next(one for one in found.series if one.label == "gamma=0.99")
    low = next(one for one in found.series if one.label == "gamma=0.9")
    assert found.scores(high, "eval/return_mean").tolist() == [100, 110, 120]
    estimate = found.estimate(high, "eval/return_mean")
    assert (estimate.value, (estimate.low, estimate.high)) == (110, interval([np.array([100.0, 110.0, 120.0])]))
    assert found.improvement(high.label, low.label, "eval/return_mean").value == 1
    assert found.improvement(low.label, high.label, "eval/return_mean").value == 0
    assert found.estimate(high, "eval/return_mean") is estimate, "worked out once"


def test_scores_at_a_step_or_at_the_best_row(root: Path, make_curve: Callable[..., RunFolder]) -> None:
    make_curve([1.0, 9.0, 3.0], env="Acrobot-v1")
    folders = select_runs(root, ["Acrobot-v1:ppo"])
    assert [compare(folders, score=score).estimate(compare(folders).series[0], "eval/return_mean").value for score in
            ("final", "best", "200", "250")] == [3, 9, 9, 6]  # fmt: skip
    found = compare(folders, score="301")
    with pytest.raises(ConfigError, match="--at 301"):
        found.estimate(found.series[0], "eval/return_mean")


def test_curves_are_aligned_over_their_common_range() -> None:
    short, long = (
        (np.array([0.0, 10.0]), np.array([0.0, 10.0])),
        (np.array([0.0, 5.0, 20.0]), np.array([4.0, 4.0, 4.0])),
    )
    found = align([short, long])
    assert found.x.tolist() == [0, 5, 10]
    assert found.middle.tolist() == [2, 4.5, 7]
    assert (found.low <= found.middle).all()
    assert (found.middle <= found.high).all()
    apart = align([short, (np.array([30.0]), np.array([1.0]))])
    assert len(apart.x) == 0
    assert len(apart.seeds) == 2


def test_curves_can_be_drawn_over_wall_time(root: Path) -> None:
    found = compare(everyone(root))
    for one in found.series:
        curve = found.curve(one, "eval/return_mean", "time")
        assert curve.x.tolist() == ([1, 2, 3] if one.label == "gamma=0.99" else [2, 4, 6])


def test_several_environments_are_scaled_and_resampled_separately(
    root: Path, make_curve: Callable[..., RunFolder]
) -> None:
    for seed in range(3):
        make_curve([-500.0, -100.0 - seed], env="Acrobot-v1", seed=seed)
        make_curve([-500.0, -90.0 - seed], env="Acrobot-v1", seed=seed, gamma=0.9)
    found = compare(everyone(root))
    assert found.environments == ["CartPole-v1", "Acrobot-v1"]
    assert found.has_overall
    better, worse = found.scaled("gamma=0.9", "eval/return_mean"), found.scaled("gamma=0.99", "eval/return_mean")
    assert [task.max() for task in better] == [20 / 80, 1]
    assert [task.min() for task in worse] == [60 / 80, 0]
    assert found.improvement("gamma=0.9", "gamma=0.99", "eval/return_mean").value == 0.5, "wins one of two"


def test_a_repeated_seed_counts_once_and_gaps_are_noted(
    root: Path, make_curve: Callable[..., RunFolder], make_run: Callable[..., RunFolder]
) -> None:
    again = make_curve([1.0, 2.0, 77.0], seed=2)
    crashed = make_run(seed=9, env_steps=50)
    short = make_curve([1.0], seed=8)
    found = compare(everyone(root))
    high = next(one for one in found.series if one.label == "gamma=0.99")
    assert found.scores(high, "eval/return_mean").tolist() == [100, 110, 77, 1]
    told = "\n".join(found.notes)
    assert f"seed 2 is there more than once, {again.id} counts" in told
    assert f"{crashed.id} is crashed" in told
    assert f"{crashed.id} has no eval/return_mean" in told
    assert "runs of unequal length in CartPole-v1: 0 to 300" in told
    assert short.id not in told


def test_runs_without_the_metric_are_refused(root: Path, make_run: Callable[..., RunFolder]) -> None:
    folder = make_run("Acrobot-v1")
    cadenza("compare", folder.id, "--runs-dir", root).refused(2, "none of these runs has a row of metrics yet")


def test_by_groups_runs_that_differ_in_other_settings(root: Path) -> None:
    by_limit = compare(everyone(root), by=["training.max_timesteps"])
    assert [one.label for one in by_limit.series] == ["max_timesteps=100000"]
    with pytest.raises(ConfigError, match=r"--by algorithm\.gama: unknown config key; did you mean 'algorithm\.gamma'"):
        compare(everyone(root), by=["algorithm.gama"])


def test_by_takes_every_run_and_names_no_setting_that_differs_inside(
    tmp_path: Path, make_curve: Callable[..., RunFolder]
) -> None:
    for env, first, second in (("CartPole-v1", 0.9, 0.99), ("Acrobot-v1", 0.99, 0.9)):
        for seed, gamma in enumerate((first, second)):
            make_curve([gamma], env=env, gamma=gamma, seed=seed)
        make_curve([1.0], env=env, gamma=first, seed=1)
    found = compare(everyone(tmp_path / "runs"), by=["training.max_timesteps"])
    assert [sorted(found.values(one, "eval/return_mean")) for one in found.series] == [[0.9, 0.99, 1.0]] * 2
    assert found.notes == []
    assert found.differences() == {}


def test_of_repeated_runs_a_finished_one_counts_and_else_the_longest(
    root: Path, make_curve: Callable[..., RunFolder], make_run: Callable[..., RunFolder]
) -> None:
    newer = make_run(seed=1)
    half, whole = make_curve([1.0], seed=7), make_curve([1.0, 2.0], seed=7)
    late = make_curve([3.0], seed=7)
    for folder in (half, whole, late):
        folder.update_status(status="interrupted")
    found = compare(everyone(root))
    high = next(one for one in found.series if one.label == "gamma=0.99")
    assert found.values(high, "eval/return_mean") == [100, 110, 120, 2]
    assert newer.id not in "".join(found.notes)


def test_only_runs_with_a_score_are_counted(root: Path, make_run: Callable[..., RunFolder]) -> None:
    crashed = make_run(seed=1, gamma=0.5)
    make_run(seed=9)
    told = json.loads(cadenza("compare", "CartPole*", "--runs-dir", root, "--json").succeeded().out)
    high = next(one for one in told["series"] if one["label"] == "gamma=0.99")
    assert high["scores"]["eval/return_mean"]["values"] == [100, 110, 120, None], "beside their runs"
    assert len(high["runs"]) == 4
    lines = cadenza("compare", "CartPole*", "--runs-dir", root, "--plot", root / "c.svg").succeeded().out.splitlines()
    counts = {line.split()[0]: line.split()[1] for line in lines if line.startswith("gamma")}
    assert counts == {"gamma=0.99": "3", "gamma=0.9": "3", "gamma=0.5": "0"}, crashed.id
    assert "gamma=0.99 (3 seeds)" in (root / "c.svg").read_text()
    latex = cadenza("export", "CartPole*", "--runs-dir", root, "--format", "latex").succeeded().out
    assert "over 3 seeds" in latex


def test_environments_are_paired_by_name(
    tmp_path: Path, make_curve: Callable[..., RunFolder], make_run: Callable[..., RunFolder]
) -> None:
    for env, gamma in (("CartPole-v1", 0.9), ("Acrobot-v1", 0.99)):
        make_curve([1.0], env=env, gamma=gamma)
    for env, gamma in (("CartPole-v1", 0.99), ("Acrobot-v1", 0.9)):
        make_run(env, gamma=gamma, status="finished")
    found = compare(everyone(tmp_path / "runs"))
    assert found.has_overall
    assert found.improvement("gamma=0.9", "gamma=0.99", "eval/return_mean") is None, "no environment has both"


def head(environment: str = "A", **settings: Any) -> list[Any]:
    """A series of one run that has only these settings."""
    plain = {key.replace("__", "."): value for key, value in settings.items()}
    return [
        SimpleNamespace(environment=environment, variant="ppo", settings=plain, has=plain.__contains__, value=plain.get)
    ]


def test_labels_leave_settings_out_that_tell_nothing_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "LABEL_KEYS", 1)
    groups = [head(a=0, b=1, c=n) for n in range(3)]
    assert series._labels(groups, ["a", "b", "c"]) == ["c=0 …", "c=1 …", "c=2 …"]


def test_labels_mean_the_same_in_every_environment() -> None:
    """Of like-named ones the second must be the same everywhere, whatever came first."""
    groups = [head(env, a=0, b=b) for env, order in (("A", (1, 2)), ("B", (2, 1))) for b in order]
    assert series._unique(["a=0"] * 4, [group[0] for group in groups], ["a", "b"]) == [
        "a=0", "a=0 (2)", "a=0 (2)", "a=0",
    ]  # fmt: skip


def test_a_filter_narrows_the_runs_that_are_named(root: Path, make_curve: Callable[..., RunFolder]) -> None:
    other = make_curve([1.0], env="Acrobot-v1")
    assert [folder.id for folder in select_runs(root, ["*"], ["environment=Acrobot-v1"])] == [other.id]
    assert len(select_runs(root, ["CartPole*"], ["algorithm.gamma=0.9"])) == 3
    with pytest.raises(NotFoundError, match=r"no run of Acrobot\* in .* matches --filter algorithm.gamma=0.9"):
        select_runs(root, ["Acrobot*"], ["algorithm.gamma=0.9"])


def test_a_metric_can_be_called_by_its_last_word(root: Path) -> None:
    assert compare(everyone(root), ["return"]).metrics == ("eval/return_mean",)


def test_trials_of_a_sweep_are_named_by_the_settings_that_differ_and_a_schedule_is_one() -> None:
    tags = ("sweep:lr-1234", "trial:1")
    groups = [head(name=f"lr {n}", tags=tags, lr=value) for n, value in enumerate(("lin_0.001", 0.001))]
    assert series._labels(groups, ["lr"]) == ["lr=lin_0.001", "lr=0.001"]


def test_runs_with_other_rules_or_other_digits_of_a_schedule_are_not_seeds_of_one_config(
    tmp_path: Path, make_curve: Callable[..., RunFolder]
) -> None:
    rates = ("my_rates:cosine", "my_rates:steps", *({"start_value": value} for value in (0.00012341, 0.00012342)))
    for rate in rates:
        config = make_curve([1.0]).config.path
        stored = to_dict(build(Schedule, rate))
        config.write_text(config.read_text().replace("learning_rate: 0.0003", f"learning_rate: {json.dumps(stored)}"))
    labels = [one.label.rpartition("=")[2] for one in compare(everyone(tmp_path / "runs")).series]
    assert sorted(labels) == ["lin_0.00012341", "lin_0.00012342", "my_rates:cosine", "my_rates:steps"]


def test_more_than_eight_series_differ_in_colour_or_stroke(
    tmp_path: Path, make_curve: Callable[..., RunFolder]
) -> None:
    for n in range(10):
        make_curve([float(n)], gamma=0.9 + n / 1000)
    found = compare(everyone(tmp_path / "runs"))
    assert len({str(plots.look(found, label)) for label in found.labels}) == 10
    single_points = {(plots.look(found, label)["color"], plots.marker_of(found, label, 1)) for label in found.labels}
    assert len(single_points) == 10
    for kind in ("dash", "marker"):
        assert len({(one["colour"], one[kind]) for one in content(found, "env_steps")["labels"]}) == 10
    head, rows = settings_table(found)
    assert head == ["runs", "algorithm.gamma"], "more series than settings: a row each"
    assert len(rows) == 10


def test_wall_time_of_different_machines_is_noted(root: Path) -> None:
    folders = everyone(root)
    assert compare(folders).notes_along("time") == []
    folders[0].write_decisions({"device": "cuda:0"})
    assert compare(folders).notes_along("env_steps") == []
    (note,) = compare(folders).notes_along("time")
    assert note == "wall time is not of one kind, the runs differ in device"
    assert note in cadenza("compare", "CartPole*", "--runs-dir", root, "--x", "time").succeeded().err


def test_columns_without_numbers_are_no_metrics(root: Path) -> None:
    for folder in everyone(root):
        row = {"env_steps": 400, "phase": "main", "digest/weights": "1f3a", "digest": "x"}
        with folder.metrics.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
    for name in ("phase", "digest/weights"):
        cadenza("compare", "CartPole*", "--runs-dir", root, "-m", name).refused(2, f"unknown metric '{name}'")


def test_names_are_escaped_in_pictures_and_pages(root: Path, make_curve: Callable[..., RunFolder]) -> None:
    name = "cost $x_{ and $6 <!--<script>"
    folder = make_curve([1.0, 2.0], seed=5, name=name)
    for kind in ("png", "svg", "html"):
        cadenza("compare", folder.id, "--runs-dir", root, "--plot", root / f"c.{kind}").succeeded()
    other = make_curve([1.0, 2.0], seed=6, name="$\\nonsense$")
    cadenza("report", folder.id, other.id, "--runs-dir", root, "--out", root / "both").succeeded()
    assert "cost $x_{ and $6" in (root / "c.svg").read_text()
    page = (root / "c.html").read_text()
    assert "<!--" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["series"][0]["label"] == name


def test_a_run_named_twice_is_one_run(
    root: Path, make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = everyone(root)[0]
    monkeypatch.chdir(root.parent)
    assert len(select_runs(Path("runs"), [f"runs/{folder.id}", folder.id], [f"run={folder.id}"])) == 1
    recurrent = make_run(experiment="CartPole-v1/ppo_lstm")
    assert [found.id for found in select_runs(root, ["CartPole-v1:ppo_lstm"])] == [recurrent.id]


def test_wildcards_specs_and_aliases_select_runs(root: Path) -> None:
    ids = {folder.id for folder in everyone(root)}
    assert {folder.id for folder in select_runs(root, ["CartPole-v1-ppo-*"])} == ids
    assert {folder.id for folder in select_runs(root, ["CartPole-v1:ppo", "@last"])} == ids
    assert len(select_runs(root, ["@last", "@last"])) == 1
    for wrong, told in (
        (["Cart*x"], "matches 'Cart\\*x'"),
        (["CartPole-v1:pppo"], "did you mean 'CartPole-v1:ppo'"),
        ([], "name the runs"),
    ):
        with pytest.raises(NotFoundError, match=told):
            select_runs(root, wrong)


def test_the_command_prints_tables_and_json(root: Path) -> None:
    table = cadenza(
        "compare", "--filter", "seed>=0", "--runs-dir", root, "-m", "val/return_mean,train/loss"
    ).succeeded()
    for part in ("gamma=0.99", "P(above", "[100, 120]", "algorithm.gamma", "train/loss"):
        assert part in table.out
    found = json.loads(cadenza("compare", "CartPole*", "--runs-dir", root, "--x", "time", "--json").succeeded().out)
    high = next(one for one in found["series"] if one["label"] == "gamma=0.99")
    assert high["scores"]["eval/return_mean"]["values"] == [100, 110, 120]
    assert high["curves"]["eval/return_mean"]["x"] == [1, 2, 3]


def test_invalid_arguments_of_compare_are_refused(root: Path) -> None:
    for arguments, words in (
        (["--x", "tme"], "did you mean 'time'"),
        (["--plot", "x.gif"], "must end in .png"),
        (["-m", "eval/retrun_mean"], "did you mean 'eval/return_mean'"),
        (["--at", "5", "--best"], "exclude each other"),
        (["--plot", "nodir/x.png"], "--plot nodir/x.png: there is no folder nodir"),
    ):
        cadenza("compare", "CartPole*", "--runs-dir", root, *arguments).refused(2, words)


def test_the_picture_has_curves_bands_and_names(root: Path) -> None:
    for name in ("c.png", "c.svg"):
        cadenza("compare", "CartPole*", "--runs-dir", root, "--plot", root / name).succeeded()
    assert (root / "c.png").read_bytes().startswith(b"\x89PNG")
    svg = (root / "c.svg").read_text()
    xml.etree.ElementTree.fromstring(svg)
    for text in ("env_steps", "return of an episode", "gamma=0.99 (3 seeds)", "Performance profile", "runs above t"):
        assert text in re.sub(r"<!--|-->", "", svg)
    cadenza("compare", "CartPole*", "--runs-dir", root, "--plot", root / "again.svg").succeeded()
    assert (root / "again.svg").read_text() == svg


def test_the_page_is_a_single_file(root: Path) -> None:
    page = root / "c.html"
    cadenza("compare", "CartPole*", "--runs-dir", root, "--plot", page, "-m", "eval/return_mean,train/loss").succeeded()
    text = page.read_text()
    addresses = set(re.findall(r"https?://[^\"'\s<]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG and nothing to fetch"
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["metrics"] == ["eval/return_mean", "train/loss"]
    assert set(data["axes"]) == {"env_steps", "time", "updates"}
    curve = data["series"][0]["curves"]["eval/return_mean"]["time"]
    assert len(curve["x"]) == len(curve["y"]) == len(curve["low"])
    assert len(curve["seeds"]) == 3


@pytest.mark.parametrize("name", ["", "return", "train/loss"])
def test_long_runs_compare_as_short_ones(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = everyone(root)
    whole = dumps(compare(folders, [name] if name else []).plain("time"))
    monkeypatch.setattr(metrics, "LONG", 0)
    assert dumps(compare(folders, [name] if name else []).plain("time")) == whole
    with pytest.raises(NotFoundError, match="did you mean 'train/loss'"):
        compare(folders, ["train/los"])
