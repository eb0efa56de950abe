"""TD-MPC (Hansen et al. 2022, arXiv:2203.04955) and TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828).

One workflow: a latent model learned from short stretches of the replay, critics that say what lies beyond its horizon,
and a search for actions in it. The arithmetic is in `tdmpc_steps.py`, settings in `tdmpc_config.py`. Letters in shapes:
H steps, B stretches, N environments, D numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.schedules import value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Stretches
from cadenza.data.device_copy import send
from cadenza.data.replay import ReplayStore
from cadenza.nets.actors import Actions
from cadenza.nets.latent_model import LatentModel
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.observe import ObservationTensors, Observer
from cadenza.nets.opinions import single_steps, to_numpy
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.target import Target
from cadenza.ops.planning import MPPIResult
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Credit, Explained, Mode, Opinion, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.parts import Parts
from cadenza.workflows.tdmpc_config import TDMPCConfig
from cadenza.workflows.tdmpc_steps import Batch, Noise, PlanNoise, Slow, model_loss, plan, policy_loss, trusted

MEAN = "mean"  # of the last plan, in the carry
EXPECTED = "expected"  # in the carry of `explain`: the reward predicted for the last action
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
        self.parts = Parts(
            networks={"model": self.model},
            targets={name: target.net for name, target in self.targets.items()},
            optimizers=self.optimizers,
            normalisers={"observation": self.observer, **({} if self.scale is None else {"values": self.scale})},
        )
        self.updates = 0
        self._learn: Callable[[Tree], Tree] = context.captured(self.learn)
        self._search: Callable[[Tree], Tree] = context.captured(self.search)
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
        found, mean = self._planned(step, carry, mode)
        action = found.action
        if mode.explore:
            drawn = torch.empty_like(action).normal_(generator=mode.streams.torch("act", self.device))
            action = action + found.std[:, 0] * drawn
        return Acted({name: self.actions.decode(action.clamp(-1, 1))[:, None]}, {name: {}}, {MEAN: mean})

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the planned actions, their deviation in the search, what the critics say of them, and rewards."""
        name, model, actions = self.group, self.model, self.actions
        plans = []
        expected = carry.get(EXPECTED, torch.zeros(1, device=self.device))
        for step in single_steps(steps):
            plan, mean = self._planned(step, carry, mode)
            plans.append(plan)
            carry = {MEAN: mean}
        action = torch.cat([plan.action for plan in plans])  # [N, D]
        std = torch.cat([plan.std[:, 0] for plan in plans])
        latent = model.encoder(self._observe(steps))
        taken = action if mode.forced is None else actions.encode(send(mode.forced[name][:, 0], self.device))
        reward = model.expected_reward(latent, taken)
        every = torch.arange(self.config.model.critics, device=self.device)
        value = trusted(model.values(model.critics, latent, action, every), self.config)
        opinion = Opinion(
            mean=to_numpy(actions.middle + actions.reach * action)[:, None],
            std=to_numpy(actions.reach * std)[:, None],
            value=to_numpy(value)[:, None],
            reward=to_numpy(torch.cat([expected, reward[:-1]]))[:, None],  # for the action before
        )
        return Explained({name: opinion}, {**carry, EXPECTED: reward[-1:]}, {name: Credit(self.gamma)})

    def _observe(self, step: Step) -> ObservationTensors:
        """[N, …]"""
        return self.observer.from_tensors(map_tree(lambda x: send(x[:, 0], self.device), step.obs[self.group]))

    def _planned(self, step: Step, carry: Tree, mode: Mode) -> tuple[MPPIResult, Tensor]:
        """A plan that starts where the last one has led, and its mean [N, longest, D] for the next."""
        search, at = self.config.planning, (mode.phase.now, mode.phase.horizon) if mode.explore else self.stood
        horizon = int(value_at(search.horizon, *at))
        generator = mode.streams.torch("act", self.device)
        start = torch.zeros_like(carry[MEAN][:, :horizon])
        start[:, :-1] = carry[MEAN][:, 1:horizon] * send(~step.is_first, self.device)[:, None, None]
        given = {
            "obs": self._observe(step),
            "start": start,
            "noise": self._plan_noise(len(step.is_first), horizon, generator)._asdict(),
            "min_std": send(np.array(value_at(search.min_std, *at), np.float32), self.device),
        }
        found = MPPIResult(**self._search(given))
        mean = torch.zeros_like(carry[MEAN])
        mean[:, :horizon] = found.mean
        return found, mean

    def search(self, given: Tree) -> Tree:
        """The plan itself, on tensors alone."""
        noise, latent = PlanNoise(**given["noise"]), self.model.encoder(given["obs"])
        return plan(self.model, latent, given["start"], noise, given["min_std"], self.gamma, self.config)._asdict()

    def _plan_noise(self, count: int, horizon: int, generator: torch.Generator) -> PlanNoise:
        search, size = self.config.planning, self.actions.size
        made, rounds = search.samples - search.policy_samples, search.rounds(size)

        def normal(*shape: int) -> Tensor:
            return torch.empty(*shape, device=self.device).normal_(generator=generator)

        return PlanNoise(
            plans=normal(rounds, count, made, horizon, size),
            policy=normal(horizon, count, search.policy_samples, size),
            after=normal(rounds, count, search.samples, size),
            pairs=self._pairs(rounds, generator),
            waiting=torch.empty(count, search.elites, device=self.device).exponential_(generator=generator),
        )

    def _pairs(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, 2] numbers of two critics each."""
        drawn = torch.rand(count, self.config.model.critics, generator=generator, device=self.device)
        return drawn.topk(2).indices

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """One gradient step of the model and its critics, then one of the policy."""
        config, streams = self.config, self.context.streams
        beta = value_at(config.priority_beta, phase.now, phase.horizon)
        drawn = store.stretches(config.batch_size, config.horizon, streams.numpy("replay"), beta)
        given = {"batch": self._batch(drawn)._asdict(), "noise": self._noise(), "now": self._now(phase)}
        learned = self._learn(given)
        self.updates += 1
        self.stood = (phase.now, phase.horizon)
        if self.updates % config.target_every == 0:
            for target in self.targets.values():
                target.follow(config.tau)
        if config.priority_alpha is not None:
            store.update_priorities(drawn.index, learned["error"].cpu().numpy() + 1e-6)
        # in memory of their own: those of a captured step are written again by the next
        metrics = zip(learned["metrics"], torch.stack(list(learned["metrics"].values())), strict=True)
        return Updated(1, {f"train/{name}": value for name, value in metrics})

    def learn(self, given: Tree) -> Tree:
        """The gradient steps themselves, on tensors alone: shapes never change, and nothing is read back."""
        config, model = self.config, self.model
        batch, noise, (rate, entropy_coef) = Batch(**given["batch"]), Noise(**given["noise"]), given["now"]
        slow = Slow(**{name: target.net for name, target in self.targets.items()})
        found = model_loss(model, slow, batch, noise, self.gamma, config)
        self._zero_grad()
        found.loss.backward(inputs=self.taught)  # type: ignore[no-untyped-call]
        limit = float("inf") if config.max_grad_norm is None else config.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.taught, limit)
        for name, one in self.optimizers.items():
            if name != POLICY:
                one.step(rate * config.encoder_rate if name == "encoder" else rate)
        metrics = {**found.metrics, "grad_norm/model": norm, "learning_rate": rate}
        loss, figures = policy_loss(model, found.latents, batch, noise, self.scale, entropy_coef, config)
        loss.backward(inputs=list(model.policy.parameters()))  # type: ignore[no-untyped-call]
        norm = self.optimizers[POLICY].step(rate, config.policy_max_grad_norm)["all"]
        metrics |= {**figures, "grad_norm/policy": norm}
        return {"error": found.error, "metrics": metrics}

    def _zero_grad(self) -> None:
        for one in self.optimizers.values():
            one.zero_grad()

    def _now(self, phase: PhaseInfo) -> Tensor:
        """What schedules say: the step size, and the weight of the policy's entropy."""
        schedules = (self.config.learning_rate, self.config.entropy_coef)
        return send(np.array([value_at(one, phase.now, phase.horizon) for one in schedules], np.float32), self.device)

    def _noise(self) -> dict[str, Tensor]:
        """What `Noise` holds; no dropout where there is none."""
        config, size = self.config, self.actions.size
        steps, many, share = config.horizon, config.batch_size, config.model.dropout
        generator = self.context.streams.torch("update", self.device)

        def normal(steps: int) -> Tensor:
            return torch.empty(steps, many, size, device=self.device).normal_(generator=generator)

        def kept(members: int, states: int) -> Tensor:
            blank = torch.empty(members, states, config.model.units, device=self.device)
            return blank.bernoulli_(1 - share, generator=self.context.streams.torch("dropout", self.device))

        pairs = self._pairs(2, generator)
        noise = Noise(normal(steps), normal(steps + 1), pairs[0], pairs[1])
        if share:
            kept_of = (kept(config.model.critics, steps * many), kept(2, (steps + 1) * many))
            noise = noise._replace(value_kept=kept_of[0], policy_kept=kept_of[1])
        return {name: drawn for name, drawn in noise._asdict().items() if drawn is not None}

    def _batch(self, drawn: Stretches) -> Batch:
        """What was drawn, time first."""
        data = drawn.groups[self.group]

        def tensor(array: np.ndarray) -> Tensor:
            return send(array.swapaxes(0, 1), self.device)

        weight = np.ones(len(drawn.index), np.float32) if drawn.weight is None else drawn.weight
        return Batch(
            obs=self.observer.from_tensors(map_tree(lambda x: tensor(x[:, :, 0]), data["obs"])),
            action=self.actions.encode(tensor(data["action"][:, :, 0])),
            reward=tensor(data["reward"][:, :, 0]),
            terminated=tensor(drawn.terminated).float(),
            taken=tensor(drawn.taken).float(),
            weight=send(weight, self.device),
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

    def load_weights(self, state: dict[str, Any]) -> None:
        """Until it learns here it plans as one that has learned all it was to."""
        self.parts.load_weights(state)
        self.stood = BEYOND

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "updates": self.updates, "stood": list(self.stood)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.updates = state["updates"]
        self.stood = (state["stood"][0], state["stood"][1])
