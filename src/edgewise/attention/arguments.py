"""What every path is given: the arguments checked once, with errors that say what to do."""

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from edgewise.attention.compatibility import Additive, Compatibility, Gated
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.relations import EdgeLabels, EdgeVectors, Relations, RelativePositions
from edgewise.errors import ArgumentError

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    relations: Relations | None,
    key_table: Tensor | None,
    value_table: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float | None,
    compatibility: Compatibility | None = None,
) -> Bool[Tensor, "#batch #head #n_query #n_key"] | None:
    """Raise `ArgumentError` for what cannot be computed; return the mask as 4-D."""
    check_inputs(query, key, value)
    check_relations(query, key, relations)
    check_compatibility(query, compatibility)
    check_table("key_table", key_table, query, relations)
    check_table("value_table", value_table, query, relations)
    batch, heads, n_query, _ = query.shape
    n_key = key.shape[2]
    if isinstance(relations, EdgeList) and (causal or mask is not None):
        given = "causal" if causal else "a mask"
        raise ArgumentError(
            f"EdgeList takes no mask and no causal; got {given} (its edges say what is attended: "
            "leave out those that may not be)"
        )
    if causal and not isinstance(relations, RelativePositions) and n_query != n_key:
        raise ArgumentError(
            "causal without relative positions needs as many queries as keys; "
            f"got {n_query} and {n_key} (RelativePositions(k, query_offset=...) places the queries)"
        )
    if not 0.0 <= dropout < 1.0:
        raise ArgumentError(f"dropout must be in [0, 1); got {dropout}")
    if scale is not None and not math.isfinite(scale):
        raise ArgumentError(f"scale must be a finite number or None; got {scale}")
    return check_mask(mask, (batch, heads, n_query, n_key), query.device)


def check_inputs(query: Tensor, key: Tensor, value: Tensor | None) -> None:
    """Shapes, dtypes and devices of query, key and value."""
    given = [("query", query), ("key", key)]
    if value is not None:
        given.append(("value", value))
    for name, tensor in given:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{name} must be a tensor; got {type(tensor).__name__}")
        if tensor.dim() != 4:
            raise ArgumentError(
                f"{name} must be [batch, head, n, d_head]; got {list(tensor.shape)}"
            )
        if tensor.dtype not in DTYPES:
            raise ArgumentError(
                f"{name} must be float32, float64, bfloat16 or float16; got {tensor.dtype}"
            )
    batch, heads, _, d_head = key.shape
    if (query.shape[0], query.shape[1], query.shape[3]) != (batch, heads, d_head):
        raise ArgumentError(
            "key must have the query's batch, head and d_head, "
            f"[{query.shape[0]}, {query.shape[1]}, n_key, {query.shape[3]}]; got {list(key.shape)}"
        )
    if d_head == 0:
        raise ArgumentError("query must have a d_head of 1 or more; got 0")
    if value is not None and value.shape != key.shape:
        raise ArgumentError(
            f"value must have the key's shape, {list(key.shape)}; got {list(value.shape)}"
        )
    for name, tensor in given[1:]:
        check_like_query(name, tensor, query)


def check_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise ArgumentError(
            f"{name} must be on the query's device, {query.device}; got {tensor.device}"
        )


