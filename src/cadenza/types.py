"""The vocabulary shared by environments, stores, workflows and the engine. No logic, no torch.

Letters in shapes: T time, N environments, A agents of a group, B batch.
Everything an agent sees or does is a dict keyed by group; a single agent is the group `agent` with A = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """Agents that share spaces (and, unless an algorithm says otherwise, parameters)."""

    agents: tuple[str, ...]
    observation: Space[Any]  # of one agent
    action: Space[Any]  # of one agent
    team: str = "team"
    action_names: tuple[str, ...] = ()  # of the choices, or of an action's numbers; where none is told, by number


@dataclass(frozen=True)
class EnvSpec:
    """The facts about an environment that do not change while it runs."""

    id: str
    groups: Mapping[str, GroupSpec]
    state: Space[Any] | None = None  # what a central critic may see
    max_episode_steps: int | None = None
    return_threshold: float | None = None  # "solved", where the environment names it
    restore: Restore = "replay"  # how a running episode comes back on resume
    turns: bool = False  # agents act one after the other, and what one earns may come while others act
    frame_stack: int = 1  # how many frames an observation holds, the newest last: `environment.frame_stack`

    @property
    def competitive(self) -> bool:
        """Whether what is good for some may be bad for others."""
        return len({group.team for group in self.groups.values()}) > 1


@dataclass(slots=True)
class Frame:
    """What one environment returns from `reset` and `step`: no N axis, never reset by itself."""

    obs: dict[str, Tree]  # [A, …]
    reward: dict[str, np.ndarray]  # [A] float32
    terminated: bool = False
    truncated: bool = False
    active: dict[str, np.ndarray] | None = None  # [A] bool; None: everyone acts
    died: dict[str, np.ndarray] | None = None  # [A] bool; None: nobody left at this step
    mask: dict[str, np.ndarray] | None = None  # [A, n] bool, allowed actions
    state: np.ndarray | None = None
    raw_reward: dict[str, np.ndarray] | None = None  # [A] float32, before wrappers changed it; None: nothing did
    won: bool | None = None  # whether the episode ended in a win; None: nothing can be won here


@dataclass(slots=True)
class Step:
    """What a vector environment returns. `obs` is after a reset, `final_obs` before it (same-step contract).

    Its arrays stay untouched until the second `step` call after the one that returned them.
    """

    obs: dict[str, Tree]  # [N, A, …]
    final_obs: dict[str, Tree]  # [N, A, …]; equal to obs where no episode ended
    reward: dict[str, np.ndarray]  # [N, A] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    is_first: np.ndarray  # [N] bool: obs starts an episode
    active: dict[str, np.ndarray]  # [N, A] bool: the agent acts on obs (False: dead, or not its turn)
    died: dict[str, np.ndarray]  # [N, A] bool: the agent left for good in this transition, the episode goes on
    mask: dict[str, np.ndarray] = field(default_factory=dict)  # [N, A, n] bool for groups that have masks
    state: np.ndarray | None = None  # [N, …]
    final_state: np.ndarray | None = None  # [N, …]
    raw_reward: dict[str, np.ndarray] = field(default_factory=dict)  # [N, A] float32 where wrappers may change rewards
    won: np.ndarray | None = None  # [N] bool where something can be won: an episode ended so


@dataclass(frozen=True)
class Episode:
    """A finished episode; with its seed and actions it can be played again exactly."""

    env: int  # global environment index
    number: int  # how many episodes that environment had finished before
    seed: int
    length: int
    returns: dict[str, np.ndarray]  # [A] raw rewards summed
    actions: dict[str, np.ndarray]  # [length, A, …]
    won: bool | None = None  # None: nothing can be won

    @property
    def total(self) -> float:
        """The reward of all agents together."""
        return float(sum(values.sum() for values in self.returns.values()))


class Acted(NamedTuple):
    action: dict[str, np.ndarray]  # [N, A, …]
    extras: dict[str, dict[str, np.ndarray]]  # group -> name -> [N, A, …]; stored beside the action
    carry: Tree  # the policy's memory, a dict tree of tensors or arrays [N, …]; `{}` for a memoryless one


@dataclass(frozen=True)
class Opinion:
    """What a policy makes of N steps of one group, arrays [N, A, …]; None where it says nothing."""

    probs: np.ndarray | None = None  # [N, A, n] of each discrete action; those of several choices side by side
    mean: np.ndarray | None = None  # [N, A, D] of continuous actions, in the environment's units
    std: np.ndarray | None = None  # [N, A, D] their standard deviation
    q: np.ndarray | None = None  # [N, A, n] Q value of each discrete action
    value: np.ndarray | None = None  # [N, A]
    reward: np.ndarray | None = None  # [N, A] what a world model expected to be paid for arriving at the step


class Credit(NamedTuple):
    """How the values of a group come from rewards: what advantages [T, A] are computed with."""

    gamma: float  # discount
    trace: float = 0.0  # lambda of GAE or of lambda-returns; 0: one-step TD errors
    team: bool = False  # values are of the summed rewards of all agents of a team, whose deaths end nothing
    on_arrival: bool = False  # the value of a state includes the reward for arriving there
    reward_scale: float = 1.0  # rewards are divided by this,
    reward_clip: float = float("inf")  # and then clipped to this distance from 0


class Explained(NamedTuple):
    """What `explain` returns."""

    opinions: dict[str, Opinion]  # by group
    carry: Tree  # after the last step
    credit: Mapping[str, Credit] = MappingProxyType({})  # by group; without one, no advantages are shown


class Imagination(NamedTuple):
    """What happened beside what a world model predicted, [B, T, …]; observations by the keys of `nets/observe.py`."""

    obs: Tree
    predicted_obs: Tree
    reward: np.ndarray
    predicted_reward: np.ndarray


class Updated(NamedTuple):
    """What an update hook returns."""

    updates: int  # gradient steps taken
    metrics: Metrics
    calls: int = 1  # of the hook that this one stands for, at most `PhaseInfo.due`; the metrics are their means


@dataclass(frozen=True)
class PhaseInfo:
    """What a workflow is told about where the run stands."""

    name: str
    type: str
    now: int  # how far the run is, in the unit of its budget: env_steps, or updates
    horizon: int  # what schedules stretch over, in the same unit: `training.horizon`, else the first budget
    steps: int = 0  # env_steps in this phase so far
    updates: int = 0  # in this phase so far
    cycles: int = 0  # in this phase so far
    due: int = 1  # calls of the hook that come now, one after the other: it may do several in one


@dataclass(frozen=True)
class Mode:
    """How to act."""

    explore: bool  # or take the best action known
    phase: PhaseInfo
    streams: Streams  # randomness to act with: the run's own while training, another while measuring
    forced: dict[str, np.ndarray] | None = None  # what will be done anyway; a policy with a memory takes it in


@runtime_checkable
class Stateful(Protocol):
    """Anything that changes during a run. States are trees of tensors, arrays and JSON values."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Environment(Protocol):
    """One environment; an adapter per family makes it (`envs/`)."""

    spec: EnvSpec

    def reset(self, seed: int) -> Frame: ...

    def step(self, action: dict[str, np.ndarray]) -> Frame: ...

    def render(self) -> np.ndarray | None: ...

    def close(self) -> None: ...


