"""`relation_attention`: normalise the arguments, choose a backend, run it."""

import torch
from jaxtyping import Bool
from torch import Tensor

from edgewise.attention.backends import cheapest, reference, requested
from edgewise.attention.compatibility import Compatibility
from edgewise.attention.composite import accumulation_dtype
from edgewise.attention.inputs import AttentionInputs, is_autocast_enabled, normalise
from edgewise.attention.relations import Relation
from edgewise.attention.shapes import Keys, Queries, Table


def relation_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    relations: Relation | None,
    *,
    key_table: Table | None = None,
    value_table: Table | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | Tensor | None = None,
    compatibility: Compatibility | None = None,
    method: str = "auto",
) -> Queries:
    """Return relation-aware attention, [batch, head, n_query, d_head] (equations 3 and 4).

    relations: how edges get their vectors: `RelativePositions` and `EdgeLabels` label every edge,
        `EdgeVectors` has a vector for every edge, `EdgeList` labels the edges of a sparse graph.
        None is plain attention.
    key_table, value_table: [n_label, d_head], or [head, n_label, d_head] with a table per head: the
        vectors a^K and a^V of each label. None leaves that term out.
    mask: bool, True = may attend to; [n_query, n_key], or 4-D with sizes of 1 that broadcast.
    causal: a query attends to the keys at its own position and before. With an `EdgeList`, neither
        mask nor causal may be given.
    dropout: probability of dropping an attention weight; applied whenever it is above 0.
    scale: factor of the logits, 1/sqrt(d_head) by default; `Additive` ignores a number, and
        takes no tensor. A tensor without dimensions may require a gradient.
    compatibility: `Additive` or `Gated` instead of the dot product.
    method: the backend; "auto" selects the one with the lowest estimated cost among
        those that support the arguments. See docs/attention.md.

    A query that may attend to nothing gives zeros. Keys and values that no query may attend to do
    not influence the result, even if NaN or infinite. Under autocast, inputs are cast to its dtype,
    as by PyTorch's attention.
    """
    inputs = normalise(
        *(query, key, value, relations, key_table, value_table),
        *(mask, causal, dropout, scale, compatibility),
    )
    if not is_autocast_enabled(query.device.type):
        return run(inputs, method)
    with torch.autocast(query.device.type, enabled=False):
        return run(inputs, method)


def run(inputs: AttentionInputs, method: str) -> Queries:
    """Return the output of the backend; inputs with a size of 0 are computed by `reference`."""
    backend = cheapest(inputs) if method == "auto" else requested(method, inputs)
    if 0 in (*inputs.query.shape, *inputs.key.shape) and backend.name != "sparse":
        return reference.run(inputs)
    inputs, dtype = inputs.without_padding(), inputs.query.dtype
    if backend.in_float32:
        inputs = inputs.cast(accumulation_dtype(dtype))
    return backend.run(inputs).to(dtype)
