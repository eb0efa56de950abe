"""Policy and value of one group: a torso they share (or one each), an MLP each, and an action head."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config.networks import HeadConfig, MLPConfig, TorsoConfig
from cadenza.nets.critic_view import CriticView
from cadenza.nets.deployed import Deployed
from cadenza.nets.heads import action_head
from cadenza.nets.mlp import MLP
from cadenza.nets.observe import ObservationTensors, Observer, images
from cadenza.nets.torso import Torso
from cadenza.trees import map_tree
from cadenza.types import Acted, GroupSpec, Mode, Step, Tree

if TYPE_CHECKING:
    from cadenza.nets.numpy.actor_critic_kernel import PlainActorCritic


class ActorCriticSettings(Protocol):
    """The part of an algorithm's config that is about these networks."""

    @property
    def torso(self) -> TorsoConfig: ...
    @property
    def actor(self) -> MLPConfig: ...
    @property
    def critic(self) -> MLPConfig: ...
    @property
    def head(self) -> HeadConfig: ...


class ActorCriticOutput(NamedTuple):
    """What the networks make of observations [L, *B]."""

    output: Tensor  # for the action head
    value: Tensor  # [L, *B]
    carries: Tree  # after each step, [L, *B, …], if asked for; `{}` without a memory


class ActorCritic(nn.Module):
    plain: PlainActorCritic | None = None  # the same by hand, for acting and for gradients, where it can be had

    def __init__(
        self, group: GroupSpec, config: ActorCriticSettings, critic_space: spaces.Space[Any] | None = None
    ) -> None:
        """`critic_space`: what the critic sees, where that is not what the policy sees."""
        super().__init__()
        self.head = action_head(group.action, config.head)
        self.torso = Torso(group.observation, config.torso)
        self.actor = MLP(self.torso.features, self.head.outputs, config.actor, output_gain=0.01)
        self.critic_torso = None
        if critic_space is not None or not config.torso.shared:
            self.critic_torso = Torso(critic_space or group.observation, config.torso)
        self.critic = MLP((self.critic_torso or self.torso).features, 1, config.critic)
        # one look at images is all that policy and value take, and so dear that it is not to be had twice
        self.looks = bool(images(group.observation)) and not self.remembers and self.critic_torso is None

    @property
    def remembers(self) -> bool:
        return self.torso.memory is not None

    def parts(self) -> dict[str, nn.Module]:
        """Whose gradient norms are told apart: each parameter is in one of them."""
        if self.critic_torso is None:
            return {"trunk": self.torso, "actor": nn.ModuleList([self.actor, self.head]), "critic": self.critic}
        return {
            "actor": nn.ModuleList([self.torso, self.actor, self.head]),
            "critic": nn.ModuleList([self.critic_torso, self.critic]),
        }

    def initial_carry(self, *batch: int) -> Tree:
        if not self.remembers:
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
        """Policy and value over L steps, from the carry before the first of them."""
        features, after = self.torso(obs, carry.get("torso"), first, carries)
        carries_after = {"torso": after} if self.remembers and carries else {}
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
        """The policy's output alone, and the carries; the critic only where its memory needs it."""
        if carries and self.remembers and self.critic_torso is not None:
            judged = self(obs, carry, first, carries, critic_obs)
            return judged.output, judged.carries
        features, after = self.torso(obs, carry.get("torso"), first, carries)
        return self.actor(features), {"torso": after} if self.remembers and carries else {}


def act(
    nets: Mapping[str, ActorCritic],
    observers: Mapping[str, Observer],
    step: Step,
    carry: Tree,
    mode: Mode,
    views: Mapping[str, CriticView] = MappingProxyType({}),
    judges: bool = False,
) -> Acted:
    """Sample (or take the most likely) actions [N, A, …] of every group; the memory before them goes with them.

    `views` are those of critics that see something else than the policy: their memory needs it. With `judges`, networks
    that look at images leave what they made of them beside the actions: `output` and `value`, as in `Judged`.
    """
    action: dict[str, np.ndarray] = {}
    extras: dict[str, dict[str, Any]] = {}
    after: dict[str, Tree] = {}
    for name, net in nets.items():
        if net.plain is not None:
            draw = mode.streams.numpy(f"act.{name}") if mode.explore else None
            action[name] = net.plain.act(observers[name].vector(step.obs[name]), step.mask.get(name), draw)
            extras[name], after[name] = {}, {}
        else:
            critic_obs = views[name](step.obs, step.state) if name in views and net.remembers else None
            of = (name, net, observers[name], step, carry[name], mode, critic_obs)
            action[name], after[name], extras[name] = _act(*of, judges and net.looks)
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
    judges: bool,
) -> tuple[np.ndarray, Tree, dict[str, Any]]:
    """One group's actions by torch, its memory after them, and what is kept beside them."""
    device = observer.device
    obs = map_tree(lambda x: x[None], observer(step.obs[name]))  # a sequence of one step
    first = torch.from_numpy(step.is_first).to(device)[None, :, None].expand(1, *step.active[name].shape)
    beside = None if critic_obs is None else map_tree(lambda x: x[None], critic_obs)
    kept: Tree = {"carry": carry} if net.remembers else {}
    if judges:
        output, value, carries = net(obs, carry, first)
        kept = {"output": output[0], "value": value[0]}
    else:
        output, carries = net.policy(obs, carry, first, critic_obs=beside)
    mask = torch.from_numpy(step.mask[name]).to(device) if name in step.mask else None
    if mode.explore:
        chosen = net.head.sample(output[0], mask, mode.streams.torch(f"act.{name}", device))
    else:
        chosen = net.head.mode(output[0], mask)
    extras = map_tree(lambda x: x.cpu().numpy(), kept)
    return chosen.cpu().numpy(), map_tree(lambda x: x[0], carries), extras


def deployed(net: ActorCritic, observer: Observer) -> Deployed:
    """Its most likely actions; the critic and its memory stay behind."""

    def network(obs: ObservationTensors, carry: Tree, first: Tensor) -> tuple[Tensor, Tree]:
        features, after = net.torso(obs, carry, first)
        return net.actor(features), after

    carry = net.torso.initial_carry if net.remembers else None
    return Deployed(observer, [net.torso, net.actor, net.head], network, net.head.mode, carry)
