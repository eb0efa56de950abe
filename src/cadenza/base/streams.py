"""The named random generators of a run, derived from its seed; their states are part of the run's state."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch

STREAM = 1000  # spawn key of these generators; environments' episode seeds use small ones (envs/ledger.py)
EVALUATION = 1 << 20  # branch of an evaluation, followed by its number; the branches of ranks count from 0


class Streams:
    """Named generators, created on first use.

    `branch` makes sets of the same seed independent: those of the processes of a run, or of its evaluations.
    """

    def __init__(self, seed: int, branch: tuple[int, ...] = (0,)) -> None:
        self.seed = seed
        self.branch = branch
        self._numpy: dict[str, np.random.Generator] = {}
        self._torch: dict[str, torch.Generator] = {}

    def numpy(self, name: str) -> np.random.Generator:
        """Return NumPy's generator of that name."""
        if name not in self._numpy:
            self._numpy[name] = np.random.Generator(np.random.PCG64(self._sequence(name)))
        return self._numpy[name]

    def torch(self, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return torch's generator of that name, on a device."""
        generator = self._torch.get(name)
        if generator is None or generator.device.type != torch.device(device).type:  # a resumed run may change device
            generator = torch.Generator(device=device)
            generator.manual_seed(self.integer(name))
            self._torch[name] = generator
        return generator

    def integer(self, name: str) -> int:
        """Return a 63-bit seed."""
        return int(self._sequence(name).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def seed_globals(self) -> None:
        """Seed the global generators, which libraries use, for example to initialise networks."""
        random.seed(self.integer("python"))
        np.random.seed(self.integer("numpy") % 2**32)
        torch.manual_seed(self.integer("torch"))

    def _sequence(self, name: str) -> np.random.SeedSequence:
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        return np.random.SeedSequence(self.seed, spawn_key=(STREAM, *self.branch, key))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all generators, global ones included."""
        version, internal, gauss = random.getstate()
        legacy = np.random.get_state(legacy=False)
        return {
            "numpy": {name: generator.bit_generator.state for name, generator in self._numpy.items()},
            "torch": {name: generator.get_state() for name, generator in self._torch.items()},
            "devices": {name: str(generator.device) for name, generator in self._torch.items()},
            "globals": {
                "python": {"version": version, "internal": list(internal), "gauss": gauss},
                "numpy": legacy,
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states of all generators, global ones included."""
        for name, value in state["numpy"].items():
            self.numpy(name).bit_generator.state = value
        for name, value in state["torch"].items():
            device = state["devices"][name]
            if torch.device(device).type == "cpu" or torch.cuda.is_available():
                self.torch(name, device).set_state(value)
        shared = state["globals"]
        python = shared["python"]
        random.setstate((python["version"], tuple(python["internal"]), python["gauss"]))
        np.random.set_state(shared["numpy"])
        torch.set_rng_state(shared["torch"])
        if torch.cuda.is_available() and len(shared["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(shared["cuda"])
