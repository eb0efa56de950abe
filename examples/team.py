"""Train a team of agents in groups, load it, and step it by hand.

python examples/team.py [ENV_STEPS]
"""

import sys

import cadenza

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000

run = cadenza.train("skirmish/3m:mappo", max_timesteps=steps)
print(f"fraction of battles won: {run.evaluate(episodes=10)['win_rate']:.2f}")

policy = run.load()
for name, group in policy.spec.groups.items():
    print(f"group {name}: {', '.join(group.agents)}; actions {group.action}")

env = policy.make_env()  # deals in frames: arrays [A, …] by group
frame = env.reset(seed=0)
total = 0.0
while not (frame.terminated or frame.truncated):
    frame = env.step(policy(frame.obs, mask=frame.mask))
    total += float(sum(reward.sum() for reward in frame.reward.values()))
print(f"one battle: sum of rewards {total:.1f}, {'won' if frame.won else 'not won'}")