def check_like_query(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.dtype != query.dtype:
        raise ArgumentError(
            f"{name} must have the query's dtype, {query.dtype}; got {tensor.dtype} "
            f"({name}.to(query.dtype) converts it)"
        )
    check_device(name, tensor, query)


def check_relations(query: Tensor, key: Tensor, relations: Relations | None) -> None:
    """Whether the relations are of these queries and keys."""
    if relations is None:
        return
    batch, heads, n_query, d_head = query.shape
    n_key = key.shape[2]
    if isinstance(relations, RelativePositions):
        offset = relations.query_offset
        if isinstance(offset, Tensor) and offset.shape[0] != batch:
            raise ArgumentError(
                f"query_offset must have one offset for each sentence, [{batch}]; "
                f"got {list(offset.shape)}"
            )
    elif isinstance(relations, EdgeLabels):
        labels = relations.labels
        if list(labels.shape) not in ([n_query, n_key], [batch, n_query, n_key]):
            raise ArgumentError(
                f"labels must have a row for each query and a column for each key, [{n_query}, "
                f"{n_key}], or that for each item, [{batch}, {n_query}, {n_key}]; "
                f"got {list(labels.shape)}"
            )
        check_device("labels", labels, query)
    elif isinstance(relations, EdgeList):
        check_graph(query, key, relations)
    elif isinstance(relations, EdgeVectors):
        for name in ("edge_key", "edge_value"):
            vectors = getattr(relations, name)
            if vectors is None:
                continue
            shape, last = list(vectors.shape), [n_query, n_key, d_head]
            fits = shape[-3:] == last and (
                shape[:-3] in ([], [batch])
                or (len(shape) == 5 and shape[0] in (1, batch) and shape[1] in (1, heads))
            )
            if not fits:
                raise ArgumentError(
                    f"{name} must be {last}, {[batch, *last]}, or {[batch, heads, *last]} with "
                    f"sizes of 1 for batch and head; got {shape}"
                )
            check_like_query(name, vectors, query)
    else:
        raise ArgumentError(
            "relations must be RelativePositions, EdgeLabels, EdgeList, EdgeVectors or None; "
            f"got {type(relations).__name__}"
        )


def check_graph(query: Tensor, key: Tensor, graph: EdgeList) -> None:
    """Whether all edges lead from a query to a key."""
    n_query, n_key = query.shape[2], key.shape[2]
    for name, end, there, of in (
        ("query_index", graph.least_queries, n_query, "queries"),
        ("key_index", graph.least_keys, n_key, "keys"),
    ):
        if end > there:
            raise ArgumentError(f"{name} must be below the number of {of}, {there}; got {end - 1}")
    if graph.n_nodes is not None and not graph.n_nodes == n_query == n_key:
        raise ArgumentError(
            f"the graph has n_nodes={graph.n_nodes}; got {n_query} queries and {n_key} keys"
        )
    check_device("the graph", graph.labels, query)


def check_compatibility(query: Tensor, compatibility: Compatibility | None) -> None:
    if compatibility is None or isinstance(compatibility, Gated):
        return
    if not isinstance(compatibility, Additive):
        raise ArgumentError(
            f"compatibility must be Additive(u), Gated() or None; got {compatibility!r}"
        )
    _, heads, _, d_head = query.shape
    if list(compatibility.u.shape) not in ([d_head], [heads, d_head]):
        raise ArgumentError(
            f"u must be [{d_head}] or, a vector for each head, [{heads}, {d_head}]; "
            f"got {list(compatibility.u.shape)}"
        )
    check_like_query("u", compatibility.u, query)


def check_table(
    name: str, table: Tensor | None, query: Tensor, relations: Relations | None
) -> None:
    if table is None:
        return
    if relations is None or isinstance(relations, EdgeVectors):
        given = "None" if relations is None else "EdgeVectors, which has the vectors itself"
        raise ArgumentError(
            f"{name} needs relations that label the edges; got relations={given} "
            "(RelativePositions(max_distance), or leave the table out)"
        )
    if not isinstance(table, Tensor):
        raise ArgumentError(f"{name} must be a tensor; got {type(table).__name__}")
    _, heads, _, d_head = query.shape
    labels, shape = relations.n_labels, list(table.shape)
    if isinstance(relations, RelativePositions):
        if shape not in ([labels, d_head], [heads, labels, d_head]):
            raise ArgumentError(
                f"{name} must be [{labels}, {d_head}] or, a table for each head, "
                f"[{heads}, {labels}, {d_head}] (max_distance {relations.max_distance} has "
                f"{labels} labels); got {shape}"
            )
    else:
        if len(shape) not in (2, 3) or shape[-1] != d_head or shape[:-2] not in ([], [heads]):
            raise ArgumentError(
                f"{name} must be [label, {d_head}] or, a table for each head, "
                f"[{heads}, label, {d_head}]; got {shape}"
            )
        if shape[-2] < labels:
            raise ArgumentError(
                f"labels must be below the number of rows of {name}, {shape[-2]}; got {labels - 1}"
            )
    check_like_query(name, table, query)


def check_mask(
    mask: Tensor | None, shape: tuple[int, int, int, int], device: torch.device
) -> Bool[Tensor, "#batch #head #n_query #n_key"] | None:
    """A mask as 4-D: [n_query, n_key] is the same for each sentence and head."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise ArgumentError(f"mask must be a bool tensor; got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise ArgumentError(
            f"mask must be bool, True where a query may attend; got {mask.dtype} "
            "(an additive mask of 0 and -inf is mask == 0)"
        )
    if mask.device != device:
        raise ArgumentError(f"mask must be on the query's device, {device}; got {mask.device}")
    _, _, n_query, n_key = shape
    if mask.dim() == 2 and list(mask.shape) == [n_query, n_key]:
        return mask[None, None]
    fits = mask.dim() == 4 and all(
        got in (1, full) for got, full in zip(mask.shape, shape, strict=True)
    )
    if not fits:
        raise ArgumentError(
            f"mask must be [n_query, n_key], here [{n_query}, {n_key}], or 4-D and broadcast to "
            f"[batch, head, n_query, n_key], here {list(shape)}; got {list(mask.shape)} "
            "(a padding mask [batch, n_key] is mask[:, None, None, :])"
        )
    return mask


def allowed_edges(
    query: Tensor,
    key: Tensor,
    relations: Relations | None,
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    causal: bool,
) -> Bool[Tensor, "#batch #head #n_query #n_key"] | None:
    """Where a query may attend, mask and causality together; None where it may everywhere."""
    if not causal:
        return mask
    positions = relations if isinstance(relations, RelativePositions) else RelativePositions(0)
    past = positions.distances(query.shape[2], key.shape[2], query.device) <= 0
    past = past[:, None] if past.dim() == 3 else past[None, None]
    return past if mask is None else past & mask
