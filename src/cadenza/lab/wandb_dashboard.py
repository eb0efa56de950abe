"""A Weights & Biases workspace that shows what cadenza's runs log: one section for each kind of metric."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cadenza.errors import CadenzaError, MissingExtraError, install
from cadenza.records.folder import RunFolder
from cadenza.records.index import rows
from cadenza.records.live_runs import tail

if find_spec("wandb_workspaces") is None:
    raise MissingExtraError(f"cadenza dashboard needs an extra: {install('wandb')}")

NAME = "cadenza"  # what the workspace is called, in lists and in its address: by this it is found again
X_AXIS = "env_steps"
SECTIONS = {
    "eval": "Evaluation",
    "collect": "Training episodes",
    "train": "Learning",
    "time": "Time",
    "system": "Machine",
}
ALWAYS = ("eval/return_mean", "eval/length_mean", "collect/return_mean", "collect/length_mean", "time/steps_per_second")
LOOKED_AT = 50  # runs, the newest, whose metrics are shown


@dataclass(frozen=True)
class Dashboard:
    """Where it is, and what it shows."""

    entity: str
    project: str
    metrics: tuple[str, ...]
    hidden: tuple[str, ...] = ()  # W&B's ids of runs whose curves are not drawn

    def workspace(self) -> Any:
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as workspaces

        sections = [
            workspaces.Section(
                name=SECTIONS[prefix],
                panels=[panels.LinePlot(title=metric, x=X_AXIS, y=[metric]) for metric in mine],
                is_open=prefix in ("eval", "collect", "train"),
            )
            for prefix, mine in sectioned(self.metrics)
        ]
        made = workspaces.Workspace(
            name=NAME,
            entity=self.entity,
            project=self.project,
            sections=sections,
            settings=workspaces.WorkspaceSettings(x_axis=X_AXIS),
            runset_settings=workspaces.RunsetSettings(
                run_settings={run: workspaces.RunSettings(disabled=True) for run in self.hidden}
            ),
        )
        made._internal_name = f"nw-{NAME}-v"  # without one of its own, every save would make another
        return made

    def spec(self) -> dict[str, Any]:
        """What is sent."""
        text = self.workspace()._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
        said: dict[str, Any] = json.loads(text)
        return said


def sectioned(metrics: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    known = sorted(metrics)
    for prefix in SECTIONS:
        if mine := [metric for metric in known if metric.startswith(f"{prefix}/")]:
            yield prefix, mine


def metrics_of(root: Path) -> tuple[str, ...]:
    """Those that the newest runs here have, and those that every run has."""
    found = set(ALWAYS)
    for run in rows(root, {}, None, LOOKED_AT):
        for row in tail(RunFolder(root / run["run"]).metrics):
            found |= {key for key, value in row.items() if isinstance(value, int | float)}
    return tuple(sorted(key for key in found if key.partition("/")[0] in SECTIONS and "/" in key))


def set_up(dashboard: Dashboard, overwrite: bool, latest_alone: bool) -> tuple[str, str]:
    """(what was done: made, kept or replaced; the address)."""
    from wandb.errors import Error

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # W&B tells of its own
            there = existing(dashboard)
            if latest_alone and (overwrite or there is None):
                dashboard = replace(dashboard, hidden=all_but_the_latest(dashboard.entity, dashboard.project))
            workspace = dashboard.workspace()
            workspace._internal_id = there or ""
            if there is None or overwrite:
                workspace.save()
            return "made" if there is None else "replaced" if overwrite else "kept", str(workspace.url)
    except (Error, OSError) as problem:
        raise CadenzaError(f"W&B: {' '.join(str(problem).split())}") from problem


def existing(dashboard: Dashboard) -> str | None:
    """W&B's id of the workspace, if there is one."""
    from wandb_workspaces.workspaces.internal import get_view_dict

    try:
        found: str = get_view_dict(dashboard.entity, dashboard.project, NAME)["id"]
    except ValueError as problem:
        if str(problem).startswith("Workspace"):  # the project is there, and the workspace is not
            return None
        raise CadenzaError(f"W&B: {problem}") from problem
    return found


def all_but_the_latest(entity: str, project: str) -> tuple[str, ...]:
    import wandb

    newest_first = [run.id for run in wandb.Api().runs(f"{entity}/{project}", order="-created_at")]
    return tuple(newest_first[1:])
