"""The forward and backward pass over tails and windows.

Edges far from the diagonal share one label on each side, so they are plain attention plus one
number per query, and PyTorch's fused kernels compute them. Only a window around the diagonal needs
the label of each edge. The parts are merged by their log-sum-exp. Memory is O(n).

In the backward pass of a tail, whose edges have one vector a^V, the gradient of a logit is
alpha_ij (g_i v_j^T - g_i (z_i - a^V)^T), g the gradient of z: the fused kernel gets z_i - a^V as z.
"""

import math

import torch
from torch import Tensor

from edgewise.attention import private
from edgewise.attention.backends.blockwise.partition import Part, Tail, divide
from edgewise.attention.backends.blockwise.window import Arguments, Sums, WindowView, window_views
from edgewise.attention.private import LogSumExp, PartialAttention
from edgewise.attention.shapes import Queries

# Edges of a tail for which a mask that differs between queries is converted at a time.
MASK_EDGES = 2**20


def empty_results(a: Arguments) -> tuple[Tensor, ...]:
    """Return memory for the results of `forward`; causal queries have no right tails."""
    shape = a.query.shape
    right = (0, 0, 0, 0) if a.causal else shape
    sizes = (shape, shape[:3], shape, shape[:3], right, right[:3])
    return tuple(a.query.new_empty(size) for size in sizes)


def paired(a: Arguments, results: tuple[Tensor, ...]) -> list[PartialAttention]:
    """Return output and log-sum-exp over all keys, over left tails and, if any, over right ones."""
    return list(zip(results[::2], results[1::2], strict=True))[: 1 + len(a.tail_labels)]


def partition(inputs: Arguments) -> tuple[list[Tail], list[Part]]:
    """Return the parts; tails are split where a mask would be converted as a whole."""
    tails, windows = divide(
        *(inputs.query.shape[2], inputs.key.shape[2], inputs.max_distance),
        *(inputs.offset, inputs.causal, inputs.block),
    )
    if inputs.mask is not None and inputs.mask.shape[2] > 1:
        tails = [piece for tail in tails for piece in tail.split(MASK_EDGES)]
    return tails, windows


def tail_label_logits(inputs: Arguments) -> list[LogSumExp] | None:
    """Return s q_i w^T by `Tail.label`, w that row of the key table; None without a key table."""
    table = inputs.key_table
    if table is None:
        return None
    rows = (inputs.ungrouped(table[:, label, :, None]) for label in inputs.tail_labels)
    return [inputs.scale * (inputs.query @ row).squeeze(-1) for row in rows]


def forward(a: Arguments) -> tuple[Tensor, ...]:
    """Return output and log-sum-exp over all keys, over the left tails and over the right ones.

    A query that may attend to nothing has log-sum-exp +inf, so that its weights in the backward
    pass, exp(logits - logsumexp), are zero.
    """
    inputs, results = a.prepared(), empty_results(a)
    whole, *sides = paired(a, results)
    for output, logsumexp in sides:
        output.zero_()
        logsumexp.fill_(-math.inf)
    tails, windows = partition(inputs)
    shifts = tail_label_logits(inputs)
    for tail in tails:
        tensors = tail.rows(inputs.query), tail.keys(inputs.key), tail.keys(inputs.value)
        output, logsumexp = private.flash(tensors, tail.edges(inputs.mask), inputs.scale)
        if shifts is not None:
            hidden = logsumexp == -math.inf  # stays so: the term of such a query may be NaN
            logsumexp = (logsumexp + tail.rows(shifts[tail.label])).masked_fill_(hidden, -math.inf)
        # Merged with the tails so far. A query that may attend to neither has -inf in all three
        # log-sum-exps; its output is zero already.
        result, result_logsumexp = (tail.rows(x) for x in sides[tail.label])
        total = torch.logaddexp(result_logsumexp, logsumexp)
        finite = total.clamp(min=torch.finfo(total.dtype).min)
        result.mul_((result_logsumexp - finite).exp_()[..., None])
        result.addcmul_(output, (logsumexp - finite).exp_()[..., None])
        result_logsumexp.copy_(total)
    nan = inputs.query.amin(-1, keepdim=True) * 0  # the fused kernel can lose a query's NaN
    for view in window_views(inputs, windows):
        window_forward(view, whole, sides, view.rows(nan))
    return results


def window_forward(
    view: WindowView, whole: PartialAttention, sides: list[PartialAttention], nan: Sums
) -> None:
    """Compute a window and write it, merged with the tails of its queries, to `whole`."""
    tails = [(view.rows(output), view.rows(logsumexp)[..., None]) for output, logsumexp in sides]
    logits = view.logits()
    peak = logits.amax(-1, keepdim=True)
    for _, logsumexp in tails:
        peak = torch.maximum(peak, logsumexp)
    # A peak of -inf, where all edges are masked, becomes finite.
    peak.add_(nan.masked_fill(peak == -math.inf, 0.0)).clamp_(min=torch.finfo(peak.dtype).min)
    weights = logits.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    output = torch.bmm(weights, view.value)
    tail_weights = [(logsumexp - peak).exp_() for _, logsumexp in tails]
    for (tail_output, _), tail_weight in zip(tails, tail_weights, strict=True):
        total += tail_weight
        output.addcmul_(tail_output, tail_weight)
    if view.inputs.value_table is not None:
        sums = view.sum_by_label(weights, tail_weights, slot=1)
        output.baddbmm_(sums, view.inputs.value_table)
    live = total > 0
    torch.div(output, total.where(live, 1.0), out=view.rows(whole[0]))
    view.rows(whole[1])[..., None].copy_((peak + total.log()).where(live, math.inf))


