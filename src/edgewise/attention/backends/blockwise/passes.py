"""The forward and backward pass over tails and windows.

Edges far from the diagonal share one label on each side, so they are plain attention plus one
number per query, and PyTorch's fused kernels compute them. Only a window around the diagonal needs
the label of each edge. The parts are merged by their log-sum-exp. Memory grows with n, not with
its square.

In the backward pass of a tail, whose edges have one vector a^V, the gradient of a logit is
alpha_ij (g_i v_j^T - g_i (z_i - a^V)^T), g the gradient of z: the fused kernel is given z_i - a^V
as its output. A vector that is added to all rows of the key table does not change the weights,
and weights sum to one: so the gradient of a table's first row follows from those of the others.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.attention import private
from edgewise.attention.backends.blockwise.partition import Tail, Window, divide
from edgewise.attention.backends.blockwise.window import (
    BlockwiseInputs,
    Table,
    WindowView,
    band_of,
    slice_mask,
)

# Edges of a tail for which a mask that differs between queries is converted at a time.
MASK_EDGES = 2**20


class Merged(NamedTuple):
    """Attention over a set of keys, and the log-sum-exp to merge it with that over others."""

    output: Float[Tensor, "batch head n_query d_head"]
    logsumexp: Float[Tensor, "batch head n_query"]

    def rows(self, part: Tail | Window) -> "Merged":
        return Merged(*(x[:, :, part.q0 : part.q1] for x in self))

    def grouped(self) -> "Merged":
        return Merged(self.output.flatten(0, 1), self.logsumexp.flatten(0, 1)[..., None])


class TailLogits(NamedTuple):
    """s q_i w^T of each query with the first and the last row of the key table."""

    first: Float[Tensor, "batch head n_query"]
    last: Float[Tensor, "batch head n_query"]

    def of(self, tail: Tail) -> Float[Tensor, "batch head n_tail"]:
        return (self.last if tail.right else self.first)[:, :, tail.q0 : tail.q1]


def buffers(query: Tensor, causal: bool) -> tuple[Merged, Merged]:
    """Return memory for the result, and for the right tail, which causal queries do not have."""
    shape = query.shape
    right = (0, 0, 0, 0) if causal else shape
    return (
        Merged(query.new_empty(shape), query.new_empty(shape[:3])),
        Merged(query.new_empty(right), query.new_empty(right[:3])),
    )


def partition(inputs: BlockwiseInputs) -> tuple[list[Tail], list[Window]]:
    """Return the parts; tails are split where a mask would be converted as a whole."""
    tails, windows = divide(
        *(inputs.query.shape[2], inputs.key.shape[2], inputs.max_distance),
        *(inputs.offset, inputs.causal, inputs.block),
    )
    if inputs.mask is not None and inputs.mask.shape[2] > 1:
        tails = [piece for tail in tails for piece in tail.split(MASK_EDGES)]
    return tails, windows


def tail_logits(inputs: BlockwiseInputs) -> TailLogits | None:
    """Return the logit terms of the tails; None without a key table."""
    table = inputs.key_table
    if table is None:
        return None
    rows = (inputs.ungrouped(row).mT for row in (table.first, table.last))
    return TailLogits(*(inputs.scale * (inputs.query @ row).squeeze(-1) for row in rows))


def forward(inputs: BlockwiseInputs) -> tuple[Merged, Merged]:
    """Return attention over all keys, with log-sum-exp +inf for a query that has none, and over
    the right tails.
    """
    result, right = buffers(inputs.query, inputs.causal)
    tails, windows = partition(inputs)
    shifts = tail_logits(inputs)
    for tail in tails:
        keys = slice(tail.k0, tail.k1)
        output, logsumexp = private.flash(
            inputs.query[:, :, tail.q0 : tail.q1],
            inputs.key[:, :, keys],
            inputs.value[:, :, keys],
            slice_mask(inputs.mask, tail),
            inputs.scale,
        )
        if shifts is not None:
            logsumexp = logsumexp + shifts.of(tail)
        # Each side is merged in its own buffer; the left one becomes the result.
        side = (right if tail.right else result).rows(tail)
        if tail.first:
            side.output.copy_(output)
            side.logsumexp.copy_(logsumexp)
        else:
            merge(side, output, logsumexp)

    scratch = inputs.scratch()
    for window in windows:
        view = WindowView(inputs, window, scratch)
        merge_window(view, result.rows(window), right.rows(window))
    return result, right


def merge(into: Merged, output: Tensor, logsumexp: Tensor) -> None:
    """Replace attention over one set of keys by that over two, in place."""
    total = torch.logaddexp(into.logsumexp, logsumexp)
    # A query that may attend neither has -inf in all three; its output is zero already.
    finite = total.clamp(min=torch.finfo(total.dtype).min)
    into.output.mul_((into.logsumexp - finite).exp_()[..., None])
    into.output.addcmul_(output, (logsumexp - finite).exp_()[..., None])
    into.logsumexp.copy_(total)


def merge_window(view: WindowView, result: Merged, right: Merged) -> None:
    """Compute a window and merge it with the tails of its queries into the result, in place."""
    inputs, window, table = view.inputs, view.window, view.inputs.value_table
    left_tail = result.grouped() if window.left else None
    right_tail = right.grouped() if window.right else None
    if not window.right and not inputs.causal:
        right.output.zero_()
        right.logsumexp.fill_(-math.inf)

    logits = view.logits()
    # The fused kernel and masked edges can lose the NaN of a query: add it here.
    peak = logits.amax(-1, keepdim=True) + view.query.amin(-1, keepdim=True) * 0
    for tail in (left_tail, right_tail):
        if tail is not None:
            peak = torch.maximum(peak, tail.logsumexp)
    peak.clamp_(min=torch.finfo(peak.dtype).min)
    weights = logits.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    output = torch.bmm(weights, view.value())
    first = last = None
    if table is not None:
        output.baddbmm_(band_of(weights, inputs.n_band), table.band)
        first = view.left_sum(weights, slot=1)
        last = None if inputs.causal else view.right_sum(weights, slot=1)
    for tail, label_sum in ((left_tail, first), (right_tail, last)):
        if tail is None:
            continue
        share = (tail.logsumexp - peak).exp_()
        total += share
        output.addcmul_(tail.output, share)
        if label_sum is not None:
            label_sum += share
    if table is not None and first is not None:
        output.addcmul_(first, table.first)
        if last is not None:
            output.addcmul_(last, table.last)
    live = total > 0
    output /= total.where(live, 1.0)
    result.output.copy_(inputs.ungrouped(output))
    logsumexp = (peak + total.log()).where(live, math.inf).squeeze(-1)
    result.logsumexp.copy_(inputs.ungrouped(logsumexp))


class Gradients(NamedTuple):
    """What tails and windows add their gradients to."""

    query: Float[Tensor, "batch head n_query d_head"]
    key: Float[Tensor, "batch head n_key d_head"]
    value: Float[Tensor, "batch head n_key d_head"]
    key_table: Table | None
    value_table: Table | None


def backward(inputs: BlockwiseInputs, grad: Tensor, result: Merged, right: Merged) -> Gradients:
    """Return the gradients; `result` and `right` are those of `forward`."""
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grads = Gradients(
        query=torch.zeros_like(inputs.query),
        key=torch.zeros_like(inputs.key),
        value=torch.zeros_like(inputs.value),
        key_table=None if inputs.key_table is None else inputs.zero_table(),
        value_table=None if inputs.value_table is None else inputs.zero_table(),
    )
    tails, windows = partition(inputs)
    tails_backward(inputs, tails, grad, result, grads)
    scratch = inputs.scratch()
    for window in windows:
        view = WindowView(inputs, window, scratch)
        window_backward(view, view.rows(grad), result.rows(window), right.rows(window), grads)
    return grads


def tails_backward(
    inputs: BlockwiseInputs, tails: list[Tail], grad: Tensor, result: Merged, grads: Gradients
) -> None:
    """Add the gradients of query, key and value of all tails."""
    left_output = right_output = result.output
    if inputs.value_table is not None:
        left_output = result.output - inputs.ungrouped(inputs.value_table.first)
        if not inputs.causal:
            right_output = result.output - inputs.ungrouped(inputs.value_table.last)
    shifts = tail_logits(inputs)
    for tail in tails:
        rows, keys = slice(tail.q0, tail.q1), slice(tail.k0, tail.k1)
        # The softmax is over all keys: its log-sum-exp is the whole's, less the tail's term.
        logsumexp = result.logsumexp[:, :, rows]
        if shifts is not None:
            logsumexp = logsumexp - shifts.of(tail)
        part = private.flash_backward(
            grad[:, :, rows],
            inputs.query[:, :, rows],
            inputs.key[:, :, keys],
            inputs.value[:, :, keys],
            (right_output if tail.right else left_output)[:, :, rows],
            logsumexp,
            slice_mask(inputs.mask, tail),
            inputs.scale,
        )
        grads.query[:, :, rows] += part[0]
        grads.key[:, :, keys] += part[1]
        grads.value[:, :, keys] += part[2]


def window_backward(
    view: WindowView,
    grad: Float[Tensor, "group block d_head"],
    result: Merged,
    right: Merged,
    grads: Gradients,
) -> None:
    """Add the gradients of one window and, for the tables, of its queries' tails."""
    inputs, window, scale = view.inputs, view.window, view.inputs.scale
    rows, keys = slice(window.q0, window.q1), slice(window.k0, window.k1)
    output, logsumexp = result.grouped()
    right_output, right_weight = right.grouped() if window.right else (None, None)
    if right_weight is not None:
        right_weight = right_weight.sub(logsumexp).exp_()
    delta = (grad * output).sum(-1, keepdim=True)

    weights = view.logits().sub_(logsumexp).exp_()
    grad_value = torch.bmm(weights.mT, grad)[:, view.start : view.stop]
    grads.value[:, :, keys] += inputs.ungrouped(grad_value)
    if grads.value_table is not None:
        live = logsumexp.isfinite()
        value_table_backward(view, grads.value_table, weights, grad, live, right_weight)

    grad_logits = view.products(grad, view.value(), inputs.value_table, 1.0, slot=1)
    grad_logits.sub_(delta).mul_(weights)
    grad_query = torch.bmm(grad_logits, view.key)
    if grads.key_table is not None:
        grad_last = None if inputs.causal else view.right_sum(grad_logits, slot=0)
        if grad_last is not None and right_weight is not None and right_output is not None:
            if inputs.value_table is not None:
                right_output = right_output + inputs.value_table.last
            grad_last += right_weight * ((grad * right_output).sum(-1, keepdim=True) - delta)
        key_table_backward(view, grads.key_table, grad_logits, grad_last, grad_query)
    grads.query[:, :, rows].add_(inputs.ungrouped(grad_query), alpha=scale)
    grad_key = torch.bmm(grad_logits.mT, view.query)[:, view.start : view.stop]
    grads.key[:, :, keys].add_(inputs.ungrouped(grad_key), alpha=scale)


