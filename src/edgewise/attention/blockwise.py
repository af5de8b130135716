"""Relative positions by block, for long sequences: exact, on the fused kernels PyTorch has.

Edges far from the diagonal share one label on each side, so they are plain attention plus one
number a query, and `fused` computes them. Only a `window` around the diagonal needs the label of
each edge. The parts are merged by their log-sum-exp. Memory grows with n, not with its square.

Two identities keep it small. Adding one vector to all rows of the key table moves all logits of a
query alike, which the softmax does not see: with the first row subtracted from all, the left
tail's term is zero. The weights of a query sum to one, so its share of the value table is the
first row plus weighted differences to it: the left tail's weights need not be known.

Beside the paper's names: `shift` is the right tail's term s q_i (w_2k - w_0)^T, `content` is the
output less the vector of its tail's label, and `delta` is g_i content_i^T, g the gradient of z.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.attention import fused
from edgewise.attention.blocks import Tail, Window, divide
from edgewise.attention.window import Problem, Table, WindowView, band_of, slice_mask


class Merged(NamedTuple):
    """Attention over a set of keys, and the log-sum-exp to merge it with that over others."""

    output: Float[Tensor, "batch head n_query d_head"]
    logsumexp: Float[Tensor, "batch head n_query"]

    def rows(self, part: Tail | Window) -> "Merged":
        return Merged(*(x[:, :, part.q0 : part.q1] for x in self))


def divided(problem: Problem) -> tuple[list[Tail], list[Window]]:
    n_query, n_key, block = problem.query.shape[2], problem.key.shape[2], len(problem.corner)
    return divide(n_query, n_key, problem.max_distance, problem.offset, problem.causal, block)


def buffers(query: Tensor, causal: bool) -> tuple[Merged, Merged]:
    """Memory for the result, and for the right tail, which a causal query does not have."""
    shape = query.shape
    right = (0, 0, 0, 0) if causal else shape
    return (
        Merged(query.new_empty(shape), query.new_empty(shape[:3])),
        Merged(query.new_empty(right), query.new_empty(right[:3])),
    )


def tail_shift(problem: Problem, tail: Tail) -> Float[Tensor, "batch head block"] | None:
    """The right tail's logit term, one number a query; None where it is zero."""
    if problem.keys is None or not tail.right:
        return None
    rows = problem.query[:, :, tail.q0 : tail.q1]
    return problem.scale * (rows @ problem.ungrouped(problem.keys.last).mT).squeeze(-1)


# Forward


def forward(problem: Problem) -> tuple[Merged, Merged]:
    """Attention over all keys, log-sum-exp +inf for a query with none, and over the right tail."""
    result, right = buffers(problem.query, problem.causal)
    tails, windows = divided(problem)
    bias = problem.bias()
    for tail in tails:
        keys = slice(tail.k0, tail.k1)
        output, logsumexp = fused.attention(
            problem.query[:, :, tail.q0 : tail.q1],
            problem.key[:, :, keys],
            problem.value[:, :, keys],
            slice_mask(problem.mask, tail),
            slice_mask(bias, tail),
            problem.scale,
        )
        shift = tail_shift(problem, tail)
        if shift is not None:
            logsumexp = logsumexp + shift
        # Each side merges in a buffer of its own; the left one becomes the result.
        side = (right if tail.right else result).rows(tail)
        if tail.first:
            side.output.copy_(output)
            side.logsumexp.copy_(logsumexp)
        else:
            merge(side, output, logsumexp)

    scratch = problem.scratch()
    for window in windows:
        finish(WindowView(problem, window, scratch), result.rows(window), right.rows(window))
    return result, right


def merge(into: Merged, output: Tensor, logsumexp: Tensor) -> None:
    """Attention over two sets of keys from that over each, in place."""
    total = torch.logaddexp(into.logsumexp, logsumexp)
    # A query that may attend neither has -inf in all three; its output is zero already.
    known = total.clamp(min=torch.finfo(total.dtype).min)
    into.output.mul_((into.logsumexp - known).exp_()[..., None])
    into.output.addcmul_(output, (logsumexp - known).exp_()[..., None])
    into.logsumexp.copy_(total)


def finish(view: WindowView, result: Merged, right: Merged) -> None:
    """Compute a window and merge it with the tails of its queries into the result, in place."""
    problem, window = view.problem, view.window
    sides = []
    if window.left:
        sides.append(Merged(result.output.flatten(0, 1), result.logsumexp.flatten(0, 1)[..., None]))
    if window.right:
        sides.append(Merged(right.output.flatten(0, 1), right.logsumexp.flatten(0, 1)[..., None]))

    logits = view.logits()
    # A NaN of a query can be lost in the fused kernel and in masked edges: it must be seen.
    peak = logits.amax(-1, keepdim=True) + view.query.amin(-1, keepdim=True) * 0
    for side in sides:
        peak = torch.maximum(peak, side.logsumexp)
    peak.clamp_(min=torch.finfo(peak.dtype).min)
    weights = logits.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    output = torch.bmm(weights, view.value())
    if problem.values is not None:
        output.baddbmm_(band_of(weights, problem.n_band), problem.values.band)
    last = None
    if problem.values is not None and not problem.causal:
        last = view.corner_sum(weights, slot=1)
    for side in sides:
        share = (side.logsumexp - peak).exp_()
        total += share
        output.addcmul_(side.output, share)
    if problem.values is not None and last is not None:
        if window.right:
            last += share
        output.addcmul_(last, problem.values.last)
    live = total > 0
    output /= total.where(live, 1.0)
    if problem.values is not None:
        output.addcmul_(live.to(output.dtype), problem.values.first)
    result.output.copy_(problem.ungrouped(output))
    logsumexp = (peak + total.log()).where(live, math.inf).squeeze(-1)
    result.logsumexp.copy_(problem.ungrouped(logsumexp))


