"""`relation_attention`: check the arguments, choose a path, compute."""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.attention import dense, fused, operators, plain, reference, sparse
from edgewise.attention.arguments import allowed_edges, check_arguments
from edgewise.attention.compatibility import Additive, Compatibility, Gated
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.relations import EdgeLabels, EdgeVectors, Relations, RelativePositions
from edgewise.errors import ArgumentError

Method = Literal["auto", "reference", "dense", "blockwise", "sparse"]

LOWERED_BY_AUTOCAST = (torch.float32, torch.bfloat16, torch.float16)


def relation_attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    relations: Relations | None,
    *,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None = None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    compatibility: Compatibility | None = None,
    method: Method = "auto",
) -> Float[Tensor, "batch head n_query d_head"]:
    """Attention that knows how query and key are related (equations 3 and 4 of the paper).

    relations: how edges get their vectors: `RelativePositions` and `EdgeLabels` label every edge,
        `EdgeVectors` has a vector of every edge, `EdgeList` has labels of the edges there are.
        None is plain attention.
    key_table, value_table: [n_label, d_head], or [head, n_label, d_head] for a table a head: the
        vectors a^K and a^V of each label. None leaves that term out.
    mask: bool, True = may attend; [n_query, n_key], or 4-D with sizes of 1 that broadcast.
    causal: a query sees the keys at its own position and before. `EdgeList` has neither.
    dropout: on the attention weights, applied whenever it is above 0.
    scale: 1/sqrt(d_head) unless given.
    compatibility: `Additive` or `Gated` instead of the dot product.
    method: "auto" takes the fastest that can do it; docs/attention.md has the table.

    A query with nothing to attend gives zeros. Under autocast the inputs are cast, as those of
    PyTorch's own attention are.
    """
    device = query.device.type if isinstance(query, Tensor) else "cpu"
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        query, key, value = (_lowered(x, device) for x in (query, key, value))
        key_table = None if key_table is None else _lowered(key_table, device)
        value_table = None if value_table is None else _lowered(value_table, device)
        if isinstance(compatibility, Additive):
            compatibility = Additive(_lowered(compatibility.u, device))
        if isinstance(relations, EdgeVectors):
            vectors = (relations.edge_key, relations.edge_value)
            relations = EdgeVectors(*(None if x is None else _lowered(x, device) for x in vectors))
        with torch.autocast(device, enabled=False):
            return relation_attention(
                *(query, key, value, relations),
                key_table=key_table,
                value_table=value_table,
                mask=mask,
                causal=causal,
                dropout=dropout,
                scale=scale,
                compatibility=compatibility,
                method=method,
            )
    mask = check_arguments(
        *(query, key, value, relations, key_table, value_table),
        *(mask, causal, dropout, scale, compatibility),
    )
    if method not in get_args(Method):
        names = ", ".join(get_args(Method))
        raise ArgumentError(f"method must be one of {names}; got {method!r}")
    refusal = why_not(method, query, relations, dropout, compatibility)
    if refusal is not None:
        raise ArgumentError(f"method={method!r} {refusal} (method='auto' takes another way)")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if not isinstance(relations, EdgeList | EdgeVectors) and key_table is value_table is None:
        # Without tables relative positions only say where the queries stand, labels nothing.
        relations = relations if causal and isinstance(relations, RelativePositions) else None
    if isinstance(compatibility, Gated) and not has_key_vectors(relations, key_table):
        compatibility = None  # all gates are open by half: the dot product
    if method == "auto":
        method = fastest(query, key, relations, causal, dropout, compatibility)

    nothing = 0 in (*query.shape, *key.shape) and not isinstance(relations, EdgeList)
    if method == "reference" or nothing:
        return reference.relation_attention(
            *(query, key, value, relations),
            key_table=key_table,
            value_table=value_table,
            mask=mask,
            causal=causal,
            dropout=dropout,
            scale=scale,
            compatibility=compatibility,
        )
    if isinstance(relations, EdgeList):
        return sparse.attention(
            *(query, key, value, relations, key_table, value_table),
            *(dropout, scale, compatibility),
        )
    if method == "dense":
        return dense_attention(
            *(query, key, value, relations, key_table, value_table),
            *(mask, causal, dropout, scale, compatibility),
        )
    assert relations is None or isinstance(relations, RelativePositions)
    if relations is None or key_table is value_table is None:
        return plain.attention(query, key, value, relations, mask, causal, dropout, scale)
    if relations.max_distance == 0:
        return plain.attention_with_one_label(
            query, key, value, relations, key_table, value_table, mask, causal, scale
        )
    assert isinstance(relations.query_offset, int)
    return operators.blockwise_attention(
        *(query, key, value, key_table, value_table, mask),
        *(relations.max_distance, relations.query_offset, causal, scale),
    )


