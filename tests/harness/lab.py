"""Runs made of real parts, in folders of their own, without the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cadenza.config.schema import RunConfig
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.engine.orchestrator import Orchestrator
from cadenza.engine.signals import Signals
from cadenza.lab.session import build_quietly
from cadenza.records.folder import RunFolder, create


class Lab:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened: list[Assembly] = []

    def start(self, config: RunConfig, name: str = "run") -> Orchestrator:
        """Create a run; return it before its first step."""
        return self.open(config, create(self.root / name, config, ["test"]), {})

    def resume(self, run: Orchestrator) -> Orchestrator:
        """Load the newest checkpoint of a run into new objects."""
        again = self.open(run.config, run.folder, run.folder.read_decisions())
        newest = again.checkpoints.newest(refuse)
        assert newest is not None
        again.load_state(newest[1])
        return again

    def open(self, config: RunConfig, folder: RunFolder, decisions: dict[str, Any]) -> Orchestrator:
        assembly = assemble(config, check(config), decisions)
        self.opened.append(assembly)
        folder.write_decisions(decisions)
        return build_quietly(assembly, folder, Signals())

    def close(self) -> None:
        for assembly in self.opened:
            assembly.close()


def refuse(warning: str) -> None:
    raise AssertionError(warning)
