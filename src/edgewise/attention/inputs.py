"""The arguments of an attention call: checked and normalised once, then passed on whole."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgewise.attention.compatibility import Compatibility, DotProduct
from edgewise.attention.relations import Relation, check_like_query, has_values
from edgewise.attention.shapes import Keys, Mask, Queries, Table
from edgewise.errors import ArgumentError

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LOWERED_BY_AUTOCAST = (torch.float32, torch.bfloat16, torch.float16)

DOT_PRODUCT = DotProduct()


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """What every backend is given; `normalise` makes it.

    relations is None where a relation would change nothing: then attention is plain.
    """

    query: Queries
    key: Keys
    value: Keys
    relations: Relation | None
    key_table: Table | None
    value_table: Table | None
    mask: Mask | None = None
    causal: bool = False
    dropout: float = 0.0
    scale: float = 1.0
    compatibility: Compatibility = DOT_PRODUCT

    @property
    def n_query(self) -> int:
        return self.query.shape[2]

    @property
    def n_key(self) -> int:
        return self.key.shape[2]

    @property
    def has_tables(self) -> bool:
        return self.key_table is not None or self.value_table is not None

    @property
    def is_dot_product(self) -> bool:
        return isinstance(self.compatibility, DotProduct)

    @property
    def tables_per_head(self) -> bool:
        tables = (self.key_table, self.value_table)
        return any(table is not None and table.dim() == 3 for table in tables)

    def replace(self, **changes: Any) -> "AttentionInputs":
        return dataclasses.replace(self, **changes)

    def map_floats(self, function: Callable[[Tensor], Tensor]) -> "AttentionInputs":
        """Return the inputs with each floating-point tensor replaced by `function` of it."""
        tables = (self.key_table, self.value_table)
        key_table, value_table = (None if x is None else function(x) for x in tables)
        relations = self.relations
        if relations is not None and not relations.has_labels:
            relations = relations.map_tensors(function)
        return self.replace(
            query=function(self.query),
            key=function(self.key),
            value=function(self.value),
            relations=relations,
            key_table=key_table,
            value_table=value_table,
            compatibility=self.compatibility.map_tensors(function),
        )

    def cast(self, dtype: torch.dtype) -> "AttentionInputs":
        """Return the inputs with all floating-point tensors in another dtype."""
        return self if self.query.dtype == dtype else self.map_floats(lambda x: x.to(dtype))

    def allowed(self) -> Mask | None:
        """Return where queries may attend, by mask and causality; None: everywhere."""
        if not self.causal:
            return self.mask
        device = self.query.device
        relations = Relation() if self.relations is None else self.relations
        queries = relations.query_positions(self.n_query, device)[..., None]
        past = torch.arange(self.n_key, device=device) <= queries
        past = past[:, None] if past.dim() == 3 else past[None, None]
        return past if self.mask is None else past & self.mask

    def without_padding(self) -> "AttentionInputs":
        """Return the inputs with zeros for keys and values that no query may attend.

        A product with a weight of zero would spread their NaN and infinity. On CPUs, nothing is
        copied if there are none.
        """
        future = None
        if self.causal and self.relations is not None:
            future = self.relations.future_keys(self.n_query, self.n_key, self.query.device)
        if self.mask is None and future is None:
            return self
        if has_values(self.key) and bool((self.key.sum() + self.value.sum()).isfinite()):
            return self
        hidden = None if self.mask is None else ~self.mask.any(-2)
        if future is not None:
            future = future[:, None] if future.dim() == 2 else future[None, None]
            hidden = future if hidden is None else hidden | future
        assert hidden is not None
        rows = hidden[..., None]
        return self.replace(
            key=self.key.masked_fill(rows, 0.0), value=self.value.masked_fill(rows, 0.0)
        )


def normalise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relations: Relation | None,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | Tensor | None = None,
    compatibility: Compatibility | None = None,
) -> AttentionInputs:
    """Return the arguments of `relation_attention` as one object; ArgumentError if they are wrong.

    Under autocast, floating-point tensors are cast as PyTorch casts those of its own attention.
    """
    check_types(query, key, value, relations, key_table, value_table, compatibility)
    check_shapes(query, key, value)
    mask = check_mask(mask, (*query.shape[:3], key.shape[2]), query.device)
    inputs = AttentionInputs(
        *(query, key, value, relations, key_table, value_table, mask, causal, dropout),
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else 1.0,
        compatibility=DOT_PRODUCT if compatibility is None else compatibility,
    )
    if is_autocast_enabled(query.device.type):
        inputs = lowered_by_autocast(inputs)
    check(inputs)
    if scale is not None:
        inputs = scaled(inputs, scale)
    return simplified(inputs)


def is_autocast_enabled(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def lowered_by_autocast(inputs: AttentionInputs) -> AttentionInputs:
    """Return the inputs in the precision of autocast, which leaves float64 as it is."""
    dtype = torch.get_autocast_dtype(inputs.query.device.type)
    return inputs.map_floats(lambda x: x.to(dtype) if x.dtype in LOWERED_BY_AUTOCAST else x)


def scaled(inputs: AttentionInputs, scale: float | Tensor) -> AttentionInputs:
    """Return the inputs with the scale that was given; a tensor is multiplied with the queries."""
    if not isinstance(scale, Tensor):
        if not math.isfinite(scale):
            raise ArgumentError(f"scale must be a finite number or None; got {scale}")
        return inputs.replace(scale=float(scale))
    if scale.dim() != 0 or not scale.is_floating_point():
        raise ArgumentError(
            "scale must be a number or a floating-point tensor with no dimensions; "
            f"got {scale.dtype} {list(scale.shape)}"
        )
    if not inputs.compatibility.is_linear_in_query:
        raise ArgumentError(
            f"scale must be a number with compatibility={type(inputs.compatibility).__name__}; "
            "got a tensor"
        )
    query = inputs.query * scale.to(dtype=inputs.query.dtype, device=inputs.query.device)
    return inputs.replace(query=query)


def simplified(inputs: AttentionInputs) -> AttentionInputs:
    """Return inputs of the same result without what does not influence it."""
    relations = inputs.relations
    if relations is not None and relations.has_labels and relations.is_dense:
        moves_queries = inputs.causal and relations.sets_positions
        if not inputs.has_tables and not moves_queries:
            inputs = inputs.replace(relations=None)
    if inputs.is_dot_product:
        return inputs
    has_edge_keys = inputs.key_table is not None or (
        relations is not None and relations.vectors("edge_key") is not None
    )
    simpler = inputs.compatibility.simplified(has_edge_keys=has_edge_keys)
    return inputs.replace(compatibility=simpler)


def check(inputs: AttentionInputs) -> None:
    """Raise ArgumentError for what cannot be computed."""
    query, key, relations = inputs.query, inputs.key, inputs.relations
    check_like_query("key", key, query)
    check_like_query("value", inputs.value, query)
    inputs.compatibility.check(query)
    if relations is not None:
        relations.check(query, key)
    for name in ("key_table", "value_table"):
        table = getattr(inputs, name)
        if table is None:
            continue
        if relations is None:
            raise ArgumentError(
                f"{name} needs relations that label the edges; got relations=None "
                "(RelativePositions(max_distance), or leave the table out)"
            )
        relations.check_table(name, table, query)
        check_like_query(name, table, query)
    if not 0.0 <= inputs.dropout < 1.0:
        raise ArgumentError(f"dropout must be in [0, 1); got {inputs.dropout}")
    check_causal(inputs)


def check_types(
    query: object,
    key: object,
    value: object,
    relations: object,
    key_table: object,
    value_table: object,
    compatibility: object,
) -> None:
    """Raise ArgumentError for arguments of another type."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
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
    if relations is not None and not isinstance(relations, Relation):
        raise ArgumentError(
            "relations must be RelativePositions, EdgeLabels, EdgeList, EdgeVectors or None; "
            f"got {type(relations).__name__}"
        )
    for name, table in (("key_table", key_table), ("value_table", value_table)):
        if table is not None and not isinstance(table, Tensor):
            raise ArgumentError(f"{name} must be a tensor; got {type(table).__name__}")
    if compatibility is not None and not isinstance(compatibility, Compatibility):
        raise ArgumentError(
            f"compatibility must be Additive(u), Gated() or None; got {compatibility!r}"
        )