def has_key_vectors(relations: Relations | None, key_table: Tensor | None) -> bool:
    if isinstance(relations, EdgeVectors):
        return relations.edge_key is not None
    return key_table is not None


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relations: Relations | None,
    key_table: Tensor | None,
    value_table: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float,
    compatibility: Compatibility | None,
) -> Tensor:
    """With all weights in memory: by diagonal where a sequence attends to itself, else by label."""
    allowed = allowed_edges(query, key, relations, mask, causal)
    has_tables = key_table is not None or value_table is not None
    can_be_operator = has_tables and compatibility is None
    if can_be_operator and is_diagonal(query, key, relations, dropout):
        assert isinstance(relations, RelativePositions)
        dead = mask is not None
        return operators.diagonal_attention(
            *(query, key, value, key_table, value_table, allowed),
            *(relations.max_distance, causal, scale, dead),
        )
    if can_be_operator and is_by_label(query, relations, dropout):
        assert isinstance(relations, EdgeLabels)
        return operators.label_attention(
            *(query, key, value, key_table, value_table, allowed),
            *(relations.labels, relations.has_unlabelled, scale),
        )
    return dense.attention(
        *(query, key, value, relations, key_table, value_table),
        *(allowed, dropout, scale, compatibility),
    )


def is_diagonal(query: Tensor, key: Tensor, relations: Relations | None, dropout: float) -> bool:
    """Whether `by_diagonal` can do it: queries and keys are the same positions of a sequence."""
    return (
        isinstance(relations, RelativePositions)
        and query.device.type == "cpu"
        and dropout == 0
        and query.shape[2] == key.shape[2] >= 2
        and relations.max_distance >= 1
        and isinstance(relations.query_offset, int)
        and relations.query_offset == 0
    )


def is_by_label(query: Tensor, relations: Relations | None, dropout: float) -> bool:
    """Whether `by_label` can do it."""
    return isinstance(relations, EdgeLabels) and query.device.type == "cpu" and dropout == 0


def _lowered(x: Tensor, device: str) -> Tensor:
    """What autocast makes of an input; a wrong type is left for `check_arguments` to name."""
    if isinstance(x, Tensor) and x.dtype in LOWERED_BY_AUTOCAST:
        return x.to(torch.get_autocast_dtype(device))
    return x


def why_not(
    method: Method,
    query: Tensor,
    relations: Relations | None,
    dropout: float,
    compatibility: Compatibility | None,
) -> str | None:
    """What stands against a method that is asked for; None if nothing does."""
    if method == "sparse" and not isinstance(relations, EdgeList):
        return f"is for an EdgeList; got relations={_named(relations)}"
    if method in ("dense", "blockwise") and isinstance(relations, EdgeList):
        return "is not for an EdgeList, whose method is 'sparse'"
    if method == "blockwise":
        return why_not_blockwise(query, relations, dropout, compatibility)
    return None


def why_not_blockwise(
    query: Tensor, relations: Relations | None, dropout: float, compatibility: Compatibility | None
) -> str | None:
    """What stands against the blockwise path; None if nothing does."""
    if relations is not None and not isinstance(relations, RelativePositions):
        return f"is for RelativePositions; got relations={_named(relations)}"
    if compatibility is not None:
        return f"is for the dot product; got compatibility={_named(compatibility)}"
    if dropout > 0:
        return f"has no dropout of attention weights; got dropout={dropout}"
    if relations is not None and isinstance(relations.query_offset, Tensor):
        return "takes one query_offset for all sentences; got one for each"
    if not fused.available(query.device):
        return (
            "needs PyTorch's fused attention for the CPU, which this version of PyTorch "
            f"({torch.__version__}) does not have for {query.device.type}"
        )
    return None


def _named(given: object) -> str:
    return "None" if given is None else type(given).__name__


def fastest(
    query: Tensor,
    key: Tensor,
    relations: Relations | None,
    causal: bool,
    dropout: float,
    compatibility: Compatibility | None,
) -> Method:
    """The path that benchmarks/bench_methods.py measured to be the fastest for this size."""
    if isinstance(relations, EdgeList):
        return "sparse"
    if relations is None and compatibility is None:
        return "blockwise"  # which is PyTorch's own attention here
    if why_not_blockwise(query, relations, dropout, compatibility) is not None:
        return "dense"
    assert isinstance(relations, RelativePositions)
    if relations.max_distance == 0:
        return "blockwise"
    if is_diagonal(query, key, relations, dropout):
        limit = 512 if causal else 768
    else:
        limit = 256 if causal else 384
    is_long = query.shape[2] >= 16 and key.shape[2] >= limit
    return "blockwise" if is_long else "dense"