def value_table_backward(
    view: WindowView,
    into: Table,
    weights: Float[Tensor, "group block width"],
    grad: Float[Tensor, "group block d_head"],
    live: Tensor,
    right_weight: Float[Tensor, "group block 1"] | None,
) -> None:
    """Add the gradient of the value table of one window's queries; see `join_table`."""
    into.first.add_((grad * live).sum(1, keepdim=True))
    into.band.baddbmm_(band_of(weights, view.inputs.n_band).mT, grad)
    if not view.inputs.causal:
        last = view.right_sum(weights, slot=1)
        if right_weight is not None:
            last += right_weight
        into.last.baddbmm_(last.mT, grad)


def key_table_backward(
    view: WindowView,
    into: Table,
    grad_logits: Float[Tensor, "group block width"],
    grad_last: Float[Tensor, "group block 1"] | None,
    grad_query: Float[Tensor, "group block d_head"],
) -> None:
    """Add the gradient of the key table, and its part of that of the queries, unscaled.

    grad_last: sum of the gradients of logits with the last label; None if causal.
    """
    table, n_band, scale = view.inputs.key_table, view.inputs.n_band, view.inputs.scale
    assert table is not None
    band = band_of(grad_logits, n_band)
    grad_query.baddbmm_(band, table.band)
    into.band.baddbmm_(band.mT, view.query, alpha=scale)
    if grad_last is not None:
        grad_query.addcmul_(grad_last, table.last)
        into.last.baddbmm_(grad_last.mT, view.query, alpha=scale)
    if view.window.left:
        # All gradients of a query's logits sum to zero.
        grad_first = -band.sum(-1, keepdim=True)
        grad_first = grad_first if grad_last is None else grad_first - grad_last
    else:
        grad_first = view.left_sum(grad_logits, slot=0)
    grad_query.addcmul_(grad_first, table.first)
