"""The arguments of an attention call: checked and normalised once, then passed on whole."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.attention import check
from edgewise.attention.compatibility import Compatibility, DotProduct
from edgewise.attention.relations import Relation, RelativePositions, can_read_values
from edgewise.attention.shapes import EdgeVectorTensor, Keys, Labels, Mask, Queries, Table
from edgewise.errors import ArgumentError

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
    def has_unlabelled(self) -> bool:
        return self.relations is not None and self.relations.has_unlabelled

    @property
    def first_position(self) -> int | None:
        """Return the position of the first query; None: it differs between sequences."""
        if isinstance(self.relations, RelativePositions):
            offset = self.relations.query_offset
            return None if isinstance(offset, Tensor) else offset
        return None if self.relations is not None and self.relations.sets_positions else 0

    @property
    def tables_per_head(self) -> bool:
        tables = (self.key_table, self.value_table)
        return any(table is not None and table.dim() == 3 for table in tables)

    replace = dataclasses.replace

    def map_floats(self, function: Callable[[Tensor], Tensor]) -> "AttentionInputs":
        """Return the inputs with each floating-point tensor replaced by `function` of it."""

        def map_float(x: Tensor) -> Tensor:
            return function(x) if x.is_floating_point() else x

        names = ("query", "key", "value", "key_table", "value_table")
        changed = {name: function(x) for name in names if (x := getattr(self, name)) is not None}
        if self.relations is not None:
            changed["relations"] = self.relations.map_tensors(map_float)
        return self.replace(compatibility=self.compatibility.map_tensors(map_float), **changed)

    def cast(self, dtype: torch.dtype) -> "AttentionInputs":
        """Return the inputs with all floating-point tensors in another dtype."""
        return self if self.query.dtype == dtype else self.map_floats(lambda x: x.to(dtype))

    def labels(self) -> Labels | None:
        """Return [batch or 1, 1, n_query, n_key]; None: no table needs labels."""
        if self.relations is None or not self.has_tables:
            return None
        labels = self.relations.labels_between(self.n_query, self.n_key, self.query.device)
        return labels[:, None] if labels.dim() == 3 else labels[None, None]

    def edge_vectors(self, name: str) -> EdgeVectorTensor | None:
        """Return `edge_key` or `edge_value` of a relation without labels; None: it has none."""
        return None if self.relations is None else self.relations.vectors(name)

    def allowed(self) -> Mask | None:
        """Return to which keys queries may attend, by mask and causality; None: everywhere."""
        if not self.causal:
            return self.mask
        device = self.query.device
        relations = Relation() if self.relations is None else self.relations
        queries = relations.query_positions(self.n_query, device)[..., None]
        past = torch.arange(self.n_key, device=device) <= queries
        past = past[:, None] if past.dim() == 3 else past[None, None]
        return past if self.mask is None else past & self.mask

    def without_padding(self) -> "AttentionInputs":
        """Return the inputs with zeros for keys and values that no query may attend to.

        Otherwise products with their weights, which are zero, would spread their NaN and infinity.
        On CPUs, nothing is copied if there are none.
        """
        mask, key, value, first = self.mask, self.key, self.value, self.first_position
        has_future = self.causal and (first is None or self.n_key > first + self.n_query)
        if mask is None and not has_future:
            return self
        if can_read_values(key) and bool((key.sum() + value.sum()).isfinite()):
            return self
        # A padding mask and causality do not hide a key together, unless it is after all queries.
        if mask is None or mask.shape[2] > 1 or has_future:
            mask = self.allowed()
        assert mask is not None
        hidden = ~mask.any(-2)[..., None]
        return self.replace(key=key.masked_fill(hidden, 0.0), value=value.masked_fill(hidden, 0.0))


def normalise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relations: Relation | None,
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
    check_tensors(query, key, value, key_table, value_table)
    if relations is not None:
        expected = "RelativePositions, EdgeLabels, EdgeList, EdgeVectors or None"
        check.type_of("relations", relations, expected, Relation)
    if compatibility is not None:
        check.type_of("compatibility", compatibility, "Additive(u), Gated() or None", Compatibility)
    mask = check_mask(mask, query, key.shape[2])
    inputs = AttentionInputs(
        *(query, key, value, relations, key_table, value_table, mask, causal, dropout),
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else 1.0,
        compatibility=DOT_PRODUCT if compatibility is None else compatibility,
    )
    if is_autocast_enabled(query.device.type):
        lower = torch.get_autocast_dtype(query.device.type)
        inputs = inputs.map_floats(lambda x: x if x.dtype == torch.float64 else x.to(lower))
    check_inputs(inputs)
    if scale is not None:
        inputs = scaled(inputs, scale)
    return simplified(inputs)


def is_autocast_enabled(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def scaled(inputs: AttentionInputs, scale: float | Tensor) -> AttentionInputs:
    """Return the inputs with the scale that was given; a tensor is multiplied with the queries."""
    if not isinstance(scale, Tensor):
        if not math.isfinite(scale):
            raise ArgumentError(f"scale must be a finite number or None; got {scale}")
        return inputs.replace(scale=float(scale))
    expected = "a number or a floating-point tensor with no dimensions"
    check.tensor("scale", scale, expected, check.FLOATS, 0)
    if not inputs.compatibility.is_linear_in_query:
        name = type(inputs.compatibility).__name__
        raise ArgumentError(f"scale must be a number with compatibility={name}; got a tensor")
    query = inputs.query * scale.to(dtype=inputs.query.dtype, device=inputs.query.device)
    return inputs.replace(query=query)


def simplified(inputs: AttentionInputs) -> AttentionInputs:
    """Return inputs of the same result without what does not influence it."""
    relations, first = inputs.relations, inputs.first_position
    if inputs.causal and first is not None and first >= inputs.n_key - 1:
        inputs = inputs.replace(causal=False)  # a step of decoding: no key is after the query
    if relations is not None and relations.has_labels and relations.is_dense:
        moves_queries = inputs.causal and relations.sets_positions and first != 0
        if not inputs.has_tables and not moves_queries:
            inputs = inputs.replace(relations=None)
    if inputs.is_dot_product:
        return inputs
    has_edge_keys = inputs.key_table is not None or inputs.edge_vectors("edge_key") is not None
    simpler = inputs.compatibility.simplified(has_edge_keys=has_edge_keys)
    return inputs.replace(compatibility=simpler)


def check_tensors(
    query: Tensor, key: Tensor, value: Tensor, key_table: Tensor | None, value_table: Tensor | None
) -> None:
    """Raise ArgumentError unless these are tensors, and query, key and value fit each other."""
    expected = "a float32, float64, bfloat16 or float16 tensor [batch, head, n, d_head]"
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check.tensor(name, tensor, expected, check.FLOATS, 4)
    expected = "a floating-point tensor [label, d_head] or [head, label, d_head]"
    for name, table in (("key_table", key_table), ("value_table", value_table)):
        if table is not None:
            check.tensor(name, table, expected, check.FLOATS, 2, 3)
    batch, heads, _, d_head = query.shape
    if d_head == 0:
        raise ArgumentError("query must have a d_head of 1 or more; got 0")
    if (key.shape[0], key.shape[1], key.shape[3]) != (batch, heads, d_head):
        expected = "{}, with the batch, head and d_head of the query"
        check.shape("key", key, expected, (batch, heads, "n_key", d_head))
    check.shape("value", value, "{}, as key is", key.shape)


def check_inputs(inputs: AttentionInputs) -> None:
    """Raise ArgumentError for what cannot be computed."""
    query, key, relations = inputs.query, inputs.key, inputs.relations
    check.like_query("key", key, query)
    check.like_query("value", inputs.value, query)
    inputs.compatibility.check(query)
    if relations is not None:
        relations.check(query, key)
    for name, table in (("key_table", inputs.key_table), ("value_table", inputs.value_table)):
        if table is None:
            continue
        if relations is None or not relations.has_labels:
            given = relations and type(relations).__name__
            raise ArgumentError(
                f"{name} needs relations that label the edges; got relations={given} "
                "(RelativePositions(max_distance), or leave the table out)"
            )
        relations.check_table(name, table, query)
        check.like_query(name, table, query)
    check.dropout(inputs.dropout)
    is_masked = inputs.causal or inputs.mask is not None
    if is_masked and relations is not None and not relations.is_dense:
        name, given = type(relations).__name__, "causal" if inputs.causal else "a mask"
        raise ArgumentError(
            f"{name} takes no mask and no causal; got {given} (leave out edges that are hidden)"
        )
    sets_positions = relations is not None and relations.sets_positions
    if inputs.causal and not sets_positions and inputs.n_query != inputs.n_key:
        raise ArgumentError(
            f"causal needs as many queries as keys; got {inputs.n_query} and {inputs.n_key} "
            "(pass a mask instead, or RelativePositions(k, query_offset=...))"
        )


def check_mask(
    mask: Tensor | None, query: Queries, n_key: int, *, is_padding: bool = False
) -> Mask | None:
    """Return a mask as 4-D.

    A 2-D mask is [n_query, n_key] or, if is_padding, [batch, n_key], for all queries of an item.
    """
    if mask is None:
        return None
    expected = (
        "a bool tensor, True where a query may attend to a key (of 0 and -inf, pass mask == 0)"
    )
    check.tensor("mask", mask, expected, (torch.bool,))
    check.device("mask", mask, query)
    batch, heads, n_query, _ = query.shape
    shape, two = [batch, heads, n_query, n_key], [batch if is_padding else n_query, n_key]
    if list(mask.shape) == two:
        return mask[:, None, None, :] if is_padding else mask[None, None]
    if mask.dim() != 4 or any(x not in (1, y) for x, y in zip(mask.shape, shape, strict=True)):
        names = "[batch, n_key]" if is_padding else "[n_query, n_key]"
        raise ArgumentError(
            f"mask must be {names}, here {two}, or 4-D and broadcast to [batch, head, n_query, "
            f"n_key], here {shape}; got {list(mask.shape)} (mask[:, None, None, :] makes [batch, "
            "n_key] 4-D, mask[None, None] [n_query, n_key])"
        )
    return mask
