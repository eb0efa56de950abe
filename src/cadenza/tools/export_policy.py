"""A run's policy as an ONNX or TorchScript model, normaliser and memory included, checked to act as the run does."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.base.json_text import dumps
from cadenza.base.streams import EVALUATION, Streams
from cadenza.config.schema import EnvironmentConfig
from cadenza.data.datasets import described_space
from cadenza.engine.playback import Player, load_policy
from cadenza.envs.catalog import make
from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Layout, allocate_space, blank
from cadenza.envs.seeds import RECORD, EpisodeSeeds
from cadenza.envs.wrappers import RescaledActions, layer
from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, install
from cadenza.nets.deployed import Deployed
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves, map_tree
from cadenza.types import SINGLE_GROUP, Deployable, Mode, Step, Tree

FACTS = "cadenza.json"  # where a model tells what it is
TOLERANCE = 1e-4  # of the largest number in what is compared, for differences in rounding
LEAST = 0.1  # what counts as the largest where all are smaller
NEAR_TIES = 1e-3  # the share of choices that such a difference may turn, beside one in each group
BATCHES = (1, 64, 64, 64)  # observations in each step of the check
EXAMPLE = 3  # as many as nothing else here counts, so that no other size is taken for the batch

Arrays = dict[str, np.ndarray]
Call = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Group:
    """One group of the policy, and the names its part of the model goes by."""

    name: str
    module: Deployed
    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    agents: int
    masked: int  # how many numbers its action mask has; 0: it has none
    single: bool  # the only agent there is: no axis for agents, no name before the others
    stretch: RescaledActions | None = None  # what makes the environment's actions of the policy's

    @property
    def bounds(self) -> spaces.Space[Any]:
        """The actions that the environment takes."""
        return self.action if self.stretch is None else self.stretch.env.action_space

    @property
    def prefix(self) -> str:
        return "" if self.single else f"{self.name}."

    def of(self, what: str, tree: Tree) -> Iterator[tuple[str, Any]]:
        for path, leaf in leaves(tree):
            yield f"{self.prefix}{what}{'.' if path else ''}{path}", leaf


class Model(nn.Module):
    """All groups at once: named tensors in, named tensors out, in the order of `inputs` and `outputs`."""

    def __init__(self, groups: list[Group], clip: bool) -> None:
        super().__init__()
        self.groups, self.clip = groups, clip
        self.policies = nn.ModuleList([group.module for group in groups])
        self.remembers = any(group.module.carry is not None for group in groups)
        self.inputs = list(self.example(1))
        self.outputs = [name for group in groups for name in self._outputs(group)]

    def example(self, count: int) -> Arrays:
        """Inputs for so many environments whose episodes begin."""
        arrays: Arrays = {}
        for group in self.groups:
            lead = (count,) if group.single else (count, group.agents)
            arrays |= group.of("obs", blank(group.observation, lead))
            if group.masked:
                arrays[f"{group.prefix}mask"] = np.ones((*lead, group.masked), bool)
            arrays |= group.of("carry", map_tree(lambda x: x.numpy(), group.module.initial_carry(*lead)))
        return arrays | ({"is_first": np.ones(count, bool)} if self.remembers else {})

    def _outputs(self, group: Group) -> Iterator[str]:
        yield from (f"{group.prefix}action", f"{group.prefix}output")
        yield from (name for name, _ in group.of("next_carry", group.module.initial_carry(1)))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.inputs, tensors, strict=True))
        found: list[Tensor] = []
        for group in self.groups:

            def widened(tensor: Tensor, single: bool = group.single) -> Tensor:
                return tensor.unsqueeze(1) if single else tensor

            obs = map_tree(widened, taken(given, f"{group.prefix}obs", structure(group.observation)))
            carry = map_tree(widened, taken(given, f"{group.prefix}carry", group.module.initial_carry(1)))
            mask = widened(given[f"{group.prefix}mask"]) if group.masked else None
            first = given["is_first"][:, None].expand(-1, group.agents) if self.remembers else torch.empty(0)
            action, output, after = group.module(obs, carry, first, mask)
            if self.clip and isinstance(group.action, spaces.Box):
                low, high = corners(group.action)
                action = torch.minimum(torch.maximum(action, low), high)
            if group.stretch is not None:
                low, high = corners(group.bounds)
                action = (low + high) / 2 + (high - low) / 2 * action
            made = [action, output, *(leaf for _, leaf in leaves(after))]
            found += [one.squeeze(1) for one in made] if group.single else made
        return tuple(found)


def corners(space: Any) -> tuple[Tensor, Tensor]:
    """The bounds of a box."""
    return torch.from_numpy(space.low).float(), torch.from_numpy(space.high).float()


def structure(space: spaces.Space[Any]) -> Tree:
    """The nesting of a space's observations."""
    return {key: structure(part) for key, part in space.spaces.items()} if isinstance(space, spaces.Dict) else None


