"""The vocabulary shared by environments, stores, workflows and the engine. No logic, no torch.

Letters in shapes: T time, N environments, A agents of a group, B batch.
Everything an agent sees or does is a dict keyed by group; a single agent is the group `agent` with A = 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from gymnasium.spaces import Space

    from cadenza.base.files import SafePath
    from cadenza.base.streams import Streams

Tree = Any  # an array, or a dict of Trees (dict observations, carries, states)
Metrics = dict[str, Any]  # name -> number or 0-d tensor; tensors are read only when a row is written
Restore = Literal["snapshot", "replay", "restart"]
SINGLE_GROUP = "agent"


@dataclass(frozen=True)
class GroupSpec:
    """Agents that share spaces and, unless an algorithm says otherwise, parameters."""

    agents: tuple[str, ...]
    observation: Space[Any]  # of one agent
    action: Space[Any]  # of one agent
    team: str = "team"
    action_names: tuple[str, ...] = ()  # of the choices, or of the components of an action; empty: numbers are shown

    @property
    def kind(self) -> str | None:
        """The type that all agents have; None where they differ."""
        kinds = {kind_of(agent) for agent in self.agents}
        return kinds.pop() if len(kinds) == 1 else None


def kind_of(agent: str) -> str:
    """Return the type of an agent: its name without a trailing number."""
    return re.sub(r"[_-]?\d+$", "", agent) or agent


@dataclass(frozen=True)
class EnvSpec:
    """The facts about an environment that do not change while it runs."""

    id: str
    groups: Mapping[str, GroupSpec]
    state: Space[Any] | None = None  # what a central critic may see
    max_episode_steps: int | None = None
    return_threshold: float | None = None  # return at which the environment counts as solved, where it is defined
    reward_range: tuple[float, float] | None = None  # least and largest reward of a step, where they are declared
    restore: Restore = "replay"  # how a running episode is restored on resume
    turns: bool = False  # agents act in turn, and an agent may be rewarded while others act
    frame_stack: int = 1  # number of frames in an observation, the newest last: `environment.frame_stack`

    @property
    def competitive(self) -> bool:
        """Whether groups play against each other: there is more than one team."""
        return len({group.team for group in self.groups.values()}) > 1


@dataclass(slots=True)
class Frame:
    """What one environment returns from `reset` and `step`: arrays without an N axis. It never resets by itself."""

    obs: dict[str, Tree]  # [A, …]
    reward: dict[str, np.ndarray]  # [A] float32
    terminated: bool = False
    truncated: bool = False
    active: dict[str, np.ndarray] | None = None  # [A] bool; None: everyone acts
    died: dict[str, np.ndarray] | None = None  # [A] bool; None: no agent left at this step
    mask: dict[str, np.ndarray] | None = None  # [A, n] bool, allowed actions
    state: np.ndarray | None = None
    raw_reward: dict[str, np.ndarray] | None = None  # [A] float32, before wrappers; None: equal to `reward`
    won: bool | None = None  # whether the episode ended in a win; None: this environment has no wins


@dataclass(slots=True)
class Step:
    """What a vector environment returns. It resets in the same step: `obs` is after the reset, `final_obs` before it.

    The arrays stay valid until the second call of `step` after the one that returned them.
    """

    obs: dict[str, Tree]  # [N, A, …]
    final_obs: dict[str, Tree]  # [N, A, …]; equal to obs where no episode ended
    reward: dict[str, np.ndarray]  # [N, A] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    is_first: np.ndarray  # [N] bool: obs starts an episode
    active: dict[str, np.ndarray]  # [N, A] bool: the agent acts on obs; False: it is dead, or it is not its turn
    died: dict[str, np.ndarray]  # [N, A] bool: the agent left for good in this transition while the episode goes on
    mask: dict[str, np.ndarray] = field(default_factory=dict)  # [N, A, n] bool for groups that have masks
    state: np.ndarray | None = None  # [N, …]
    final_state: np.ndarray | None = None  # [N, …]
    raw_reward: dict[str, np.ndarray] = field(default_factory=dict)  # [N, A] float32, if wrappers may change rewards
    won: np.ndarray | None = None  # [N] bool: an episode ended in a win; None: this environment has no wins


@dataclass(frozen=True)
class Episode:
    """A finished episode, with the seed and the actions that reproduce it."""

    env: int  # global environment index
    number: int  # count of episodes that this environment had finished before
    seed: int
    length: int
    returns: dict[str, np.ndarray]  # [A] sums of raw rewards
    actions: dict[str, np.ndarray]  # [length, A, …]
    won: bool | None = None  # None: this environment has no wins

    @property
    def total(self) -> float:
        """Sum of the returns of all agents."""
        return float(sum(values.sum() for values in self.returns.values()))


class Acted(NamedTuple):
    """What `act` returns."""

    action: dict[str, np.ndarray]  # [N, A, …]
    extras: dict[str, dict[str, np.ndarray]]  # group -> name -> [N, A, …]; stored beside the action
    carry: Tree  # the policy's memory, a dict tree of tensors or arrays [N, …]; `{}` for a policy without memory


@dataclass(frozen=True)
class Opinion:
    """What a policy predicts for N steps of one group: arrays [N, A, …], or None for what it does not predict."""

    probs: np.ndarray | None = None  # [N, A, n] of each discrete action; several choices are concatenated
    mean: np.ndarray | None = None  # [N, A, D] of continuous actions, in the environment's units
    std: np.ndarray | None = None  # [N, A, D] standard deviation of continuous actions
    q: np.ndarray | None = None  # [N, A, n] Q value of each discrete action
    value: np.ndarray | None = None  # [N, A]
    reward: np.ndarray | None = None  # [N, A] a world model's prediction of the reward for arriving at the step


class Credit(NamedTuple):
    """How the values of a group follow from rewards. Advantages [T, A] are computed with these numbers."""

    gamma: float  # discount
    trace: float = 0.0  # lambda of GAE or of lambda-returns; 0: one-step TD errors
    team: bool = False  # values are of the sum of a team's rewards, which goes on after an agent's death
    on_arrival: bool = False  # the value of a state includes the reward for arriving there
    reward_scale: float = 1.0  # rewards are divided by this,
    reward_clip: float = float("inf")  # and then clipped to this distance from 0
    estimate: Callable[..., Any] | None = None  # estimator with the arguments of `ops.returns.gae`; None: GAE


class Explained(NamedTuple):
    """What `explain` returns."""

    opinions: dict[str, Opinion]  # by group
    carry: Tree  # after the last step
    credit: Mapping[str, Credit] = MappingProxyType({})  # by group; without one, no advantages are shown


class Imagination(NamedTuple):
    """What happened and what a world model predicted, [B, T, …]. Observations have the keys of `nets/observe.py`."""

    obs: Tree
    predicted_obs: Tree
    reward: np.ndarray
    predicted_reward: np.ndarray


class Updated(NamedTuple):
    """What an update hook returns."""

    updates: int  # gradient steps taken
    metrics: Metrics
    calls: int = 1  # calls of the hook that this one replaces, at most `PhaseInfo.due`; metrics are means over them


@dataclass(frozen=True)
class PhaseInfo:
    """The current phase and the progress of the run and of the phase."""

    name: str
    type: str
    now: int  # progress of the run, in the unit of its budget: env_steps or updates
    horizon: int  # length of schedules, in the same unit: `training.horizon`, else the first budget
    steps: int = 0  # env_steps in this phase so far
    updates: int = 0  # in this phase so far
    cycles: int = 0  # in this phase so far
    due: int = 1  # calls of the hook that are due in a row: one call may do the work of several


@dataclass(frozen=True)
class Mode:
    """How to act: whether to explore, at which point of the run, with which random generators."""

    explore: bool  # False: take the best action
    phase: PhaseInfo
    streams: Streams  # random generators: the run's during training, separate ones during evaluation
    forced: dict[str, np.ndarray] | None = None  # actions that will be taken instead, as input for policies with memory


@runtime_checkable
class Stateful(Protocol):
    """An object that changes during a run. Its state is a tree of tensors, arrays and JSON values."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Environment(Protocol):
    """One environment, as the adapters in `envs/families/` create it."""

    spec: EnvSpec

    def reset(self, seed: int) -> Frame: ...

    def step(self, action: dict[str, np.ndarray]) -> Frame: ...

    def render(self) -> np.ndarray | None: ...

    def close(self) -> None: ...


