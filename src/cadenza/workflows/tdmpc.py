"""TD-MPC (Hansen et al. 2022, arXiv:2203.04955) and TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828).

A latent model is learned from short sequences of the replay, together with critics for what lies beyond its horizon;
actions are planned in it. Losses and search: `tdmpc_steps.py`; settings: `tdmpc_config.py`. Letters in shapes: H steps,
B sequences, N environments, D numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.config.networks import OwnPart
from cadenza.config.schedules import TimedSettings, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Stretches
from cadenza.data.device_copy import scheduled_tensors, send
from cadenza.data.replay import ReplayStore
from cadenza.nets.actors import Actions
from cadenza.nets.latent_model import LatentModel
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.observe import ObservationTensors, Observer
from cadenza.nets.opinions import single_steps, to_numpy
from cadenza.nets.optimizers import Optimizer, clip_together, optimizer
from cadenza.nets.own_parts import own_function
from cadenza.nets.target import Target
from cadenza.ops.planning import mppi
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Credit, Explained, Mode, Opinion, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.parts import Parts, own_states
from cadenza.workflows.tdmpc_config import TDMPCConfig
from cadenza.workflows.tdmpc_steps import (
    PlanNoise,
    SlowNetworks,
    StretchBatch,
    UpdateNoise,
    combine_critics,
    model_loss,
    plan,
    policy_loss,
    unroll,
)

MEAN = "mean"  # in the carry: the mean of the last plan
EXPECTED = "expected"  # in the carry of `explain`: the reward predicted for the last action
POLICY = "policy"
AFTER_SCHEDULES = (1 << 53, 1 << 53)  # the end of a run that is longer than every schedule


class TDMPC:
    """The workflow of TD-MPC and TD-MPC2."""

    hooks = ("update", "update_world_model", "update_controller")

    def __init__(self, config: TDMPCConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        self.timed = TimedSettings(config)
        ((self.group, group),) = context.env.groups.items()
        self.observer = Observer(group.observation, self.device)
        self.actions = Actions(group.action, self.device)
        policy: Any = {"squashed": None, "noisy": config.policy_std}.get(str(config.policy), config.policy)
        parts = (config.encoder, config.dynamics, config.critic)
        self.model = LatentModel(group.observation, self.actions.size, config.model, policy, *parts)
        self.model.to(self.device)
        self.planner = own_function(config.planner) if isinstance(config.planner, OwnPart) else mppi
        self.optimizers: dict[str, Optimizer] = {}
        for name, net in self.model.named_children():
            if any(True for _ in net.parameters()):
                kind = config.policy_optimizer if name == POLICY else config.optimizer
                self.optimizers[name] = optimizer(net, kind)
        self.model_parameters = [p for name, p in self.model.named_parameters() if not name.startswith(f"{POLICY}.")]
        self.targets: dict[str, Target[Any]] = {"critics": Target(self.model.critics, self.optimizers["critics"])}
        if config.latent_target == "slow":
            self.targets["encoder"] = Target(self.model.encoder, self.optimizers["encoder"])
        self.scale = PercentileScale(self.device) if config.scale_values else None
        self.parts = Parts(
            networks={"model": self.model},
            targets={name: target.net for name, target in self.targets.items()},
            optimizers=self.optimizers,
            normalisers={"observation": self.observer, **({} if self.scale is None else {"values": self.scale})},
            **own_states(planner=self.planner),
        )
        self.updates = 0
        choices = ((True, True), (True, False), (False, True))
        self._learn: dict[tuple[bool, bool], Callable[[Tree], Tree]]
        self._learn = {parts: partial(self.learn, parts=parts) for parts in choices}
        if config.accumulate == 1:
            self._learn = {parts: context.captured(learn) for parts, learn in self._learn.items()}
        self._model_loss, self._policy_loss, self._plan = map(context.compiled, (model_loss, policy_loss, plan))
        self._search: Callable[[Tree], Tree] = context.captured(self.search)
        self.progress = (0, 1)  # `now` and `horizon` of the last update: evaluations plan with its schedules

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        return {MEAN: torch.zeros(num_envs, self.config.planning.longest, self.actions.size).to(self.device)}

    @torch.inference_mode()
    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Search for a plan, starting from the previous one, and take its first action."""
        name, count = self.group, len(step.is_first)
        if mode.forced is not None:
            return Acted(mode.forced, {name: {}}, self.initial_carry(count))
        plan = self._search_plan(step, carry, mode)
        return Acted({name: self.actions.decode(plan["explored"])[:, None]}, {name: {}}, {MEAN: plan[MEAN].clone()})

    def _search_plan(self, step: Step, carry: Tree, mode: Mode) -> Tree:
        """Return a plan as `search` does; the next one of a captured graph is written over it."""
        search = self.config.planning
        progress = (mode.phase.now, mode.phase.horizon) if mode.explore else self.progress
        horizon = int(value_at(search.horizon, *progress))
        generator = mode.streams.torch("act", self.device)
        arrays = {
            "obs": map_tree(lambda x: x[:, 0], step.obs[self.group]),
            "goes_on": ~step.is_first,
            "min_std": np.array(value_at(search.min_std, *progress), np.float32),
        }
        inputs = {
            # those of a captured graph go to the device in one copy
            **(arrays if self.context.captures else map_tree(lambda x: send(x, self.device), arrays)),
            MEAN: carry[MEAN],
            "noise": self._plan_noise(len(step.is_first), horizon, generator)._asdict(),
            "settings": scheduled_tensors(self.timed, *progress, self.device),
        }
        if mode.explore:
            shape = (len(step.is_first), self.actions.size)
            inputs["exploration"] = torch.empty(shape, device=self.device).normal_(generator=generator)
        return self._search(inputs)

    def search(self, inputs: Tree) -> Tree:
        """Search for a plan, on tensors alone.

        Return its first action [N, D], the same with the noise of exploration, its deviation [N, D], and the mean
        [N, longest, D] from which the next search starts, one step later.
        """
        noise, mean = PlanNoise(**inputs["noise"]), inputs[MEAN]
        latent = self.model.encoder(self.observer.from_tensors(inputs["obs"]))
        config, horizon = self.timed.filled(inputs["settings"]), noise.plans.shape[-2]
        start = torch.zeros_like(mean[:, :horizon])
        start[:, :-1] = mean[:, 1:horizon] * inputs["goes_on"][:, None, None]
        gamma = config.discount(self.context.env)
        plan = self._plan(self.model, latent, start, noise, inputs["min_std"], gamma, config, self.planner)
        mean = torch.zeros_like(mean)
        mean[:, :horizon] = plan.mean
        action, std = plan.action, plan.std[:, 0]
        explored = action + std * inputs["exploration"] if "exploration" in inputs else action
        return {"action": action, "explored": explored.clamp(-1, 1), "std": std, MEAN: mean}

    def _observe(self, step: Step) -> ObservationTensors:
        """Return observations [N, …] of the only agent as the model takes them."""
        return self.observer.from_tensors(map_tree(lambda x: send(x[:, 0], self.device), step.obs[self.group]))

    def _plan_noise(self, count: int, horizon: int, generator: torch.Generator) -> PlanNoise:
        """Draw all randomness of a search in `count` environments."""
        search, size = self.config.planning, self.actions.size
        samples, iterations = search.samples - search.policy_samples, search.rounds(size)

        def normal(*shape: int) -> Tensor:
            return torch.empty(*shape, device=self.device).normal_(generator=generator)

        return PlanNoise(
            plans=normal(iterations, count, samples, horizon, size),
            policy=normal(horizon, count, search.policy_samples, size),
            final=normal(iterations, count, search.samples, size),
            pairs=self._critic_pairs(iterations, generator),
            waiting=torch.empty(count, search.elites, device=self.device).exponential_(generator=generator),
        )

    def _critic_pairs(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw numbers of two critics each, [count, 2]."""
        lots = torch.rand(count, self.config.model.critics, generator=generator, device=self.device)
        return lots.topk(2).indices

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of the model and its critics, then one of the policy."""
        return self._update(store, phase, (True, True))

    def update_world_model(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of the model and its critics alone."""
        return self._update(store, phase, (True, False))

    def update_controller(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of the policy in the model, which stays as it is."""
        return self._update(store, phase, (False, True))

    def _update(self, store: ReplayStore, phase: PhaseInfo, parts: tuple[bool, bool]) -> Updated:
        """Sample sequences, and train the model or the policy or both on them."""
        config, generator = self.timed.at(phase), self.context.streams.numpy("replay")
        stretches = store.stretches(config.batch_size, config.horizon, generator, config.priority_beta)
        inputs = {
            "batch": self._batch(stretches)._asdict(),
            "noise": self._update_noise(),
            "schedules": send(np.array([config.learning_rate, config.entropy_coef], np.float32), self.device),
            "settings": scheduled_tensors(self.timed, phase.now, phase.horizon, self.device),
        }
        outputs = self._learn[parts](inputs)
        self.progress = (phase.now, phase.horizon)
        if trains_model := parts[0]:
            self.updates += 1
            if self.updates % config.target_every == 0:
                for target in self.targets.values():
                    target.follow(config.tau)
        if trains_model and config.priority_alpha is not None:
            store.update_priorities(stretches.index, outputs["error"].cpu().numpy() + 1e-6)
        # copied, because a captured graph writes its next metrics over these
        metrics = zip(outputs["metrics"], torch.stack(list(outputs["metrics"].values())), strict=True)
        return Updated(1, {f"train/{name}": value for name, value in metrics})

    def learn(self, inputs: Tree, parts: tuple[bool, bool]) -> Tree:
        """Make the gradient steps of the model and of the policy, those that `parts` names, on tensors alone.

        Shapes never change, and nothing is read back.
        """
        config, model, (trains_model, trains_policy) = self.timed.filled(inputs["settings"]), self.model, parts
        batch, noise = StretchBatch(**inputs["batch"]), UpdateNoise(**inputs["noise"])
        rate, entropy_coef = inputs["schedules"]
        slow = SlowNetworks(**{name: target.net for name, target in self.targets.items()})
        for each in self.optimizers.values():
            each.zero_grad()
        metrics, error = {"learning_rate": rate}, {}
        if trains_model:
            result = self._model_loss(model, slow, batch, noise, config.discount(self.context.env), config)
            result.loss.backward(inputs=self.model_parameters)
            metrics["grad_norm/model"] = clip_together(self.model_parameters, config.max_grad_norm)
            for name, each in self.optimizers.items():
                if name != POLICY:
                    each.step(rate * config.encoder_rate if name == "encoder" else rate)
            metrics |= result.metrics
            latents, error = result.latents, {"error": result.error}
        else:
            with torch.no_grad():
                latents = unroll(model, batch)
        if trains_policy:
            loss, figures = self._policy_loss(model, latents, batch, noise, self.scale, entropy_coef, config)
            loss.backward(inputs=list(model.policy.parameters()))
            norm = self.optimizers[POLICY].step(rate, config.policy_max_grad_norm)["all"]
            metrics |= {**figures, "grad_norm/policy": norm}
        return {**error, "metrics": metrics}

    def _update_noise(self) -> dict[str, Tensor]:
        """Draw the fields of `UpdateNoise`, without the masks if there is no dropout."""
        config, size = self.config, self.actions.size
        steps, batch = config.horizon, config.batch_size
        dropout = config.model.dropout if config.critic == "mlp" else 0.0
        generator = self.context.streams.torch("update", self.device)

        def normal(steps: int) -> Tensor:
            return torch.empty(steps, batch, size, device=self.device).normal_(generator=generator)

        def mask(critics: int, states: int) -> Tensor:
            blank = torch.empty(critics, states, config.model.units, device=self.device)
            return blank.bernoulli_(1 - dropout, generator=self.context.streams.torch("dropout", self.device))

        target_pair, policy_pair = self._critic_pairs(2, generator)
        noise = {
            "target": normal(steps),
            "policy": normal(steps + 1),
            "target_pair": target_pair,
            "policy_pair": policy_pair,
        }
        if dropout:
            noise["value_mask"] = mask(config.model.critics, steps * batch)
            noise["policy_mask"] = mask(2, (steps + 1) * batch)
        return noise

    def _batch(self, stretches: Stretches) -> StretchBatch:
        """Return sequences [B, H, …] of the replay as tensors [H, B, …]."""
        data = stretches.groups[self.group]

        def tensor(array: np.ndarray) -> Tensor:
            return send(array.swapaxes(0, 1), self.device)

        weight = np.ones(len(stretches.index), np.float32) if stretches.weight is None else stretches.weight
        return StretchBatch(
            obs=self.observer.from_tensors(map_tree(lambda x: tensor(x[:, :, 0]), data["obs"])),
            action=self.actions.encode(tensor(data["action"][:, :, 0])),
            reward=tensor(data["reward"][:, :, 0]),
            terminated=tensor(stretches.terminated).float(),
            valid=tensor(stretches.valid).float(),
            weight=send(weight, self.device),
        )

    # what the lab shows

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the planned actions, their deviation in the search, their values by the critics, and rewards."""
        name, model, actions = self.group, self.model, self.actions
        expected = carry.get(EXPECTED, torch.zeros(1, device=self.device))
        results = []
        for step in single_steps(steps):
            results.append(map_tree(torch.clone, self._search_plan(step, carry, mode)))
            carry = {MEAN: results[-1][MEAN]}
        action = torch.cat([result["action"] for result in results])  # [N, D]
        std = torch.cat([result["std"] for result in results])
        latent = model.encoder(self._observe(steps))
        performed = action if mode.forced is None else actions.encode(send(mode.forced[name][:, 0], self.device))
        reward = model.expected_reward(latent, performed)
        critics = torch.arange(self.config.model.critics, device=self.device)
        value = combine_critics(model.values(model.critics, latent, action, critics), self.config)
        gamma = self.timed.at(mode.phase).discount(self.context.env)
        opinion = Opinion(
            mean=to_numpy(actions.middle + actions.reach * action)[:, None],
            std=to_numpy(actions.reach * std)[:, None],
            value=to_numpy(value)[:, None],
            reward=to_numpy(torch.cat([expected, reward[:-1]]))[:, None],  # for the action before
        )
        return Explained({name: opinion}, {**carry, EXPECTED: reward[-1:]}, {name: Credit(gamma)})

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        size, alpha, on_disk = config.buffer_size, config.priority_alpha, config.buffer_on_disk
        return {
            "replay": self.context.store(
                "replay", ReplayStore, size, num_envs, alpha=alpha, stack=stack, on_disk=on_disk
            )
        }

    def phases(self) -> tuple[Phase, ...]:
        config, phases = self.config, []
        if config.warmup_steps:
            warmup = (Hook("collect", steps=config.warmup_steps),)
            phases.append(Phase("warmup", warmup, buffer="replay", actions="random", duration_cycles=1))
            updates = config.warmup_steps if config.pretrain_updates is None else config.pretrain_updates
            if updates:
                phases.append(Phase("pretrain", (Hook("update"),), "offline", "replay", duration_updates=updates))
        hooks = (Hook("collect", steps=config.train_every), Hook("update", ratio=config.update_ratio))
        return (*phases, Phase("train", hooks, buffer="replay"))

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load networks and normalisers; until the first update here, plan with the final values of schedules."""
        self.parts.load_weights(state)
        self.progress = AFTER_SCHEDULES

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "updates": self.updates, "stood": list(self.progress)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.updates = state["updates"]
        self.progress = (state["stood"][0], state["stood"][1])
