"""Load a trained policy and use it in a loop of your own.

python examples/load_policy.py [RUN]      RUN is an id, a path, @last or @best; without one a short run is made
"""

import sys

import cadenza

if len(sys.argv) > 1:
    run = cadenza.Run.find(sys.argv[1])
else:
    run = cadenza.train("CartPole-v1:ppo", quiet=True, **{"training.max_timesteps": 10_000})

policy = run.load(checkpoint="best")
env = policy.make_env()  # the environment of the training, with its wrappers

for episode in range(3):
    obs, info = env.reset(seed=episode)
    policy.reset()  # forget the last episode
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, info = env.step(policy(obs, mask=info.get("action_mask")))
        total, over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:.1f}")
