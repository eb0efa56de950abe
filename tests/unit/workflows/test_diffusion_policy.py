"""Diffusion Policy: chunks and when they are made, what is kept across a resume, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.base.streams import Streams
from cadenza.config.load import load
from cadenza.config.schema import RunConfig
from cadenza.data.replay import ReplayStore
from cadenza.engine.launch import check
from cadenza.engine.orchestrator import Orchestrator
from cadenza.envs.ledger import EVAL, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.lab.playback import PLAYING
from cadenza.ops.diffusion import NOISE_SCHEDULES, ddim_step, ddpm_step
from cadenza.tools.demonstrate import demonstrate
from cadenza.tools.export import EpisodeSelection
from cadenza.tools.verify import compare
from cadenza.trees import leaves
from cadenza.types import Mode, Step
from harness.lab import Lab

SMALL = [
    "environment.num_envs=2",
    "algorithm.buffer_size=4000",
    "algorithm.batch_size=16",
    "algorithm.horizon=4",
    "algorithm.executed=3",
    "algorithm.torso.hidden_sizes=[16]",
    "evaluation.episodes=2",
]
DIFFUSING = ["algorithm.noise_steps=8", "algorithm.sampling_steps=2", "algorithm.unet.widths=[8]"]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of both ways round."""
    out = tmp_path_factory.mktemp("demonstrations") / "forks"
    summary = demonstrate(load("toy/fork:diffusion_policy"), "fork", out, EpisodeSelection(60))
    assert (summary["episodes"], summary["return_min"]) == (60, 1.0)
    return out


@pytest.fixture
def configured(forks: Path) -> Callable[..., RunConfig]:
    def config(*overrides: str, updates: int = 20) -> RunConfig:
        settings = [f"training.dataset={forks}", f"training.max_updates={updates}"]
        alone = [] if "algorithm.baseline=cloning" in overrides else DIFFUSING
        return load("toy/fork:diffusion_policy", [*SMALL, *alone, *settings, *overrides])

    return config


def test_a_chunk_is_done_action_by_action_and_then_made_anew(lab: Lab, configured: Callable[..., RunConfig]) -> None:
    run = lab.start(configured())
    policy, mode = run.workflow, Mode(False, PLAYING, Streams(0))
    env = make_vector(run.config.environment, EpisodeSeeds(0, EVAL), num_envs=3)
    step, carry = env.current, policy.initial_carry(3)
    made, chunk = 0, carry["groups"]["agent"]["chunk"]
    for time in range(7):
        acted = policy.act(step, carry, mode)
        new = acted.carry["groups"]["agent"]["chunk"]
        made += not np.array_equal(new, chunk)
        np.testing.assert_array_equal(acted.carry["left"], 2 - time % 3)
        np.testing.assert_allclose(acted.action["agent"], new[:, time % 3], rtol=1e-6)
        np.testing.assert_array_equal(acted.carry["groups"]["agent"]["seen"][:, -1], step.obs["agent"])
        if time == 0:  # nothing was before: the first stands for it
            np.testing.assert_array_equal(acted.carry["groups"]["agent"]["seen"][:, 0], step.obs["agent"])
        chunk, carry = new, acted.carry
        step = env.step(acted.action)
    assert made == 3  # at 0, 3 and 6
    # where an episode begins, the rest of a chunk is dropped, and only there
    step.is_first[:] = [False, True, False]
    acted = policy.act(step, carry, mode)
    changed = (acted.carry["groups"]["agent"]["chunk"] != carry["groups"]["agent"]["chunk"]).any((1, 2, 3))
    assert changed.tolist() == [False, True, False]
    assert acted.carry["left"].tolist() == [1, 2, 1]
    env.close()


def first_chunks(run: Orchestrator) -> np.ndarray:
    """What it would do next [N, T, D] in two environments at their beginning, with the same noise at every call."""
    env = make_vector(run.config.environment, EpisodeSeeds(0, EVAL), num_envs=2)
    carry = run.workflow.act(env.current, run.workflow.initial_carry(2), Mode(False, PLAYING, Streams(0))).carry
    env.close()
    return np.asarray(carry["groups"]["agent"]["chunk"][:, :, 0])


