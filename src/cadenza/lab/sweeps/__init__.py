"""Sweeps: many runs of one base config, each an ordinary run; what is tried, what came of it, and how to go on."""
