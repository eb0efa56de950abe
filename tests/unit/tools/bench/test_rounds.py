from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadenza.tools.bench import rounds
from cadenza.tools.bench.contestants import CADENZA, PEERS, Installed
from cadenza.tools.bench.rounds import Bench, differences, interleaved, ratios, summarise
from cadenza.tools.bench.tasks import BenchTask, shipped

TASKS = shipped()


def row(contestant: str, speed: float, solved: float | None = None, **more: Any) -> dict[str, Any]:
    figures = {"env_steps_per_s": speed, "steady_env_steps_per_s": 2 * speed, "start_s": 1.0, "peak_mb": 100.0}
    return {"contestant": contestant, "solved_s": solved, **figures, **more}


def test_contestants_alternate_in_each_round() -> None:
    assert list(interleaved("ABC", 2)) == [(0, "A"), (0, "B"), (0, "C"), (1, "A"), (1, "B"), (1, "C")]


def test_summary_has_medians_spreads_and_ratios() -> None:
    measured = [row("cadenza", speed) for speed in (30.0, 90.0, 40.0)] + [row("sb3", speed) for speed in (10.0, 20.0)]
    summary = summarise(measured)
    assert summary["cadenza"]["env_steps_per_s"] == {"median": 40.0, "min": 30.0, "max": 90.0}
    assert summary["sb3"]["steady_env_steps_per_s"] == {"median": 30.0, "min": 20.0, "max": 40.0}
    assert summary["sb3"]["cpu_s"] is None  # nobody measured it
    assert ratios(summary)["sb3"]["env_steps_per_s"] == pytest.approx(40 / 15)
    assert ratios(summary)["sb3"]["solved_s"] is None


def test_unsolved_runs_count_as_never() -> None:
    summary = summarise([row("cadenza", 1.0, 10.0), row("cadenza", 1.0, 12.0), row("cadenza", 1.0)])
    assert summary["cadenza"]["solved_s"] == {"median": 12.0, "min": 10.0, "max": None}
    mostly = summarise([row("sb3", 1.0, 10.0), row("sb3", 1.0), row("sb3", 1.0)])
    assert mostly["sb3"]["solved_s"] == {"median": None, "min": 10.0, "max": None}
    assert ratios(summary | mostly)["sb3"]["solved_s"] is None


def test_failures_are_not_measurements() -> None:
    summary = summarise(
        [row("cadenza", 5.0), {"contestant": "cadenza", "error": "no"}, {"contestant": "sb3", "error": "no"}]
    )
    assert summary["cadenza"]["env_steps_per_s"]["median"] == 5.0
    assert "sb3" not in summary


def test_networks_of_another_size_are_named() -> None:
    measured = [row("cadenza", 1.0, parameters=10), row("sb3", 1.0, parameters=10), row("skrl", 1.0, parameters=12)]
    assert differences(measured) == ["skrl has 12 parameters, cadenza 10"]


def test_rounds_have_their_own_seeds_and_are_stored_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, int]] = []
    out = tmp_path / "result.json"

    def measure(installed: Installed, task: BenchTask) -> dict[str, Any]:
        stored = len(json.loads(out.read_text())["tasks"]["ppo-cartpole"]["measurements"]) if out.exists() else 0
        calls.append((installed.contestant.name, task.seed, stored))
        return row(installed.contestant.name, 1.0)

    monkeypatch.setattr(rounds, "measure", measure)
    tasks = {"ppo-cartpole": TASKS["ppo-cartpole"]}
    bench = Bench(tasks, [Installed(CADENZA, "python"), Installed(PEERS["sb3"], "python")], [PEERS["sbx"]], 2, out)
    bench.run(lambda *progress: None)
    assert calls == [("cadenza", 1, 0), ("sb3", 1, 1), ("cadenza", 2, 2), ("sb3", 2, 3)]
    result = json.loads(out.read_text())
    assert result["missing"] == {"sbx": "pip install sbx-rl"}
    assert result["tasks"]["ppo-cartpole"]["left_out"] == []
    assert result["tasks"]["ppo-cartpole"]["ratios"]["sb3"]["env_steps_per_s"] == 1.0


def test_contestants_without_the_algorithm_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "measure", lambda installed, task: row(installed.contestant.name, 1.0))
    tasks = {name: TASKS[name] for name in ("ppo-cartpole", "sac-halfcheetah")}
    bench = Bench(tasks, [Installed(CADENZA, "python"), Installed(PEERS["sheeprl"], "python")], [], 1, None)
    bench.run(lambda *progress: None)
    ppo, sac = (bench.result()["tasks"][name] for name in tasks)
    assert [one["contestant"] for one in ppo["measurements"]] == ["cadenza", "sheeprl"]
    assert [one["contestant"] for one in sac["measurements"]] == ["cadenza"]
    assert (ppo["left_out"], sac["left_out"]) == ([], ["sheeprl"])
    assert ppo["notes"] == {"sheeprl": list(PEERS["sheeprl"].notes["ppo"])}
    assert sac["notes"] == {}