# Backward


class Gradients(NamedTuple):
    """Where the parts add theirs."""

    query: Float[Tensor, "batch head n_query d_head"]
    key: Float[Tensor, "batch head n_key d_head"]
    value: Float[Tensor, "batch head n_key d_head"]
    keys: Table | None
    values: Table | None


def backward(problem: Problem, grad: Tensor, result: Merged, right: Merged) -> Gradients:
    """`result` and `right` are what `forward` returned."""
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grads = Gradients(
        query=torch.zeros_like(problem.query),
        key=torch.zeros_like(problem.key),
        value=torch.zeros_like(problem.value),
        keys=None if problem.keys is None else problem.new_table(),
        values=None if problem.values is None else problem.new_table(),
    )
    content = right_content = result.output
    if problem.values is not None:
        first, last = (problem.ungrouped(x) for x in (problem.values.first, problem.values.last))
        live = result.logsumexp.isfinite()[..., None].to(first.dtype)
        content = torch.addcmul(result.output, live, first, value=-1)
        right_content = content if problem.causal else content - last

    tails, windows = divided(problem)
    bias = problem.bias()
    for tail in tails:
        rows, keys = slice(tail.q0, tail.q1), slice(tail.k0, tail.k1)
        # The softmax is over all keys, so its log-sum-exp is the whole's, less the tail's shift.
        logsumexp = result.logsumexp[:, :, rows]
        shift = tail_shift(problem, tail)
        if shift is not None:
            logsumexp = logsumexp - shift
        part = fused.attention_backward(
            grad[:, :, rows],
            problem.query[:, :, rows],
            problem.key[:, :, keys],
            problem.value[:, :, keys],
            (right_content if tail.right else content)[:, :, rows],
            logsumexp,
            slice_mask(bias, tail),
            problem.scale,
        )
        grads.query[:, :, rows] += part[0]
        grads.key[:, :, keys] += part[1]
        grads.value[:, :, keys] += part[2]

    scratch = problem.scratch()
    for window in windows:
        view = WindowView(problem, window, scratch)
        logsumexp = result.rows(window).logsumexp.flatten(0, 1)[..., None]
        tail_weights = tail_output = None
        if window.right:
            tail_weights = right.rows(window).logsumexp.flatten(0, 1)[..., None].sub(logsumexp)
            tail_weights.exp_()
            tail_output = view.rows(right.output)
        window_backward(
            view, view.rows(grad), view.rows(content), logsumexp, tail_weights, tail_output, grads
        )
    return grads


def window_backward(
    view: WindowView,
    grad: Float[Tensor, "group block d_head"],
    content: Float[Tensor, "group block d_head"],
    logsumexp: Float[Tensor, "group block 1"],
    tail_weights: Float[Tensor, "group block 1"] | None,
    tail_output: Float[Tensor, "group block d_head"] | None,
    grads: Gradients,
) -> None:
    """Add the gradients of one window and, for the tables, of its queries' right tail."""
    problem, window = view.problem, view.window
    n_band, scale = problem.n_band, problem.scale
    rows, keys = slice(window.q0, window.q1), slice(window.k0, window.k1)
    delta = (grad * content).sum(-1, keepdim=True)

    weights = view.logits().sub_(logsumexp).exp_()
    grad_value = torch.bmm(weights.mT, grad)[:, view.start : view.stop]
    grads.value[:, :, keys] += problem.ungrouped(grad_value)
    if grads.values is not None:
        grads.values.first.add_((grad * logsumexp.isfinite()).sum(1, keepdim=True))
        grads.values.band.baddbmm_(band_of(weights, n_band).mT, grad)
        if not problem.causal:
            last = view.corner_sum(weights, slot=1)
            if tail_weights is not None:
                last += tail_weights
            grads.values.last.baddbmm_(last.mT, grad)

    grad_logits = view.spread(grad, view.value(), problem.values, 1.0, slot=1)
    grad_logits.sub_(delta).mul_(weights)
    grad_query = torch.bmm(grad_logits, view.key)
    if problem.keys is not None and grads.keys is not None:
        grad_query.baddbmm_(band_of(grad_logits, n_band), problem.keys.band)
        grads.keys.band.baddbmm_(band_of(grad_logits, n_band).mT, view.query, alpha=scale)
        if not problem.causal:
            last = view.corner_sum(grad_logits, slot=0)
            if tail_weights is not None and tail_output is not None:
                if problem.values is not None:
                    tail_output = tail_output + problem.values.last
                last += tail_weights * ((grad * tail_output).sum(-1, keepdim=True) - delta)
            grad_query.addcmul_(last, problem.keys.last)
            grads.keys.last.baddbmm_(last.mT, view.query, alpha=scale)
    grads.query[:, :, rows].add_(problem.ungrouped(grad_query), alpha=scale)
    grad_key = torch.bmm(grad_logits.mT, view.query)[:, view.start : view.stop]
    grads.key[:, :, keys].add_(problem.ungrouped(grad_key), alpha=scale)