def test_the_first_actions_of_a_chunk_are_those_that_are_done(lab: Lab, configured: Callable[..., RunConfig]) -> None:
    whole = first_chunks(lab.start(configured("algorithm.executed=4"), "whole"))
    begun = first_chunks(lab.start(configured("algorithm.executed=3"), "begun"))
    np.testing.assert_array_equal(begun, whole[:, :3])


def test_what_others_do_is_remembered_and_breaks_the_chunk(lab: Lab, configured: Callable[..., RunConfig]) -> None:
    run = lab.start(configured())
    env = make_vector(run.config.environment, EpisodeSeeds(0, EVAL), num_envs=2)
    streams, forced = Streams(0), {"agent": np.ones((2, 1, 2), np.float32)}
    begun = run.workflow.act(env.current, run.workflow.initial_carry(2), Mode(True, PLAYING, streams))
    step: Step = env.step(begun.action)
    acted = run.workflow.act(step, begun.carry, Mode(True, PLAYING, streams, forced))
    assert acted.action is forced
    assert not acted.carry["left"].any()
    np.testing.assert_array_equal(acted.carry["groups"]["agent"]["seen"][:, -1], step.obs["agent"])
    env.close()


def state(run: Orchestrator) -> dict[str, torch.Tensor]:
    return {path: leaf for path, leaf in leaves(run.workflow.state_dict()) if isinstance(leaf, torch.Tensor)}


def test_the_average_follows_the_weights_and_is_what_acts(lab: Lab, configured: Callable[..., RunConfig]) -> None:
    run = lab.start(configured("algorithm.ema_power=0.5", "algorithm.learning_rate_warmup=0"))
    store, name = run.stores["replay"], "averages.agent.denoiser.leave.1.bias"
    slow = state(run)[name].clone()
    for update in range(4):
        run.workflow.update(store, PLAYING)  # type: ignore[attr-defined]
        keep = 1 - (1 + update) ** -0.5
        slow = keep * slow + (1 - keep) * state(run)[name.replace("averages", "nets")]
        torch.testing.assert_close(state(run)[name], slow)
    chunks = first_chunks(run)
    zeroed(run.workflow.nets["agent"])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(first_chunks(run), chunks)
    zeroed(run.workflow.averages["agent"].net)  # type: ignore[attr-defined]
    assert (first_chunks(run) != chunks).any()
    newest = lab.start(configured("algorithm.ema_max=0"), "newest")
    newest.workflow.update(newest.stores["replay"], PLAYING)  # type: ignore[attr-defined]
    torch.testing.assert_close(state(newest)[name], state(newest)[name.replace("averages", "nets")])


@torch.no_grad()
def zeroed(net: torch.nn.Module) -> None:
    for parameter in net.parameters():
        parameter.zero_()


def test_the_step_size_grows_to_what_it_is(lab: Lab, configured: Callable[..., RunConfig]) -> None:
    """AdamW's first step is as long as the step size, whatever the gradient."""
    run = lab.start(configured("algorithm.learning_rate=0.01", "algorithm.learning_rate_warmup=4"))
    store, name = run.stores["replay"], "nets.agent.denoiser.leave.1.bias"
    before = state(run)[name].clone()
    rates = [run.workflow.update(store, PLAYING).metrics["train/learning_rate"]]  # type: ignore[attr-defined]
    torch.testing.assert_close((state(run)[name] - before).abs(), torch.full_like(before, 0.0025), rtol=1e-3, atol=0)
    rates += [run.workflow.update(store, PLAYING).metrics["train/learning_rate"] for _ in range(4)]  # type: ignore[attr-defined]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])


