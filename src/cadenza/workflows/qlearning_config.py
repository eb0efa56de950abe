"""The settings of tabular Q-learning; the algorithm is in `qlearning.py`. They import without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.checks import check_discrete_actions, check_divisor, check_single_transitions, ends
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

if TYPE_CHECKING:
    from gymnasium.spaces import Space

LARGEST_TABLE = 10_000_000  # states x actions


@dataclass(frozen=True)
class QLearningConfig(AlgorithmSettings):
    """Tabular Q-learning, SARSA and expected SARSA, and the bandit methods they contain."""

    scheduled: ClassVar[str] = "learning_rate gamma epsilon ucb_c temperature"
    name: str = setting("qlearning", "name of the variant")
    target: Literal["q", "sarsa", "expected_sarsa"] = setting(
        "q", "value of the next state: of its best action, of the action taken there, or the mean over the policy"
    )
    double: bool = setting(False, "two tables, each updated towards the other's value of its own best action")
    learning_rate: float | Literal["sample_average"] = setting(
        0.1, "share of the error that is corrected; sample_average: 1/n at the n-th update of an entry", above=0
    )
    gamma: float = setting(0.99, "discount; 0 for bandits", least=0, most=1)
    initial_value: float = setting(0.0, "initial value of every entry; an optimistic one makes the agent explore")
    exploration: Literal["epsilon_greedy", "ucb", "gradient"] = setting(
        "epsilon_greedy", "exploration strategy; gradient learns preferences instead of values (bandits only)"
    )
    epsilon: float = setting(0.1, "epsilon_greedy: probability of a random action", least=0, most=1)
    ucb_c: float = setting(2.0, "ucb: weight of the bonus sqrt(ln N(s) / N(s, a))", above=0)
    temperature: float = setting(1.0, "gradient: preferences are divided by it before the softmax", above=0)
    n_steps: int = setting(1, "steps collected in each environment before an update", "vec_steps", least=1)

    def __post_init__(self) -> None:
        if (
            self.exploration != "gradient"
            and self.learning_rate != "sample_average"
            and max(ends(self.learning_rate)) > 1
        ):
            raise ConfigError("algorithm.learning_rate is a share of the error and cannot be above 1")
        if self.exploration == "ucb" and self.target == "expected_sarsa":
            raise ConfigError(
                "algorithm.target=expected_sarsa takes the mean over algorithm.exploration=epsilon_greedy, not ucb"
            )
        if self.exploration == "gradient":
            check_divisor(self.temperature, "algorithm.temperature")
            self._check_gradient()

    def _check_gradient(self) -> None:
        refusals = {
            "gamma": self.gamma != 0 and "it learns from the reward alone: set algorithm.gamma=0",
            "target": self.target != "q" and f"algorithm.target={self.target} has no meaning without values",
            "double": self.double and "algorithm.double has no meaning without values",
            "learning_rate": self.learning_rate == "sample_average"
            and "algorithm.learning_rate must be a number or a schedule, not sample_average",
        }
        for reason in refusals.values():
            if reason:
                raise ConfigError(f"algorithm.exploration=gradient: {reason}")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments whose observations or actions cannot be counted, or are too many."""
        check_single_transitions(self, env)
        check_discrete_actions(self, env)
        for name, group in env.groups.items():
            actions: Any = group.action
            entries = states_in(group.observation, f"{env.id} (group {name})") * int(actions.n)
            if entries > LARGEST_TABLE:
                raise ConfigError(
                    f"qlearning stores a number per observation and action, at most {LARGEST_TABLE:,}; "
                    f"{env.id} (group {name}) has {entries:.3g} of them"
                )


def states_in(space: Space[Any], where: str) -> int:
    """Return the number of observations in a space; refuse one that cannot be counted. `where` is for the message."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return math.prod(states_in(part, where) for part in space.spaces.values())
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return math.prod(int(n) for n in space.nvec.ravel())
    if isinstance(space, spaces.MultiBinary):
        return 1 << math.prod(space.shape)
    raise ConfigError(
        "qlearning takes Discrete, MultiDiscrete and MultiBinary observations, and Tuples and Dicts of them; "
        f"{where} has {type(space).__name__}"
    )
