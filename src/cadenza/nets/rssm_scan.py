"""The scan of Dreamer v3's recurrent model over a sequence, with its gradient by hand, for CUDA.

It computes what `RSSM.observe_step` says, step by step, in few kernels: products of matrices, and those of `fused.py`
between them. The backward pass has only gradients of the states in its loop. Those of the weights are one product each,
over all steps, after it. Weights are rounded to the precision of the products once. Letters in shapes: T steps, B
sequences, D units of `deter`, H hidden units, Z numbers of `stoch`, G blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cadenza.nets.rssm import RSSM, RSSMState

EPS = 1e-4  # of the norms


def kernels() -> Any:
    """Return the module of the kernels, which imports Triton."""
    from cadenza.nets import fused

    return fused


def observe_scan(
    model: RSSM, embedded: Tensor, action: Tensor, keep: Tensor, deter: Tensor, stoch: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `deter` [T, B, D], `stoch` [T, B, Z] and the logits of the posterior [T, B, Z] of a sequence.

    `embedded` [T, B, H] and `action` [T, B, D] are the contributions of embeddings and actions. `keep` [T, B] is 0
    where an episode starts, else 1. The states before the sequence [B, …] get no gradient.
    """
    cell: Any = model.cell
    (from_deter, (norm_deter, _)), (from_stoch, (norm_stoch, _)) = cell.from_deter, cell.from_stoch
    weights = (
        *(from_deter.weight, from_deter.bias, norm_deter.weight),
        *(from_stoch.weight, from_stoch.bias, norm_stoch.weight),
        *(cell.mix_memory, cell.mix_deter.weight, cell.mix_stoch.weight, cell.mix_between[0].weight),
        *(cell.gates, cell.gate_bias, model.post_deter.weight, model.post_between[0].weight),
        *(model.post_out.weight, model.post_out.bias),
    )
    settings = (model.config.classes, model.config.unimix)
    inputs = (embedded, action, keep, deter, stoch, noise)
    result: tuple[Tensor, Tensor, Tensor] = ObserveScan.apply(settings, *inputs, *weights)  # type: ignore[no-untyped-call]
    return result


