"""Train two settings with three seeds each, compare them, and draw the curves.

python examples/compare_seeds.py [ENV_STEPS]
"""

import sys

import cadenza

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
budget = {"training.max_timesteps": steps, "evaluation.every_steps": max(1, steps // 10)}

runs = [
    cadenza.train("CartPole-v1:ppo", seed=seed, tags=["discount"], quiet=True, **{"algorithm.gamma": gamma}, **budget)
    for gamma in (0.98, 0.5)
    for seed in (0, 1, 2)
]

comparison = cadenza.compare(*runs, metrics=["eval/return_mean"])
for series in comparison.series:
    score = comparison.estimate(series, "eval/return_mean")
    scores = ", ".join(f"{value:.0f}" for value in comparison.scores(series, "eval/return_mean"))
    print(f"{series.label}: {score.value:.1f}, 95 % interval [{score.low:.1f}, {score.high:.1f}] ({scores})")

comparison.plot("comparison.png")
print(
    "curves: comparison.png; the same from the command line: cadenza compare --filter tag=discount --plot curves.html"
)