class VectorEnv(Stateful, Protocol):
    """N environments that are stepped together. It resets them and restores them on resume (`envs/vector.py`)."""

    spec: EnvSpec
    num_envs: int
    current: Step

    @property
    def reward_range(self) -> list[float] | None:
        """The lowest and the highest reward of an agent in a step so far, before wrappers; None before the first."""

    def reset(self, first_episode: int = 0) -> Step: ...

    def step(self, action: dict[str, np.ndarray]) -> Step: ...

    def episodes(self) -> list[Episode]: ...

    def close(self) -> None: ...


class Store(Stateful, Protocol):
    """A buffer for collected steps (`data/`). How it hands out batches is up to the store and the hooks that use it."""

    def add(self, step: Step, acted: Acted, after: Step) -> None: ...

    def ready(self) -> bool: ...

    def cut(self) -> None:
        """End the running episodes with the last step, as if truncated: the environments restart."""


@runtime_checkable
class HasFiles(Protocol):
    """A store that may keep rows in files of the run."""

    def attach(self, folder: SafePath | None) -> None:
        """Write files to this folder from now on."""


@runtime_checkable
class Shortening(Protocol):
    """A store of a fixed length that can be used before it is full, at the end of an exact budget."""

    def shorten(self) -> None:
        """Be ready with the steps that are there, if any."""