class ObserveScan(torch.autograd.Function):
    """The scan. Products are computed in bfloat16 under autocast, else in the precision of the states."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: tuple[int, float],
        embedded: Tensor,
        action: Tensor,
        keep: Tensor,
        deter: Tensor,
        stoch: Tensor,
        noise: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact, rough, fused = deter.dtype, precision(deter), kernels()
        classes, uniform = settings
        w_deter, b_deter, n_deter, w_stoch, b_stoch, n_stoch, mix_memory, mix_deter, mix_stoch, n_mix = weights[:10]
        w_gates, b_gates, w_post, n_post, w_out, b_out = weights[10:]
        (steps, batch), (units, inputs), blocks = noise.shape[:2], mix_deter.shape, len(mix_memory)

        def buffer(*shape: int, dtype: torch.dtype = rough) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=deter.device)

        # the products with `deter` and `stoch` are those of the next step's inputs, and that of the posterior
        w_both, w_mix = torch.cat([w_post, w_deter]).to(rough), torch.cat([mix_deter, mix_stoch], 1).to(rough)
        w_stoch, mix_memory, w_gates, w_out = (x.to(rough) for x in (w_stoch, mix_memory, w_gates, w_out))
        b_inputs, n_inputs = torch.cat([b_deter, b_stoch]), torch.cat([n_deter, n_stoch])
        b_gates = b_gates.flatten()
        deters, codes = buffer(steps + 1, batch, units, dtype=exact), buffer(steps + 1, batch, units)
        samples = buffer(steps + 1, batch, stoch.shape[-1])
        before_inputs, after_inputs = buffer(steps, batch, 2 * inputs), buffer(steps, batch, 2 * inputs)
        before_mix, after_mix = buffer(steps, batch, units), buffer(steps, batch, units)
        gates = buffer(steps, batch, 3 * units)
        before_post, after_post = buffer(steps, batch, inputs), buffer(steps, batch, inputs)
        logits = buffer(*samples[1:].shape, dtype=exact)
        raw, mixed, memory = buffer(batch, 3 * inputs), buffer(batch, units), buffer(batch, units)
        output = buffer(batch, stoch.shape[-1])
        deters[0], codes[0], samples[0] = deter, deter, stoch
        embedded, action = embedded.contiguous(), action.contiguous()

        torch.mm(codes[0], w_both.T, out=raw[:, : 2 * inputs])
        for t in range(steps):
            torch.mm(samples[t], w_stoch.T, out=raw[:, 2 * inputs :])
            torch.bmm(by_block(codes[t], blocks), mix_memory, out=by_block(memory, blocks))
            fused.norm_silu_forward(
                raw[:, inputs:], n_inputs, EPS, b_inputs, None, keep[t], 2, before_inputs[t], after_inputs[t]
            )
            torch.mm(after_inputs[t], w_mix.T, out=mixed)
            fused.norm_silu_forward(memory, n_mix, EPS, mixed, action[t], keep[t], 1, before_mix[t], after_mix[t])
            torch.bmm(by_block(after_mix[t], blocks), w_gates, out=by_block(gates[t], blocks))
            fused.gru_forward(gates[t], b_gates, deters[t], blocks, keep[t], deters[t + 1], codes[t + 1])
            torch.mm(codes[t + 1], w_both.T, out=raw[:, : 2 * inputs])
            post = raw[:, :inputs]
            fused.norm_silu_forward(post, n_post, EPS, embedded[t], None, None, 1, before_post[t], after_post[t])
            torch.mm(after_post[t], w_out.T, out=output)
            fused.sample_forward(output, noise[t], uniform, classes, b_out, logits[t], samples[t + 1])
        ctx.settings = settings
        ctx.save_for_backward(
            *(keep, deters, codes, samples, before_inputs, after_inputs, before_mix, after_mix, gates),
            *(before_post, after_post, logits, w_both, w_mix, w_stoch, mix_memory, w_gates, w_out),
            *(n_inputs, n_mix, n_post, b_gates),
        )
        return deters[1:], samples[1:].to(exact), logits

    @staticmethod
    def backward(ctx: Any, deter_grad: Tensor, stoch_grad: Tensor, logits_grad: Tensor) -> tuple[Tensor | None, ...]:
        keep, deters, codes, samples, before_inputs, after_inputs, before_mix, after_mix, gates = ctx.saved_tensors[:9]
        before_post, after_post, logits, w_both, w_mix, w_stoch, mix_memory, w_gates, w_out = ctx.saved_tensors[9:18]
        n_inputs, n_mix, n_post, b_gates = ctx.saved_tensors[18:]
        (classes, uniform), fused = ctx.settings, kernels()
        steps, inputs = len(before_post), before_post.shape[-1]
        blocks = len(mix_memory)
        w_post, w_deter = w_both[:inputs], w_both[inputs:]
        w_memory, w_gates = mix_memory.transpose(1, 2), w_gates.transpose(1, 2)
        deter_grad, stoch_grad, logits_grad = (x.contiguous() for x in (deter_grad, stoch_grad, logits_grad))
        d_logits = torch.empty_like(logits, dtype=codes.dtype)
        d_post, d_gates = torch.empty_like(before_post), torch.empty_like(gates)
        d_mix, d_inputs = torch.empty_like(before_mix), torch.empty_like(before_inputs)
        shares_post, shares_mix, shares_inputs = (
            torch.empty_like(x, dtype=deters.dtype) for x in (before_post, before_mix, before_inputs)
        )
        d_hidden, d_both = torch.empty_like(before_post[0]), torch.empty_like(before_inputs[0])
        product, d_after, later = (torch.empty_like(codes[0]) for _ in range(3))
        direct, later_stoch, later_keep = torch.zeros_like(deters[0]), torch.zeros_like(samples[0]), keep[0] * 0
        later.zero_()

        for t in reversed(range(steps)):
            fused.sample_backward(
                logits[t], stoch_grad[t], later_stoch, later_keep, logits_grad[t], uniform, classes, d_logits[t]
            )
            torch.mm(d_logits[t], w_out, out=d_hidden)
            fused.norm_silu_backward(d_hidden, before_post[t], n_post, EPS, d_post[t], shares_post[t])
            torch.mm(d_post[t], w_post, out=product)
            fused.gru_backward(
                *(gates[t], b_gates, deters[t], blocks, keep[t], deter_grad[t]),
                *(product, direct, later, later_keep, d_gates[t]),
            )
            torch.bmm(by_block(d_gates[t], blocks), w_gates, out=by_block(d_after, blocks))
            fused.norm_silu_backward(d_after, before_mix[t], n_mix, EPS, d_mix[t], shares_mix[t])
            torch.mm(d_mix[t], w_mix, out=d_both)
            fused.norm_silu_backward(d_both, before_inputs[t], n_inputs, EPS, d_inputs[t], shares_inputs[t], 2)
            torch.mm(d_inputs[t][:, :inputs], w_deter, out=later)
            by_block(later, blocks).baddbmm_(by_block(d_mix[t], blocks), w_memory)
            torch.mm(d_inputs[t][:, inputs:], w_stoch, out=later_stoch)
            later_keep = keep[t]

        def rows(x: Tensor) -> Tensor:
            return x.flatten(0, 1)

        def by_row(x: Tensor) -> Tensor:
            return by_block(rows(x), blocks)

        def outer(grad: Tensor, x: Tensor) -> Tensor:
            return (rows(grad).T @ rows(x)).to(deters.dtype)

        def total(x: Tensor) -> Tensor:
            return x.sum((0, 1), dtype=deters.dtype)

        masked = codes[:-1] * keep.unsqueeze(-1).to(codes.dtype)
        d_w_mix = outer(d_mix, after_inputs)
        shares_deter, shares_stoch = total(shares_inputs).chunk(2)
        d_deter, d_stoch = d_inputs[..., :inputs], d_inputs[..., inputs:]
        weights = (
            *(outer(d_deter, masked), total(d_deter), shares_deter),
            *(outer(d_stoch, samples[:-1] * keep.unsqueeze(-1).to(codes.dtype)), total(d_stoch), shares_stoch),
            torch.bmm(by_row(masked).transpose(1, 2), by_row(d_mix)).to(deters.dtype),
            *(d_w_mix[:, :inputs], d_w_mix[:, inputs:], total(shares_mix)),
            torch.bmm(by_row(after_mix).transpose(1, 2), by_row(d_gates)).to(deters.dtype),
            total(d_gates).view(blocks, 1, -1),
            *(outer(d_post, codes[1:]), total(shares_post), outer(d_logits, after_post), total(d_logits)),
        )
        return (None, d_post, d_mix, None, None, None, None, *weights)


class RoundedState(NamedTuple):
    """A latent state with its parts also in the precision of the products, and some products with them."""

    deter: Tensor  # [B, D]
    code: Tensor  # [B, D] the same, rounded
    stoch: Tensor  # [B, Z] one-hot samples, which rounding leaves as they are
    products: Tensor  # [B, 3 H] of the prior's first layer and the cell's with `code`; room for those with `stoch`

    def features(self) -> Tensor:
        """Return both parts, rounded and concatenated [B, Z + D]."""
        return torch.cat([self.stoch, self.code], -1)


class ImaginedWalk:
    """The steps of `RSSM.imagine_step` without gradients, by the kernels of the scan."""

    def __init__(self, model: RSSM) -> None:
        cell: Any = model.cell
        (from_deter, (norm_deter, _)), (from_stoch, (norm_stoch, _)) = cell.from_deter, cell.from_stoch
        layers: list[Any] = list(model.prior_hidden)
        self.rough = precision(from_deter.weight)
        self.model, self.cell, self.prior = model, cell, list[Any](zip(layers[::2], layers[1::2], strict=True))
        self.w_deter = torch.cat([layer.weight for layer in (*layers[:1], from_deter)]).to(self.rough)
        self.w_prior = [layer.weight.to(self.rough) for layer in (*layers[2::2], model.prior_out)]
        self.w_stoch, self.w_gates = from_stoch.weight.to(self.rough), cell.gates.to(self.rough)
        self.w_mix = torch.cat([cell.mix_deter.weight, cell.mix_stoch.weight], 1).to(self.rough)
        self.w_memory, self.b_gates = cell.mix_memory.to(self.rough), cell.gate_bias.flatten()
        self.b_inputs = torch.cat([from_deter.bias, from_stoch.bias])
        self.n_inputs = torch.cat([norm_deter.weight, norm_stoch.weight])

    def begin(self, state: RSSMState) -> RoundedState:
        """Return a state to begin with."""
        return self._with_products(state.deter, state.deter.to(self.rough), state.stoch.to(self.rough))

    def __call__(self, state: RoundedState, action: Tensor, noise: Tensor) -> RoundedState:
        """Return the next state [B, …] after an action [B, A], sampled from the prior by noise [B, S]."""
        fused, cell, config = kernels(), self.cell, self.model.config
        hidden = config.hidden
        torch.mm(state.stoch, self.w_stoch.T, out=state.products[:, 2 * hidden :])
        inputs = fused.norm_silu_forward(state.products[:, hidden:], self.n_inputs, EPS, self.b_inputs, groups=2)
        memory, gates = torch.empty_like(state.code), state.code.new_empty(len(noise), 3 * config.deter)
        torch.bmm(by_block(state.code, cell.blocks), self.w_memory, out=by_block(memory, cell.blocks))
        addends = (inputs @ self.w_mix.T, self.model.prepare(action))
        mixed = fused.norm_silu_forward(memory, cell.mix_between[0].weight, EPS, *addends)
        torch.bmm(by_block(mixed, cell.blocks), self.w_gates, out=by_block(gates, cell.blocks))
        deter, code = torch.empty_like(state.deter), torch.empty_like(state.code)
        fused.gru_forward(gates, self.b_gates, state.deter, cell.blocks, None, deter, code)
        after = self._with_products(deter, code, state.stoch)
        output = after.products[:, :hidden] if self.prior else code
        for (layer, (norm, _)), weight in zip(self.prior, self.w_prior, strict=False):
            output = fused.norm_silu_forward(output, norm.weight, EPS, layer.bias) @ weight.T
        if not self.prior:
            output = code @ self.w_prior[0].T
        stoch = fused.sample_forward(output, noise, config.unimix, config.classes, self.model.prior_out.bias)
        return after._replace(stoch=stoch)

    def _with_products(self, deter: Tensor, code: Tensor, stoch: Tensor) -> RoundedState:
        hidden = self.model.config.hidden
        products = code.new_empty(len(code), 3 * hidden)
        torch.mm(code, self.w_deter.T, out=products[:, 2 * hidden - len(self.w_deter) : 2 * hidden])
        return RoundedState(deter, code, stoch, products)


def precision(x: Tensor) -> torch.dtype:
    """Return the type of numbers that products are computed in: that of autocast, or that of the tensor."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def by_block(x: Tensor, blocks: int) -> Tensor:
    """Return x [R, D] as [G, R, D / G]."""
    return x.view(len(x), blocks, -1).transpose(0, 1)
