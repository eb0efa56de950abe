"""A Weights & Biases workspace for cadenza's runs, with one section for each kind of metric."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
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

NAME = "cadenza"  # of the workspace, in lists and in its address; later calls find it by this name
X_AXIS = "env_steps"
SECTIONS = {
    "eval": "Evaluation",
    "collect": "Training episodes",
    "train": "Learning",
    "time": "Time",
    "system": "Machine",
}
ALWAYS = ("eval/return_mean", "eval/length_mean", "collect/return_mean", "collect/length_mean", "time/steps_per_second")
NEWEST = 50  # number of runs whose metrics are shown


@dataclass(frozen=True)
class Dashboard:
    """A workspace: its place at W&B, and the metrics it shows."""

    entity: str
    project: str
    metrics: tuple[str, ...]
    hidden: tuple[str, ...] = ()  # W&B's ids of runs whose curves are not drawn

    def workspace(self) -> Any:
        """Return the workspace as an object of `wandb_workspaces`, which can be saved."""
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as workspaces

        sections = [
            workspaces.Section(
                name=SECTIONS[prefix],
                panels=[panels.LinePlot(title=metric, x=X_AXIS, y=[metric]) for metric in names],
                is_open=prefix in ("eval", "collect", "train"),
            )
            for prefix, names in sections_of(self.metrics)
        ]
        workspace = workspaces.Workspace(
            name=NAME,
            entity=self.entity,
            project=self.project,
            sections=sections,
            settings=workspaces.WorkspaceSettings(x_axis=X_AXIS),
            runset_settings=workspaces.RunsetSettings(
                run_settings={run: workspaces.RunSettings(disabled=True) for run in self.hidden}
            ),
        )
        workspace._internal_name = f"nw-{NAME}-v"  # without a fixed name, every save would create another workspace
        return workspace

    def spec(self) -> dict[str, Any]:
        """Return what is sent to W&B."""
        text = self.workspace()._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
        spec: dict[str, Any] = json.loads(text)
        return spec


def sections_of(metrics: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each prefix in SECTIONS that has metrics, with its metrics in alphabetical order."""
    for prefix in SECTIONS:
        if names := sorted(metric for metric in metrics if metric.startswith(f"{prefix}/")):
            yield prefix, names


def metrics_of(root: Path) -> tuple[str, ...]:
    """Return the metrics of the newest runs in `root`, and those that every run has."""
    names = set(ALWAYS)
    for run in rows(root, {}, None, NEWEST):
        for row in tail(RunFolder(root / run["run"]).metrics):
            names |= {key for key, value in row.items() if isinstance(value, int | float)}
    return tuple(sorted(key for key in names if key.partition("/")[0] in SECTIONS and "/" in key))


def set_up(dashboard: Dashboard, overwrite: bool, latest_only: bool) -> tuple[str, str]:
    """Create the workspace, or replace an existing one with `overwrite`.

    With `latest_only`, hide the curves of all runs but the newest at first. Return what was done (made, kept or
    replaced) and the address.
    """
    from wandb.errors import Error

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # W&B prints messages there
            existing = find_workspace(dashboard)
            if latest_only and (overwrite or existing is None):
                dashboard = replace(dashboard, hidden=all_but_latest(dashboard.entity, dashboard.project))
            workspace = dashboard.workspace()
            workspace._internal_id = existing or ""
            if existing is None or overwrite:
                workspace.save()
            return "made" if existing is None else "replaced" if overwrite else "kept", str(workspace.url)
    except (Error, OSError) as problem:
        raise CadenzaError(f"W&B: {' '.join(str(problem).split())}") from problem


def find_workspace(dashboard: Dashboard) -> str | None:
    """Return W&B's id of the workspace, if it exists."""
    from wandb_workspaces.workspaces.internal import get_view_dict

    try:
        workspace: str = get_view_dict(dashboard.entity, dashboard.project, NAME)["id"]
    except ValueError as problem:
        if str(problem).startswith("Workspace"):  # the project exists, the workspace does not
            return None
        raise CadenzaError(f"W&B: {problem}") from problem
    return workspace


def all_but_latest(entity: str, project: str) -> tuple[str, ...]:
    """Return W&B's ids of all runs of a project except the newest."""
    import wandb

    newest_first = [run.id for run in wandb.Api().runs(f"{entity}/{project}", order="-created_at")]
    return tuple(newest_first[1:])
