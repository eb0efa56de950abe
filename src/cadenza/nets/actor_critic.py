"""Policy and value network of one group: a shared torso (or one each), an MLP each, and an action head."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config.networks import HeadConfig, MLPConfig, TorsoConfig
from cadenza.nets.heads import action_head
from cadenza.nets.mlp import network
from cadenza.nets.observe import CriticView, ObservationTensors, Observer, images
from cadenza.nets.torso import Torso
from cadenza.trees import map_tree
from cadenza.types import Acted, GroupSpec, Mode, Step, Tree

if TYPE_CHECKING:
    from cadenza.nets.numpy.actor_critic_kernel import ActorCriticKernel


class ActorCriticSettings(Protocol):
    """The fields of an algorithm's config that shape these networks."""

    @property
    def torso(self) -> TorsoConfig: ...
    @property
    def actor(self) -> MLPConfig: ...
    @property
    def critic(self) -> MLPConfig: ...
    @property
    def head(self) -> HeadConfig: ...


class ActorCriticOutput(NamedTuple):
    """Outputs of the networks for observations [L, *B]."""

    output: Tensor  # [L, *B, F] input of the action head
    value: Tensor  # [L, *B]
    carries: Tree  # after each step, [L, *B, …], if requested; `{}` without a memory


class ActorCritic(nn.Module):
    """Policy and value network of one group."""

    def __init__(
        self, group: GroupSpec, config: ActorCriticSettings, critic_space: spaces.Space[Any] | None = None
    ) -> None:
        """`critic_space` is the space of the critic's observations, if they differ from the policy's."""
        super().__init__()
        self.head = action_head(group.action, config.head)
        self.torso = Torso(group.observation, config.torso)
        self.actor = network(self.torso.features, self.head.outputs, config.actor, output_gain=0.01)
        self.critic_torso = None
        if critic_space is not None or not config.torso.shared:
            self.critic_torso = Torso(critic_space or group.observation, config.torso)
        self.critic = network((self.critic_torso or self.torso).features, 1, config.critic)
        # policy and value share the CNN's features, which are too expensive to compute twice
        self.shares_images = bool(images(group.observation)) and not self.has_memory and self.critic_torso is None

    @property
    def has_memory(self) -> bool:
        """Whether the torso has a memory."""
        return self.torso.memory is not None

    def parts(self) -> dict[str, nn.Module]:
        """Return the parts whose gradient norms are logged separately; each parameter is in one of them."""
        if self.critic_torso is None:
            return {"trunk": self.torso, "actor": nn.ModuleList([self.actor, self.head]), "critic": self.critic}
        return {
            "actor": nn.ModuleList([self.torso, self.actor, self.head]),
            "critic": nn.ModuleList([self.critic_torso, self.critic]),
        }

    def initial_carry(self, *batch: int) -> Tree:
        """Return the carry [*batch, …] at the start of an episode; `{}` without a memory."""
        if not self.has_memory:
            return {}
        carry = {"torso": self.torso.initial_carry(*batch)}
        return carry if self.critic_torso is None else {**carry, "critic": self.critic_torso.initial_carry(*batch)}

    def forward(
        self,
        obs: ObservationTensors,
        carry: Tree,
        first: Tensor,
        carries: bool = False,
        critic_obs: ObservationTensors | None = None,
    ) -> ActorCriticOutput:
        """Return policy outputs and values of L steps, from the carry before the first of them.

        `first` [L, *B] marks episode starts, which reset the memory. `critic_obs` replaces `obs` for the critic.
        """
        features, after = self.torso(obs, carry.get("torso"), first, carries)
        carries_after = {"torso": after} if self.has_memory and carries else {}
        value_features = features
        if self.critic_torso is not None:
            value_features, after = self.critic_torso(critic_obs or obs, carry.get("critic"), first, carries)
            if carries_after:
                carries_after["critic"] = after
        return ActorCriticOutput(self.actor(features), self.critic(value_features).squeeze(-1), carries_after)

    def policy(
        self,
        obs: ObservationTensors,
        carry: Tree,
        first: Tensor,
        carries: bool = True,
        critic_obs: ObservationTensors | None = None,
    ) -> tuple[Tensor, Tree]:
        """Return the policy's output and the carries after each step; run the critic only to update its memory."""
        if carries and self.has_memory and self.critic_torso is not None:
            result = self(obs, carry, first, carries, critic_obs)
            return result.output, result.carries
        features, after = self.torso(obs, carry.get("torso"), first, carries)
        return self.actor(features), {"torso": after} if self.has_memory and carries else {}


def act(
    nets: Mapping[str, ActorCritic],
    kernels: Mapping[str, ActorCriticKernel],
    observers: Mapping[str, Observer],
    step: Step,
    carry: Tree,
    mode: Mode,
    views: Mapping[str, CriticView] = MappingProxyType({}),
    keep_outputs: bool = False,
) -> Acted:
    """Sample (or without `mode.explore` take the most likely) actions [N, A, …] of every group, by its kernel if any.

    `views` has the views of critics that observe something other than the policy; their memory takes it as input. The
    extras hold the carry before the step for networks with memory and, with `keep_outputs`, `output` and `value` of
    `ActorCriticOutput` for networks whose policy and value share the features of images.
    """
    action: dict[str, np.ndarray] = {}
    extras: dict[str, dict[str, Any]] = {}
    after: dict[str, Tree] = {}
    for name, net in nets.items():
        if name in kernels:
            generator = mode.streams.numpy(f"act.{name}") if mode.explore else None
            action[name] = kernels[name].act(observers[name].vector(step.obs[name]), step.mask.get(name), generator)
            extras[name], after[name] = {}, {}
        else:
            critic_obs = views[name](step.obs, step.state) if name in views and net.has_memory else None
            keep = keep_outputs and net.shares_images
            acted = _act(name, net, observers[name], step, carry[name], mode, critic_obs, keep)
            action[name], after[name], extras[name] = acted
    return Acted(action, extras, after)


@torch.inference_mode()
def _act(
    name: str,
    net: ActorCritic,
    observer: Observer,
    step: Step,
    carry: Tree,
    mode: Mode,
    critic_obs: ObservationTensors | None,
    keep_outputs: bool,
) -> tuple[np.ndarray, Tree, dict[str, Any]]:
    """Return the actions of one group [N, A, …], the carry after them, and their extras, computed with torch."""
    device = observer.device
    obs = map_tree(lambda x: x[None], observer(step.obs[name]))  # a sequence of one step
    first = torch.from_numpy(step.is_first).to(device)[None, :, None].expand(1, *step.active[name].shape)
    critic_sequence = None if critic_obs is None else map_tree(lambda x: x[None], critic_obs)
    extras: Tree = {"carry": carry} if net.has_memory else {}
    if keep_outputs:
        output, value, carries = net(obs, carry, first)
        extras = {"output": output[0], "value": value[0]}
    else:
        output, carries = net.policy(obs, carry, first, critic_obs=critic_sequence)
    mask = torch.from_numpy(step.mask[name]).to(device) if name in step.mask else None
    if mode.explore:
        action = net.head.sample(output[0], mask, mode.streams.torch(f"act.{name}", device))
    else:
        action = net.head.mode(output[0], mask)
    arrays = map_tree(lambda x: x.cpu().numpy(), extras)
    return action.cpu().numpy(), map_tree(lambda x: x[0], carries), arrays
