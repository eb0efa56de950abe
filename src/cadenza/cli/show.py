"""`cadenza show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.cli.output import Json, Run, RunsDir, print_json, print_table, say

if TYPE_CHECKING:
    from cadenza.records.folder import RunFolder

CURVE = 30  # values in the curve of a metric


def show(run: Run, runs_dir: RunsDir = None, json: Json = False) -> None:
    """Show one run: status, settings, checkpoints, metrics, alerts.

    Example: cadenza show @best:CartPole-v1:ppo
    """
    from cadenza.lab.checkpoint_list import listed
    from cadenza.records import alert_log, metrics
    from cadenza.records.folder import find, runs_root

    folder = find(runs_root(runs_dir), run)
    last, curves = metrics.recent(folder.metrics, CURVE)
    facts, alerts = describe(folder), alert_log.read(folder.alerts)
    if json:
        latest = {"metrics": last, "alerts": alerts}
        print_json(facts | {"checkpoints": listed(folder)} | latest)
        return
    _print_facts(facts)
    _print_settings(folder.settings())
    _print_checkpoints(listed(folder))
    _print_metrics(curves)
    for alert in alerts:
        say(f"{alert.get('severity')}: {alert_log.line(alert)}")


def describe(folder: RunFolder) -> dict[str, Any]:
    """Return the facts that every command reports of a run."""
    status, manifest = folder.read_status(), folder.read_manifest()
    measured = {key: value for key, value in status.items() if isinstance(value, int | float)}
    return {
        "run": folder.id,
        "dir": str(folder.path.absolute()),
        "status": folder.state(),
        "env_steps": measured.get("env_steps"),
        "eval/return_mean": measured.get("eval/return_mean"),
        "seconds": measured.get("seconds"),
        "best_return": measured.get("best_return"),
        "updates": measured.get("updates"),
        "message": status.get("message", ""),
        "cleaned": status.get("cleaned"),
        "reward_range": status.get("reward_range"),
        "spec": manifest.get("spec"),
        "seed": manifest.get("seed"),
        "name": manifest.get("name", ""),
        "tags": manifest.get("tags", []),
        "created": manifest.get("created"),
        "command": manifest.get("command"),
        "config_hash": manifest.get("config_hash"),
        "git": manifest.get("git"),
        "versions": manifest.get("versions"),
        "facts": manifest.get("facts", {}),
    }


def _print_facts(facts: dict[str, Any]) -> None:
    from cadenza.base.formatting import duration, number

    git = facts["git"] or {}
    lines = {
        "spec": f"{facts['spec']}, seed {facts['seed']}",
        "status": facts["status"] + (f": {facts['message']}" if facts["message"] else ""),
        "return": f"{number(facts['eval/return_mean'])} (best {number(facts['best_return'])})",
        "done": f"{number(facts['env_steps'])} env_steps, {number(facts['updates'])} updates",
        "time": duration(facts["seconds"]),
        "cleaned": f"{facts['cleaned']}: checkpoints, replay, episodes and videos were deleted"
        if facts["cleaned"]
        else "",
        "created": facts["created"] or "-",
        "name": facts["name"],
        "tags": ", ".join(facts["tags"]),
        "command": " ".join(facts["command"] or []),
        "git": git.get("commit", "")[:12] + (" with local changes" if git.get("dirty") else ""),
        "folder": facts["dir"],
        **_of_environment(facts["facts"], facts["reward_range"]),
    }
    say(facts["run"])
    for name, text in lines.items():
        if text:
            say(f"  {name:<8} {text}")
    say()


def _of_environment(facts: dict[str, Any], observed: list[float] | None) -> dict[str, str]:
    """Return lines about the spaces and rewards of the environment, as the run recorded and observed them."""
    from cadenza.base.formatting import number

    threshold, limits = facts.get("threshold"), facts.get("reward_range")
    rewards = [f"from {number(limits[0])} to {number(limits[1])} a step"] if limits else []
    rewards += [f"observed {number(observed[0])} to {number(observed[1])}"] if observed else []
    rewards += [f"solved at a return of {number(threshold)}"] if threshold is not None else []
    return {
        "observes": str(facts.get("observation") or ""),
        "acts": str(facts.get("action") or ""),
        "rewards": ", ".join(rewards),
        "episodes": f"at most {number(limit)} steps" if (limit := facts.get("max_episode_steps")) else "",
    }


def _print_settings(settings: dict[str, Any]) -> None:
    from cadenza.lab.report import highlights

    print_table(("setting", "value"), highlights(settings))


def _print_checkpoints(entries: list[dict[str, Any]]) -> None:
    from cadenza.base.formatting import size

    if entries:
        rows = [(entry["name"], size(entry["bytes"]), ", ".join(entry["pointers"])) for entry in entries]
        print_table(("checkpoint", "size", "named"), rows, right=("size",))


def _print_metrics(curves: dict[str, list[float]]) -> None:
    from cadenza.base.formatting import sparkline
    from cadenza.config.table_rules import rule_for

    lines = [
        (name, rule_for(name).text(values[-1]), sparkline(values, CURVE))
        for name, values in curves.items()
        if "/" in name and values and not name.startswith(("time/", "system/"))
    ]
    if lines:
        print_table(("metric", "last", "curve"), lines, right=("last",))
