"""Networks by hand against the same modules under autograd."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.config.networks import HeadConfig, MemoryConfig, MLPConfig, OptimizerConfig, TorsoConfig
from cadenza.nets.actor_critic import ActorCritic
from cadenza.nets.numpy.actor_critic_kernel import ActorCriticKernel, actor_critic_kernel, minibatches, zeros
from cadenza.nets.numpy.network import Network
from cadenza.nets.observe import VECTOR
from cadenza.nets.optimizers import optimizer
from cadenza.ops.surrogate import ClippedObjective
from cadenza.types import GroupSpec

ROWS, AGENTS = 37, 2


@dataclass(frozen=True)
class Settings:
    torso: TorsoConfig = field(default_factory=TorsoConfig)
    actor: MLPConfig = field(default_factory=MLPConfig)
    critic: MLPConfig = field(default_factory=MLPConfig)
    head: HeadConfig = field(default_factory=HeadConfig)


SPACES = {
    "discrete": spaces.Discrete(5),
    "offset": spaces.Discrete(3, start=-1),
    "box": spaces.Box(-1, 1, (3,)),
    "matrix": spaces.Box(-1, 1, (2, 2)),
}
SHAPES = {
    "default": Settings(),
    "relu, other sizes": Settings(actor=MLPConfig((8,), "relu"), critic=MLPConfig((16, 4, 8), "relu")),
    "linear": Settings(actor=MLPConfig(()), critic=MLPConfig(())),
    "shared trunk": Settings(torso=TorsoConfig(hidden_sizes=(16, 8), activation="relu")),
    "a torso each": Settings(torso=TorsoConfig(hidden_sizes=(16,), shared=False)),
}


def network(
    action: spaces.Space[Any],
    settings: Settings,
    observation: spaces.Space[Any] | None = None,
    critic: spaces.Space[Any] | None = None,
) -> ActorCritic:
    torch.manual_seed(0)
    observation = observation or spaces.Box(-np.inf, np.inf, (6,))
    net = ActorCritic(GroupSpec(("a", "b"), observation, action), settings, critic)
    with torch.no_grad():
        for parameter in net.parameters():  # biases too, and policies that are not nearly uniform
            parameter.add_(0.3 * torch.randn_like(parameter))
    optimizer(net, OptimizerConfig(), net.parts())
    return net


def by_hand(net: ActorCritic) -> ActorCriticKernel:
    kernel = actor_critic_kernel(net)
    assert kernel is not None
    return kernel


def gradients(hand: ActorCriticKernel, seen: Any, index: torch.Tensor, goal: ClippedObjective) -> torch.Tensor:
    """Set the gradients on the samples at `index`; return their figures."""
    [batch] = minibatches(seen, [index], goal)
    figures: torch.Tensor = goal.figures([hand.gradients(batch, goal)])[0]
    return figures


def samples(net: ActorCritic, action: spaces.Space[Any], masked: bool) -> Any:
    """As a rollout gives them, [1, S, A, …]; some entries do not count."""
    torch.manual_seed(1)
    shape = (1, ROWS, AGENTS)
    obs = {VECTOR: torch.randn(*shape, 6)}
    mask = None
    if masked:
        mask = torch.rand(*shape, net.head.outputs) < 0.6
        mask[..., 1] = True
    with torch.no_grad():
        judged = net(obs, {}, torch.zeros(shape, dtype=torch.bool))
        taken = net.head.sample(judged.output, mask, torch.Generator().manual_seed(2))
        log_prob, _ = net.head.evaluate(judged.output, mask, taken)
    weight = (torch.rand(shape) < 0.8).float()
    return SimpleNamespace(
        obs=obs,
        critic_obs=None,
        action=taken,
        mask=mask,
        weight=weight,
        value_weight=weight,
        factor=None,
        advantage=torch.randn(shape) + 0.5,
        target=torch.randn(shape),
        old_value=judged.value + 0.5 * torch.randn(shape),
        old_log_prob=log_prob + 0.3 * torch.randn(shape),
    )


def objective(**changes: Any) -> ClippedObjective:
    plainest = ClippedObjective(torch.tensor(0.2), torch.tensor(0.01), 0.5, None, False)
    return replace(plainest, **changes)


OBJECTIVES = {
    "plain": objective(),
    "standardised": objective(normalize_advantage=True),
    "values held": objective(value_clip_range=0.2, value_coef=2.0),
    "entropy": objective(entropy_coef=torch.tensor(0.5), normalize_advantage=True),
}
CASES = [(space, shape, "standardised") for space in SPACES for shape in SHAPES]
CASES += [(space, "default", goal) for space in ("discrete", "box") for goal in OBJECTIVES]


@pytest.mark.parametrize(("space", "shape", "goal"), CASES)
def test_gradients_and_figures_equal_autograds(space: str, shape: str, goal: str) -> None:
    action = SPACES[space]
    for masked in (False, True) if isinstance(action, spaces.Discrete) else (False,):
        net = network(action, SHAPES[shape])
        seen, hand = samples(net, action, masked), by_hand(net)
        index = torch.randperm(ROWS)[:20]
        figures = gradients(hand, seen, index, OBJECTIVES[goal])
        found = [parameter.grad.clone() for parameter in net.parameters()]

        batch = SimpleNamespace(**{k: None if v is None else v[:, index] for k, v in vars(seen).items() if k != "obs"})
        judged = net({VECTOR: seen.obs[VECTOR][:, index]}, {}, torch.zeros(1, 20, AGENTS, dtype=torch.bool))
        log_prob, entropy = net.head.evaluate(judged.output, batch.mask, batch.action)
        loss, expected_figures = OBJECTIVES[goal].loss(log_prob, entropy, judged.value, batch)
        expected = torch.autograd.grad(loss, list(net.parameters()))
        torch.testing.assert_close(figures, expected_figures.detach(), atol=1e-5, rtol=1e-4)
        assert 0 < figures[-1] < 1, "nothing was clipped"
        assert all(gradient.any() for gradient in expected)
        torch.testing.assert_close(found, list(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("goal", OBJECTIVES)
def test_gradients_of_a_team_equal_autograds(goal: str) -> None:
    """With what groups before have changed, critics that see something else and learn from more steps."""
    action, view = SPACES["discrete"], spaces.Box(-np.inf, np.inf, (9,))
    net = network(action, SHAPES["default"], critic=view)
    torch.manual_seed(4)
    shape, seen = (1, ROWS, AGENTS), samples_beside(net, action)
    index, hand = torch.randperm(ROWS)[:20], by_hand(net)
    figures = gradients(hand, seen, index, OBJECTIVES[goal])
    found = [parameter.grad.clone() for parameter in net.parameters()]

    kept = {k: v for k, v in vars(seen).items() if k not in ("obs", "critic_obs")}
    batch = SimpleNamespace(**{k: None if v is None else v[:, index] for k, v in kept.items()})
    obs, critic_obs = ({VECTOR: x[VECTOR][:, index]} for x in (seen.obs, seen.critic_obs))
    judged = net(obs, {}, torch.zeros(1, 20, AGENTS, dtype=torch.bool), critic_obs=critic_obs)
    log_prob, entropy = net.head.evaluate(judged.output, None, batch.action)
    loss, expected_figures = OBJECTIVES[goal].loss(log_prob, entropy, judged.value, batch)
    torch.testing.assert_close(figures, expected_figures.detach(), atol=1e-5, rtol=1e-4)
    expected = torch.autograd.grad(loss, list(net.parameters()))
    torch.testing.assert_close(found, list(expected), atol=1e-5, rtol=1e-4)
    assert shape == seen.factor.shape


def samples_beside(net: ActorCritic, action: spaces.Space[Any]) -> Any:
    shape = (1, ROWS, AGENTS)
    critic_obs = {VECTOR: torch.randn(*shape, 9)}
    obs = {VECTOR: torch.randn(*shape, 6)}
    with torch.no_grad():
        judged = net(obs, {}, torch.zeros(shape, dtype=torch.bool), critic_obs=critic_obs)
        taken = net.head.sample(judged.output, None, torch.Generator().manual_seed(2))
        log_prob, _ = net.head.evaluate(judged.output, None, taken)
    return SimpleNamespace(
        obs=obs,
        critic_obs=critic_obs,
        action=taken,
        mask=None,
        weight=(torch.rand(shape) < 0.6).float(),
        value_weight=(torch.rand(shape) < 0.9).float(),
        factor=torch.randn(shape).exp(),
        advantage=torch.randn(shape) + 0.5,
        target=torch.randn(shape),
        old_value=judged.value + 0.5 * torch.randn(shape),
        old_log_prob=log_prob + 0.3 * torch.randn(shape),
    )


@pytest.mark.parametrize("space", SPACES)
def test_the_best_action_equals_the_modules(space: str) -> None:
    net = network(SPACES[space], SHAPES["shared trunk"])
    seen = samples(net, SPACES[space], space == "discrete")
    with torch.no_grad():
        judged = net(seen.obs, {}, torch.zeros(1, ROWS, AGENTS, dtype=torch.bool))
        expected = net.head.mode(judged.output[0], None if seen.mask is None else seen.mask[0])
    mask = None if seen.mask is None else seen.mask[0].numpy()
    found = by_hand(net).act(seen.obs[VECTOR][0].numpy(), mask, None)
    assert found.dtype == expected.numpy().dtype
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_values_equal_the_modules(shape: str) -> None:
    net = network(SPACES["box"], SHAPES[shape])
    seen = samples(net, SPACES["box"], False)
    with torch.no_grad():
        expected = net(seen.obs, {}, torch.zeros(1, ROWS, AGENTS, dtype=torch.bool))
    torch.testing.assert_close(by_hand(net).judge(seen.obs, None), expected, atol=1e-5, rtol=1e-4)


def test_equal_layers_of_actor_and_critic_are_computed_as_one() -> None:
    depths = {name: len(by_hand(network(SPACES["box"], shape)).both.layers) for name, shape in SHAPES.items()}
    assert depths == {"default": 2, "relu, other sizes": 0, "linear": 0, "shared trunk": 2, "a torso each": 0}


@pytest.mark.parametrize("space", SPACES)
def test_drawn_actions_have_the_modules_probabilities(space: str) -> None:
    net: Any = network(SPACES[space], SHAPES["default"])
    count = 20_000
    obs = {VECTOR: torch.randn(1, 1, 6, generator=torch.Generator().manual_seed(3)).expand(count, 1, 6)}
    mask = np.ones((count, 1, 5), bool) if space == "discrete" else None
    if mask is not None:
        mask[..., 2] = False
    drawn = by_hand(net).act(obs[VECTOR].numpy(), mask, np.random.default_rng(0))
    with torch.no_grad():
        output = net(obs, {}, torch.zeros(count, 1, dtype=torch.bool)).output[:1]
    if isinstance(SPACES[space], spaces.Box):
        noise = (drawn.reshape(count, -1) - output.numpy().reshape(1, -1)) / net.head.log_std.detach().exp().numpy()
        np.testing.assert_allclose(noise.mean(0), 0, atol=0.03)
        np.testing.assert_allclose(np.cov(noise.T), np.eye(noise.shape[1]), atol=0.04)
        return
    first = int(SPACES[space].start)  # type: ignore[attr-defined]
    choices = torch.arange(net.head.outputs) + first
    allowed = None if mask is None else torch.from_numpy(mask[:1]).expand(net.head.outputs, 1, -1)
    with torch.no_grad():
        each = output.expand(net.head.outputs, 1, -1)
        expected = net.head.evaluate(each, allowed, choices[:, None])[0].exp().numpy().ravel()
    counts = np.bincount(drawn.ravel() - first, minlength=net.head.outputs) / count
    np.testing.assert_allclose(counts, expected, atol=0.015)


IMAGE = spaces.Box(0, 255, (3, 16, 16), np.uint8)
UNFIT = {
    "a memory": (SPACES["box"], Settings(torso=TorsoConfig(memory=MemoryConfig("gru"))), None),
    "images": (SPACES["discrete"], Settings(), IMAGE),
    "another activation": (SPACES["box"], Settings(critic=MLPConfig((8,), "gelu")), None),
    "a spread of the state": (SPACES["box"], Settings(head=HeadConfig(std="state")), None),
    "squashed actions": (SPACES["box"], Settings(head=HeadConfig(squash=True)), None),
    "several choices": (spaces.MultiDiscrete([2, 3]), Settings(), None),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_done_by_hand_is_left_to_torch(case: str) -> None:
    assert actor_critic_kernel(network(*UNFIT[case])) is None


def test_what_is_forbidden_is_never_drawn_and_moves_nothing() -> None:
    net = network(SPACES["discrete"], SHAPES["default"])
    hand, nothing = by_hand(net), SimpleNamespace(standard_exponential=lambda shape, dtype: np.zeros(shape, dtype))
    mask = np.zeros((4, 1, 5), bool)
    mask[..., 3] = True
    vector = np.ones((4, 1, 6), np.float32)
    assert (hand.act(vector, mask, nothing) == 3).all()  # type: ignore[arg-type]
    seen = samples(net, SPACES["discrete"], masked=True)
    seen.mask[0, :5] = False  # nothing is allowed
    seen.mask[0, 5:9] = False
    seen.mask[0, 5:9, :, 0] = True  # what was done is not among it, mostly
    seen.weight[:] = 1
    gradients(hand, seen, torch.arange(10), OBJECTIVES["entropy"])
    found = [parameter.grad.clone() for parameter in net.actor.parameters()]
    rows = {k: None if v is None else v[:, :10] for k, v in vars(seen).items() if k != "obs"}
    judged = net({VECTOR: seen.obs[VECTOR][:, :10]}, {}, torch.zeros(1, 10, AGENTS, dtype=torch.bool))
    log_prob, entropy = net.head.evaluate(judged.output, rows["mask"], rows["action"])
    loss, _ = OBJECTIVES["entropy"].loss(log_prob, entropy, judged.value, SimpleNamespace(**rows))
    expected = torch.autograd.grad(loss, list(net.actor.parameters()))
    torch.testing.assert_close(found, list(expected), atol=1e-5, rtol=1e-4)


def test_minibatches_gathered_together_equal_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    net, goal = network(SPACES["discrete"], SHAPES["default"]), OBJECTIVES["standardised"]
    seen, hand = samples(net, SPACES["discrete"], True), by_hand(net)
    parts = torch.tensor_split(torch.randperm(ROWS), 5)  # of 8 and of 7 samples
    alone = torch.stack([gradients(hand, seen, part, goal) for part in parts])
    monkeypatch.setattr("cadenza.nets.numpy.actor_critic_kernel.GATHERED", 20)
    together = goal.figures([hand.gradients(batch, goal) for batch in minibatches(seen, parts, goal)])
    assert torch.equal(together, alone)


def test_it_follows_its_network_through_optimizer_steps_and_loaded_weights() -> None:
    net = network(SPACES["box"], SHAPES["default"])
    moves, hand = optimizer(net, OptimizerConfig(), net.parts()), by_hand(net)
    seen = samples(net, SPACES["box"], False)
    gradients(hand, seen, torch.arange(ROWS), objective())
    moves.step(torch.tensor(0.1))
    net.load_state_dict({name: tensor + 1 for name, tensor in net.state_dict().items()})
    with torch.no_grad():
        expected = net(seen.obs, {}, torch.zeros(1, ROWS, AGENTS, dtype=torch.bool)).output[0]
    np.testing.assert_allclose(hand.act(seen.obs[VECTOR][0].numpy(), None, None), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.Tanh])
def test_networks_in_kept_memory_equal_autograd_for_every_number_of_rows(activation: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    nets = [torch.nn.Sequential(torch.nn.Linear(5, 8), activation(), torch.nn.Linear(8, 1)) for _ in range(2)]
    for net in nets:
        optimizer(net, OptimizerConfig())
    by_hand, other = (Network(net) for net in nets)
    other.share(by_hand, with_outputs=True)
    for count, learned in ((4, 4), (9, 5), (2, 2)):  # more rows than ever, fewer, and gradients of the last of them
        x, slope = torch.randn(count, 5, requires_grad=True), torch.randn(learned, 1)
        other(np.ones((count, 5), np.float32))
        output = nets[0](x)
        np.testing.assert_allclose(by_hand(x.detach().numpy()), output.detach(), atol=1e-5)
        parameters = list(nets[0].parameters())
        (by_input,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
        rows = np.arange(count)[::-2]
        np.testing.assert_allclose(by_hand.input_gradient(rows, start=2), by_input[rows.copy(), 2:], atol=1e-5)
        expected = torch.autograd.grad((output[-learned:] * slope).sum(), [*parameters, x])
        of_inputs = by_hand.backward(slope.numpy(), to_input=True)
        torch.testing.assert_close([p.grad for p in parameters], list(expected[:-1]), atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(of_inputs, expected[-1][-learned:], atol=1e-5)


def test_few_arrays_of_zeros_are_kept() -> None:
    for rows in range(100):
        zeros((rows + 1, 3))
    assert zeros.cache_info().currsize <= 32