def taken(given: dict[str, Tensor], name: str, like: Tree) -> Tree:
    """The tensors below a name, nested as they were."""
    return (
        {key: taken(given, f"{name}.{key}", part) for key, part in like.items()}
        if isinstance(like, dict)
        else given[name]
    )


def export_policy(
    folder: RunFolder, format: str, checkpoint: str = "last", trust: bool = False
) -> tuple[bytes, dict[str, Any]]:
    """The model's file, and what is told of it."""
    if format == "onnx":
        require_onnx()
    player, name = load_policy(folder, checkpoint, trust)
    model = assembled(player)
    facts = {
        "run": folder.id,
        "checkpoint": name,
        "environment": player.spec.id,
        "algorithm": player.config.algorithm.name,
        "inputs": {key: [str(x.dtype), ["N", *x.shape[1:]]] for key, x in model.example(1).items()},
        "outputs": model.outputs,
        "actions": {group.prefix + "action": described_space(group.bounds) for group in model.groups},
    }
    content = (as_onnx if format == "onnx" else as_torchscript)(model, dumps(facts))
    call = (onnx_call if format == "onnx" else torchscript_call)(content, model)
    return content, {**facts, "format": format, "bytes": len(content), **checked(player, model, call)}


def assembled(player: Player) -> Model:
    """The policy of every group, or one line that says why it is no model."""
    workflow, algorithm = player.workflow, player.config.algorithm.name
    if not isinstance(workflow, Deployable):
        raise ConfigError(
            f"{algorithm} acts by more than one pass through its networks (a model of the world, a search, a table): "
            "it cannot be exported as a model; `cadenza.load` gives its policy in Python"
        )
    environment = make(player.config.environment)
    try:
        first = environment.reset(EpisodeSeeds(0, RECORD)(0, 0))
        masks = Layout.from_frame(environment.spec, first).masks
    finally:
        environment.close()
    alone, stretch = list(player.spec.groups) == [SINGLE_GROUP], stretching(player.config.environment)
    groups = [
        Group(
            name,
            workflow.deployed(name),
            group.observation,
            group.action,
            len(group.agents),
            masks.get(name, 0),
            alone and len(group.agents) == 1,
            stretch,
        )
        for name, group in player.spec.groups.items()
    ]
    model = Model(groups, player.config.environment.clip_actions)
    return model.eval().requires_grad_(False)


def stretching(config: EnvironmentConfig) -> RescaledActions | None:
    """What `environment.rescale_actions` puts around the only agent there then is."""
    if not config.rescale_actions:
        return None
    environment = make(replace(config, groups="auto", teams={}))
    environment.close()
    return layer(environment.env, RescaledActions) if isinstance(environment, Gym) else None


# writing and reading


def require_onnx() -> None:
    if any(find_spec(package) is None for package in ("onnx", "onnxscript", "onnxruntime")):
        raise MissingExtraError(f"--format onnx needs an extra: {install('onnx')}")


def example_tensors(model: Model) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(x) for x in model.example(EXAMPLE).values())


def as_onnx(model: Model, facts: str) -> bytes:
    any_number = torch.export.Dim("N")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that nobody needs here
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                model,
                example_tensors(model),
                input_names=model.inputs,
                output_names=model.outputs,
                dynamic_shapes=(tuple({0: any_number} for _ in model.inputs),),
                dynamo=True,
                verbose=False,
            )
    except Exception as problem:  # whatever of a network torch cannot say in ONNX
        raise CadenzaError(
            f"torch cannot write this policy as ONNX: {reason(problem)}; --format torchscript may do"
        ) from problem
    assert program is not None
    program.model.metadata_props[FACTS] = facts
    content: bytes = program.model_proto.SerializeToString()
    return content


def onnx_call(content: bytes, model: Model) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}  # what changes nothing is left out of a model

    def call(given: Arrays) -> Arrays:
        found = session.run(model.outputs, {name: x for name, x in given.items() if name in wanted})
        return dict(zip(model.outputs, found, strict=True))

    return call


def as_torchscript(model: Model, facts: str) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # what it warns of is what `checked` finds out
        traced = torch.jit.trace(model, example_tensors(model), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer, _extra_files={FACTS: facts})
    return buffer.getvalue()


def torchscript_call(content: bytes, model: Model) -> Call:
    with warnings.catch_warnings(action="ignore"):
        loaded = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]

    def call(given: Arrays) -> Arrays:
        with torch.no_grad():
            found = loaded(*(torch.from_numpy(x) for x in given.values()))
        return {name: x.numpy() for name, x in zip(model.outputs, found, strict=True)}

    return call


def reason(problem: Exception) -> str:
    """The innermost of what was raised, shortly."""
    while problem.__cause__ is not None and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:160]}{'…' if len(text) > 160 else ''}"


# checking


