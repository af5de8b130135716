"""Plain attention by PyTorch's `scaled_dot_product_attention`, on any device.

It also computes relative positions with k = 0: the key's only vector cancels in the softmax, and
weights sum to one, so that every query that may attend to anything gets the value's only vector.
"""

import math

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from edgewise.attention import composite, private
from edgewise.attention.backends import base
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.relations import RelativePositions, can_read_values
from edgewise.attention.shapes import Queries


def supports(inputs: AttentionInputs) -> str | None:
    if (reason := base.why_not_dot_product(inputs)) is not None:
        return reason
    relations = inputs.relations
    has_vectors = inputs.has_tables or (relations is not None and not relations.has_labels)
    has_one_label = isinstance(relations, RelativePositions) and relations.max_distance == 0
    is_dense = relations is None or relations.is_dense
    if not is_dense or (has_vectors and not has_one_label):
        return f"needs RelativePositions(0) or no edge vectors; got {base.named(relations)}"
    if inputs.dropout > 0 and inputs.value_table is not None:  # weights must sum to one
        return f"has no dropout with a value_table; got dropout={inputs.dropout}"
    return None


def run(inputs: AttentionInputs) -> Queries:
    """Return plain attention, plus the only row of the value table."""
    output = plain(inputs)
    if not inputs.has_tables:
        return output
    # A product with 0 keeps the key table in the graph: its gradient is zero, not missing.
    row: Tensor | float = 0.0 if inputs.value_table is None else inputs.value_table
    row = row if inputs.key_table is None else row + 0.0 * inputs.key_table
    first = inputs.first_position
    if inputs.mask is None and (not inputs.causal or (first is not None and first >= 0)):
        return output + row  # every query may attend to the first key
    allowed = inputs.allowed()
    assert allowed is not None
    return output + row * allowed.any(-1, keepdim=True).to(output.dtype)


def plain(inputs: AttentionInputs) -> Queries:
    """Return attention without edge vectors; zeros for a query with nothing to attend."""
    query, key, value, mask = inputs.query, inputs.key, inputs.value, inputs.mask
    n_key, causal = inputs.n_key, inputs.causal
    is_square = causal and mask is None and inputs.first_position == 0 and inputs.n_query == n_key
    if is_square and query.device.type == "cpu":
        # Only PyTorch's fused CPU kernel keeps NaN in later keys from queries under is_causal.
        is_fused = inputs.dropout == 0 and all(x.stride(-1) == 1 for x in (query, key, value))
        is_square = is_fused or bool(not can_read_values(key) or key.isfinite().all())
    allowed = inputs.allowed() if causal and not is_square else mask
    # PyTorch's CPU kernel has no rule for vmap, and no second derivative.
    if private.is_transforming() or base.has_hidden_nan(inputs, allowed):
        return composite.attention(inputs.replace(relations=None, mask=allowed, causal=False))
    output = scaled_dot_product_attention(
        *(query, key, value),
        attn_mask=None if is_square else allowed,
        dropout_p=inputs.dropout,
        is_causal=is_square,
        scale=inputs.scale,
    )
    if not private.at_least(n_key, private.VECTOR):
        # PyTorch's kernel gives zeros for some rows of NaN, which would hide an error.
        output = output.masked_fill(query.isnan().any(-1, keepdim=True), math.nan)
    if allowed is not None and not is_square:
        output = output.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return output


BACKEND = base.Backend("sdpa", supports, cost=lambda inputs: 0.25, run=run)
