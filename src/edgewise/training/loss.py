"""Cross entropy with label smoothing, fused with the product that makes the logits.

With z = W x the logits of a token, t its target, V pieces, e the smoothing, the loss of a token is

    log sum_v exp z_v - (1 - e) z_t - e/V sum_v z_v

and its gradient by z is p - (1 - e) [v = t] - e/V, where p is the softmax of z. The last term is
the same for all pieces: it reaches x and W through their sums, and no pass over the logits is made
for it. Logits exist for a slice of the tokens at a time, and are turned into p where they lie.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgewise.data.vocabulary import PAD
from edgewise.errors import EdgewiseError

# Logits in memory at a time: 64 MB of float32. Twice as many would take 1% off a step's time.
SLICE = 1 << 24


def summed_loss(
    states: Float[Tensor, "batch n d_model"],
    table: Float[Tensor, "vocabulary d_model"],
    target: Int[Tensor, "batch n"],
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Sum over the tokens that are not padding; the logits are states @ table.T.

    smoothing: the probability that is spread evenly over all pieces.
    """
    differentiate = torch.is_grad_enabled() and (states.requires_grad or table.requires_grad)
    apply: Callable[..., Tensor] = _SummedLoss.apply
    return apply(states.flatten(0, 1), table, target.flatten(), smoothing, differentiate)


class _SummedLoss(torch.autograd.Function):
    """The gradients are computed with the loss, slice by slice, while the logits are there."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "token d_model"],
        table: Float[Tensor, "vocabulary d_model"],
        target: Int[Tensor, " token"],
        smoothing: float,
        differentiate: bool,
    ) -> Float[Tensor, ""]:
        device = states.device.type
        # Products as autocast would make them; all else in float32 at least.
        cast = torch.is_autocast_enabled(device)
        low = torch.get_autocast_dtype(device) if cast else states.dtype
        with torch.autocast(device, enabled=False):
            loss, *gradients = _slices(
                states.to(low), table.to(low), target, smoothing, differentiate
            )
        if differentiate:
            ctx.gradients = [x.to(y.dtype) for x, y in zip(gradients, (states, table), strict=True)]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise EdgewiseError("this loss has been differentiated already: compute it anew")
        of_states, of_table = ctx.gradients
        ctx.gradients = None  # they are changed in place
        return of_states.mul_(grad), of_table.mul_(grad), None, None, None


def _slices(
    states: Float[Tensor, "token d_model"],
    table: Float[Tensor, "vocabulary d_model"],
    target: Int[Tensor, " token"],
    smoothing: float,
    differentiate: bool,
) -> tuple[Tensor, ...]:
    """The loss and, if wanted, the gradients of states and table."""
    work = torch.promote_types(states.dtype, torch.float32)
    vocabulary = len(table)
    rows = max(1, SLICE // vocabulary)
    sum_of_table = table.sum(0, dtype=work)
    counts = (target != PAD).to(work)
    losses = torch.zeros_like(counts)
    buffer = states.new_empty(min(rows, len(states)), vocabulary)
    if differentiate:
        of_states = torch.empty_like(states)
        new = torch.empty_like if len(states) else torch.zeros_like
        of_table = new(table, dtype=work)
    for begin in range(0, len(states), rows):
        here = slice(begin, begin + rows)
        x, t = states[here], target[here, None]
        z = torch.mm(x, table.T, out=buffer[: len(x)]).to(work)
        mean = x.to(work) @ sum_of_table / vocabulary
        of_target = z.gather(1, t).squeeze(1)
        highest = z.amax(-1)
        p = torch.softmax(z, -1, out=z)
        # The highest logit's probability is never too small for its logarithm.
        normaliser = highest - p.amax(-1).log()
        losses[here] = normaliser - (1 - smoothing) * of_target - smoothing * mean
        if differentiate:
            p.scatter_add_(1, t, t.new_full((), smoothing - 1.0, dtype=work).expand_as(t))
            low = p.to(states.dtype)
            torch.mm(low, table, out=of_states[here])
            weighted = x * counts[here, None].to(x.dtype)
            if work == states.dtype:
                of_table.addmm_(low.T, weighted, beta=int(begin > 0))
            else:
                of_table = low.T @ weighted + (of_table if begin else 0.0)
    loss = losses.where(counts > 0, 0.0).sum()
    if not differentiate:
        return (loss,)
    even = smoothing / vocabulary
    of_states = (of_states.to(work) - even * sum_of_table).mul_(counts[:, None])
    of_table -= even * (states.to(work) * counts[:, None]).sum(0)
    return loss, of_states, of_table
