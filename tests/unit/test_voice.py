"""Names in the package are nouns, verbs or questions: participles say nothing about the value that they name."""

from __future__ import annotations

import ast
from pathlib import Path

import cadenza

ROOT = Path(cadenza.__file__).parent
PARTICIPLES = frozenset(
    (
        "asked",
        "chosen",
        "done",
        "found",
        "given",
        "held",
        "kept",
        "known",
        "said",
        "seen",
        "shown",
        "taken",
        "told",
        "wanted",
    )
)
ALLOWED = {  # number of such names that a file may still have; may only shrink
    "base/eta.py": 1,
    "base/formatting.py": 1,
    "base/json_text.py": 1,
    "base/parsing.py": 1,
    "base/resource_usage.py": 6,
    "base/system_memory.py": 7,
    "cli/cleanup.py": 2,
    "cli/config.py": 2,
    "cli/dashboard.py": 1,
    "cli/new.py": 1,
    "cli/output.py": 1,
    "cli/play.py": 3,
    "cli/sweep.py": 4,
    "cli/top.py": 2,
    "config/alert_rules.py": 4,
    "config/checks.py": 3,
    "config/convert.py": 6,
    "config/explain.py": 3,
    "config/interpolation.py": 1,
    "config/load.py": 8,
    "config/registry.py": 4,
    "config/schema.py": 3,
    "config/spec.py": 4,
    "data/batches.py": 1,
    "data/candidate_returns.py": 2,
    "data/datasets.py": 8,
    "data/episode_store.py": 2,
    "data/lerobot.py": 11,
    "data/priorities.py": 2,
    "data/ring_steps.py": 3,
    "data/rollout.py": 2,
    "data/sampling.py": 2,
    "engine/clock.py": 1,
    "engine/identity.py": 1,
    "engine/scheduler.py": 7,
    "lab/cleanup.py": 1,
    "lab/inspector/comparison.py": 5,
    "lab/inspector/player.py": 5,
    "lab/inspector/rows.py": 1,
    "lab/inspector/run_catalog.py": 16,
    "lab/inspector/server.py": 11,
    "lab/inspector/setting_sources.py": 6,
    "lab/view/terminal.py": 2,
    "lab/view/window.py": 1,
    "nets/numpy/actor_critic_kernel.py": 1,
    "nets/numpy/sac_kernel.py": 4,
    "ops/surrogate.py": 4,
    "records/alert_log.py": 1,
    "records/episodes.py": 2,
    "records/folder.py": 8,
    "records/hub.py": 4,
    "records/index.py": 4,
    "records/live_runs.py": 5,
    "records/lock.py": 1,
    "records/manifest.py": 2,
    "records/metrics.py": 4,
    "records/query.py": 12,
    "records/run_summary.py": 2,
    "records/shared_index.py": 2,
    "records/trust.py": 3,
    "records/validity.py": 5,
    "tools/bench/bench_picture.py": 2,
    "tools/bench/contestants.py": 1,
    "tools/export.py": 2,
    "tools/plan_measure.py": 1,
    "tools/smoke.py": 1,
    "tools/verify.py": 1,
    "watch/console.py": 8,
    "watch/workflow_contents.py": 1,
    "workflows/diffusion_policy_config.py": 1,
    "workflows/dqn.py": 7,
    "workflows/dqn_config.py": 1,
    "workflows/dreamer_config.py": 1,
    "workflows/evolution.py": 2,
    "workflows/ppo.py": 5,
    "workflows/sac.py": 3,
    "workflows/tdmpc_config.py": 1,
    "workflows/world_models_config.py": 2,
}


def names(node: ast.AST) -> list[str]:
    """Return the names that `node` gives to values, arguments, attributes, functions and classes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case _:
            return []


def test_no_value_argument_function_or_class_is_named_by_a_participle() -> None:
    counts: dict[str, int] = {}
    for path in sorted(ROOT.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        banned = sum(name.strip("_").lower() in PARTICIPLES for node in nodes for name in names(node))
        if banned:
            counts[path.relative_to(ROOT).as_posix()] = banned
    more = {file: count for file, count in counts.items() if count > ALLOWED.get(file, 0)}
    assert not more, f"participles as names, by file: {more}"
    fewer = {file: counts.get(file, 0) for file, count in ALLOWED.items() if count > counts.get(file, 0)}
    assert not fewer, f"lower ALLOWED to {fewer}"
