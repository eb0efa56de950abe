from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.nets.flatten import flat_size, flatten
from cadenza.nets.heads import action_head


def test_categorical_head_agrees_with_torch_distributions() -> None:
    head = action_head(spaces.Discrete(4, start=2))
    output = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Categorical(logits=output)
    action, log_prob = head.sample(output, None, torch.Generator().manual_seed(1))
    torch.testing.assert_close(log_prob, reference.log_prob(action - 2))
    again, entropy = head.evaluate(output, None, action)
    torch.testing.assert_close(again, log_prob)
    torch.testing.assert_close(entropy, reference.entropy())
    assert torch.equal(head.mode(output, None), output.argmax(-1) + 2)


def test_categorical_samples_follow_the_probabilities() -> None:
    head = action_head(spaces.Discrete(3))
    probabilities = torch.tensor([0.1, 0.3, 0.6])
    actions, _ = head.sample(probabilities.log().expand(20_000, 3), None, torch.Generator().manual_seed(0))
    frequencies = torch.bincount(actions, minlength=3) / 20_000
    # five standard errors
    assert ((frequencies - probabilities).abs() < 5 * (probabilities * (1 - probabilities) / 20_000).sqrt()).all()


def test_masked_actions_are_never_taken_and_do_not_count() -> None:
    head = action_head(spaces.Discrete(3))
    mask = torch.tensor([True, False, True]).expand(1000, 3)
    output = torch.tensor([0.0, 5.0, 0.0]).expand(1000, 3)
    actions, log_prob = head.sample(output, mask, torch.Generator().manual_seed(0))
    assert 1 not in actions
    torch.testing.assert_close(log_prob, torch.full((1000,), 0.5).log())
    assert float(head.evaluate(output, mask, actions)[1][0]) == pytest.approx(np.log(2))


def test_gaussian_head_agrees_with_torch_distributions() -> None:
    head = action_head(spaces.Box(-1, 1, (2, 3)), log_std_init=-0.5)
    output = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Normal(output, torch.tensor(-0.5).exp())
    action, log_prob = head.sample(output, None, torch.Generator().manual_seed(1))
    assert action.shape == (5, 2, 3)
    torch.testing.assert_close(log_prob, reference.log_prob(action.flatten(1)).sum(-1))
    again, entropy = head.evaluate(output, None, action)
    torch.testing.assert_close(again, log_prob)
    torch.testing.assert_close(entropy, reference.entropy().sum(-1))


def test_flatten_lays_any_space_out_as_gymnasium_does() -> None:
    space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2, 2), np.float32),
            "number": spaces.Discrete(3, start=1),
            "bits": spaces.MultiBinary(2),
            "dials": spaces.MultiDiscrete([2, 3]),
        }
    )
    space.seed(0)
    samples = [space.sample() for _ in range(4)]
    batch = {key: torch.from_numpy(np.stack([np.asarray(sample[key]) for sample in samples])) for key in space.spaces}
    expected = np.stack([spaces.flatten(space, sample) for sample in samples])
    assert flat_size(space) == expected.shape[1]
    np.testing.assert_array_equal(flatten(space, batch), expected)


def test_bytes_are_read_as_pixels() -> None:
    image = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    assert flatten(spaces.Box(0, 255, (1, 1, 2), np.uint8), image).tolist() == [[0.0, 1.0]]
