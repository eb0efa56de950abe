"""Export a policy as an ONNX or TorchScript model, with its normaliser and memory, and check that it acts alike."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
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
from cadenza.envs.catalog import make
from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Layout, allocate_buffer, allocate_space, blank
from cadenza.envs.ledger import RECORD, EpisodeSeeds
from cadenza.envs.wrappers import RescaledActions, layer
from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, install
from cadenza.lab.playback import Player, load_policy
from cadenza.nets.deployed import Deployed
from cadenza.records.folder import RunFolder
from cadenza.trees import leaves, map_tree
from cadenza.types import SINGLE_GROUP, Deployable, Mode, Step, Tree

FACTS = "cadenza.json"  # the key, or file, of a model's metadata
TOLERANCE = 1e-4  # allowed rounding difference, relative to the largest number compared
LEAST = 0.1  # the smallest number that differences are relative to
NEAR_TIES = 1e-3  # share of choices that rounding may change, besides one in each group
BATCHES = (1, 64, 64, 64)  # observations in each step of the check
EXAMPLE = 3  # batch size of the example; no other dimension has it, so that it is not taken for the batch

Arrays = dict[str, np.ndarray]
Call = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Group:
    """One group of the policy, and how its tensors are named and shaped in the model."""

    name: str
    module: Deployed
    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    agents: int
    mask_size: int  # of its action mask; 0: none
    alone: bool  # the only agent: its tensors have no axis of agents, and no prefix in their names
    rescaled: RescaledActions | None = None  # maps the policy's actions to the environment's

    @property
    def bounds(self) -> spaces.Space[Any]:
        """The space of the environment's actions."""
        return self.action if self.rescaled is None else self.rescaled.env.action_space

    @property
    def prefix(self) -> str:
        return "" if self.alone else f"{self.name}."

    def names(self, kind: str, tree: Tree) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of a tree with their names in the model."""
        for path, leaf in leaves(tree):
            yield f"{self.prefix}{kind}{'.' if path else ''}{path}", leaf

    def narrow(self, tree: Tree) -> Tree:
        """Drop the axis of agents, if there is one agent alone: [N, A, …] to [N, …]."""
        return map_tree(lambda x: x[:, 0], tree) if self.alone else tree

    def widen(self, tree: Tree) -> Tree:
        """Add the axis of agents that `narrow` drops."""
        return map_tree(lambda x: x[:, None], tree) if self.alone else tree

    def inputs(self, obs: Tree, mask: Any) -> Arrays:
        """Return observations and mask [N, A, …] as inputs of the model."""
        arrays = dict(self.names("obs", self.narrow(obs)))
        return arrays | ({f"{self.prefix}mask": self.narrow(mask)} if self.mask_size else {})


class PolicyModel(nn.Module):
    """All groups of a policy: named tensors in, named tensors out, in the order of `inputs` and `outputs`."""

    def __init__(self, groups: list[Group], clip: bool) -> None:
        super().__init__()
        self.groups, self.clip = groups, clip
        self.policies = nn.ModuleList([group.module for group in groups])
        self.has_memory = any(group.module.carry is not None for group in groups)
        self.inputs = list(self.example(1))
        self.outputs = [name for group in groups for name in self._outputs(group)]

    def example(self, count: int) -> Arrays:
        """Return inputs for `count` environments at the beginning of episodes."""
        arrays: Arrays = {}
        for group in self.groups:
            lead = (count, group.agents)
            arrays |= group.inputs(blank(group.observation, lead), np.ones((*lead, group.mask_size), bool))
            carry = group.module.initial_carry(*(lead[:1] if group.alone else lead))
            arrays |= group.names("carry", map_tree(lambda x: x.numpy(), carry))
        return arrays | ({"is_first": np.ones(count, bool)} if self.has_memory else {})

    def _outputs(self, group: Group) -> Iterator[str]:
        yield from (f"{group.prefix}action", f"{group.prefix}output")
        yield from (name for name, _ in group.names("next_carry", group.module.initial_carry(1)))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        stream, results = iter(tensors), []
        for group in self.groups:

            def read(like: Tree, group: Group = group) -> Tree:
                return group.widen(map_tree(lambda _: next(stream), like))

            obs = read(blank(group.observation))
            mask = read(None) if group.mask_size else None
            carry = read(group.module.initial_carry(1))
            first = tensors[-1][:, None].expand(-1, group.agents) if self.has_memory else torch.empty(0)
            action, output, after = group.module(obs, carry, first, mask)
            if self.clip and isinstance(group.action, spaces.Box):
                low, high = corners(group.action)
                action = torch.minimum(torch.maximum(action, low), high)
            if group.rescaled is not None:
                low, high = corners(group.bounds)
                action = (low + high) / 2 + (high - low) / 2 * action
            results += [group.narrow(x) for x in (action, output, *(leaf for _, leaf in leaves(after)))]
        return tuple(results)


def corners(space: Any) -> tuple[Tensor, Tensor]:
    """Return the bounds of a box."""
    return torch.from_numpy(space.low).float(), torch.from_numpy(space.high).float()


def export_policy(
    folder: RunFolder, format: str, checkpoint: str = "last", trust: bool = False
) -> tuple[bytes, dict[str, Any]]:
    """Return the content of the model's file, and the facts that commands print of it."""
    if format == "onnx":
        require_onnx()
    player, name = load_policy(folder, checkpoint, trust)
    model = build_model(player)
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
    return content, {**facts, "format": format, "bytes": len(content), **check_model(player, model, call)}


