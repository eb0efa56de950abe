"""Train an agent, measure it, and read its learning curve.

python examples/train_agent.py [ENV_STEPS]
"""

import sys

import cadenza

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000

# Settings have dotted keys, as on the command line; `cadenza config explain KEY CartPole-v1:ppo` describes one.
settings = {
    "training.max_timesteps": steps,
    "training.horizon": 2 * steps,  # schedules, such as that of the learning rate, end here
    "evaluation.every_steps": max(1, steps // 10),
}
run = cadenza.train("CartPole-v1:ppo", seed=1, **settings)
print(f"{run.id}: {run.result['status']} after {run.result['env_steps']:,} env_steps")

for row in run.metrics:
    if "eval/return_mean" in row:
        print(f"{row['env_steps']:>8,}  {row['eval/return_mean']:6.1f}")

measured = run.evaluate(episodes=20)
print(f"mean return of {measured['episodes']} episodes: {measured['return_mean']:.1f}")

longer = run.resume(max_timesteps=2 * steps)  # continues exactly; Ctrl-C would save the run before it is raised
print(f"resumed to {longer.result['env_steps']:,} env_steps in the same folder, {longer.folder.path}")