def test_numbers_are_scaled_by_their_ranges_in_the_demonstrations(
    lab: Lab, configured: Callable[..., RunConfig]
) -> None:
    run = lab.start(configured("algorithm.batch_size=2000"))
    policy: Any = run.workflow
    learned_from = seen_by(policy.nets["agent"])
    policy.update(run.stores["replay"], PLAYING)
    (rows,) = run.stores["replay"].transitions(10_000, {"agent": [""]})  # type: ignore[attr-defined]
    norms, obs, action = policy.state_dict()["normalisers"], rows["agent"]["obs"][""][:, 0], rows["agent"]["action"]
    low, high = obs.min(0), obs.max(0)
    np.testing.assert_array_equal(norms["agent.obs"]["low"], low)
    np.testing.assert_array_equal(norms["agent.action"]["high"], action[:, 0].max(0))
    vectors = learned_from[0].flatten(0, -2)
    torch.testing.assert_close(vectors.amin(0), torch.full((2,), -1.0), atol=0.02, rtol=0)
    torch.testing.assert_close(vectors.amax(0), torch.full((2,), 1.0), atol=0.02, rtol=0)
    acted_on = seen_by(policy.averages["agent"].net)
    env = make_vector(run.config.environment, EpisodeSeeds(0, EVAL), num_envs=2)
    expected = 2 * (env.current.obs["agent"][:, 0] - low) / (high - low) - 1
    env.close()
    first_chunks(run)
    np.testing.assert_allclose(acted_on[0][:, -1, 0], expected, atol=1e-5)


def test_a_regression_stays_within_what_was_demonstrated(lab: Lab, configured: Callable[..., RunConfig]) -> None:
    run = lab.start(configured("algorithm.baseline=cloning"))
    policy: Any = run.workflow
    policy.update(run.stores["replay"], PLAYING)
    with torch.no_grad():
        for parameter in policy.averages["agent"].net.parameters():
            parameter.mul_(100)
    norm, chunks = policy.ranges["agent.action"], torch.from_numpy(first_chunks(run))
    assert ((norm.low - 1e-5 <= chunks) & (chunks <= norm.high + 1e-5)).all()
    assert (torch.isclose(chunks, norm.low) | torch.isclose(chunks, norm.high)).any()  # it would go farther


def test_only_what_is_allowed_is_done(lab: Lab) -> None:
    """One action of four, another at every step, which the chunk cannot know."""
    phases = "training.phases=[{name: random, hooks: [{name: collect, steps: 40}, {name: update}], actions: random}]"
    run = lab.start(load("toy/masked:diffusion_policy", [*SMALL, *DIFFUSING, phases, "training.max_timesteps=40"]))
    env = make_vector(run.config.environment, EpisodeSeeds(0, EVAL), num_envs=2)
    step, carry = env.current, run.workflow.initial_carry(2)
    for _ in range(8):
        acted = run.workflow.act(step, carry, Mode(False, PLAYING, Streams(0)))
        assert step.mask["agent"][[0, 1], 0, acted.action["agent"][:, 0]].all()
        step, carry = env.step(acted.action), acted.carry
    env.close()


def seen_by(net: Any) -> list[torch.Tensor]:
    """The vectors that a network is shown from now on, call by call."""
    inputs: list[torch.Tensor] = []
    net.torso.register_forward_pre_hook(lambda _, given: inputs.append(given[0]["vector"].clone()))
    return inputs


