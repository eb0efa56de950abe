"""Sweeps: many runs of one base config with different settings. Each is an ordinary run."""