def build_model(player: Player) -> PolicyModel:
    """Return the policy of every group as a model; refuse algorithms that do not act by one pass of a network."""
    workflow, config, spec = player.workflow, player.config, player.spec
    if not isinstance(workflow, Deployable):
        raise ConfigError(
            f"{config.algorithm.name} does not act by one pass through its networks, but by a world model, a search or "
            "a table: it cannot be exported as a model; `cadenza.load` gives its policy in Python"
        )
    with closing(make(config.environment)) as environment:
        masks = Layout.from_frame(environment.spec, environment.reset(EpisodeSeeds(0, RECORD)(0, 0))).masks
    single, rescaled = list(spec.groups) == [SINGLE_GROUP], rescaling(config.environment)
    groups = [
        Group(
            name=name,
            module=workflow.deployed(name),
            observation=group.observation,
            action=group.action,
            agents=len(group.agents),
            mask_size=masks.get(name, 0),
            alone=single and len(group.agents) == 1,
            rescaled=rescaled,
        )
        for name, group in spec.groups.items()
    ]
    return PolicyModel(groups, config.environment.clip_actions).eval().requires_grad_(False)


def rescaling(config: EnvironmentConfig) -> RescaledActions | None:
    """Return the wrapper of `environment.rescale_actions`, which only single-agent environments have."""
    if not config.rescale_actions:
        return None
    environment = make(replace(config, groups="auto", teams={}))
    environment.close()
    return layer(environment.env, RescaledActions) if isinstance(environment, Gym) else None


# writing and reading


def require_onnx() -> None:
    """Refuse ONNX if its packages are not installed."""
    if any(find_spec(package) is None for package in ("onnx", "onnxscript", "onnxruntime")):
        raise MissingExtraError(f"--format onnx needs an extra: {install('onnx')}")


def example_tensors(model: PolicyModel) -> tuple[Tensor, ...]:
    """Return inputs to trace the model with."""
    return tuple(torch.from_numpy(x) for x in model.example(EXAMPLE).values())


def as_onnx(model: PolicyModel, facts: str) -> bytes:
    """Return the model as ONNX, for any batch size."""
    batch = torch.export.Dim("N")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports packages that nothing here needs
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                model,
                example_tensors(model),
                input_names=model.inputs,
                output_names=model.outputs,
                dynamic_shapes=(tuple({0: batch} for _ in model.inputs),),
                dynamo=True,
                verbose=False,
            )
    except Exception as problem:  # torch raises anything for what it cannot express
        raise CadenzaError(
            f"torch cannot write this policy as ONNX: {reason(problem)}; --format torchscript may do"
        ) from problem
    assert program is not None
    program.model.metadata_props[FACTS] = facts
    content: bytes = program.model_proto.SerializeToString()
    return content


def onnx_call(content: bytes, model: PolicyModel) -> Call:
    """Return a function that runs an ONNX model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}  # inputs without effect are left out of a model

    def call(inputs: Arrays) -> Arrays:
        outputs = session.run(model.outputs, {name: x for name, x in inputs.items() if name in names})
        return dict(zip(model.outputs, outputs, strict=True))

    return call


def as_torchscript(model: PolicyModel, facts: str) -> bytes:
    """Return the model as TorchScript, for any batch size."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # `check_model` finds what it warns of
        traced = torch.jit.trace(model, example_tensors(model), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer, _extra_files={FACTS: facts})
    return buffer.getvalue()


def torchscript_call(content: bytes, model: PolicyModel) -> Call:
    """Return a function that runs a TorchScript model."""
    with warnings.catch_warnings(action="ignore"):
        loaded = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return partial(run_module, loaded, model.outputs)


@torch.no_grad()
def run_module(module: nn.Module, names: list[str], inputs: Arrays) -> Arrays:
    """Run a module on arrays."""
    outputs = module(*map(torch.from_numpy, inputs.values()))
    return {name: x.numpy() for name, x in zip(names, outputs, strict=True)}


def reason(problem: Exception) -> str:
    """Return the innermost error, shortened."""
    while isinstance(problem.__cause__, Exception):
        problem = problem.__cause__
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:160]}{'…' if len(text) > 160 else ''}"


# checking


