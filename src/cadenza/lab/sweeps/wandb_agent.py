"""Settings that a W&B sweep agent hands to the run it starts: they stand in a file that it names in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cadenza.config.load import override
from cadenza.config.spec import read_file
from cadenza.errors import ConfigError

SWEEP, PARAMETERS = "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH"


def agent_overrides(environ: Mapping[str, str]) -> list[str]:
    """As `key=value`; nothing where no agent is at work."""
    if not environ.get(SWEEP) or not environ.get(PARAMETERS):
        return []
    path = Path(environ[PARAMETERS])
    found = {key: said for key, said in read_file(path).items() if key != "wandb_version"}
    for key, said in found.items():
        if not isinstance(said, dict) or "value" not in said:
            raise ConfigError(f"{path}: W&B's agent gives {key} no value")
    return [override(key, said["value"]) for key, said in found.items()]
