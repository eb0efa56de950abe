"""The settings of a W&B sweep agent, which it passes to the runs it starts in a file named in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cadenza.config.load import override
from cadenza.config.spec import read_file
from cadenza.errors import ConfigError

SWEEP, PARAMETERS = "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH"


def agent_overrides(environ: Mapping[str, str]) -> list[str]:
    """Return the agent's settings as `key=value`; none if no agent has started this process."""
    if not environ.get(SWEEP) or not environ.get(PARAMETERS):
        return []
    path = Path(environ[PARAMETERS])
    overrides = []
    for key, entry in read_file(path).items():
        if key == "wandb_version":
            continue
        if not isinstance(entry, dict) or "value" not in entry:
            raise ConfigError(f"{path}: W&B's agent gives {key} no value")
        overrides.append(override(key, entry["value"]))
    return overrides