def backward(a: Arguments, grad: Queries, *results: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value and tables; `results` are those of `forward`."""
    inputs, pairs = a.prepared(), paired(a, results)
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    # The gradient of each tensor in its place: tails and windows add to these.
    zeros = (None if x is None else torch.zeros_like(x) for x in inputs[:5])
    grads = Arguments._make((*zeros, *inputs[5:]))
    tails, windows = partition(inputs)
    tails_backward(inputs, tails, grad, pairs[0], grads)
    for view in window_views(inputs, windows):
        window_backward(view, grad, pairs, grads)
    grad_tables = [grad.new_empty(0) if x is None else torch.zeros_like(x) for x in a[3:5]]
    for grad_table, grouped in zip(grad_tables, grads[3:5], strict=True):
        if grouped is not None:
            per_head = inputs.ungrouped(grouped).sum(0)
            total = per_head if grad_table.dim() == 3 else per_head.sum(0)
            first = a.max_distance - inputs.max_distance
            grad_table.narrow(-2, first, inputs.n_column).copy_(total)
    return *grads[:3], *grad_tables


def tails_backward(
    inputs: Arguments, tails: list[Tail], grad: Queries, result: PartialAttention, grads: Arguments
) -> None:
    """Add the gradients of query, key and value of all tails."""
    (output, whole_logsumexp), shifts = result, tail_label_logits(inputs)
    outputs = [output] * len(inputs.tail_labels)
    if inputs.value_table is not None:
        rows = (inputs.value_table[:, label, None] for label in inputs.tail_labels)
        outputs = [output - inputs.ungrouped(row) for row in rows]
    for tail in tails:
        tensors = tail.rows(inputs.query), tail.keys(inputs.key), tail.keys(inputs.value)
        # The softmax is over all keys: its log-sum-exp is the whole's, less the tail's term.
        logsumexp = tail.rows(whole_logsumexp)
        if shifts is not None:
            logsumexp = logsumexp - tail.rows(shifts[tail.label])
        softmax = tail.rows(outputs[tail.label]), logsumexp
        grad_query, grad_key, grad_value = private.flash_backward(
            tail.rows(grad), tensors, softmax, tail.edges(inputs.mask), inputs.scale
        )
        tail.rows(grads.query).add_(grad_query)
        tail.keys(grads.key).add_(grad_key)
        tail.keys(grads.value).add_(grad_value)


def window_backward(
    view: WindowView, grad: Queries, pairs: list[PartialAttention], grads: Arguments
) -> None:
    """Add the gradients of one window and, for the tables, of its queries' tails."""
    inputs, window, keys = view.inputs, view.window, slice(view.start, view.stop)
    (output, logsumexp), *tails = ((view.rows(x), view.rows(y)[..., None]) for x, y in pairs)
    grad = view.rows(grad)
    weights = view.logits().sub_(logsumexp).exp_()
    grad_value = torch.bmm(weights.mT, grad)[:, keys]
    window.keys(grads.value).add_(inputs.ungrouped(grad_value))
    tail_weights = [(x - logsumexp).exp_() for _, x in tails]
    if grads.value_table is not None:
        sums = view.sum_by_label(weights, tail_weights, slot=1)
        grads.value_table.baddbmm_(sums.mT, grad)

    delta = (grad * output).sum(-1, keepdim=True)
    grad_logits = view.products(grad, view.value, inputs.value_table, 1.0, slot=1)
    grad_logits.sub_(delta).mul_(weights)
    grad_query = torch.bmm(grad_logits, view.key)
    if inputs.key_table is not None and grads.key_table is not None:
        outputs = [tail_output for tail_output, _ in tails]
        if (table := inputs.value_table) is not None:
            labels = inputs.tail_labels
            outputs = [x + table[:, i, None] for i, x in zip(labels, outputs, strict=True)]
        tail_grads = [
            weight * ((grad * x).sum(-1, keepdim=True) - delta)
            for x, weight in zip(outputs, tail_weights, strict=True)
        ]
        sums = view.sum_by_label(grad_logits, tail_grads, slot=0)
        grad_query.baddbmm_(sums, inputs.key_table)
        grads.key_table.baddbmm_(sums.mT, view.query, alpha=inputs.scale)
    window.rows(grads.query).add_(inputs.ungrouped(grad_query), alpha=inputs.scale)
    grad_key = torch.bmm(grad_logits.mT, view.query)[:, keys]
    window.keys(grads.key).add_(inputs.ungrouped(grad_key), alpha=inputs.scale)
