"""`relation_attention`: check the arguments, choose a path, compute."""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.attention import dense, fused, operators, plain, reference
from edgewise.attention.arguments import allowed_edges, check_arguments
from edgewise.attention.relations import RelativePositions
from edgewise.errors import ArgumentError

Method = Literal["auto", "reference", "dense", "blockwise"]

LOWERED_BY_AUTOCAST = (torch.float32, torch.bfloat16, torch.float16)


def relation_attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    relations: RelativePositions | None,
    *,
    key_table: Float[Tensor, "*head n_label d_head"] | None = None,
    value_table: Float[Tensor, "*head n_label d_head"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    method: Method = "auto",
) -> Float[Tensor, "batch head n_query d_head"]:
    """Attention that knows how query and key are related (equations 3 and 4 of the paper).

    relations: how edges are labelled; None is plain attention.
    key_table, value_table: [n_label, d_head], or [head, n_label, d_head] for a table a head: the
        vectors a^K and a^V of each label. None leaves that term out.
    mask: bool, True = may attend; [n_query, n_key], or 4-D with sizes of 1 that broadcast.
    causal: a query sees the keys at its own position and before.
    dropout: on the attention weights, applied whenever it is above 0.
    scale: 1/sqrt(d_head) unless given.
    method: "auto" takes the fastest that can do it; docs/attention.md has the table.

    A query with nothing to attend gives zeros. Under autocast the inputs are cast, as those of
    PyTorch's own attention are.
    """
    device = query.device.type if isinstance(query, Tensor) else "cpu"
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        query, key, value = (_lowered(x, device) for x in (query, key, value))
        key_table = None if key_table is None else _lowered(key_table, device)
        value_table = None if value_table is None else _lowered(value_table, device)
        with torch.autocast(device, enabled=False):
            return relation_attention(
                *(query, key, value, relations),
                key_table=key_table,
                value_table=value_table,
                mask=mask,
                causal=causal,
                dropout=dropout,
                scale=scale,
                method=method,
            )
    mask = check_arguments(
        query, key, value, relations, key_table, value_table, mask, causal, dropout, scale
    )
    if method not in get_args(Method):
        names = ", ".join(get_args(Method))
        raise ArgumentError(f"method must be one of {names}; got {method!r}")
    if method == "blockwise":
        refusal = why_not_blockwise(query, relations, dropout)
        if refusal is not None:
            raise ArgumentError(f"method='blockwise' {refusal} (method='auto' takes another way)")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    has_tables = key_table is not None or value_table is not None
    if method == "auto":
        method = fastest(query, key, relations if has_tables else None, causal, dropout)

    if method == "reference" or 0 in (*query.shape, *key.shape):
        return reference.relation_attention(
            *(query, key, value, relations),
            key_table=key_table,
            value_table=value_table,
            mask=mask,
            causal=causal,
            dropout=dropout,
            scale=scale,
        )
    if method == "dense":
        return dense_attention(
            *(query, key, value, relations, key_table, value_table),
            *(mask, causal, dropout, scale),
        )
    if relations is None or not has_tables:
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


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relations: RelativePositions | None,
    key_table: Tensor | None,
    value_table: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float,
) -> Tensor:
    """With all weights in memory: by diagonal where a sequence attends to itself, else by label."""
    n_query, n_key = query.shape[2], key.shape[2]
    has_tables = key_table is not None or value_table is not None
    allowed = allowed_edges(query, key, relations, mask, causal)
    if relations is not None and has_tables and is_diagonal(query, key, relations, dropout):
        dead = mask is not None
        return operators.diagonal_attention(
            *(query, key, value, key_table, value_table, allowed),
            *(relations.max_distance, causal, scale, dead),
        )
    labels = None
    if relations is not None and has_tables:
        labels = relations.labels(n_query, n_key, query.device)
    return dense.attention(
        query, key, value, key_table, value_table, labels, allowed, dropout, scale
    )


def is_diagonal(query: Tensor, key: Tensor, relations: RelativePositions, dropout: float) -> bool:
    """Whether `by_diagonal` can do it: queries and keys are the same positions of a sequence."""
    return (
        query.device.type == "cpu"
        and dropout == 0
        and query.shape[2] == key.shape[2] >= 2
        and relations.max_distance >= 1
        and isinstance(relations.query_offset, int)
        and relations.query_offset == 0
    )


def _lowered(x: Tensor, device: str) -> Tensor:
    """What autocast makes of an input; a wrong type is left for `check_arguments` to name."""
    if isinstance(x, Tensor) and x.dtype in LOWERED_BY_AUTOCAST:
        return x.to(torch.get_autocast_dtype(device))
    return x


def why_not_blockwise(
    query: Tensor, relations: RelativePositions | None, dropout: float
) -> str | None:
    """What stands against the blockwise path; None if nothing does."""
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


def fastest(
    query: Tensor, key: Tensor, relations: RelativePositions | None, causal: bool, dropout: float
) -> Method:
    """The path that benchmarks/bench_methods.py measured to be the fastest for this size."""
    if relations is None:
        return "blockwise"  # which is PyTorch's own attention here
    if why_not_blockwise(query, relations, dropout) is not None:
        return "dense"
    if relations.max_distance == 0:
        return "blockwise"
    if is_diagonal(query, key, relations, dropout):
        limit = 512 if causal else 768
    else:
        limit = 256 if causal else 384
    is_long = query.shape[2] >= 16 and key.shape[2] >= limit
    return "blockwise" if is_long else "dense"
