"""PPO with a memory on one real rollout, compared with networks that are run step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.config.load import load
from cadenza.data.rollout import Rollout
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.trees import map_tree
from harness import collecting
from harness.collecting import PHASE, Holding

SETTINGS = [
    "environment.max_episode_steps=15",  # both kinds of end occur
    "environment.num_envs=3",
    "algorithm.n_steps=24",
    "algorithm.batch_size=1.0",
    "algorithm.torso.memory.size=8",
    "algorithm.torso.memory.context=5",
    "algorithm.actor.hidden_sizes=[8]",
]
MEMORY = "algorithm.torso.memory"
VARIANTS = [
    f"{MEMORY}.type=gru",
    f"{MEMORY}.type=lstm",
    f"{MEMORY}.type=transformer",
    f"{MEMORY}.type=lstm algorithm.torso.shared=false",
    f"{MEMORY}.type=lstm {MEMORY}.layers=2 {MEMORY}.sequence_length=8",
    f"{MEMORY}.type=gru {MEMORY}.sequence_length=6 {MEMORY}.burn_in=4",
    f"{MEMORY}.type=transformer {MEMORY}.sequence_length=4 {MEMORY}.burn_in=8",
]


@pytest.fixture
def collected() -> Iterator[Any]:
    made: list[Assembly] = []

    def collect(*overrides: str) -> tuple[Any, Rollout]:
        config = load("CartPole-v1:ppo", [*SETTINGS, *overrides])
        assembly = assemble(config, check(config), {})
        made.append(assembly)
        # the second rollout begins in the middle of episodes
        return assembly.workflow, collecting.collected(assembly, times=2)

    yield collect
    for assembly in made:
        assembly.close()


@torch.no_grad()
def walked(workflow: Any, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log-probabilities, values and values of the true next observations, one step at a time."""
    net, data = workflow.nets["agent"], rollout.groups["agent"]
    steps, envs = rollout.terminated.shape
    finals = {(t, n): k for k, (t, n) in enumerate(zip(*rollout.final_index, strict=True))}
    log_prob, value, following = (np.zeros((steps, envs)) for _ in range(3))

    def judge(obs: np.ndarray, carry: Any, first: bool) -> Any:
        return net({"vector": torch.from_numpy(obs)[None, None]}, carry, torch.tensor([[[first]]]), carries=True)

    for n in range(envs):
        carry = map_tree(lambda x, n=n: torch.from_numpy(x[0, n : n + 1]), rollout.carry["agent"])
        for t in range(steps):
            judged = judge(data["obs"][t, n], carry, bool(rollout.is_first[t, n]))
            carry = map_tree(lambda x: x[0], judged.carries)
            value[t, n] = judged.value
            action = torch.from_numpy(data["action"][t, n])[None, None]
            log_prob[t, n] = torch.log_softmax(judged.output, -1).gather(-1, action[..., None])
            if (t, n) in finals:
                following[t, n] = judge(rollout.final_obs["agent"][finals[t, n]], carry, False).value
            else:
                after = data["obs"][t + 1, n] if t + 1 < steps else rollout.after_obs["agent"][n]
                following[t, n] = judge(after, carry, False).value
    return log_prob, value, np.where(rollout.terminated, 0, following)


def unsequenced(workflow: Any, x: torch.Tensor, envs: int) -> np.ndarray:
    """Convert [L, S, 1] to [T, N], from the sequences in which each step counts."""
    times, counts = workflow._sequences("agent", workflow.config.n_steps)
    out = np.full((workflow.config.n_steps, envs), np.nan)
    for c in range(times.shape[1]):
        for row, t in enumerate(times[:, c].tolist()):
            if counts[row, c]:
                assert np.isnan(out[t]).all()
                out[t] = x[row, c * envs : (c + 1) * envs, 0].detach()
    assert not np.isnan(out).any()
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_advantages_and_probabilities_equal_a_walk_through_the_rollout(collected: Any, variant: str) -> None:
    workflow, rollout = collected(*variant.split())
    assert not rollout.is_first[0].all()
    assert (rollout.truncated & ~rollout.terminated).any()
    samples = workflow._prepare("agent", rollout, PHASE)[0]
    log_prob, value, following = walked(workflow, rollout)
    steps, envs = value.shape
    assert samples.weight.sum() == steps * envs
    np.testing.assert_allclose(unsequenced(workflow, samples.old_value, envs), value, atol=1e-5)
    np.testing.assert_allclose(unsequenced(workflow, samples.old_log_prob, envs), log_prob, atol=1e-5)
    config, ended = workflow.config, rollout.terminated | rollout.truncated
    advantage, running = np.zeros((steps, envs)), np.zeros(envs)
    for t in reversed(range(steps)):
        delta = rollout.groups["agent"]["reward"][t, :, 0] + config.gamma * following[t] - value[t]
        running = delta + config.gamma * config.gae_lambda * np.where(ended[t], 0, running)
        advantage[t] = running
    np.testing.assert_allclose(unsequenced(workflow, samples.advantage, envs), advantage, atol=1e-4)
    # what is learned from starts where acting left off: all ratios are one
    judged = workflow.nets["agent"](samples.obs, samples.carry, samples.first)
    again, _ = workflow.nets["agent"].head.evaluate(judged.output, None, samples.action)
    counted = samples.weight > 0
    torch.testing.assert_close(again[counted], samples.old_log_prob[counted], atol=1e-5, rtol=1e-5)


def test_the_gradient_reaches_back_through_the_sequence(collected: Any) -> None:
    workflow, rollout = collected(f"{MEMORY}.type=lstm")
    net = workflow.nets["agent"]
    samples = workflow._prepare("agent", rollout, PHASE)[0]
    obs = samples.obs["vector"].clone().requires_grad_()
    judged = net({"vector": obs}, samples.carry, samples.first)
    (gradient,) = torch.autograd.grad(judged.value[-1, 0].sum(), obs)
    begun = int(np.flatnonzero(rollout.is_first[:, 0])[-1])
    reached = gradient[:, 0].abs().sum((-1, -2)) > 0
    assert reached[begun:].all()
    assert not reached[:begun].any()  # what happened before the episode began does not matter
    assert not gradient[:, 1:].any()


def test_an_update_learns_and_reports(collected: Any) -> None:
    workflow, rollout = collected(f"{MEMORY}.type=lstm", f"{MEMORY}.sequence_length=8", "algorithm.batch_size=24")
    before = [parameter.clone() for parameter in workflow.nets["agent"].parameters()]
    result = workflow.update(Holding(rollout), PHASE)
    assert result.updates == workflow.config.n_epochs * 3
    assert torch.isfinite(result.metrics["train/grad_norm/trunk"])
    assert all(not torch.equal(a, b) for a, b in zip(before, workflow.nets["agent"].parameters(), strict=True))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{MEMORY}.sequence_length=7"], "sequence_length=7 does not divide algorithm.n_steps=24"),
        (["algorithm.batch_size=36"], "is no multiple of the sequences of 24 steps"),
        ([f"{MEMORY}.burn_in=4"], "burn_in=4: needs a sequence_length"),
        ([f"{MEMORY}.sequence_length=12", f"{MEMORY}.burn_in=13"], "has no more than 12"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(load("CartPole-v1:ppo", [*SETTINGS, f"{MEMORY}.type=lstm", *overrides]))
