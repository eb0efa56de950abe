"""Run a grid of learning rates with two seeds each, and read the trials as a table.

Started again, it continues where it was: nothing is repeated.

python examples/sweep.py [ENV_STEPS]
"""

import sys
from pathlib import Path

import cadenza

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000

file = Path(__file__).with_name("learning_rates.yaml")
result = cadenza.sweep(file, max_timesteps=steps, jobs=2)
for trial in result["trials"]:
    print(trial["trial"], trial["params"], trial["value"])

best = result["best"]
print(f"best: trial {best['trial']} with {best['params']}")
