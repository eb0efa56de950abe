"""World Models: every phase learns and resumes, and a memory is what makes the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from PIL import Image

from cadenza.base.files import SafePath
from cadenza.config.load import load
from cadenza.data.candidate_returns import TRIAL
from cadenza.data.replay import ReplayStore
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.engine.orchestrator import Orchestrator
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.lab.session import train
from cadenza.lab.view.imagination import record_imagination
from cadenza.nets.mdn import DynamicsState, Prediction
from cadenza.records.metrics import read
from cadenza.tools.verify import compare
from cadenza.types import Acted, Mode
from cadenza.workflows.evolution import NONE
from cadenza.workflows.world_models import WorldModels
from harness.collecting import PHASE, filled
from harness.lab import Lab
from harness.world_model_runs import RUNS, SMALL


@pytest.fixture
def rolled() -> Iterator[Any]:
    """A workflow and its replay after the random rollouts."""
    made: list[Assembly] = []

    def roll(spec: str, *overrides: str) -> tuple[WorldModels, ReplayStore]:
        config = load(spec, [*SMALL, *overrides])
        assembly = assemble(config, check(config), {})
        made.append(assembly)
        assert isinstance(assembly.workflow, WorldModels)
        store = filled(assembly)
        assert isinstance(store, ReplayStore)
        return assembly.workflow, store

    yield roll
    for assembly in made:
        assembly.close()


# phases

# nothing evolves: its settings as they are
PLANNED = [
    "algorithm.controller=plan",
    *(
        f"algorithm.{key}"
        for key in ("trials=16", "generations=null", "evolution.population=64", "evolution.sigma=0.1")
    ),
]


def test_its_phases_are_the_papers() -> None:
    assert phases("toy/glimpse:world_models") == ["rollouts", "vision", "memory", "controller", "evaluation"]
    without = phases("toy/glimpse:world_models", "algorithm.evolution.sees=z")
    assert without == ["rollouts", "vision", "controller", "evaluation"]  # nobody needs a memory
    assert phases("toy/recall:world_models") == ["rollouts", "memory", "controller", "evaluation"]  # no images
    planned = phases("toy/identity_box:world_models", *PLANNED, "training.max_timesteps=1000")
    assert planned == ["rollouts", "memory", "controller"]
    random = phases("toy/glimpse:world_models", "algorithm.controller=random")
    assert random == ["rollouts", "vision", "evaluation"]


def phases(spec: str, *overrides: str) -> list[str]:
    return [phase.name for phase in made(spec, *overrides).phases]


@pytest.mark.parametrize("subject", RUNS)
def test_it_resumes_bit_for_bit_in_every_phase(subject: str, lab: Lab) -> None:
    spec, *overrides = RUNS[subject]
    config = load(spec, overrides)
    whole = lab.start(config, "whole")
    whole.run()
    run, phases, finished = lab.start(config, "parts"), set(), set()
    for stop in (1, 4, 8, 11, 12):
        reached: Any = lambda clock, stop=stop: clock.cycles >= stop  # noqa: E731
        run.run(until=reached)
        run = lab.resume(run)
        phases.add(run.clock.phase)
        finished.add(int(trials_of(run).sum()))
    if subject == "World Models":
        run = left_within_an_episode(lab, run)
    run.run()
    assert {"rollouts", "vision", "memory", "controller"} <= phases
    if subject == "World Models":
        assert finished - {0}, "never stopped in the middle of a generation"
    assert read(whole.folder.metrics)[-1]["phase"] == "evaluation"
    assert compare(whole.folder, run.folder) is None


def left_within_an_episode(lab: Lab, run: Orchestrator) -> Orchestrator:
    """As a signal would, two steps after the last episode ended."""
    assert run.collector is not None
    collect, answers = run.collector.collect, iter([False, False, True])
    run.collector.collect = lambda *task: collect(*task[:-1], lambda: next(answers))  # type: ignore
    run._do_next()
    assert not run.collector.env.current.is_first.any()
    run.save()
    return lab.resume(run)


def trials_of(run: Orchestrator) -> np.ndarray:
    assert isinstance(run.workflow, WorldModels)
    assert run.workflow.evolution is not None
    return run.workflow.evolution.has_return


def test_every_trial_of_a_generation_is_made_once_even_if_its_environments_do_not_divide_it(lab: Lab) -> None:
    """15 trials in 4 environments."""
    run = lab.start(load("toy/glimpse:world_models", SMALL))
    workflow: Any = run.workflow
    noted: list[int] = []
    note = workflow.evolution.record
    workflow.evolution.record = lambda trial, total: (noted.extend(trial.tolist()), note(trial, total))
    run.run()
    assert sorted(noted) == sorted([*range(15), *range(15)])
    rows = [row for row in read(run.folder.metrics) if "train/evolution/generation" in row]
    assert [row["train/evolution/generation"] for row in rows] == [1, 2]


# the parts


def test_vision_and_memory_get_better(rolled: Any) -> None:
    workflow, store = rolled("toy/glimpse:world_models", "algorithm.vision.batch_size=32", "algorithm.vision.depth=4")
    errors = [float(workflow.update_vision(store, PHASE).metrics["train/vision/error"]) for _ in range(60)]
    assert np.mean(errors[-5:]) < 0.5 * np.mean(errors[:5])
    likelihoods = [float(workflow.update_memory(store, PHASE).metrics["train/memory/likelihood"]) for _ in range(40)]
    assert np.mean(likelihoods[-5:]) < np.mean(likelihoods[:5]) - 0.2


def test_a_memory_learns_from_what_followed_and_never_across_an_end(rolled: Any) -> None:
    """The losses of a batch, one transition at a time."""
    workflow, store = rolled("toy/recall:world_models")
    streams = workflow.context.streams
    state = streams.numpy("replay").bit_generator.state
    drawn = store.sequences(4, 6, streams.numpy("replay"))
    assert drawn.last[:, :-1].any()
    streams.numpy("replay").bit_generator.state = state
    data, terms = drawn.groups["agent"], []
    for b in range(4):
        memory = workflow.memory.initial(1)
        for t in range(5):
            if drawn.is_first[b, t]:
                memory = workflow.memory.initial(1)
            z, following = (torch.from_numpy(data["obs"][b, i]) for i in (t, t + 1))
            action = torch.nn.functional.one_hot(torch.from_numpy(data["action"][b, t]), 2).float()
            memory = workflow.memory.step(z, action, memory)
            if drawn.last[b, t]:
                continue
            guess = workflow.memory.predict(memory)
            ends = bool(drawn.last[b, t + 1] and drawn.terminated[b, t + 1])
            end = -torch.nn.functional.logsigmoid(guess.end if ends else -guess.end)
            error = (guess.reward - float(data["reward"][b, t, 0])).square()
            terms.append([float(x.detach()) for x in (-guess.log_prob(following).mean(), error, end)])
    metrics = workflow.update_memory(store, PHASE).metrics
    expected = np.mean(terms, 0)
    for name, value in zip(("likelihood", "reward", "end"), expected, strict=True):
        assert float(metrics[f"train/memory/{name}"]) == pytest.approx(value, rel=1e-4)


def test_acting_is_v_then_c_then_m(rolled: Any) -> None:
    workflow, _ = rolled("toy/glimpse:world_models")
    env = assemble_env(workflow)
    mode = Mode(explore=True, phase=PHASE, streams=workflow.context.streams)
    carry, step = workflow.initial_carry(4), env.current
    for _ in range(6):
        acted = workflow.act(step, carry, mode)
        for row in range(4):
            with torch.no_grad():
                z = workflow.vision.encode(torch.from_numpy(step.obs["agent"][row])).mean
                before = [torch.zeros(1, 8) if step.is_first[row] else carry[name][row : row + 1] for name in "hc"]
                parameters = workflow.evolution.candidates[acted.carry[TRIAL][row] % 5].float().view(2, -1)
                action = int((parameters[:, :-1] @ torch.cat([z[0], before[0][0]]) + parameters[:, -1]).argmax())
                after = workflow.memory.step(z, torch.eye(2)[[action]], DynamicsState(*before))
            assert acted.action["agent"][row, 0] == action
            assert torch.allclose(acted.carry["h"][row], after.h[0], atol=1e-6)
        step, carry = env.step(acted.action), acted.carry
    env.close()


@pytest.mark.parametrize("sees", ["z", "z_h", "z_h_c"])
def test_a_controller_sees_what_it_is_said_to_see(sees: str) -> None:
    workflow = worked("toy/identity_box:world_models", f"algorithm.evolution.sees={sees}")
    z, h, c = (torch.full((4, size), value) for size, value in ((1, 0.7), (8, -0.4), (8, 1.5)))
    inputs = {"z": [z], "z_h": [z, h], "z_h_c": [z, h, c]}[sees]
    weights = workflow.evolution.candidates.float()[0]
    expected = torch.tanh(torch.cat([*inputs, torch.ones(4, 1)], -1) @ weights)
    carry = {"h": h, "c": c, TRIAL: np.zeros(4, int)}
    acted = acts_at(workflow, z.numpy(), carry, explore=True)
    np.testing.assert_allclose(acted.action["agent"][:, 0, 0], expected, rtol=1e-5)


def acts_at(workflow: WorldModels, places: Any, carry: Any = None, explore: bool = False) -> Acted:
    """What it does in four environments of one number, in the middle of episodes."""
    env = make_vector(load("toy/identity_box:world_models", SMALL).environment, EpisodeSeeds(0, TRAIN))
    env.current.obs["agent"][:] = np.reshape(places, (4, 1, 1))
    env.current.is_first[:] = False
    mode = Mode(explore, PHASE, workflow.context.streams)
    acted = workflow.act(env.current, workflow.initial_carry(4) if carry is None else carry, mode)
    env.close()
    return acted


def assemble_env(workflow: WorldModels) -> Any:
    return make_vector(load("toy/glimpse:world_models", SMALL).environment, EpisodeSeeds(0, TRAIN))


def test_a_memory_is_shown_a_fresh_draw_of_what_vision_tells(rolled: Any) -> None:
    """The same sequences again and again: what M gets to see of them spreads as V says."""
    workflow, store = rolled("toy/glimpse:world_models")
    chance = workflow.context.streams.numpy("replay")
    state = chance.bit_generator.state
    drawn = torch.from_numpy(store.sequences(4, 6, chance).groups["agent"]["obs"][:, 0, 0])
    inputs, step = [], workflow.memory.step
    workflow.memory.step = lambda z, *rest: (inputs.append(z), step(z, *rest))[1]
    for _ in range(200):
        chance.bit_generator.state = state
        workflow.update_memory(store, PHASE)
    first = torch.stack(inputs[::5])  # of the five steps of each update
    with torch.no_grad():
        mean, log_var = workflow.vision.encode(drawn)
    spread = torch.exp(0.5 * log_var)
    torch.testing.assert_close(first.mean(0), mean, rtol=0, atol=0.25 * float(spread.max()))
    torch.testing.assert_close(first.std(0), spread, rtol=0.2, atol=0)


# in a model of which the answers are known


class Walk:
    """Knows a walk along a line: an action goes that far. What a place earns, and whether it is the end, is given."""

    mixtures = 1

    def __init__(self, earns: Callable[[torch.Tensor], torch.Tensor], ends: Callable[[torch.Tensor], torch.Tensor]):
        self.earns, self.ends = earns, ends

    def initial(self, count: int) -> DynamicsState:
        return DynamicsState(torch.zeros(count, 1), torch.zeros(count, 1))

    def step(self, z: torch.Tensor, action: torch.Tensor, before: DynamicsState) -> DynamicsState:
        return DynamicsState(z + action, before.c)

    def predict(self, memory: DynamicsState) -> Prediction:
        """The next latent is normal around where one went, with a deviation of 1."""
        place, nothing = memory.h, torch.zeros_like(memory.h).unsqueeze(-1)
        end = torch.where(self.ends(place[:, 0]), 50.0, -50.0)
        return Prediction(nothing, place.unsqueeze(-1), nothing, self.earns(place[:, 0]), end)


def never(place: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(place, dtype=torch.bool)


def worked(spec: str, *overrides: str, model: Walk | None = None) -> Any:
    """A workflow that has learned nothing; with a model that knows already."""
    workflow: Any = made(spec, *overrides).workflow
    if model is not None:
        workflow.memory = model
    return workflow


SEARCH = ["algorithm.horizon=3", "algorithm.planning.candidates=200", "algorithm.planning.elites=20"]


@pytest.mark.parametrize(("walled", "best"), [(False, [-1, -1, 1, 1]), (True, [1, 1, 1, 1])])
def test_a_planner_takes_the_first_step_of_the_best_plan(walled: bool, best: list[int]) -> None:
    """A little is earned at once on the right, far more later on the left, if the way there is no end."""
    treasure = Walk(
        earns=lambda place: torch.where(place > 0, 0.1 * place, torch.relu(-place - 1)),
        ends=lambda place: (place < -0.5) & walled,
    )
    settings = [*PLANNED, *SEARCH, "algorithm.memory.hidden=1", "training.max_timesteps=1000"]
    workflow = worked("toy/identity_box:world_models", *settings, model=treasure)
    acted = acts_at(workflow, [0, 0.2, 4, 5])  # from 4 and 5 three steps do not lead to the left
    np.testing.assert_allclose(acted.action["agent"][:, 0, 0], best, atol=0.2)


def dreamt(model: Walk, places: list[float], *overrides: str) -> np.ndarray:
    """What a controller that stays where it is dreams to earn, from each of these places."""
    inside = ["algorithm.evolution.inside=dream", "algorithm.memory.hidden=1"]
    workflow = worked("toy/identity_box:world_models", *inside, *overrides, model=model)
    returns: np.ndarray = workflow._dream(np.full(len(places), NONE), torch.tensor(places)[:, None], workflow.config)
    return returns


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_a_dream_is_as_uncertain_as_its_temperature(temperature: float) -> None:
    """The square of where the second step is made from: the variance of one draw."""
    settings = ["algorithm.dream_steps=2", f"algorithm.evolution.temperature={temperature}"]
    earned = dreamt(Walk(torch.square, never), [0.0] * 4000, *settings)
    assert earned.mean() == pytest.approx(temperature, rel=0.1)


def test_what_leads_to_the_end_of_a_dream_still_earns_and_nothing_after_it() -> None:
    model = Walk(torch.ones_like, ends=lambda place: place > 0)
    assert dreamt(model, [-100.0, 100.0], "algorithm.dream_steps=7").tolist() == [7, 1]


# dreams


DREAMT = ["algorithm.evolution.inside=dream", "algorithm.dream_steps=7"]


def test_a_deterministic_model_dreams_nothing_by_chance(rolled: Any) -> None:
    plain = ["algorithm.dynamics=mlp", "algorithm.memory.mixtures=5"]
    workflow, store = rolled("toy/recall:world_models", *DREAMT, *plain)
    trials = np.array([0, 1, 7])
    beginnings = torch.from_numpy(store.beginnings(3, np.random.default_rng(0))["agent"][:, 0])
    dreams = [workflow._dream(trials, beginnings, workflow.config).tolist() for _ in range(2)]
    assert dreams[0] == dreams[1]
    assert len(set(dreams[0])) == 3


def test_a_dream_is_what_each_controller_would_dream_alone(rolled: Any) -> None:
    workflow, store = rolled("toy/glimpse:world_models", *DREAMT, "algorithm.memory.min_std=0")
    with torch.no_grad():
        workflow.memory.out.weight[:6] = 0
        logits, _, log_std = workflow.memory.out.bias[:18].view(3, 3, 2)
        logits.copy_(torch.tensor([[50.0, 0.0]] * 3))  # always the first normal,
        log_std[:] = -30.0  # and always its mean: nothing is left to chance
        workflow.memory.out.bias[-1] = -8.0  # and nothing ends
    trials = np.array([0, 1, 7])
    beginnings = torch.from_numpy(store.beginnings(3, np.random.default_rng(0))["agent"][:, 0])
    together = workflow._dream(trials, beginnings, workflow.config)
    alone = [workflow._dream(trials[i : i + 1], beginnings[i : i + 1], workflow.config)[0] for i in range(3)]
    assert together.tolist() == pytest.approx(alone, rel=1e-3)
    with torch.no_grad():
        workflow.memory.out.bias[-1] = 100.0  # all of it ends at once
    first = workflow._dream(trials, beginnings, workflow.config)
    assert first.tolist() != pytest.approx(together.tolist(), rel=1e-3)


def test_only_what_is_known_is_seen_in_imagination(rolled: Any) -> None:
    workflow, store = rolled("toy/glimpse:world_models")
    drawn = store.sequences(2, 8, np.random.default_rng(0))
    imagination = workflow.imagine(drawn, 3, seed=0)
    (key,) = imagination.obs
    assert imagination.obs[key].shape == imagination.predicted_obs[key].shape == (2, 7, 1, 16, 16)
    assert imagination.reward.shape == imagination.predicted_reward.shape == (2, 7)
    drawn.groups["agent"]["obs"][:, 4:] = 9
    again = workflow.imagine(drawn, 3, seed=0)
    assert np.array_equal(imagination.predicted_obs[key], again.predicted_obs[key])


def test_nobody_imagines_without_a_memory(rolled: Any, tmp_path: Path) -> None:
    workflow, store = rolled("toy/glimpse:world_models", "algorithm.evolution.sees=z")
    assert record_imagination(workflow, {"replay": store}, SafePath(tmp_path)) == []


def test_reconstructions_and_dreams_can_be_looked_at(rolled: Any, tmp_path: Path) -> None:
    workflow, store = rolled("toy/glimpse:world_models")
    picture, video = record_imagination(workflow, {"replay": store}, SafePath(tmp_path))
    with Image.open(video.path) as frames:
        assert frames.n_frames >= 5  # type: ignore[attr-defined]
    assert picture.stat().st_size > 1000


# the whole

MINIATURE = [
    "algorithm.rollout_steps=2000",
    "algorithm.vision_updates=100",
    "algorithm.memory_updates=250",
    "algorithm.batch_length=8",
    "training.max_timesteps=8000",
    "evaluation.every_steps=0",
    "evaluation.episodes=32",
    "evaluation.num_envs=32",
    "runtime.threads=1",
]
TRIED = "hooks: [{name: collect, episodes: 1}, evolve]"
ANEW = f"training.phases=[{{name: again, buffer: trials, duration_updates: 5, {TRIED}}}]"
# numbers instead of images, so that there is only M to learn
DREAM = [
    "environment.num_envs=16",
    "training.max_timesteps=null",
    "algorithm.buffer_size=4000",
    "algorithm.rollout_steps=1500",
    "algorithm.memory_updates=300",
    "algorithm.batch_length=5",
    "algorithm.memory.hidden=32",
    "algorithm.memory.batch_size=32",
    "algorithm.memory.learning_rate=0.01",
    "algorithm.memory.reward_scale=10",
    "algorithm.memory.min_std=0.3",
    "algorithm.evolution.inside=dream",
    "algorithm.evolution.temperature=1",
    "algorithm.evolution.population=16",
    "algorithm.evolution.sigma=0.5",
    "algorithm.trials=8",
    "algorithm.generations=15",
    "algorithm.dream_steps=6",
    "evaluation.every_steps=0",
    "evaluation.episodes=32",
    "evaluation.num_envs=32",
    "runtime.threads=1",
]


def test_it_learns_and_without_its_memory_it_does_not(tmp_path: Path) -> None:
    def trained(*overrides: str) -> Any:
        config = load("toy/glimpse:world_models", [*MINIATURE, *overrides])
        return train(config, tmp_path, ["test"], quiet=True)

    full = trained()
    assert full.summary()["eval/return_mean"] >= 0.95
    same = f"training.init_from={full.folder.path}"
    assert trained(same, "algorithm.evolution.sees=z", ANEW).summary()["eval/return_mean"] <= 0.7


def test_what_is_learned_in_a_dream_works_awake(tmp_path: Path) -> None:
    """A cue is asked for later; no controller was ever tried in the environment."""
    result = train(load("toy/recall:world_models", DREAM), tmp_path, ["test"], quiet=True)
    assert result.summary()["eval/return_mean"] >= 0.95
    assert result.summary()["env_steps"] == 2048  # random ones


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.representation=identity"],
            "algorithm.vision.latent=.*: does nothing without representation=auto or vae",
        ),
        (["algorithm.evolution.inside=dream", "algorithm.generations=null"], "so set their number"),
        (["algorithm.evolution.population=2"], "algorithm.evolution.population=2: must be at least 4"),
        (["algorithm.vision.learning_rate=0"], "algorithm.vision.learning_rate=0: must be above 0"),
        (PLANNED, "plans continuous actions"),
        (["algorithm.controller=plan"], "does nothing without controller=evolved"),
        (["algorithm.dynamics=mlp"], "algorithm.memory.mixtures=2: does nothing without dynamics=mdn_rnn"),
        (["algorithm.horizon=3"], "algorithm.horizon=3: does nothing without controller=plan"),
        (["algorithm.evolution.temperature=2"], "does nothing without evolution.inside=dream"),
        (["algorithm.controller=random", "algorithm.rollout_actions=policy"], "rollout_actions=policy: does nothing"),
        (["algorithm.evolution.clipped=[0]"], "algorithm.evolution.clipped"),
        (["algorithm.buffer_size=8"], "algorithm.buffer_size=8"),
    ],
)
def test_mistakes_are_told(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made("toy/glimpse:world_models", *overrides)


def test_a_random_controller_keeps_the_settings_of_what_it_stands_for() -> None:
    config = load("Pendulum-v1:mpc", ["algorithm.controller=random", "algorithm.horizon=7"]).algorithm
    assert (config.horizon, config.planning.candidates) == (7, 128)


def test_what_no_representation_fits_is_told_before_anything_is_made() -> None:
    with pytest.raises(ConfigError, match="toy/dot has images; take vae"):
        check(load("toy/dot:world_models", ["algorithm.representation=identity"]))
    with pytest.raises(ConfigError, match="toy/recall has no images; take identity"):
        check(load("toy/recall:world_models", ["algorithm.representation=vae"]))
    config = load("toy/glimpse:world_models")
    env = check(config)
    both = Dict({"eye": env.groups["agent"].observation, "place": Box(-1, 1, (2,))})
    spec = replace(env, groups={"agent": replace(env.groups["agent"], observation=both)})
    with pytest.raises(
        ConfigError, match="one image and nothing else, or numbers alone; toy/glimpse has 1 of them and 2"
    ):
        config.algorithm.check(spec, 1)


def made(spec: str, *overrides: str) -> Assembly:
    config = load(spec, [*SMALL, *overrides])
    assembly = assemble(config, check(config), {})
    assembly.close()
    return assembly