class VectorEnv(Stateful, Protocol):
    """N environments stepped together; resets them by itself and knows how to come back (`envs/vector.py`)."""

    spec: EnvSpec
    num_envs: int
    current: Step

    def reset(self, first_episode: int = 0) -> Step: ...

    def step(self, action: dict[str, np.ndarray]) -> Step: ...

    def episodes(self) -> list[Episode]: ...

    def close(self) -> None: ...


class Store(Stateful, Protocol):
    """Where collected steps go (`data/`). How batches come out is between a store and the hooks that use it."""

    def add(self, step: Step, acted: Acted, after: Step) -> None: ...

    def ready(self) -> bool: ...

    def cut(self) -> None:
        """The environments start afresh: what was added last is the end of its episodes, as if truncated."""


@runtime_checkable
class Sealing(Protocol):
    """A store whose rows lie in files beside the checkpoints, so that each of these costs what is new."""

    @property
    def bulk(self) -> int:
        """Bytes of all its rows."""

    @property
    def on_disk(self) -> bool:
        """Whether it works on a file, too, instead of memory."""

    def attach(self, folder: SafePath | None) -> None:
        """Where those files are."""

    def seal(self) -> dict[SafePath, str]:
        """Write what is new since the last time; every file that the state relies on, with its sha256."""


@dataclass(frozen=True)
class Context:
    """What a workflow is given besides its own config."""

    env: EnvSpec
    num_envs: int
    device: Any  # torch.device
    streams: Streams  # named random generators, part of the run's state
    kernels: str = "torch"  # or "numpy": what plain networks on the CPU are computed with
    compiled: Callable[[Any], Any] = lambda function: function  # by torch's compiler, where the run says so
    captured: Callable[[Any], Any] = lambda function: function  # as one CUDA graph (`engine/cuda_graph.py`)


class Workflow(Stateful, Protocol):
    """An algorithm. Each name in `hooks` is a further method, `hook(store: Store, phase: PhaseInfo) -> Updated`."""

    hooks: tuple[str, ...]

    def stores(self) -> dict[str, Store]: ...

    def phases(self) -> tuple[Any, ...]:
        """The default phases: `config.schema.Phase`s, which this vocabulary does not import."""

    def initial_carry(self, num_envs: int) -> Tree: ...

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted: ...

    def load_weights(self, state: dict[str, Any]) -> None:
        """Take over networks and normalisers, and nothing else, from the state of another run's workflow."""


# What a workflow may offer besides. `config/registry.py` checks the signatures of those that it has.


@runtime_checkable
class Explains(Protocol):
    """A workflow that says what its policy makes of steps."""

    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Judge N consecutive steps of one episode, from the carry before the first of them.

        The N axis is time. `mode.forced` holds the actions taken, of which a recurrent state is made. The inspector
        passes an episode in pieces, and the carry of each piece to the next.
        """


@runtime_checkable
class Imagines(Protocol):
    """A workflow with a world model."""

    @property
    def imagines(self) -> bool:
        """Whether a model is learned with these settings."""

    def imagine(self, drawn: Any, known: int, seed: int) -> Imagination:
        """Predict `data.batches.Sequences`: the model sees the first `known` steps, and then the actions alone."""


@runtime_checkable
class Deployable(Protocol):
    """A workflow whose acting is a function of observations and a recurrent state."""

    def deployed(self, group: str) -> Any:
        """Return the group's policy as a `nets.deployed.Deployed`."""