def check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ArgumentError unless query, key and value fit each other."""
    batch, heads, _, d_head = key.shape
    if (query.shape[0], query.shape[1], query.shape[3]) != (batch, heads, d_head):
        raise ArgumentError(
            "key must have the query's batch, head and d_head, "
            f"[{query.shape[0]}, {query.shape[1]}, n_key, {query.shape[3]}]; got {list(key.shape)}"
        )
    if d_head == 0:
        raise ArgumentError("query must have a d_head of 1 or more; got 0")
    if value.shape != key.shape:
        raise ArgumentError(
            f"value must have the key's shape, {list(key.shape)}; got {list(value.shape)}"
        )


def check_causal(inputs: AttentionInputs) -> None:
    """Raise ArgumentError if the relation takes no mask, or does not position the queries."""
    relations, n_query, n_key = inputs.relations, inputs.n_query, inputs.n_key
    is_dense = relations is None or relations.is_dense
    if not is_dense and (inputs.causal or inputs.mask is not None):
        raise ArgumentError(
            f"{type(relations).__name__} takes no mask and no causal; "
            f"got {'causal' if inputs.causal else 'a mask'} (only its edges are attended: leave "
            "out those that may not be)"
        )
    sets_positions = relations is not None and relations.sets_positions
    if inputs.causal and not sets_positions and n_query != n_key:
        raise ArgumentError(
            "causal without relative positions needs as many queries as keys; got "
            f"{n_query} and {n_key} (RelativePositions(k, query_offset=...) positions the queries)"
        )


def check_mask(mask: object, shape: tuple[int, int, int, int], device: torch.device) -> Mask | None:
    """Return a mask as 4-D; [n_query, n_key] is shared by all sentences and heads."""
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
