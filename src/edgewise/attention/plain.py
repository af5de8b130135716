"""Attention without edge vectors: PyTorch's own, with our meaning of masks."""

import math

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from edgewise.attention import fused
from edgewise.attention.arguments import allowed_edges
from edgewise.attention.relations import RelativePositions


def attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    relations: RelativePositions | None,
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    causal: bool,
    dropout: float,
    scale: float,
) -> Float[Tensor, "batch head n_query d_head"]:
    """`relations` places the queries for `causal`; it has no other part in this."""
    at_start = relations is None or (
        isinstance(relations.query_offset, int)
        and relations.query_offset == 0
        and query.shape[2] == key.shape[2]
    )
    if causal and mask is None and at_start:
        allowed = None
        output = scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True, scale=scale
        )
    else:
        allowed = allowed_edges(query, key, relations, mask, causal)
        output = scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=dropout, scale=scale
        )
    if allowed is not None:
        output = output.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    if key.shape[2] < fused.VECTOR:
        # PyTorch's kernel gives zeros for some rows of NaN: an error must be seen.
        output = output.masked_fill(query.isnan().any(-1, keepdim=True), math.nan)
    return output


def attention_with_one_label(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    relations: RelativePositions,
    key_table: Float[Tensor, "*head 1 d_head"] | None,
    value_table: Float[Tensor, "*head 1 d_head"] | None,
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    causal: bool,
    scale: float,
) -> Float[Tensor, "batch head n_query d_head"]:
    """max_distance 0, without dropout: the key's vector cancels in the softmax, and the weights
    sum to one, so every live query gets the value's vector."""
    output = attention(query, key, value, relations, mask, causal, 0.0, scale)
    # A product with 0 keeps the key table in the graph: its gradient is zero, not missing.
    row: Tensor | float = 0.0 if value_table is None else value_table
    row = row if key_table is None else row + 0.0 * key_table
    allowed = allowed_edges(query, key, relations, mask, causal)
    if allowed is None:
        return output + row
    return output + row * allowed.any(-1, keepdim=True).to(output.dtype)
