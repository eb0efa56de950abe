"""TD-MPC (Hansen et al. 2022, arXiv:2203.04955) and TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828).

One workflow: a latent model learned from short stretches of the replay, critics that say what lies beyond its horizon,
and a search for actions in it. The arithmetic is in `tdmpc_steps.py`, settings in `tdmpc_config.py`. Letters in shapes:
H steps, B stretches, N environments, D numbers of an action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.schedules import Scheduled, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.normalisers import PercentileScale
from cadenza.data.replay import ReplayStore, Stretches
from cadenza.nets.actors import Actions
from cadenza.nets.latent_model import LatentModel
from cadenza.nets.observe import Observer
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.target import Target
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.parts import Parts, load_parts, parts_state
from cadenza.workflows.tdmpc_config import TDMPCConfig
from cadenza.workflows.tdmpc_steps import Batch, Noise, PlanNoise, Slow, model_loss, plan, policy_loss

MEAN = "mean"  # of the last plan, in the carry
POLICY = "policy"
BEYOND = (1 << 53, 1)  # after the end of every schedule


class TDMPC:
    hooks = ("update",)

    def __init__(self, config: TDMPCConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        ((self.group, group),) = context.env.groups.items()
        self.gamma = config.discount(context.env)
        self.observer = Observer(group.observation, self.device)
        self.actions = Actions(group.action, self.device)
        std = config.policy_std if config.policy == "noisy" else None
        self.model = LatentModel(group.observation, self.actions.size, config.model, std).to(self.device)
        self.optimizers: dict[str, Optimizer] = {}
        for name, net in self.model.named_children():
            if any(True for _ in net.parameters()):
                kind = config.policy_optimizer if name == POLICY else config.optimizer
                self.optimizers[name] = optimizer(net, kind)
        self.taught = [p for name, p in self.model.named_parameters() if not name.startswith(f"{POLICY}.")]
        self.targets: dict[str, Target[Any]] = {"critics": Target(self.model.critics, self.optimizers["critics"])}
        if config.latent_target == "slow":
            self.targets["encoder"] = Target(self.model.encoder, self.optimizers["encoder"])
        self.scale = PercentileScale(self.device) if config.scale_values else None
        self.updates = 0
        self.stood = (0, 1)  # how far the run was when it last learned, of how much: an evaluation is told neither

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        return {MEAN: torch.zeros(num_envs, self.config.planning.longest, self.actions.size).to(self.device)}

    @torch.inference_mode()
    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """A plan from what is seen, which begins where the last one has led; its first action is done."""
        name, count = self.group, len(step.is_first)
        if mode.forced is not None:
            return Acted(mode.forced, {name: {}}, self.initial_carry(count))
        search, at = self.config.planning, (mode.phase.now, mode.phase.horizon) if mode.explore else self.stood
        horizon = int(value_at(search.horizon, *at))
        min_std = torch.tensor(value_at(search.min_std, *at), device=self.device)
        generator = mode.streams.torch("act", self.device)
        obs = map_tree(lambda x: x[:, 0], self.observer(step.obs[name]))  # [N, …]
        start = torch.zeros_like(carry[MEAN][:, :horizon])
        again = torch.from_numpy(~step.is_first).to(self.device)[:, None, None]
        start[:, :-1] = carry[MEAN][:, 1:horizon] * again
        noise = self._plan_noise(count, horizon, generator)
        found = plan(self.model, self.model.encoder(obs), start, noise, min_std, self.gamma, self.config)
        action = found.action
        if mode.explore:
            drawn = torch.empty_like(action).normal_(generator=generator)
            action = action + found.std[:, 0] * drawn
        mean = torch.zeros_like(carry[MEAN])
        mean[:, :horizon] = found.mean
        return Acted({name: self.actions.decode(action.clamp(-1, 1))[:, None]}, {name: {}}, {MEAN: mean})

    def _plan_noise(self, count: int, horizon: int, generator: torch.Generator) -> PlanNoise:
        search, size = self.config.planning, self.actions.size
        made, rounds = search.samples - search.policy_samples, search.rounds(size)

        def normal(*shape: int) -> Tensor:
            return torch.empty(*shape, device=self.device).normal_(generator=generator)

        return PlanNoise(
            plans=normal(rounds, count, made, horizon, size),
            policy=normal(horizon, count, search.policy_samples, size),
            after=normal(rounds, count, search.samples, size),
            pairs=torch.stack([self._pair(generator) for _ in range(rounds)]),
            waiting=torch.empty(count, search.elites, device=self.device).exponential_(generator=generator),
        )

    def _pair(self, generator: torch.Generator) -> Tensor:
        """Numbers of two critics."""
        return torch.randperm(self.config.model.critics, generator=generator, device=self.device)[:2]

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """One gradient step of the model and its critics, then one of the policy."""
        config, streams = self.config, self.context.streams
        beta = value_at(config.priority_beta, phase.now, phase.horizon)
        drawn = store.stretches(config.batch_size, config.horizon, streams.numpy("replay"), beta)
        rate = self._now(config.learning_rate, phase)
        entropy_coef = self._now(config.entropy_coef, phase)
        dropout = streams.torch("dropout", self.device) if config.model.dropout else None
        error, metrics = self.learn(self._batch(drawn), self._noise(), dropout, rate, entropy_coef)
        self.updates += 1
        self.stood = (phase.now, phase.horizon)
        if self.updates % config.target_every == 0:
            for target in self.targets.values():
                target.follow(config.tau)
        if config.priority_alpha is not None:
            store.update_priorities(drawn.index, error.cpu().numpy() + 1e-6)
        return Updated(1, {f"train/{name}": value for name, value in metrics.items()})

    def learn(
        self, batch: Batch, noise: Noise, dropout: torch.Generator | None, rate: Tensor, entropy_coef: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient steps themselves, on tensors alone: shapes never change, and nothing is read back."""
        config, model = self.config, self.model
        slow = Slow(**{name: target.net for name, target in self.targets.items()})
        found = model_loss(model, slow, batch, noise, dropout, self.gamma, config)
        self._zero_grad()
        found.loss.backward(inputs=self.taught)  # type: ignore[no-untyped-call]
        limit = float("inf") if config.max_grad_norm is None else config.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.taught, limit)
        for name, one in self.optimizers.items():
            if name != POLICY:
                one.step(rate * config.encoder_rate if name == "encoder" else rate)
        metrics = {**found.metrics, "grad_norm/model": norm, "learning_rate": rate}
        loss, figures = policy_loss(model, found.latents, batch, noise, dropout, self.scale, entropy_coef, config)
        loss.backward(inputs=list(model.policy.parameters()))  # type: ignore[no-untyped-call]
        norm = self.optimizers[POLICY].step(rate, config.policy_max_grad_norm)["all"]
        metrics |= {**figures, "grad_norm/policy": norm}
        return found.error, metrics

    def _zero_grad(self) -> None:
        for one in self.optimizers.values():
            one.zero_grad()

    def _now(self, schedule: Scheduled, phase: PhaseInfo) -> Tensor:
        return torch.tensor(value_at(schedule, phase.now, phase.horizon), device=self.device)

    def _noise(self) -> Noise:
        config, size = self.config, self.actions.size
        generator = self.context.streams.torch("update", self.device)

        def normal(steps: int) -> Tensor:
            return torch.empty(steps, config.batch_size, size, device=self.device).normal_(generator=generator)

        return Noise(normal(config.horizon), normal(config.horizon + 1), self._pair(generator), self._pair(generator))

    def _batch(self, drawn: Stretches) -> Batch:
        """What was drawn, time first."""
        data = drawn.groups[self.group]

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array.swapaxes(0, 1))).to(self.device)

        weight = np.ones(len(drawn.index), np.float32) if drawn.weight is None else drawn.weight
        return Batch(
            obs=self.observer(map_tree(lambda x: np.ascontiguousarray(x[:, :, 0].swapaxes(0, 1)), data["obs"])),
            action=self.actions.encode(tensor(data["action"][:, :, 0])),
            reward=tensor(data["reward"][:, :, 0]),
            terminated=tensor(drawn.terminated).float(),
            taken=tensor(drawn.taken).float(),
            weight=torch.from_numpy(weight).to(self.device),
        )

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        size, alpha, on_disk = config.buffer_size, config.priority_alpha, config.buffer_on_disk
        return {"replay": ReplayStore(size, num_envs, alpha=alpha, stack=stack, on_disk=on_disk)}

    def phases(self) -> tuple[Phase, ...]:
        config, phases = self.config, []
        if config.warmup_steps:
            gather = (Hook("collect", steps=config.warmup_steps),)
            phases.append(Phase("warmup", gather, buffer="replay", actions="random", duration_cycles=1))
        first = config.warmup_steps if config.pretrain_updates is None else config.pretrain_updates
        if first and config.warmup_steps:
            phases.append(Phase("pretrain", (Hook("update"),), "offline", "replay", duration_updates=first))
        hooks = (Hook("collect", steps=config.train_every), Hook("update", ratio=config.update_ratio))
        return (*phases, Phase("train", hooks, buffer="replay"))

    def _parts(self) -> Parts:
        return {
            "networks": {"model": self.model},
            "targets": {name: target.net for name, target in self.targets.items()},
            "optimizers": self.optimizers,
            "normalisers": {"observation": self.observer, **({} if self.scale is None else {"values": self.scale})},
        }

    def load_weights(self, state: dict[str, Any]) -> None:
        """Until it learns here it plans as one that has learned all it was to."""
        load_parts({kind: parts for kind, parts in self._parts().items() if kind != "optimizers"}, state)
        self.stood = BEYOND

    def state_dict(self) -> dict[str, Any]:
        return {**parts_state(self._parts()), "updates": self.updates, "stood": list(self.stood)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_parts(self._parts(), state)
        self.updates = state["updates"]
        self.stood = (state["stood"][0], state["stood"][1])