@dataclass
class Differences:
    """Between what the run does and what its model does, output by output: what is small is held to small numbers."""

    observations: int = 0
    gaps: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    scales: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: LEAST))
    choices: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # discrete actions
    turned: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # of those, differing

    def numbers(self, name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        if ours.size:
            gap = float(np.abs(ours.astype(np.float64) - theirs).max())
            self.gaps[name] = max(self.gaps[name], gap if np.isfinite(gap) else np.inf)
            self.scales[name] = max(self.scales[name], float(np.abs(ours).max()))

    def discrete(self, name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        self.choices[name] += ours.size
        self.turned[name] += int(np.count_nonzero(ours != theirs))

    def refuse(self, shares: dict[str, float]) -> None:
        """One line about the first that differs by more than rounding, or than chance where the run acts by chance."""
        for name, gap in self.gaps.items():
            if gap > TOLERANCE * self.scales[name]:
                raise CadenzaError(f"the model does not act as the run does: its {name} differs by up to {gap:.3g}")
        for name, choices in self.choices.items():
            random = choices * shares[name]
            if self.turned[name] > 1 + choices * NEAR_TIES + random + 4 * math.sqrt(random):  # four deviations
                told = f"{self.turned[name]} of {choices} choices are others"
                raise CadenzaError(f"the model does not act as the run does: of its {name}, {told}")


def checked(player: Player, model: Model, call: Call) -> dict[str, Any]:
    """Steps of random observations through the run's own policy and through the model; an error if they part."""
    random, found = np.random.default_rng(0), Differences()
    for group in model.groups:
        group.observation.seed(0)
    if player.spec.state is not None:
        player.spec.state.seed(0)
    mode = Mode(False, player.phase, Streams(0, branch=(EVALUATION,)))
    for step, count in enumerate(BATCHES):
        begins = step == 0 or count != BATCHES[step - 1]
        if begins:
            given, carry = model.example(count), player.workflow.initial_carry(count)
        seen = shown(player, model, count, random, begins)
        given |= named(model, seen)
        acted = player.workflow.act(seen, carry, mode)
        carry = acted.carry
        made = call(given)
        expected = dict(
            zip(model.outputs, (x.numpy() for x in model(*map(torch.from_numpy, given.values()))), strict=True)
        )
        found.observations += count
        for group in model.groups:
            compare(found, model, group, acted.action[group.name], expected, made)
        given |= {name.replace("next_", ""): np.array(x) for name, x in made.items() if "next_carry" in name}
    shares = {f"{group.prefix}action": group.module.random_share for group in model.groups}
    found.refuse(shares)
    return {
        "observations_checked": found.observations,
        "largest_difference": max(found.gaps.values()),
        "differences": dict(found.gaps),
        "choices_checked": sum(found.choices.values()),
        "choices_differing": sum(found.turned.values()),
        "random_share": max(shares.values()),
    }


def compare(found: Differences, model: Model, group: Group, acted: np.ndarray, expected: Arrays, made: Arrays) -> None:
    action, output = f"{group.prefix}action", f"{group.prefix}output"
    ours = acted[:, 0] if group.single else acted
    if isinstance(group.action, spaces.Box):
        if model.clip:
            ours = np.clip(ours, group.action.low, group.action.high)
        if group.stretch is not None:
            ours = group.stretch.action(ours)
        found.numbers(action, ours, made[action])
    else:
        found.discrete(action, ours, made[action])
    for name in model.outputs:
        if name == output or name.startswith(f"{group.prefix}next_carry"):
            found.numbers(name, expected[name], made[name])


def shown(player: Player, model: Model, count: int, random: np.random.Generator, begins: bool) -> Step:
    """Random elements of the spaces, random masks, and some episodes that begin."""
    obs, masks = {}, {}
    for group in model.groups:
        lead = (count, group.agents)
        obs[group.name] = drawn(group.observation, lead)
        if group.masked:
            masks[group.name] = random.random((*lead, group.masked)) < 0.5
            masks[group.name][..., 0] = True
    state = None if player.spec.state is None else drawn(player.spec.state, (count,))
    nothing = {name: np.zeros((count, len(spec.agents)), np.float32) for name, spec in player.spec.groups.items()}
    return Step(
        obs=obs,
        final_obs=obs,
        reward=nothing,
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        is_first=np.ones(count, bool) if begins else random.random(count) < 0.2,
        active={name: np.ones(rewards.shape, bool) for name, rewards in nothing.items()},
        died={name: np.zeros(rewards.shape, bool) for name, rewards in nothing.items()},
        mask=masks,
        state=state,
        final_state=state,
    )


def drawn(space: spaces.Space[Any], lead: tuple[int, ...]) -> Tree:
    batch = allocate_space(space, lead)
    for index in np.ndindex(*lead):
        one = space.sample()
        map_tree(lambda array, value, at=index: array.__setitem__(at, value), batch, one)
    return batch


def named(model: Model, seen: Step) -> Arrays:
    """What is shown as inputs of the model."""
    arrays: Arrays = {}
    for group in model.groups:
        tree = seen.obs[group.name]
        arrays |= group.of("obs", map_tree(lambda x: x[:, 0], tree) if group.single else tree)
        if group.masked:
            mask = seen.mask[group.name]
            arrays[f"{group.prefix}mask"] = mask[:, 0] if group.single else mask
    return arrays | ({"is_first": seen.is_first} if model.remembers else {})