class Knowing(torch.nn.Module):
    """A denoiser that knows the actions, and so the noise in what it is shown."""

    def __init__(self, clean: torch.Tensor, kept: torch.Tensor) -> None:
        super().__init__()
        self.clean, self.kept = clean, kept

    def forward(self, x: torch.Tensor, at: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        kept = self.kept[at, None, None]
        return (x - kept.sqrt() * self.clean) / (1 - kept).sqrt()


SAMPLERS = [["sampler=ddim"], ["sampler=ddim", "ddim_eta=0.5"], ["sampler=ddim", "ddim_eta=1"], ["sampler=ddpm"]]


@pytest.mark.parametrize("settings", SAMPLERS, ids=" ".join)
def test_the_way_back_ends_with_clean_actions(
    lab: Lab, configured: Callable[..., RunConfig], settings: list[str]
) -> None:
    run = lab.start(configured(*(f"algorithm.{one}" for one in settings)))
    policy: Any = run.workflow
    clean = torch.linspace(-0.9, 0.9, 8).view(4, 2)
    policy.averages["agent"].net.denoiser = Knowing(clean, policy.signal)
    for chunk in first_chunks(run):  # no ranges are known yet: nothing is scaled
        np.testing.assert_allclose(chunk, clean[:3], atol=1e-5)


@pytest.mark.parametrize("settings", SAMPLERS, ids=" ".join)
def test_the_way_back_is_the_samplers(lab: Lab, configured: Callable[..., RunConfig], settings: list[str]) -> None:
    """Step by step from the same noise, with a denoiser that errs."""
    run = lab.start(configured("algorithm.sampling_steps=4", *(f"algorithm.{one}" for one in settings)))
    policy: Any = run.workflow
    policy.averages["agent"].net.denoiser = Knowing(torch.zeros(4, 2), 0.5 * policy.signal)
    generator, schedule = Streams(0).torch("act.agent", torch.device("cpu")), NOISE_SCHEDULES["cosine"](8)
    x = torch.randn(2, 4, 2, generator=generator)
    for at, following in pairwise([7, 5, 2, 0, None]):
        assert at is not None
        wrong = policy.averages["agent"].net.denoiser(x, torch.tensor([at, at]), x)
        before = torch.tensor(1.0) if following is None else schedule[following]
        eta = run.config.algorithm.ddim_eta
        drawn = torch.randn(x.shape, generator=generator) if eta or "sampler=ddpm" in settings else torch.zeros(())
        if "sampler=ddpm" in settings:
            x = ddpm_step(x, wrong, schedule[at], before, drawn)
        else:
            x = ddim_step(x, wrong, schedule[at], before, drawn, eta)
    np.testing.assert_allclose(first_chunks(run), x[:, :3], atol=1e-5)


def test_ranges_of_an_observation_in_parts_are_in_the_order_that_networks_see(lab: Lab) -> None:
    phases = "training.phases=[{name: random, hooks: [{name: collect, steps: 40}, {name: update}], actions: random}]"
    short = ["training.max_timesteps=40", "evaluation.at_end=false"]
    run = lab.start(load("toy/dict:diffusion_policy", [*SMALL, *DIFFUSING, phases, *short]))
    run.run()
    norms, observer = run.workflow.state_dict()["normalisers"], run.workflow.observers["agent"]  # type: ignore[attr-defined]
    store = run.stores["replay"]
    assert isinstance(store, ReplayStore)
    drawn = store.sample(2000, np.random.default_rng(0)).groups["agent"]["obs"]
    vector = observer(drawn)["vector"].flatten(0, 1)
    torch.testing.assert_close(norms["agent.obs"]["low"], vector.amin(0))
    torch.testing.assert_close(norms["agent.obs"]["high"], vector.amax(0))


def test_nothing_is_learned_from_what_the_dead_do(lab: Lab) -> None:
    """The loss of a batch, one action at a time; of two runners one dies on the way."""
    phases = "training.phases=[{name: random, hooks: [{name: collect, steps: 60}, {name: update}], actions: random}]"
    short = ["training.max_timesteps=60", "evaluation.at_end=false", "algorithm.baseline=cloning"]
    run = lab.start(load("toy/pair:diffusion_policy", [*SMALL, phases, *short]))
    run.run()
    policy: Any = run.workflow
    chance = policy.context.streams.numpy("replay")
    state = chance.bit_generator.state
    drawn = run.stores["replay"].windows(16, chance, 2, 4).groups["runner"]  # type: ignore[attr-defined]
    chance.bit_generator.state = state
    net, norms, losses = policy.nets["runner"], policy.ranges, []
    for b, agent in np.ndindex(16, 2):
        with torch.no_grad():
            obs = norms["runner.obs"](torch.from_numpy(drawn["obs"][b : b + 1, :, agent : agent + 1]))
            chunk = net.clone(net.encode({"vector": obs}))[0]
        for t in np.flatnonzero(drawn["active"][b, :, agent]):
            normalised = norms["runner.action"](torch.eye(3)[drawn["action"][b, t, agent]])
            losses.append(float((chunk[t] - normalised).square().mean()))
    assert len(losses) < 16 * 2 * 4
    loss = policy.update(run.stores["replay"], PLAYING).metrics["train/runner/loss"]
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.parametrize("baseline", ["none", "cloning"])
def test_averages_chunks_and_ranges_survive_a_resume_in_the_middle(
    lab: Lab, configured: Callable[..., RunConfig], baseline: str
) -> None:
    """Offline, then among environments: a run stopped in both, with chunks half done, is as one left alone."""
    phases = (
        "training.phases=[{name: clone, type: offline, hooks: [{name: update, times: 5}], duration_updates: 20}, "
        "{name: play, hooks: [{name: collect, steps: 10}, {name: update}]}]"
    )
    config = configured(phases, f"algorithm.baseline={baseline}", "training.max_timesteps=40", updates=100)
    whole = lab.start(config, "whole")
    whole.run()
    first = lab.start(config, "parts")
    first.run(until=lambda clock: clock.updates >= 10)
    second = lab.resume(first)
    second.run(until=lambda clock: clock.env_steps >= 20)
    assert second.collector is not None
    assert second.collector.carry["left"].any()
    third = lab.resume(first)
    third.run()
    assert third.clock.env_steps == 40
    assert compare(whole.folder, third.folder) is None
    for name, tensor in state(whole).items():
        torch.testing.assert_close(state(third)[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algorithm.executed=5", "at most horizon=4"),
        ("algorithm.sampling_steps=9", "at most noise_steps=8"),
        ("algorithm.unet.widths=[8,8,8,8]", "must be a multiple of 8"),
        ("algorithm.torso.memory.type=gru", "algorithm.history"),
        ("algorithm.ema_max=1", r"must be in \[0, 1\)"),
        ("algorithm.buffer_size=4", "at least 6 for environment.num_envs=2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(configured: Callable[..., RunConfig], setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(configured(setting))


@pytest.mark.parametrize(
    ("settings", "key", "needed"),
    [
        (["sampler=ddpm", "ddim_eta=0.5"], "ddim_eta", "sampler=ddim"),
        (["transformer.size=64"], "transformer.size", "denoiser=transformer"),
        (["denoiser=transformer", "unet.widths=[8]"], "unet.widths", "denoiser=unet"),
        (["baseline=cloning", "noise_steps=50"], "noise_steps", "baseline=none"),
        (["baseline=cloning", "sampler=ddpm"], "sampler", "baseline=none"),
        (["baseline=cloning", "unet.kernel=3"], "unet.kernel", "baseline=none"),
        (["cloning.hidden_sizes=[8]"], "cloning", "baseline=cloning"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings: list[str], key: str, needed: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm.{key}.*: does nothing without {needed}"):
        load("toy/fork:diffusion_policy", [f"algorithm.{one}" for one in settings])


def test_both_learners_look_at_vectors_through_layers_of_their_own() -> None:
    for baseline in ("none", "cloning"):
        config = load("toy/fork:diffusion_policy", [f"algorithm.baseline={baseline}"]).algorithm
        assert (config.torso.hidden_sizes, config.torso.activation) == ((256, 256), "relu")


def test_without_demonstrations_it_says_so(lab: Lab, configured: Callable[..., RunConfig]) -> None:
    config = configured()
    with pytest.raises(ConfigError, match=r"set training\.dataset"):
        lab.start(replace(config, training=replace(config.training, dataset=None)))
