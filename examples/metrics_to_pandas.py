"""Read runs and their metrics as pandas data frames, and draw learning curves with seaborn.

pip install 'cadenza[pandas]' seaborn
python examples/metrics_to_pandas.py [ENV_STEPS]
"""

import sys

import seaborn

import cadenza

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
for gamma in (0.98, 0.5):
    for seed in (0, 1, 2):
        settings = {"algorithm.gamma": gamma, "training.max_timesteps": steps, "evaluation.every_steps": steps // 5}
        cadenza.train("CartPole-v1:ppo", seed=seed, quiet=True, tags=["frames"], **settings)

runs = cadenza.runs(tag="frames", status="finished")
table = runs.to_pandas()  # a row for each run
print(table.groupby("algorithm.gamma")["eval/return_mean"].describe())

curves = runs.metrics.to_pandas().merge(table[["run", "algorithm.gamma"]], on="run")  # a row for each logged step
plot = seaborn.relplot(
    curves.dropna(subset="eval/return_mean"), x="env_steps", y="eval/return_mean", hue="algorithm.gamma", kind="line"
)
plot.savefig("curves.png")