@runtime_checkable
class Sealing(Protocol):
    """A store that writes its rows to files beside the checkpoints, so that a checkpoint costs what is new."""

    @property
    def bulk(self) -> int:
        """Size of all rows in bytes."""

    @property
    def on_disk(self) -> bool:
        """Whether the rows live in a file instead of memory during the run, too."""

    def attach(self, folder: SafePath | None) -> None:
        """Write files to this folder from now on; with None, `state_dict` holds all rows."""

    def seal(self) -> dict[SafePath, str]:
        """Write the rows that are new since the last call; return every file that the state needs, with its sha256."""


@dataclass(frozen=True)
class Context:
    """What a workflow is constructed with, besides its config."""

    env: EnvSpec
    num_envs: int
    device: Any  # torch.device
    streams: Streams  # named random generators, part of the run's state
    kernels: str = "torch"  # or "numpy": the hand-written kernels (`nets/numpy/`), where they support the networks
    compiled: Callable[[Any], Any] = lambda function: function  # applies torch's compiler if the run uses it
    # `store(name, Store, *arguments)` makes a store, or the one that `training.buffers` names in its place
    store: Callable[..., Any] = lambda name, default, *arguments, **settings: default(*arguments, **settings)
    captured: Callable[..., Any] = lambda function, *_: function  # captures a CUDA graph (`nets/cuda_graph.py`)
    captures: bool = False  # whether it does
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # the precision that networks are computed in


class Workflow(Stateful, Protocol):
    """An algorithm. Each name in `hooks` is a further method, `hook(store: Store, phase: PhaseInfo) -> Updated`."""

    hooks: tuple[str, ...]

    def stores(self) -> dict[str, Store]: ...

    def phases(self) -> tuple[Any, ...]:
        """Return the default phases: `config.schema.Phase` objects, which this module does not import."""

    def initial_carry(self, num_envs: int) -> Tree: ...

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted: ...

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load networks and normalisers, and nothing else, from the state of another run's workflow."""


# Exchangeable parts of algorithms: modules, made with the arguments of `__init__` and the keyword arguments of the
# config. `nets/own_parts.py` makes and checks them.


class Dynamics(Protocol):
    """The dynamics of Dreamer and PlaNet, as `nets.rssm.RSSM`, whose states and shapes it shares.

    `config` is `algorithm.model`: the parts of a state have `config.deter` and `config.stoch_size` numbers.
    """

    def __init__(self, actions: int, embedding: int, config: Any) -> None: ...

    def initial(self, *batch: int) -> Any: ...

    def noise(self, *batch: int, generator: Any) -> Any: ...

    def observe(self, embedding: Any, action: Any, first: Any, state: Any, noise: Any) -> Any: ...

    def observe_one(self, embedding: Any, action: Any, first: Any, state: Any, noise: Any) -> Any: ...

    def imagine_step(self, state: Any, action: Any, noise: Any) -> Any: ...

    def divergence(self, *parameters: Any) -> Any:
        """Return the divergence [*] of the posterior from the prior, whose parameters follow each other."""


class MemoryLayer(Protocol):
    """A layer of a policy's memory, as those in `nets/memory.py`.

    It is called with x [L, *B, inputs], the carry before, the starts of episodes [L, *B], and whether the carries after
    each step are needed; it returns features [L, *B, size] and these carries.
    """

    def __init__(self, inputs: int, size: int) -> None: ...

    def initial(self, *batch: int) -> Tree: ...


class LatentPolicy(Protocol):
    """The policy of TD-MPC, as `nets.latent_model.SquashedPolicy`.

    It is called with latent states [*, latent] and standard normal noise [*, actions]; it returns actions in [-1, 1]
    and their log-densities [*].
    """

    def __init__(self, latent: int, actions: int) -> None: ...


class LatentMemory(Protocol):
    """The dynamics of World Models, as `nets.mdn.MixtureRNN`, whose states and predictions it shares."""

    def __init__(self, latent: int, actions: int, hidden: int) -> None: ...

    def initial(self, count: int) -> Any: ...

    def step(self, z: Any, action: Any, before: Any) -> Any: ...

    def predict(self, state: Any) -> Any: ...


