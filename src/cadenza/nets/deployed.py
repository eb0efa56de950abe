"""The policy of a group as one module, with normaliser and memory: what `cadenza export` writes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from cadenza.nets.actor_critic import ActorCritic
from cadenza.nets.observe import ObservationTensors, Observer
from cadenza.trees import map_tree
from cadenza.types import Tree

# (observations [1, N, A, …], carry [N, A, …], is_first [1, N, A]) -> (output [1, N, A, F], carry after the step)
Network = Callable[[ObservationTensors, Tree, Tensor], tuple[Tensor, Tree]]
Choose = Callable[[Tensor, Tensor | None], Tensor]  # (output, mask) -> the best action


class Deployed(nn.Module):
    """A policy without exploration, as a function of tensors."""

    def __init__(
        self,
        observer: Observer,
        parts: list[nn.Module],
        network: Network,
        choose: Choose,
        carry: Callable[..., Tree] | None = None,
        random_share: float = 0.0,
    ) -> None:
        """`parts` hold the weights that `network` and `choose` use.

        `random_share` is the probability of a random action in evaluations of the run, which this module leaves out.
        """
        super().__init__()
        self.observer, self.parts = observer, nn.ModuleList(parts)
        self.network, self.choose, self.carry = network, choose, carry
        self.random_share = random_share

    def initial_carry(self, *batch: int) -> Tree:
        """Return the carry [*batch, …] at the start of an episode; `{}` without a memory."""
        return {} if self.carry is None else self.carry(*batch)

    def forward(
        self, obs: Tree, carry: Tree, is_first: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tree]:
        """Return the action, the network's output and the carry after a step, all [N, A, …].

        `is_first` [N, A] resets the memory, `mask` [N, A, n] marks the allowed actions.
        """
        inputs = map_tree(lambda x: x[None], self.observer.from_tensors(obs))  # a sequence of one step
        output, after = self.network(inputs, carry, is_first[None])
        return self.choose(output[0], mask), output[0], map_tree(lambda x: x[0], after)


def deployed_actor_critic(net: ActorCritic, observer: Observer) -> Deployed:
    """Return the policy as a module that takes the most likely action, without the critic."""

    def network(obs: ObservationTensors, carry: Tree, first: Tensor) -> tuple[Tensor, Tree]:
        features, after = net.torso(obs, carry, first)
        return net.actor(features), after

    carry = net.torso.initial_carry if net.has_memory else None
    return Deployed(observer, [net.torso, net.actor, net.head], network, net.head.mode, carry)
