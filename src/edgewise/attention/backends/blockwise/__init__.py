"""Relative positions in long sequences, on PyTorch's fused CPU kernels: memory O(n)."""

import torch
from torch import Tensor

from edgewise.attention import composite, private
from edgewise.attention.backends import base
from edgewise.attention.backends.blockwise import passes
from edgewise.attention.backends.blockwise.window import Arguments
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import Operator
from edgewise.attention.relations import RelativePositions
from edgewise.attention.shapes import Queries

# Keys from which it is faster than `diagonal` (with the clipping distance, up to MOST_MORE, added)
# and than `gather`, by whether it is causal: measured with benchmarks/bench_methods.py. With fewer
# queries than MIN_QUERIES it is slower than both.
FASTER_THAN_DIAGONAL = {False: 768, True: 512}
MOST_MORE = 1024
FASTER_THAN_GATHER = {False: 384, True: 256}
MIN_QUERIES = 16


def supports(inputs: AttentionInputs) -> str | None:
    reason = base.why_not_positions(inputs) or base.why_not_dot_product(inputs, dropout=False)
    if reason is not None:
        return reason
    if inputs.first_position is None:
        return "needs one query_offset for all sequences; got one for each"
    if not private.has_flash(inputs.query.device):
        device = inputs.query.device.type
        return f"needs fused attention; PyTorch {torch.__version__} does not have it for {device}"
    return None


def cost(inputs: AttentionInputs) -> float:
    causal, n_key = inputs.causal, inputs.n_key
    is_long = private.at_least(n_key, FASTER_THAN_GATHER[causal])
    if not is_long or not private.at_least(inputs.n_query, MIN_QUERIES):
        return 3.0
    assert isinstance(inputs.relations, RelativePositions)
    more = min(inputs.relations.max_distance, MOST_MORE)
    return 0.5 if private.at_least(n_key, FASTER_THAN_DIAGONAL[causal] + more) else 1.25


def run(inputs: AttentionInputs) -> Queries:
    """Compute attention by equations 3 and 5, in float32 or float64.

    The kernels have half precision too, but are less exact in it and not faster without hardware
    for it: the backward pass in float16 takes ten times as long.
    """
    relations, mask, offset = inputs.relations, inputs.mask, inputs.first_position
    assert isinstance(relations, RelativePositions) and offset is not None
    if base.has_hidden_nan(inputs, mask):
        return composite.attention(inputs)
    arguments = Arguments(
        *(inputs.query, inputs.key, inputs.value, inputs.key_table, inputs.value_table, mask),
        *(relations.max_distance, offset, inputs.causal, inputs.scale),
    )
    return _blockwise(arguments)


def _composite(a: Arguments) -> Tensor:
    relations = RelativePositions(a.max_distance, a.offset)
    tensors = a.query, a.key, a.value, relations, a.key_table, a.value_table, a.mask
    return composite.attention(AttentionInputs(*tensors, causal=a.causal, scale=a.scale))


_blockwise = Operator(
    "blockwise_v1",
    Arguments,
    forward=passes.forward,
    backward=passes.backward,
    fake=passes.empty_results,
    composite=_composite,
    n_results=6,
    saves_output=True,
)

BACKEND = base.Backend("blockwise", supports, cost, run, in_float32=True)