class Autoencoder(Protocol):
    """The vision of World Models, as `nets.vae.ConvVAE`, whose codes it shares."""

    def __init__(self, shape: Any, latent: int, depth: int) -> None: ...

    def encode(self, image: Any) -> Any: ...

    def decode(self, z: Any) -> Any: ...

    def losses(self, image: Any, noise: Any, tolerance: float) -> Any: ...


class Denoiser(Protocol):
    """The network of Diffusion Policy, as those in `nets/denoisers.py`.

    It is called with noisy actions [B, horizon, actions], the numbers of their noising steps [B] and features of
    observations [B, history, features]; it returns the noise in the actions.
    """

    def __init__(self, actions: int, horizon: int, history: int, features: int) -> None: ...


class Decoder(Protocol):
    """The decoder of Dreamer and PlaNet, as `nets.decoders.ObservationDecoder`: called with features [*, F]."""

    def __init__(self, space: Space[Any], config: Any) -> None: ...

    def losses(self, predictions: Any, obs: Any) -> Any: ...

    def to_observations(self, predictions: Any) -> Any: ...


class DistributionHead(Protocol):
    """A distribution of actions whose parameters are `outputs` numbers."""

    outputs: int

    def __init__(self, space: Space[Any]) -> None: ...

    def sample(self, output: Any, mask: Any, generator: Any) -> Any: ...

    def mode(self, output: Any, mask: Any) -> Any: ...

    def summary(self, output: Any, mask: Any) -> Any: ...


class PolicyHead(DistributionHead, Protocol):
    """An action head of PPO and its relatives, as those in `nets/heads.py`."""

    def evaluate(self, output: Any, mask: Any, action: Any) -> Any: ...


class DifferentiableHead(DistributionHead, Protocol):
    """An action head of SAC for continuous actions, as `nets.heads.SquashedHead`."""

    def draw(self, output: Any, generator: Any) -> Any:
        """Sample differentiable actions on the scale of the critics [*, D]; return them and log-probabilities [*]."""

    def to_unit(self, action: Any) -> Any:
        """Return actions of the environment [*, …] on the scale of the critics [*, D]."""


class DiscreteHead(DistributionHead, Protocol):
    """An action head of SAC for n discrete actions, as `nets.heads.CategoricalHead`."""

    def log_probs(self, output: Any, mask: Any) -> Any:
        """Return the log-probabilities of all actions [*, n]."""


# Optional interfaces of a workflow. `config/registry.py` checks the signatures of the methods that it has.


@runtime_checkable
class SharesBatches(Protocol):
    """A workflow with hooks that learn from one batch, which the first would use up."""

    joint_hooks: tuple[str, ...]  # which together, from one collection, are the hook `update`


@runtime_checkable
class Collects(Protocol):
    """A workflow that decides what is stored of each step."""

    def collect_step(
        self, step: Step, carry: Tree, mode: Mode, perform: Callable[[dict[str, np.ndarray]], Step]
    ) -> tuple[Acted, Step]:
        """Act on `step` with one call of `perform`; return what the store receives: the action and the step after it.

        `perform` steps the environments and returns their next step, which may be returned changed, in a copy. In a
        phase with random actions it takes `mode.forced`, whatever action it is called with.
        """


@runtime_checkable
class Explains(Protocol):
    """A workflow that shows what its policy predicts."""

    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the policy's predictions for N consecutive steps of one episode, from the carry before the first.

        The N axis is time. `mode.forced` holds the actions of the episode, from which a recurrent state is computed.
        The inspector passes an episode in pieces, and the carry of each piece to the next.
        """


@runtime_checkable
class HandWritten(Protocol):
    """A workflow with hand-written kernels, which compute what its loss says."""

    def loss_example(self, group: str, numbers: np.random.Generator) -> tuple[dict[str, Any], list[Any]] | None:
        """Set the gradients of a made-up batch, as in an update; return figures by name, and the networks.

        Parameters and batch are made up from `numbers`, in torch's default precision. None if no made-up batch fits the
        group's networks, or if `context.kernels` asks for kernels and they have none. Called on instances made for
        that, with `context.kernels` of either kind, to compare them.
        """


@runtime_checkable
class Imagines(Protocol):
    """A workflow with a world model."""

    @property
    def imagines(self) -> bool:
        """Whether a world model is learned with these settings."""

    def imagine(self, sequences: Any, context_steps: int, seed: int) -> Imagination:
        """Predict `data.batches.Sequences`: the model observes the first `context_steps`, then only the actions."""


@runtime_checkable
class Deployable(Protocol):
    """A workflow whose policy is a function of observations and a recurrent state."""

    def deployed(self, group: str) -> Any:
        """Return the policy of a group as a `nets.deployed.Deployed`."""