@dataclass
class Differences:
    """The differences between a run's policy and its model, by output."""

    gaps: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # largest difference of numbers
    scales: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: LEAST))  # largest number
    choices: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # discrete actions
    changed: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # those that differ

    def numbers(self, name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Compare numbers of the run with those of the model."""
        if ours.size:
            gap = float(np.abs(ours.astype(np.float64) - theirs).max())
            self.gaps[name] = max(self.gaps[name], gap if np.isfinite(gap) else np.inf)
            self.scales[name] = max(self.scales[name], float(np.abs(ours).max()))

    def discrete(self, name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Compare discrete actions of the run with those of the model."""
        self.choices[name] += ours.size
        self.changed[name] += int(np.count_nonzero(ours != theirs))

    def refuse(self, shares: dict[str, float]) -> None:
        """Raise an error at a difference beyond rounding, or beyond the share of actions that the run draws."""
        for name, gap in self.gaps.items():
            if gap > TOLERANCE * self.scales[name]:
                raise CadenzaError(f"the model does not act as the run does: its {name} differs by up to {gap:.3g}")
        for name, choices in self.choices.items():
            random, changed = choices * shares[name], self.changed[name]
            if changed > 1 + choices * NEAR_TIES + random + 4 * math.sqrt(random):  # four standard deviations
                another = f"it chose another {name} in {changed} of {choices} cases"
                raise CadenzaError(f"the model does not act as the run does: {another}")


def check_model(player: Player, model: PolicyModel, call: Call) -> dict[str, Any]:
    """Compare the run's policy with the exported model on random observations; raise an error if they differ."""
    random, differences = np.random.default_rng(0), Differences()
    for space in (*(group.observation for group in model.groups), player.spec.state):
        if space is not None:
            space.seed(0)
    mode = Mode(False, player.phase, Streams(0, branch=(EVALUATION,)))
    for number, count in enumerate(BATCHES):
        starts = number == 0 or count != BATCHES[number - 1]
        if starts:
            inputs, carry = model.example(count), player.workflow.initial_carry(count)
        step = random_step(player, model, count, random, starts)
        for group in model.groups:
            inputs |= group.inputs(step.obs[group.name], step.mask.get(group.name))
        inputs |= {"is_first": step.is_first} if model.has_memory else {}
        acted = player.workflow.act(step, carry, mode)
        carry = acted.carry
        expected, outputs = run_module(model, model.outputs, inputs), call(inputs)
        for group in model.groups:
            compare(differences, model, group, acted.action[group.name], expected, outputs)
        inputs |= {name.replace("next_", ""): np.array(x) for name, x in outputs.items() if "next_carry" in name}
    shares = {f"{group.prefix}action": group.module.random_share for group in model.groups}
    differences.refuse(shares)
    return {
        "observations_checked": sum(BATCHES),
        "largest_difference": max(differences.gaps.values()),
        "differences": dict(differences.gaps),
        "choices_checked": sum(differences.choices.values()),
        "choices_differing": sum(differences.changed.values()),
        "random_share": max(shares.values()),
    }


def compare(
    differences: Differences, model: PolicyModel, group: Group, action: np.ndarray, expected: Arrays, outputs: Arrays
) -> None:
    """Compare the model's actions with the run's, and its other outputs with those of the module before export."""
    name, ours = f"{group.prefix}action", group.narrow(action)
    if isinstance(group.action, spaces.Box):
        if model.clip:
            ours = np.clip(ours, group.action.low, group.action.high)
        if group.rescaled is not None:
            ours = group.rescaled.action(ours)
        differences.numbers(name, ours, outputs[name])
    else:
        differences.discrete(name, ours, outputs[name])
    for other in outputs:
        if other == f"{group.prefix}output" or other.startswith(f"{group.prefix}next_carry"):
            differences.numbers(other, expected[other], outputs[other])


def random_step(player: Player, model: PolicyModel, count: int, random: np.random.Generator, starts: bool) -> Step:
    """Return a step of random observations and masks, in which some episodes begin, or all with `starts`."""
    masks = {group.name: group.mask_size for group in model.groups if group.mask_size}
    step = allocate_buffer(Layout(player.spec, masks), count).step
    for group in model.groups:
        step.obs[group.name] = sample(group.observation, (count, group.agents))
        if group.mask_size:
            step.mask[group.name][...] = random.random((count, group.agents, group.mask_size)) < 0.5
            step.mask[group.name][..., 0] = True
    if player.spec.state is not None:
        step.state = step.final_state = sample(player.spec.state, (count,))
    if not starts:
        step.is_first[:] = random.random(count) < 0.2
    return step


def sample(space: spaces.Space[Any], lead: tuple[int, ...]) -> Tree:
    """Return random elements [*lead, …] of a space."""
    batch = allocate_space(space, lead)
    for index in np.ndindex(*lead):
        map_tree(lambda array, value, at=index: array.__setitem__(at, value), batch, space.sample())
    return batch
